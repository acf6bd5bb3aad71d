"""ShardTable: the counters of a pool of shards, which other programs may read: states, and copies of their counters.

The driver writes steps, times of replies and owed answers as they are, so no round makes a further call for them. It
writes states when it looks at all shards, at least once a second while it waits, and workers and times of envs when a
reply contains a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..layout.counters import CountersPlan
from ..layout.spec import Array
from ..system.clock import now_ns
from .carrier import ShardPlace
from .shard_counters import CountersCopy
from .shard_status import WAITING, ShardStatus

__all__ = ["ShardTable"]


class ShardTable:
    """The words of the counters that the driver of shards writes.

    Args:
        plan: layout of the counters.
        memory: of the counters; its header says `is_native`.
        shares: the env ids of each shard, which are consecutive.

    Attributes:
        num_steps: the steps of each shard, those of its predecessors included.
        answered_ns: when the last reply of each shard came, on the monotonic clock.
        is_owed, has_arrived: whether each env owes an answer, and whether that has arrived, bool (N,).
    """

    def __init__(self, plan: CountersPlan, memory: Any, shares: Sequence[Sequence[int]]) -> None:
        rows: Any = plan.shards(memory)
        self._rows = rows
        self._slices = [slice(share[0], share[-1] + 1) for share in shares]
        self._written: list[Any] = [None] * len(shares)
        self._places: list[ShardPlace | None] = [None] * len(shares)
        # A memoryview stores a number several times as fast as an array.
        self.num_steps = memoryview(rows["num_steps"])
        self.answered_ns = memoryview(rows["answered_ns"])
        self.is_owed, self.has_arrived = plan.owed(memory)
        self._slot_of_env = plan.slot_of_env(memory)
        self._workers: Any = plan.workers(memory)
        self._slots: Any = plan.slots(memory, is_native=True)
        self._timings: Any = plan.timings(memory)
        self._slot_of_env[:] = np.arange(plan.num_envs)
        for row, share in zip(rows, shares):
            row["first_env_id"], row["num_envs"], row["state"] = share[0], len(share), WAITING

    def note(self, status: ShardStatus, place: ShardPlace | None) -> None:
        """Write the state and the place of a shard, if they have changed."""
        found = status.state, status.num_replaced, status.count("restarts"), place
        if found == self._written[status.shard]:
            return
        self._written[status.shard] = found
        row = self._rows[status.shard]
        row["pid"] = 0
        row["state"] = status.state_text(place)
        row["restarts"], row["worker_restarts"] = found[1:3]
        row["node"] = "" if place is None else place.node
        row["pid"] = 0 if place is None else place.pid
        if place != self._places[status.shard]:  # the workers belonged to another process
            self._places[status.shard] = place
            self._workers["pid"][self._slices[status.shard]] = 0

    def count(self, shard: int, counters: CountersCopy) -> None:
        """Write the newest counters of a shard, in the order that `layout.counters` states.

        Times that have passed since something begin at the time of this call: the clocks of two machines differ.
        """
        mine, now = self._slices[shard], now_ns()
        offset_ns = now - counters.taken_ns
        used = mine.start + np.unique(counters.slot_of_env)
        self._slots["op"][mine] = 0
        self._workers["pid"][mine] = 0
        self._slot_of_env[mine] = mine.start + counters.slot_of_env
        _store(self._workers, used, counters.workers)
        slots = {**counters.slots, "env_id": mine.start + counters.slots["env_id"]}
        _store(self._slots, used, {**slots, "started_ns": _moved(slots["started_ns"], offset_ns)})
        if counters.timings is not None:
            at, words = counters.timings
            timings = np.zeros(mine.stop - mine.start, self._timings.dtype)
            timings.view(np.int64)[at] = words
            timings["ended_ns"] = _moved(timings["ended_ns"], offset_ns)
            _store(self._timings, mine, timings)
        row = self._rows[shard]
        row["in_task"], row["counted_ns"] = counters.is_in_task, now


def _store(rows: Any, at: Any, values: Any) -> None:
    """Store the fields of rows, the first one last: readers load it first."""
    for name in reversed(rows.dtype.names):
        rows[name][at] = values[name]


def _moved(times_ns: Array, offset_ns: int) -> Array:
    """Return times on the clock of another machine; those that are 0 are unknown."""
    return np.where(times_ns > 0, times_ns + offset_ns, 0)
