"""Toys named after their crime: one env for every way in which an env can fail.

Never build one of these in a process that you need. `FAULTS` names one of each kind, which
takes the call in which it fails as `moment`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from typing import Any, ClassVar, NoReturn

import numpy as np
from gymnasium import spaces

from .plain import StepResult, ToyEnv

#: Calls in which an env can fail. An autoreset is a reset without a seed after the end of an episode.
MOMENTS = ("construct", "reset", "step", "autoreset", "call", "close")


class FaultEnv(ToyEnv):
    """Base of the criminals: behaves like `ToyEnv` until the call that its crime waits for.

    A subclass either commits the crime in `fail`, called first thing in that call, or spoils
    what `observe`, `make_info` or `answer` return while `is_failing` is true.

    Attributes:
        moments: those in which this crime is possible.
        moment: the one in which it happens, one of MOMENTS; a class gives the default.
        is_failing: whether the call under way is the one.
    """

    moments: ClassVar[tuple[str, ...]] = MOMENTS
    moment: str = "step"

    def __init__(
        self,
        at: int | None = 1,
        *,
        moment: str | None = None,
        once: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Make the env.

        Args:
            at: which of those calls it is, from 1 and over the whole life of the env (a call that
                failed has not been made); None for every one.
            moment: in which call it happens; None: as the class says.
            once: path of a file that the crime creates; where it exists already nothing happens.
                With it an env that was rebuilt after a failure does not fail again.
            kwargs: as for ToyEnv.

        Raises:
            ValueError: this crime is not possible in that call.
        """
        super().__init__(**kwargs)
        self.moment = moment or self.moment
        if self.moment not in self.moments:
            raise ValueError(f"{type(self).__name__} happens at one of {self.moments}, not at {self.moment!r}")
        self.at = at
        self.once = once
        self.is_failing = False
        self.num_calls = dict.fromkeys(MOMENTS, 0)
        self._is_over = False
        self._fail_if_due("construct")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        moments = ("reset", "autoreset") if self._is_over and seed is None else ("reset",)
        self._fail_if_due(*moments)
        self._is_over = False
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> StepResult:
        self._fail_if_due("step")
        result = super().step(action)
        self._is_over = result[2] or result[3]
        return result

    def poke(self, value: Any = None) -> Any:
        """Return the value: this is the call that a crime at moment 'call' waits for."""
        self._fail_if_due("call")
        return self.answer(value)

    def close(self) -> None:
        self._fail_if_due("close")
        super().close()

    def fail(self) -> None:
        """Do what the class is named after."""

    def make_info(self) -> dict[str, Any]:
        return {"steps": self.elapsed_steps}

    def answer(self, value: Any) -> Any:
        """Return what `poke` does."""
        return value

    def _fail_if_due(self, *moments: str) -> None:
        self.is_failing = self.moment in moments and self.at in (None, self.num_calls[self.moment] + 1)
        if self.is_failing and self.once is not None:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                self.is_failing = False
        if self.is_failing:
            self.fail()
        for moment in moments:
            self.num_calls[moment] += 1


class WeirdError(Exception):
    """An exception that cannot be made again from its args, so it pickles but does not unpickle."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


class UnpicklableError(Exception):
    """An exception that carries something which does not pickle."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Raises(FaultEnv):
    """Raise ZeroDivisionError: the plain bug in an env's own code."""

    def fail(self) -> None:
        raise ZeroDivisionError(f"toy env divides by zero at a {self.moment}")


class RaiseAtStep(Raises):
    """Raise ZeroDivisionError from step."""


class RaiseAtReset(FaultEnv):
    """Raise ValueError from reset."""

    moment = "reset"

    def fail(self) -> None:
        raise ValueError("toy env cannot reset")


class RaiseAtInit(FaultEnv):
    """Raise RuntimeError from the constructor, as an env whose game files are missing."""

    moment = "construct"

    def fail(self) -> None:
        raise RuntimeError("toy env cannot be built")


class RaiseWeirdError(FaultEnv):
    """Raise a WeirdError: naive re-creation of the exception breaks whoever receives it."""

    def fail(self) -> None:
        raise WeirdError(7, reason="toy env is weird")


class RaiseUnpicklableError(FaultEnv):
    """Raise an UnpicklableError: sending the exception itself fails."""

    def fail(self) -> None:
        raise UnpicklableError("toy env holds a lock")


class RaiseSystemExit(FaultEnv):
    """Call `sys.exit(3)`: an exception that is no Exception, as scripts turned into envs do."""

    def fail(self) -> NoReturn:
        sys.exit(3)


class Exits(FaultEnv):
    """Leave with `os._exit(3)`: no exception, no cleanup, no word; some C libraries do so."""

    def fail(self) -> NoReturn:
        os._exit(3)


class ExitAtStep(Exits):
    """Leave with `os._exit(3)` in step."""


class ExitAtReset(Exits):
    """Leave with `os._exit(3)` in reset."""

    moment = "reset"


class ExitAtInit(Exits):
    """Leave with `os._exit(3)` in the constructor."""

    moment = "construct"


class Aborts(FaultEnv):
    """Call C's abort(), as a failed assertion of a native library does: the worker dies by SIGABRT."""

    def fail(self) -> NoReturn:
        os.abort()


