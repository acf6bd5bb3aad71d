"""Toy envs with faults: one class for each way in which an env can fail, named after its fault.

Never build one of these in a process that you need. `FAULTS` has one class of each kind, which
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

__all__ = [
    "Aborts",
    "ExitAtInit",
    "ExitAtReset",
    "ExitAtStep",
    "Exits",
    "FAULTS",
    "FaultEnv",
    "HangAtInit",
    "HangAtReset",
    "HangAtStep",
    "HangInC",
    "Hangs",
    "HugeInfo",
    "LeaksMemory",
    "MOMENTS",
    "RaiseAtInit",
    "RaiseAtReset",
    "RaiseAtStep",
    "RaiseSystemExit",
    "RaiseUnpicklableError",
    "RaiseWeirdError",
    "Raises",
    "SegfaultAtInit",
    "SegfaultAtReset",
    "SegfaultAtStep",
    "Segfaults",
    "SpawnsChild",
    "StopSelf",
    "UnpicklableError",
    "UnpicklableInfo",
    "WeirdError",
    "WrongDtype",
    "WrongShape",
]

#: Calls in which an env can fail. An autoreset is a reset without a seed after the end of an episode.
MOMENTS = ("construct", "reset", "step", "autoreset", "call", "close")


class FaultEnv(ToyEnv):
    """Base of the envs with faults; behaves like `ToyEnv` until the call in which the fault happens.

    A subclass fails in `fail`, which is called at the beginning of that call, or changes the results
    of `observe`, `make_info` or `answer` while `is_failing` is true.

    Attributes:
        moments: the calls in which this fault is possible, of MOMENTS.
        moment: the call in which it happens; a class attribute is the default.
        is_failing: whether the fault happens in the current call.
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
        """Make the env; ValueError if this fault is not possible in that call.

        Args:
            at: number of the failing call among those calls, from 1, over the whole life of the env
                (a failed call does not count); None: all of them fail.
            moment: the call in which the fault happens; None: the default of the class.
            once: path of a file that the fault creates. If the file exists, the fault does not happen,
                so an env that was rebuilt after a failure does not fail again.
            kwargs: arguments of ToyEnv.
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
        """Return the value; a fault with moment 'call' happens in this call."""
        self._fail_if_due("call")
        return self.answer(value)

    def close(self) -> None:
        self._fail_if_due("close")
        super().close()

    def fail(self) -> None:
        """Cause the fault; this default does nothing."""

    def make_info(self) -> dict[str, Any]:
        return {"steps": self.elapsed_steps}

    def answer(self, value: Any) -> Any:
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
    """An exception that can be pickled but not unpickled, because its args are not those of its constructor."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


class UnpicklableError(Exception):
    """An exception with an attribute that cannot be pickled (a lock)."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


def _divide_by_zero(env: FaultEnv) -> NoReturn:
    raise ZeroDivisionError(f"toy env divides by zero at a {env.moment}")


class Raises(FaultEnv):
    """Raise ZeroDivisionError, like a simple bug in an env's own code."""

    fail = _divide_by_zero


class RaiseAtStep(FaultEnv):
    """Raise ZeroDivisionError from step."""

    fail = _divide_by_zero


class RaiseAtReset(FaultEnv):
    """Raise ValueError from reset."""

    moment = "reset"

    def fail(self) -> None:
        raise ValueError("toy env cannot reset")


class RaiseAtInit(FaultEnv):
    """Raise RuntimeError from the constructor, like an env whose game files are missing."""

    moment = "construct"

    def fail(self) -> None:
        raise RuntimeError("toy env cannot be built")


class RaiseWeirdError(FaultEnv):
    """Raise a WeirdError: unpickling the exception fails in the receiving process."""

    def fail(self) -> None:
        raise WeirdError(7, reason="toy env is weird")


class RaiseUnpicklableError(FaultEnv):
    """Raise an UnpicklableError: pickling the exception fails in the worker."""

    def fail(self) -> None:
        raise UnpicklableError("toy env holds a lock")


class RaiseSystemExit(FaultEnv):
    """Call `sys.exit(3)`, as some scripts do: SystemExit is not a subclass of Exception."""

    def fail(self) -> NoReturn:
        sys.exit(3)


def _exit(_env: FaultEnv) -> NoReturn:
    os._exit(3)


class Exits(FaultEnv):
    """Call `os._exit(3)`, as some C libraries do: the process ends without exception, cleanup or message."""

    fail = _exit


