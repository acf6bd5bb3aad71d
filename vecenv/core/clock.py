"""Clock: the one place that reads the time; deadlines for every wait on the data path."""

from __future__ import annotations

import time

__all__ = ["NEVER_NS", "Deadline", "now_ns"]

#: A deadline that does not come: far enough for any run, small enough for C's int64.
NEVER_NS = 2**62

now_ns = time.monotonic_ns


class Deadline:
    """An instant on the monotonic clock, made from seconds counted from now.

    `None` seconds means no limit. Immutable apart from `extend`, which a waiter calls when
    it finds that it was itself stopped for a while.
    """

    __slots__ = ("at_ns", "timeout")

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.at_ns = NEVER_NS if timeout is None else now_ns() + max(0, int(timeout * 1e9))

    def is_over(self) -> bool:
        """Tell whether the instant has passed."""
        return self.at_ns != NEVER_NS and now_ns() >= self.at_ns

    def seconds_left(self) -> float | None:
        """Return seconds until the instant, at least 0.0; None without a limit."""
        return None if self.at_ns == NEVER_NS else max(0.0, (self.at_ns - now_ns()) / 1e9)

    def extend(self, gap_ns: int) -> None:
        """Move the instant later by `gap_ns` nanoseconds."""
        if self.at_ns != NEVER_NS:
            self.at_ns += gap_ns
