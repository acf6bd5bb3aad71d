"""Clock: the one place that reads the time; deadlines for every wait on the data path."""

from __future__ import annotations

import numbers
import time
from typing import Any

from ...errors import ConfigError

__all__ = ["MOST_SECONDS", "NEVER_NS", "Deadline", "check_timeout", "is_number", "limit_of", "now_ns"]

#: A deadline that does not come: far enough for any run, small enough for C's int64.
NEVER_NS = 2**62

#: A limit above this, 30 years, is none; C's int64 of nanoseconds has room for what is below.
MOST_SECONDS = 1e9
#: Longest sleep in one go, 11 days: system calls take milliseconds of 32 bits. Who waits looks at the deadline then.
_LONGEST_SLEEP_SECONDS = 1e6

now_ns = time.monotonic_ns


def limit_of(timeout: float | None) -> float | None:
    """Return a time limit as it is, None for one that never comes, such as `math.inf`."""
    return None if timeout is None or timeout > MOST_SECONDS else timeout


def is_number(value: Any) -> bool:
    """Whether this is a real number, which NaN is not."""
    return isinstance(value, numbers.Real) and bool(value == value)


def check_timeout(name: str, timeout: Any) -> None:
    """Raise ConfigError unless this is a number of seconds or None."""
    if timeout is not None and not is_number(timeout):
        raise ConfigError(f"{name}: expected seconds or None, got {timeout!r}", key=name)


class Deadline:
    """An instant on the monotonic clock, made from seconds counted from now.

    `None` seconds means no limit, and so do more than `MOST_SECONDS`. Immutable apart from `extend`,
    which a waiter calls when it finds that it was itself stopped for a while.
    """

    __slots__ = ("at_ns",)

    def __init__(self, timeout: float | None) -> None:
        limit = limit_of(timeout)
        self.at_ns = NEVER_NS if limit is None else now_ns() + int(max(0.0, limit) * 1e9)  # -inf has no int

    def is_over(self) -> bool:
        """Tell whether the instant has passed."""
        return self.at_ns != NEVER_NS and now_ns() >= self.at_ns

    def seconds_left(self) -> float | None:
        """Return seconds to sleep until the instant, at least 0.0 and at most 11 days; None without a limit."""
        if self.at_ns == NEVER_NS:
            return None
        return min(max(0.0, (self.at_ns - now_ns()) / 1e9), _LONGEST_SLEEP_SECONDS)

    def extend(self, gap_ns: int) -> None:
        """Move the instant later by `gap_ns` nanoseconds."""
        if self.at_ns != NEVER_NS:
            self.at_ns += gap_ns