class Segfaults(FaultEnv):
    """Read address 0 in C: the worker dies by SIGSEGV."""

    def fail(self) -> None:
        # A real one, from C: a signal sent by kill() would be the gentle version.
        ctypes.string_at(0)


class SegfaultAtStep(Segfaults):
    """Read address 0 in C in step."""


class SegfaultAtReset(Segfaults):
    """Read address 0 in C in reset."""

    moment = "reset"


class SegfaultAtInit(Segfaults):
    """Read address 0 in C in the constructor."""

    moment = "construct"


class Hangs(FaultEnv):
    """Wait for ever in Python: the GIL is free, signals are heard."""

    def fail(self) -> None:
        threading.Event().wait()


class HangAtStep(Hangs):
    """Wait for ever in Python in step."""


class HangAtReset(Hangs):
    """Wait for ever in Python in reset."""

    moment = "reset"


class HangAtInit(Hangs):
    """Wait for ever in Python in the constructor."""

    moment = "construct"


class HangInC(FaultEnv):
    """Wait for ever in C without letting go of the GIL: no Python code of the worker runs again."""

    def fail(self) -> None:
        libc = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL
        while True:  # pause() returns after a signal
            libc.pause()


class StopSelf(FaultEnv):
    """Stop its process with SIGSTOP: alive to the system, silent to everyone."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class LeaksMemory(FaultEnv):
    """Keep `nbytes` more bytes at every step, or whatever call `moment` says."""

    def __init__(self, nbytes: int = 1 << 20, at: int | None = None, **kwargs: Any) -> None:
        self.nbytes = nbytes
        self._kept: list[bytes] = []
        super().__init__(at, **kwargs)

    def fail(self) -> None:
        self._kept.append(b"x" * self.nbytes)  # not zeros: the pages have to be real


class SpawnsChild(FaultEnv):
    """Start a process of its own, as browsers and game engines do, and name it in info (`child_pid`).

    `close` ends it unless `tidy=False`; an env that is killed leaves it behind.
    """

    moment = "reset"

    def __init__(self, at: int | None = 1, *, tidy: bool = True, **kwargs: Any) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.tidy = tidy
        super().__init__(at, **kwargs)

    def fail(self) -> None:
        if self.child is None:
            quiet = subprocess.DEVNULL
            self.child = subprocess.Popen(["sleep", "3600"], stdin=quiet, stdout=quiet, stderr=quiet)

    def make_info(self) -> dict[str, Any]:
        return {**super().make_info(), "child_pid": self.child.pid if self.child else None}

    def close(self) -> None:
        super().close()  # which may be the moment
        if self.child is not None and self.tidy:
            self.child.kill()
            self.child.wait()
            self.child = None


class WrongDtype(FaultEnv):
    """Observe float64 where the space says float32; at construction, have such a space."""

    moments = ("construct", "reset", "step", "autoreset")

    def fail(self) -> None:
        if self.moment == "construct":
            self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)

    def observe(self) -> Any:
        obs = super().observe()
        return np.asarray(obs, np.float64) if self.is_failing or self.observation_space.dtype == np.float64 else obs


class WrongShape(FaultEnv):
    """Observe (3,) where the space says (4,); at construction, have such a space."""

    moments = ("construct", "reset", "step", "autoreset")

    def fail(self) -> None:
        if self.moment == "construct":
            self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def observe(self) -> Any:
        obs = super().observe()
        return obs[:3] if self.is_failing or self.observation_space.shape == (3,) else obs


class HugeInfo(FaultEnv):
    """Put `nbytes` bytes into info under `blob`, or return them: more than any buffer made for rare data."""

    moments = ("reset", "step", "autoreset", "call")

    def __init__(self, nbytes: int = 1 << 20, at: int | None = None, **kwargs: Any) -> None:
        super().__init__(at, **kwargs)
        self.nbytes = nbytes

    def make_info(self) -> dict[str, Any]:
        info = super().make_info()
        return {**info, "blob": self._blob()} if self.is_failing else info

    def answer(self, value: Any) -> Any:
        return self._blob() if self.is_failing else value

    def _blob(self) -> bytes:
        return bytes([self.elapsed_steps % 256]) * self.nbytes


class UnpicklableInfo(FaultEnv):
    """Put a lock into info under `lock`, or return one: not even cloudpickle sends that."""

    moments = ("reset", "step", "autoreset", "call")

    def make_info(self) -> dict[str, Any]:
        info = super().make_info()
        return {**info, "lock": threading.Lock()} if self.is_failing else info

    def answer(self, value: Any) -> Any:
        return threading.Lock() if self.is_failing else value


#: One env of each kind of fault, by its name; each takes `at`, `moment` and `once`.
FAULTS: dict[str, type[FaultEnv]] = {
    "raise": Raises,
    "raise weird": RaiseWeirdError,
    "raise unpicklable": RaiseUnpicklableError,
    "raise SystemExit": RaiseSystemExit,
    "exit": Exits,
    "abort": Aborts,
    "segfault": Segfaults,
    "hang": Hangs,
    "hang in C": HangInC,
    "stop": StopSelf,
    "leak": LeaksMemory,
    "child": SpawnsChild,
    "wrong dtype": WrongDtype,
    "wrong shape": WrongShape,
    "huge": HugeInfo,
    "unpicklable": UnpicklableInfo,
}
