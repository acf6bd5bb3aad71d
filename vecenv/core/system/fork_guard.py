"""Ends processes that code of an env forks from a worker, as soon as they leave that code.

Such a process has a copy of the worker's stack. If it returned from the env, it would run the worker's loop, and
write rows and messages to the parent as a second worker. A child of `multiprocessing` or `subprocess` never returns.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from types import TracebackType
from typing import NoReturn

__all__ = ["ForkGuard"]


class ForkGuard:
    """Goes around calls into envs, with `with`; without `install` it has no effect.

    Attributes:
        watched_words: (address of a uint32, its value in the worker), for `Slot.watch`; empty without `install`.
    """

    def __init__(self) -> None:
        self._is_fork = ctypes.c_uint32(0)
        self.watched_words: tuple[tuple[int, int], ...] = ()

    def install(self) -> None:
        """Mark every process that is forked from this one from now on; the mark cannot be removed."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._mark)
            self.watched_words = ((ctypes.addressof(self._is_fork), 0),)

    def _mark(self) -> None:
        self._is_fork.value = 1

    def check(self, error: BaseException | None) -> None:
        """End this process if it is marked; call it after each call of an env.

        Args:
            error: the exception that the call has raised, or None.
        """
        if self._is_fork.value:
            _end_process(error)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.check(error)


def _end_process(error: BaseException | None) -> NoReturn:
    """End this process as Python does after `error`, but without any cleanup: that belongs to the worker."""
    code = 1
    try:
        if error is None:
            code = 0
        elif not isinstance(error, SystemExit):
            traceback.print_exception(error)
        elif error.code is None or isinstance(error.code, int):
            code = (error.code or 0) & 0xFF
        else:
            sys.stderr.write(f"{error.code}\n")
        if sys.stderr is not None:
            sys.stderr.flush()
    finally:
        os._exit(code)
