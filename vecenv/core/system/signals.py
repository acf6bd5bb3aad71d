"""Defer signal handlers during short sections that must not be interrupted half way.

A handler that raises, such as Python's for Ctrl-C, can run between any two lines, for example after a process was
started and before it is recorded. Blocking the signal does not help in a process with other threads (a BLAS has
some): one of them receives it, and the handler still runs in the main thread.

The C-level action of each signal is preserved. `signal.signal` alone would replace an action that
`faulthandler.register` or a simulator has installed, and would undo `signal.siginterrupt`.
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

#: Deferred handlers by signal number, while `_record_signal` is installed instead; and the signals that have come.
_deferred_handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
_pending_signals: list[int] = []

# `signal` converts these numbers to enums, which takes 0.1 ms for all signals; a pool defers signals at every reset.
_c: Any = importlib.import_module("_signal")
_NUMBERS = sorted(map(int, signal.valid_signals()))

_sigaction = ctypes.CDLL(None).sigaction if os.name == "posix" else None
#: More than struct sigaction takes on any system (152 bytes with glibc). The bytes are restored unchanged.
_ACTION_NBYTES = 1024


class signals_deferred:  # used as `with signals_deferred():`
    """Context manager that defers Python's signal handlers until its end.

    Handlers run only in the main thread, so in other threads it does nothing. The section must be short, because
    Ctrl-C has no effect before its end. May be nested. Handlers with an attribute `never_raises` are not deferred.
    """

    def __enter__(self) -> None:
        self._is_outermost = threading.current_thread() is threading.main_thread() and not _deferred_handlers
        if not self._is_outermost:
            return
        try:
            for signum in _NUMBERS:
                handler = _c.getsignal(signum)
                if callable(handler) and getattr(handler, "never_raises", None) is not True:
                    _deferred_handlers[signum] = handler
                    _set_handler(signum, _record_signal)
        except BaseException:  # raised by a handler that was not deferred yet
            _restore_handlers()
            raise

    def __exit__(self, *exc_info: object) -> None:
        if self._is_outermost:
            try:
                _restore_handlers()
            finally:  # a signal that comes now is handled at once, and earlier ones do not wait for the next section
                _deliver_pending()


def _restore_handlers() -> None:
    """Install the deferred handlers again."""
    try:
        while _deferred_handlers:
            signum, handler = next(iter(_deferred_handlers.items()))
            _set_handler(signum, handler)
            _deferred_handlers.pop(signum, None)
    except BaseException:  # raised by a handler that is already back; the others follow
        _restore_handlers()
        raise


def _set_handler(signum: int, handler: Callable[[int, FrameType | None], object]) -> None:
    """Set Python's handler of a signal, but keep the C-level action of the process."""
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
            elif handler == signal.SIG_DFL:  # the handler of an earlier signal has restored the default action
                signal.raise_signal(signum)
    finally:  # the remaining signals are handled even if a handler raises
        if _pending_signals:
            _deliver_pending()


def _reset_in_child() -> None:
    """In a forked child: drop pending signals, which were meant for the parent, and restore the handlers."""
    _pending_signals.clear()
    _restore_handlers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
