"""Toys named after their crime: one env for every way in which an env can fail.

Never build one of these in a process that you need.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from typing import Any, ClassVar, NoReturn

import numpy as np

from .plain import StepResult, ToyEnv


class FaultEnv(ToyEnv):
    """Base of the criminals: behaves like `ToyEnv` until the call that its crime waits for.

    A subclass names the `moment` ('init', 'reset' or 'step') and either commits the crime in
    `commit`, called first thing in that call, or spoils what `observe` or `inform` return
    while `guilty` is true.
    """

    moment: ClassVar[str] = "step"

    def __init__(self, at: int | None = 1, *, once: str | os.PathLike[str] | None = None, **kwargs: Any) -> None:
        """Make the env.

        Args:
            at: number of the reset or step, from 1 and over the whole life of the env, at which
                it happens; None for every one. Crimes at init happen at init.
            once: path of a file that the crime creates; where it exists already nothing happens.
                With it an env that was rebuilt after a failure does not fail again.
            kwargs: as for ToyEnv.
        """
        super().__init__(**kwargs)
        self.at = at
        self.once = once
        self.guilty = False
        self._judge("init", 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._judge("reset", self.num_resets + 1)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> StepResult:
        self._judge("step", self.num_steps + 1)
        return super().step(action)

    def commit(self) -> None:
        """Do what the class is named after."""

    def inform(self) -> dict[str, Any]:
        return {"steps": self.elapsed_steps}

    def _judge(self, moment: str, number: int) -> None:
        self.guilty = moment == self.moment and (moment == "init" or self.at in (None, number))
        if self.guilty and self.once is not None:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                self.guilty = False
        if self.guilty:
            self.commit()


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


class RaiseAtStep(FaultEnv):
    """Raise ZeroDivisionError: the plain bug in an env's own code."""

    def commit(self) -> None:
        raise ZeroDivisionError("toy env divides by zero at a step")


class RaiseAtReset(FaultEnv):
    """Raise ValueError from reset."""

    moment = "reset"

    def commit(self) -> None:
        raise ValueError("toy env cannot reset")


class RaiseAtInit(FaultEnv):
    """Raise RuntimeError from the constructor, as an env whose game files are missing."""

    moment = "init"

    def commit(self) -> None:
        raise RuntimeError("toy env cannot be built")


class RaiseWeirdError(FaultEnv):
    """Raise a WeirdError: naive re-creation of the exception breaks whoever receives it."""

    def commit(self) -> None:
        raise WeirdError(7, reason="toy env is weird")


class RaiseUnpicklableError(FaultEnv):
    """Raise an UnpicklableError: sending the exception itself fails."""

    def commit(self) -> None:
        raise UnpicklableError("toy env holds a lock")


class _Exits(FaultEnv):
    def commit(self) -> NoReturn:
        os._exit(3)


class ExitAtStep(_Exits):
    """Leave with `os._exit(3)`: no exception, no cleanup, no word; some C libraries do so."""


class ExitAtReset(_Exits):
    """Leave with `os._exit(3)` in reset."""

    moment = "reset"


class ExitAtInit(_Exits):
    """Leave with `os._exit(3)` in the constructor."""

    moment = "init"


class _Segfaults(FaultEnv):
    def commit(self) -> None:
        # A real one, from C: a signal sent by kill() would be the gentle version.
        ctypes.string_at(0)


class SegfaultAtStep(_Segfaults):
    """Read address 0 in C: the worker dies by SIGSEGV."""


class SegfaultAtReset(_Segfaults):
    """Read address 0 in C in reset."""

    moment = "reset"


class SegfaultAtInit(_Segfaults):
    """Read address 0 in C in the constructor."""

    moment = "init"


class _Hangs(FaultEnv):
    def commit(self) -> None:
        threading.Event().wait()


class HangAtStep(_Hangs):
    """Wait for ever in Python: the GIL is free, signals are heard."""


class HangAtReset(_Hangs):
    """Wait for ever in Python in reset."""

    moment = "reset"


class HangAtInit(_Hangs):
    """Wait for ever in Python in the constructor."""

    moment = "init"


class HangInC(FaultEnv):
    """Wait for ever in C without letting go of the GIL: no Python code of the worker runs again."""

    def commit(self) -> None:
        libc = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL
        while True:  # pause() returns after a signal
            libc.pause()


class StopSelf(FaultEnv):
    """Stop its process with SIGSTOP: alive to the system, silent to everyone."""

    def commit(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class LeaksMemory(FaultEnv):
    """Keep `nbytes` more bytes at every step; `at` counts for nothing here."""

    def __init__(self, nbytes: int = 1 << 20, **kwargs: Any) -> None:
        super().__init__(**{"at": None, **kwargs})
        self.nbytes = nbytes
        self._kept: list[bytes] = []

    def commit(self) -> None:
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

    def commit(self) -> None:
        if self.child is None:
            quiet = subprocess.DEVNULL
            self.child = subprocess.Popen(["sleep", "3600"], stdin=quiet, stdout=quiet, stderr=quiet)

    def inform(self) -> dict[str, Any]:
        return {**super().inform(), "child_pid": self.child.pid if self.child else None}

    def close(self) -> None:
        if self.child is not None and self.tidy:
            self.child.kill()
            self.child.wait()
            self.child = None
        super().close()


class WrongDtype(FaultEnv):
    """Observe float64 where the space says float32."""

    def observe(self) -> Any:
        obs = super().observe()
        return np.asarray(obs, np.float64) if self.guilty else obs


class WrongShape(FaultEnv):
    """Observe (3,) where the space says (4,)."""

    def observe(self) -> Any:
        obs = super().observe()
        return np.zeros(3, np.float32) if self.guilty else obs


class HugeInfo(FaultEnv):
    """Put `nbytes` bytes into info under `blob`: more than any buffer made for rare data."""

    def __init__(self, nbytes: int = 1 << 20, at: int | None = None, **kwargs: Any) -> None:
        super().__init__(at, **kwargs)
        self.nbytes = nbytes

    def inform(self) -> dict[str, Any]:
        info = super().inform()
        return {**info, "blob": bytes([self.elapsed_steps % 256]) * self.nbytes} if self.guilty else info


class UnpicklableInfo(FaultEnv):
    """Put a lock into info under `lock`: not even cloudpickle sends that."""

    def inform(self) -> dict[str, Any]:
        info = super().inform()
        return {**info, "lock": threading.Lock()} if self.guilty else info
