"""ShardCounters: copies of the counters of a shard's pool, which travel to the counters of the driver.

    workers, slots, timings of the shard -> CountersCopy, with a reply -> ShardTable -> `vecenv top` beside the driver

A copy is made about once a second at most, and only beside a reply. Most of the words of a histogram are 0, and do not
travel: a copy has about 0.5 KB per env.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..advice.times import rss_of
from ..layout.counters import CountersPlan
from ..layout.flags import Op
from ..layout.spec import Array
from ..system.clock import now_ns
from ..system.process_stat import started_at, state_of

__all__ = ["CountersCopy", "ShardCounters"]

#: Shortest time between two copies.
_PERIOD_NS = 1_000_000_000
#: Largest process id of Linux.
_MOST_PID = 1 << 22


class CountersCopy(NamedTuple):
    """The counters of the pool of a shard. Env ids are those of that pool; see `layout.counters` for the fields.

    Attributes:
        taken_ns: when they were copied, on the monotonic clock of the shard.
        is_in_task: whether a task runs.
        slot_of_env: the slot of each env, int64 (n,); its number is the first env that it serves.
        workers: of each of these slots, (S,), in the order of their numbers.
        slots: the same for their progress, one array (S,) per field.
        timings: of all envs, (n,), flat as int64: the indices and the values of the words that are not 0; None if
            nothing is timed.
    """

    taken_ns: int
    is_in_task: bool
    slot_of_env: Array
    workers: Array
    slots: dict[str, Array]
    timings: tuple[Array, Array] | None


class ShardCounters:
    """Copies the counters of an open pool.

    Args:
        plan, memory: of the counters.
        is_native: as in their header.
    """

    def __init__(self, plan: CountersPlan, memory: Any, *, is_native: bool) -> None:
        self._slot_of_env = plan.slot_of_env(memory)
        self._workers = plan.workers(memory)
        self._slots: Any = plan.slots(memory, is_native=is_native)
        self._timings = plan.timings(memory)
        self._due_ns = self._taken_ns = 0
        self._busy_ns = np.zeros(len(self._slot_of_env))  # busy time by env, at the last copy

    def copy_if_due(self, *, is_in_task: bool) -> CountersCopy | None:
        """Return a copy; None if the last one is younger than a second."""
        taken_ns = now_ns()
        if taken_ns < self._due_ns:
            return None
        self._due_ns = taken_ns + _PERIOD_NS
        # An env may have written to these words: no value of them may raise an exception here.
        slot_of_env = np.clip(self._slot_of_env, 0, len(self._workers) - 1)
        used, first, index = np.unique(slot_of_env, return_index=True, return_inverse=True)
        slots = {name: self._slots[name][used] for name in self._slots.dtype.names}
        workers = self._workers[used]
        timings = None
        if self._timings is not None:
            copied = self._timings.copy()  # in the order of addresses: each number before its histogram
            words = copied.view(np.int64)
            (at,) = np.nonzero(words)
            timings = at.astype(np.int32), words[at]
            workers["busy_share"] = self._busy_shares(copied, slots, index, taken_ns)
        else:
            workers["busy_share"] = math.nan
        self._taken_ns = taken_ns
        workers["stack_fd"] = -1
        workers["pid"][(workers["pid"] < 0) | (workers["pid"] > _MOST_PID)] = 0
        for pid in np.unique(workers["pid"]).tolist():
            mine = workers["pid"] == pid
            workers["rss_nbytes"][mine] = rss_of(pid)
            is_same = started_at(pid) == str(workers["started"][mine][0])
            workers["state"][mine] = state_of(pid) if is_same else ""
        return CountersCopy(taken_ns, is_in_task, first[index], workers, slots, timings)

    def _busy_shares(self, timings: Array, slots: dict[str, Array], index: Array, taken_ns: int) -> Array:
        """Return the part of the time since the last copy in which each slot has stepped or reset envs; NaN before.

        Args:
            timings: the copied ones.
            slots: the copied ones.
            index: of the slot of each env.
            taken_ns: the time of the copy.
        """
        busy_ns = (timings["step_ns"] + timings["reset_ns"]).astype(np.float64)
        is_running = (
            np.isin(slots["op"], (Op.STEP, Op.RESET)) & (slots["env_id"] >= 0) & (slots["env_id"] < len(busy_ns))
        )
        for slot in np.flatnonzero(is_running).tolist():  # its operation is not in the sums yet
            busy_ns[slots["env_id"][slot]] += max(0, taken_ns - int(slots["started_ns"][slot]))
        before, self._busy_ns = self._busy_ns, busy_ns
        if not self._taken_ns:
            return np.full(len(slots["op"]), math.nan)
        since = np.bincount(index, np.maximum(0.0, busy_ns - before)) / (taken_ns - self._taken_ns)
        return np.minimum(1.0, since)