class ExitAtStep(FaultEnv):
    """Call `os._exit(3)` in step."""

    fail = _exit


class ExitAtReset(FaultEnv):
    """Call `os._exit(3)` in reset."""

    moment = "reset"
    fail = _exit


class ExitAtInit(FaultEnv):
    """Call `os._exit(3)` in the constructor."""

    moment = "construct"
    fail = _exit


class Aborts(FaultEnv):
    """Call C's abort(), like a failed assertion in a native library: the worker dies from SIGABRT."""

    def fail(self) -> NoReturn:
        os.abort()


def _segfault(_env: FaultEnv) -> None:
    # A real fault in C, because a SIGSEGV sent by kill() behaves differently.
    ctypes.string_at(0)


class Segfaults(FaultEnv):
    """Read address 0 in C: the worker dies from SIGSEGV."""

    fail = _segfault


class SegfaultAtStep(FaultEnv):
    """Read address 0 in C in step."""

    fail = _segfault


class SegfaultAtReset(FaultEnv):
    """Read address 0 in C in reset."""

    moment = "reset"
    fail = _segfault


class SegfaultAtInit(FaultEnv):
    """Read address 0 in C in the constructor."""

    moment = "construct"
    fail = _segfault


def _hang(_env: FaultEnv) -> None:
    threading.Event().wait()


class Hangs(FaultEnv):
    """Wait forever in Python: the GIL is free and Python's signal handlers run."""

    fail = _hang


class HangAtStep(FaultEnv):
    """Wait forever in Python in step."""

    fail = _hang


class HangAtReset(FaultEnv):
    """Wait forever in Python in reset."""

    moment = "reset"
    fail = _hang


class HangAtInit(FaultEnv):
    """Wait forever in Python in the constructor."""

    moment = "construct"
    fail = _hang


class HangInC(FaultEnv):
    """Wait forever in C without releasing the GIL: Python code of the worker never runs again."""

    def fail(self) -> None:
        libc = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL
        while True:  # pause() returns after a signal
            libc.pause()


class StopSelf(FaultEnv):
    """Stop its own process with SIGSTOP: the process still exists but does not respond."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class LeaksMemory(FaultEnv):
    """Allocate and keep `nbytes` more bytes at every step, or at every call of another `moment`."""

    def __init__(self, nbytes: int = 1 << 20, at: int | None = None, **kwargs: Any) -> None:
        self.nbytes = nbytes
        self._kept: list[bytes] = []
        super().__init__(at, **kwargs)

    def fail(self) -> None:
        self._kept.append(b"x" * self.nbytes)  # pages of zeros would not be allocated


class SpawnsChild(FaultEnv):
    """Start a child process, like envs with browsers or game engines; info has its `child_pid`.

    `close` kills the child unless `tidy=False`. If the env's process is killed, the child keeps running.
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
        super().close()  # may be the failing call
        if self.child is not None and self.tidy:
            self.child.kill()
            self.child.wait()
            self.child = None


class WrongDtype(FaultEnv):
    """Return float64 observations although the space is float32; with moment 'construct' the space is float64."""

    moments = ("construct", "reset", "step", "autoreset")

    def fail(self) -> None:
        if self.moment == "construct":
            self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)

    def observe(self) -> Any:
        obs = super().observe()
        return np.asarray(obs, np.float64) if self.is_failing or self.observation_space.dtype == np.float64 else obs


class WrongShape(FaultEnv):
    """Return observations of shape (3,) although the space is (4,); with moment 'construct' the space is (3,)."""

    moments = ("construct", "reset", "step", "autoreset")

    def fail(self) -> None:
        if self.moment == "construct":
            self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def observe(self) -> Any:
        obs = super().observe()
        return obs[:3] if self.is_failing or self.observation_space.shape == (3,) else obs


class HugeInfo(FaultEnv):
    """Put `nbytes` bytes into info under `blob`, or return them from `poke`: more than the message buffers hold."""

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
    """Put a lock into info under `lock`, or return one from `poke`: even cloudpickle cannot pickle it."""

    moments = ("reset", "step", "autoreset", "call")

    def make_info(self) -> dict[str, Any]:
        info = super().make_info()
        return {**info, "lock": threading.Lock()} if self.is_failing else info

    def answer(self, value: Any) -> Any:
        return threading.Lock() if self.is_failing else value


#: One env class for each kind of fault, by name; each takes `at`, `moment` and `once`.
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
