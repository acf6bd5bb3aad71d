"""RowStore: the newest row of each env that has arrived, and the batches that are made of these rows.

Block 0 of the driver's arena has one row per env. A batch is gathered from there into the next one of the other blocks,
in the order that the caller asked for; it stays as it is until the blocks after it are used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..layout.arena import RECORD, ArenaPlan
from ..layout.columns import names_with
from ..layout.flags import RowFlag
from ..layout.rows import BlockRows, RowRange
from ..layout.spec import Array
from ..system.clock import now_ns
from .frames import Frame

__all__ = ["RowStore"]

#: A record as bytes, which are copied ten times as fast as its fields.
_BYTES = np.dtype((np.void, RECORD.itemsize))

#: Flags of rows without an observation of their own.
_NO_OBS = RowFlag.ERROR | RowFlag.REPEATS


class RowStore:
    """Rows of all envs, in the memory of an arena that belongs to this process alone.

    Args:
        plan, memory: the arena.

    Attributes:
        records: those of the arena, (num_envs, 2): the newest record of each env, and the one before it, which is the
            newest one until the row is delivered; zeros for envs without any.
    """

    def __init__(self, plan: ArenaPlan, memory: Any) -> None:
        self._newest = BlockRows(plan, memory, 0)
        self._blocks = [BlockRows(plan, memory, number) for number in range(1, plan.depth + 1)]
        self._next_block = 0
        self._obs_ids = np.zeros(plan.num_envs, np.uint64)  # step_ids of the newest observations
        self.records = plan.records(memory)
        is_second = self.records["step_id"][:, 1] > self.records["step_id"][:, 0]  # as another pool has saved them
        self.records[is_second] = self.records[is_second, ::-1]
        self._record_bytes = self.records.view(_BYTES)

    def take(self, frame: Frame, is_taken: Array, env_ids: Array) -> None:
        """Copy rows of a frame into the rows of their envs.

        Args:
            frame: the frame.
            is_taken: which rows of it, bool (count,).
            env_ids: of these rows.
        """
        rows: Any = slice(None) if len(env_ids) == frame.count else np.flatnonzero(is_taken)
        is_range = bool((env_ids[1:] - env_ids[:-1] == 1).all())
        at: Any = slice(int(env_ids[0]), int(env_ids[-1]) + 1) if is_range else env_ids  # a slice is faster
        columns = self._newest.columns
        for name in names_with(frame.flags):
            columns[name][at] = frame.columns[name][rows]
        if len(frame.final_rows):
            every_id = np.zeros(frame.count, np.int64)
            every_id[rows] = env_ids
            is_kept = is_taken[frame.final_rows]
            for ours, theirs in zip(self._newest.final_leaves, frame.final):
                ours[every_id[frame.final_rows[is_kept]]] = theirs[is_kept]
        if frame.flags & RowFlag.FINAL_REPEATS:
            repeated = env_ids[(columns["flags"][env_ids] & RowFlag.FINAL_REPEATS) != 0]
            for ours, last in zip(self._newest.final_leaves, self._newest.leaves):
                ours[repeated] = last[repeated]
        if frame.flags & _NO_OBS:
            has_obs = (columns["flags"][env_ids] & _NO_OBS) == 0
            rows, at = np.arange(frame.count)[rows][has_obs], env_ids[has_obs]
        for ours, theirs in zip(self._newest.leaves, frame.obs):
            ours[at] = theirs[rows]
        self._obs_ids[at] = frame.columns["step_id"][rows]

    def deliver(self, env_ids: Array) -> tuple[RowRange, int]:
        """Copy the rows of these envs into the next block; return them and the union of their flags."""
        block, count = self._blocks[self._next_block], len(env_ids)
        self._next_block = (self._next_block + 1) % len(self._blocks)
        flags = block.put(slice(count), self._newest, env_ids)
        return RowRange(block, 0, count), flags

    def put_obs(self, env_ids: slice, leaves: Sequence[Array], step_ids: Array) -> None:
        """Copy observations of rows that stayed in a shard."""
        for ours, theirs in zip(self._newest.leaves, leaves):
            ours[env_ids] = theirs
        self._obs_ids[env_ids] = step_ids

    def newest_obs(self, env_id: int, before: int) -> list[Array] | None:
        """Return a copy of the newest observation of an env, one array per leaf; None if there is none.

        Args:
            env_id: the env.
            before: only an observation before this command counts; 0: there is no limit.
        """
        if not 0 < int(self._obs_ids[env_id]) < (before or 1 << 63):
            return None
        return [column[env_id].copy() for column in self._newest.leaves]

    def newest_seed(self, env_id: int, before: int) -> int | None:
        """Return the seed of the newest row of an env, if that is before a step_id; None if it had none."""
        seed, step_id = (int(self._newest.columns[name][env_id]) for name in ("seed", "step_id"))
        return seed if seed >= 0 and 0 < step_id < (before or 1 << 63) else None

    def put_records(self, records: Array, env_ids: Array) -> None:
        """Keep the newest records of some envs, whose `began_ns` is the age of the episode."""
        found = records["step_id"] != 0
        env_ids, records = env_ids[found], records[found]  # a copy
        records["began_ns"] = now_ns() - records["began_ns"]
        ours = self._record_bytes
        ours[env_ids, 1] = ours[env_ids, 0]
        ours[env_ids, 0] = records.view(_BYTES)

    def forget(self, env_ids: slice) -> None:
        """Forget the observations and records of envs that are new."""
        self._obs_ids[env_ids] = 0
        self.records[env_ids] = 0
