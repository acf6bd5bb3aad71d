"""Read the monotonic clock, and compute the deadlines of every wait on the data path."""

from __future__ import annotations

import numbers
import time
from typing import Any

from ...errors import ConfigError

__all__ = ["MOST_SECONDS", "NEVER_NS", "Deadline", "check_timeout", "cpu_ns", "is_number", "limit_of", "now_ns"]

#: The value of a deadline that never comes: 146 years in nanoseconds, which fit C's int64.
NEVER_NS = 2**62

#: A timeout above this, 30 years, counts as no limit. Smaller ones fit C's int64 of nanoseconds.
MOST_SECONDS = 1e9
#: Longest single sleep, 11 days: system calls take milliseconds as int32. A waiter then checks its deadline again.
_LONGEST_SLEEP_SECONDS = 1e6

now_ns = time.monotonic_ns
#: CPU time of the calling thread: without the time during which other processes ran.
cpu_ns = time.thread_time_ns


def limit_of(timeout: float | None) -> float | None:
    """Return a timeout in seconds unchanged, or None if it never expires, such as `math.inf`."""
    return None if timeout is None or timeout > MOST_SECONDS else timeout


def is_number(value: Any) -> bool:
    """Return whether a value is a real number; NaN is not."""
    return isinstance(value, numbers.Real) and bool(value == value)


def check_timeout(name: str, timeout: Any) -> None:
    """Raise ConfigError, with `name` as its key, unless `timeout` is a number of seconds or None."""
    if timeout is not None and not is_number(timeout):
        raise ConfigError(f"{name}: expected seconds or None, got {timeout!r}", key=name)


class Deadline:
    """An instant on the monotonic clock, given in seconds from now.

    `None` seconds means no limit, and so do more than `MOST_SECONDS`. Immutable apart from `extend`,
    which a waiter calls after its process was stopped for a while.
    """

    __slots__ = ("at_ns",)

    def __init__(self, timeout: float | None) -> None:
        limit = limit_of(timeout)
        self.at_ns = NEVER_NS if limit is None else now_ns() + int(max(0.0, limit) * 1e9)  # int() fails for -inf

    def is_over(self) -> bool:
        """Return whether the instant has passed."""
        return self.at_ns != NEVER_NS and now_ns() >= self.at_ns

    def seconds_left(self) -> float | None:
        """Return the seconds to sleep until the instant, at least 0.0 and at most 11 days; None without a limit."""
        if self.at_ns == NEVER_NS:
            return None
        return min(max(0.0, (self.at_ns - now_ns()) / 1e9), _LONGEST_SLEEP_SECONDS)

    def extend(self, gap_ns: int) -> None:
        """Move the instant `gap_ns` nanoseconds later."""
        if self.at_ns != NEVER_NS:
            self.at_ns += gap_ns
