"""Measure how long front ends copy batches. Stands after the batch on the data path, beside `leases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..layout.arena import ArenaPlan
from ..system.clock import now_ns

__all__ = ["CopyTimer", "make_copy_timer"]

#: Copies of fewer bytes are not timed. A copy of 64 KiB takes several microseconds, two reads of the clock far less.
_MIN_NBYTES = 64 << 10
_Result = TypeVar("_Result")


class CopyTimer:
    """Adds up the time that copies of large batches take; one thread uses it at a time.

    Args:
        row_nbytes: bytes of the observation of one env, at least 1.

    Attributes:
        sum_ns: nanoseconds of all copies so far.
    """

    __slots__ = ("_min_rows", "sum_ns")

    def __init__(self, row_nbytes: int) -> None:
        self._min_rows = -(-_MIN_NBYTES // row_nbytes)
        self.sum_ns = 0

    def run(self, num_rows: int, copy: Callable[..., _Result], *args: Any) -> _Result:
        """Return `copy(*args)`, which copies the observations of `num_envs` envs; time it if they are large."""
        if num_rows < self._min_rows:
            return copy(*args)
        began_ns = now_ns()
        result = copy(*args)
        self.sum_ns += now_ns() - began_ns
        return result


def make_copy_timer(plan: ArenaPlan) -> CopyTimer | None:
    """Return a timer for the batches of a pool; None if nothing is timed, or if batches of all envs are too small."""
    row_nbytes = sum(leaf.nbytes for leaf in plan.obs.leaves)
    is_large = plan.num_envs * row_nbytes >= _MIN_NBYTES
    return CopyTimer(row_nbytes) if plan.is_timed and is_large else None
