"""Delay Ctrl-C until the results of the round under way are stored, so that it loses none.

A handler may run between any two instructions, for example after results have been received and before they are
stored. While a batch is collected, the first Ctrl-C is therefore recorded, and takes effect before or during the next
call of the policy. A second one takes effect at once, in case that an env hangs.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["DelayedInterrupts"]


class DelayedInterrupts:
    """A context manager; Ctrl-C has its usual effect at once only inside `allow()`.

    In other threads than the main one, and where SIGINT has no handler in Python, it does nothing.
    """

    def __init__(self) -> None:
        self._handler: Any = None  # the caller's handler, while ours replaces it
        self._is_allowed = False
        self._is_pending = False

    def __enter__(self) -> DelayedInterrupts:
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._is_allowed = self._is_pending = False
            self._handler = handler
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._handler is None:
            return
        handler, self._handler = self._handler, None
        if signal.getsignal(signal.SIGINT) == self._on_signal:  # else the policy has set a handler of its own
            signal.signal(signal.SIGINT, handler)
        if self._is_pending:
            self._is_pending = False
            try:
                handler(signal.SIGINT, None)
            except BaseException as interrupt:
                if error is not None and hasattr(error, "collected"):  # the interrupt replaces this error
                    vars(interrupt)["collected"] = error.collected
                raise

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._is_allowed or self._is_pending:
            self._is_pending = False
            self._handler(signum, frame)
        else:
            self._is_pending = True

    def allow(self) -> None:
        """Let Ctrl-C take effect from now on, and let one that has come take effect now."""
        self._is_allowed = True
        if self._is_pending:
            self._is_pending = False
            self._handler(signal.SIGINT, None)

    def delay(self) -> None:
        """Record Ctrl-C from now on."""
        self._is_allowed = False
