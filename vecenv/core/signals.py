"""Signals: short pieces of work that no handler interrupts half way.

A handler that raises, as that of Ctrl-C does, can do so between any two lines: when a process has been
started, and nobody knows of it yet. Blocking the signal does not help in a process with other threads
(a BLAS has some): one of those takes it, and the handler runs in the main thread all the same.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["held", "let_go"]

#: The handlers that wait, by signal, while those of this module stand in their places; which signals have come.
_waiting: dict[int, Callable[[int, FrameType | None], object]] = {}
_came: list[int] = []


class held:  # reads as `with held():`
    """Context in which handlers of signals wait until its end; where there are no handlers, it does nothing.

    Handlers run in the main thread only, so elsewhere there is nothing to hold. What is done inside is short:
    nobody hears a Ctrl-C before its end. May be nested.
    """

    def __enter__(self) -> None:
        self._is_outermost = threading.current_thread() is threading.main_thread() and not _waiting
        if not self._is_outermost:
            return
        try:
            for signum in signal.valid_signals():
                handler = signal.getsignal(signum)
                if callable(handler):
                    _waiting[signum] = handler
                    signal.signal(signum, _note)
        except BaseException:  # of a handler that was not held yet
            let_go()
            raise

    def __exit__(self, *exc_info: object) -> None:
        if self._is_outermost:
            let_go()
            _hear()


def let_go() -> None:
    """Give the handlers their places back, as a process does that was forked while they were held."""
    try:
        while _waiting:
            signum, handler = next(iter(_waiting.items()))
            signal.signal(signum, handler)
            _waiting.pop(signum, None)
    except BaseException:  # of a handler that is back already; the others are to follow
        let_go()
        raise


def _note(signum: int, frame: FrameType | None) -> None:
    _came.append(signum)


def _hear() -> None:
    try:
        while _came:
            signum = _came.pop(0)
            handler = signal.getsignal(signum)
            if callable(handler):
                handler(signum, sys._getframe())
    finally:  # a handler that raises leaves the rest of them to be heard too
        if _came:
            _hear()
