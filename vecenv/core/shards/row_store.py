"""RowStore: the newest row of each env that has arrived, and the batches that are made of these rows.

The newest rows lie in memory of their own, in the form in which frames have them, so that a row is copied at once. A
batch is gathered from there into the next block of the driver's arena, as columns, in the order that the caller asked
for; it stays as it is until the blocks after it are used up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..layout.arena import RECORD, ArenaPlan
from ..layout.columns import CELLS, fields_of
from ..layout.flags import RowFlag
from ..layout.rows import BlockRows, RowRange, Rows, union_of_flags
from ..layout.spec import Array
from ..system.clock import now_ns
from .frames import Frame, FrameLayout, bytes_of

__all__ = ["RowStore"]

_RECORD_BYTES = bytes_of(RECORD)

#: Flags of rows without an observation of their own.
_NO_OBS = RowFlag.ERROR | RowFlag.REPEATS
#: Flags of rows with more than columns and an observation.
_MORE = RowFlag.INFO | RowFlag.FINAL | RowFlag.FINAL_INFO


class RowStore:
    """Rows of all envs, in the memory of an arena that belongs to this process alone.

    Args:
        plan, memory: the arena.
        layout: of the frames.

    Attributes:
        records: those of the arena, (num_envs, 2): the newest record of each env, and the one before it, which is the
            newest one until the row is delivered; zeros for envs without any.
    """

    def __init__(self, plan: ArenaPlan, memory: Any, layout: FrameLayout) -> None:
        rows, obs, final = (np.zeros(plan.num_envs, dtype) for dtype in (layout.row, layout.obs, layout.obs))
        columns: dict[str, Array] = {name: rows[name] for name in layout.row.names or ()}
        for cells in CELLS:
            columns |= {name: np.zeros(plan.num_envs, dtype) for name, dtype in fields_of(cells.group).items()}
        leaves, final_leaves = ([all_obs[name] for name in layout.obs.names or ()] for all_obs in (obs, final))
        self._newest = Rows(plan.num_envs, columns, leaves, final_leaves)
        self._rows, self._obs, self._final = (array.view(bytes_of(array.dtype)) for array in (rows, obs, final))
        self._blocks = [BlockRows(plan, memory, number) for number in range(plan.depth)]
        self._next_block = 0
        self._obs_ids = np.zeros(plan.num_envs, np.uint64)  # step_ids of the newest observations
        self.records = plan.records(memory)
        is_second = self.records["step_id"][:, 1] > self.records["step_id"][:, 0]  # as another pool has saved them
        self.records[is_second] = self.records[is_second, ::-1]
        self._record_bytes = self.records.view(_RECORD_BYTES)

    def take(self, frames: Sequence[Frame], rows: Array, is_taken: Array) -> None:
        """Copy rows of frames into the rows of their envs; those that are taken belong to different envs.

        Args:
            frames: have rows.
            rows: those of all frames, one after the other, (n,) with the dtype `FrameLayout.row`.
            is_taken: which of them, bool (n,).
        """
        env_ids, flags = rows["env_id"], rows["flags"]
        all_flags = union_of_flags(flags)
        taken: Any = slice(None) if is_taken.all() else is_taken  # a slice is faster
        self._rows[env_ids[taken]] = rows.view(self._rows.dtype)[taken]
        if all_flags & _MORE:
            for frame, part in _parts_of(frames):
                self._take_more(frame, env_ids[part], is_taken[part])
            repeated = env_ids[is_taken & ((flags & RowFlag.FINAL_REPEATS) != 0)]
            self._final[repeated] = self._obs[repeated]
        if all_flags & _NO_OBS:
            taken = is_taken = is_taken & ((flags & _NO_OBS) == 0)
        self._obs_ids[env_ids[taken]] = rows["step_id"][taken]
        for frame, part in _parts_of(frames):
            mine = taken if isinstance(taken, slice) else is_taken[part]
            self._obs[env_ids[part][mine]] = frame.obs[mine]

    def _take_more(self, frame: Frame, env_ids: Array, is_taken: Array) -> None:
        """Copy the cells of the infos of a frame, and its final observations."""
        for cells in frame.cells:
            for name in cells.dtype.names or ():
                self._newest.columns[name][env_ids[is_taken]] = cells[name][is_taken]
        is_kept = is_taken[frame.final_rows]
        self._final[env_ids[frame.final_rows[is_kept]]] = frame.final[is_kept]

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
        ours[env_ids, 0] = records.view(_RECORD_BYTES)

    def forget(self, env_ids: slice) -> None:
        """Forget the observations and records of envs that are new."""
        self._obs_ids[env_ids] = 0
        self.records[env_ids] = 0


def _parts_of(frames: Sequence[Frame]) -> Iterator[tuple[Frame, slice]]:
    """Yield each frame, and where its rows are among those of all."""
    stop = 0
    for frame in frames:
        start, stop = stop, stop + frame.count
        yield frame, slice(start, stop)
