"""Schedule the reports of operations that have no time limit and take long.

The time of an operation is counted piece by piece, as the parent sees it pass. If the parent, or the machine, was
stopped, the age of an operation says nothing about the env.
"""

from __future__ import annotations

from ...errors import warn_caller
from ...own_log import own_logger

__all__ = ["ReportSchedule", "report"]

_LOG = own_logger()
_NS = 1_000_000_000
#: An operation is reported when it is this old, and after that at every multiple of the last value.
_REPORT_SECONDS = (10.0, 60.0, 600.0)


class ReportSchedule:
    """The reports of one operation: after 10 s, after 60 s, and then every 10 minutes.

    Args:
        least_ns: reports before this age, in nanoseconds, are skipped.

    Attributes:
        counted_ns: time of the operation so far, in nanoseconds.
    """

    def __init__(self, least_ns: int = 0) -> None:
        self.counted_ns = 0
        self._number = 0
        while self._age_ns() < least_ns:
            self._number += 1

    def is_due(self, more_ns: int) -> bool:
        """Count this much more time; return whether to report the operation now. Each report is due once."""
        self.counted_ns += more_ns
        is_due = self.counted_ns >= self._age_ns()
        self._number += is_due
        return is_due

    def next_in_ns(self) -> int:
        """Return how much more time must pass until the next report."""
        return self._age_ns() - self.counted_ns

    def is_long(self) -> bool:
        """Return whether the operation is old enough for a first report."""
        return self.counted_ns >= _REPORT_SECONDS[0] * _NS

    def _age_ns(self) -> int:
        last = len(_REPORT_SECONDS) - 1
        seconds = _REPORT_SECONDS[min(self._number, last)] * max(1, self._number - last + 1)
        return int(seconds * _NS)


def report(text: str) -> None:
    """Write a report to the log, and issue it as a RuntimeWarning."""
    _LOG.warning("%s", text)
    warn_caller(text, RuntimeWarning)
