"""ShardTable: the counters of shards, which other programs may read: states, steps, and which envs owe an answer.

The driver writes them as they are, so no round makes a further call for them. States are written when the driver looks
at all shards, at least once a second while it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..layout.counters import CountersPlan
from .carrier import ShardPlace
from .shard_status import ShardStatus

__all__ = ["ShardTable"]


class ShardTable:
    """The words of the counters that the driver of shards writes.

    Args:
        plan: layout of the counters.
        memory: of the counters.
        shares: the env ids of each shard.
        is_native: as in the header.

    Attributes:
        num_steps: the steps of each shard, those of its predecessors included.
        answered_ns: when the last reply of each shard came, on the monotonic clock.
        is_owed, has_arrived: whether each env owes an answer, and whether that has arrived, bool (N,).
    """

    def __init__(self, plan: CountersPlan, memory: Any, shares: Sequence[Sequence[int]], *, is_native: bool) -> None:
        rows: Any = plan.shards(memory)
        slots: Any = plan.slots(memory, is_native=is_native)
        self._rows = rows
        self._written: list[Any] = [None] * len(shares)
        # A memoryview stores a number several times as fast as an array.
        self.num_steps = memoryview(slots["num_steps"])
        self.answered_ns = memoryview(rows["answered_ns"])
        self.is_owed, self.has_arrived = plan.owed(memory)
        slot_of_env = plan.slot_of_env(memory)
        for shard, share in enumerate(shares):
            slot_of_env[list(share)] = shard

    def note(self, status: ShardStatus, place: ShardPlace | None) -> None:
        """Write the state and the place of a shard, if they have changed."""
        found = status.state, status.num_replaced, status.count("restarts"), place
        if found == self._written[status.shard]:
            return
        self._written[status.shard] = found
        row = self._rows[status.shard]
        row["pid"] = 0
        row["state"], row["restarts"], row["worker_restarts"] = found[0].value, *found[1:3]
        row["node"] = "" if place is None else place.node
        row["pid"] = 0 if place is None else place.pid
