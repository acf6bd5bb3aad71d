"""Signals: short pieces of work that no handler interrupts half way.

A handler that raises, as that of Ctrl-C does, can do so between any two lines: when a process has been
started, and nobody knows of it yet. Blocking the signal does not help in a process with other threads
(a BLAS has some): one of those takes it, and the handler runs in the main thread all the same.

What the process itself does at a signal stays as it is: `signal.signal` would put Python's own action in the
place of one that `faulthandler.register` or a simulator has put in front of it, and end `signal.siginterrupt`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["signals_deferred"]

#: The handlers that wait, by signal, while those of this module stand in their places; which signals have come.
_deferred_handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
_pending_signals: list[int] = []

# `signal` puts these into words, enums, which takes 0.1 ms for all signals; a pool asks at every reset.
_c: Any = importlib.import_module("_signal")
_NUMBERS = sorted(map(int, signal.valid_signals()))

_sigaction = ctypes.CDLL(None).sigaction if os.name == "posix" else None
#: More than any system's struct sigaction takes (152 with glibc); it is given back as it came.
_ACTION_NBYTES = 1024


class signals_deferred:  # reads as `with signals_deferred():`
    """Context in which handlers of signals wait until its end; where there are no handlers, it does nothing.

    Handlers run in the main thread only, so elsewhere there is nothing to hold. What is done inside is short:
    nobody hears a Ctrl-C before its end. May be nested.
    """

    def __enter__(self) -> None:
        self._is_outermost = threading.current_thread() is threading.main_thread() and not _deferred_handlers
        if not self._is_outermost:
            return
        try:
            for signum in _NUMBERS:
                handler = _c.getsignal(signum)
                if callable(handler):
                    _deferred_handlers[signum] = handler
                    _set_handler(signum, _record_signal)
        except BaseException:  # of a handler that was not held yet
            _restore_handlers()
            raise

    def __exit__(self, *exc_info: object) -> None:
        if self._is_outermost:
            try:
                _restore_handlers()
            finally:  # a signal that comes now is heard at once, and those before it are not left for the next pool
                _deliver_pending()


def _restore_handlers() -> None:
    """Give the handlers their places back."""
    try:
        while _deferred_handlers:
            signum, handler = next(iter(_deferred_handlers.items()))
            _set_handler(signum, handler)
            _deferred_handlers.pop(signum, None)
    except BaseException:  # of a handler that is back already; the others are to follow
        _restore_handlers()
        raise


def _set_handler(signum: int, handler: Callable[[int, FrameType | None], object]) -> None:
    """Have Python call this handler, and leave what the process itself does at the signal as it is."""
    action = ctypes.create_string_buffer(_ACTION_NBYTES)
    is_known = _sigaction is not None and _sigaction(signum, None, action) == 0
    try:
        _c.signal(signum, handler)
    finally:
        if _sigaction is not None and is_known:
            _sigaction(signum, action, None)


def _record_signal(signum: int, frame: FrameType | None) -> None:
    _pending_signals.append(signum)


def _deliver_pending() -> None:
    try:
        while _pending_signals:
            signum = _pending_signals.pop(0)
            handler = signal.getsignal(signum)
            if callable(handler):
                handler(signum, sys._getframe())
            elif handler == signal.SIG_DFL:  # the handler of an earlier one has left the next one to the system
                signal.raise_signal(signum)
    finally:  # a handler that raises leaves the rest of them to be heard too
        if _pending_signals:
            _deliver_pending()


def _reset_in_child() -> None:
    """In a child: what came was meant for its parent, and what was being done there is not done here."""
    _pending_signals.clear()
    _restore_handlers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
