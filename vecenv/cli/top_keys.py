"""Read single keys from a terminal, without echo and without waiting for a line."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any

__all__ = ["Keys"]


class Keys:
    """Keys of standard input while the context lasts; no keys come if it is not a terminal."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._before: list[Any] = []

    def __enter__(self) -> Keys:
        if self._fd >= 0:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def wait(self, until: float) -> str:
        """Return the keys that are pressed, as soon as there are any; '' at the time `until` of `time.monotonic`."""
        seconds = max(0.0, until - time.monotonic())
        ready, _, _ = select.select([self._fd] if self._fd >= 0 else [], [], [], seconds)
        if not ready:
            return ""
        data = os.read(self._fd, 64)
        if not data:  # the terminal is gone
            self._fd = -1
        return data.decode(errors="replace")
