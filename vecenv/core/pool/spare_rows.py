"""Rows of a pool with spare envs: they are copied when they arrive, and put together when they are delivered.

    batch of the engine -> RowStore.put            one for answers of rows, one for first observations of envs
                           RowStore, RowStore -> join_rows -> JoinedRows, the rows of a batch

`RowAnswers` decides which answers make up a row.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..layout.columns import FINAL_CELLS, INFO_CELLS, Group, names_of
from ..layout.flags import RowFlag
from ..layout.messages import Reply
from ..layout.spec import Array
from ..parent.batch import Batch

__all__ = ["JoinedRows", "RowStore", "join_rows"]

_STEP_COLUMNS, _INFO_COLUMNS = names_of(Group.STEP), names_of(Group.INFO)
#: All but the ids of envs, which are replaced by those of rows.
_COLUMNS = ("step_id", *names_of(Group.OBS), *_STEP_COLUMNS, *_INFO_COLUMNS)


class RowStore:
    """The newest answer at each of a number of places. Memory is allocated by the first `put`.

    Args:
        num_places: number of places.

    Attributes:
        columns: name -> array (num_places, ...).
        obs: one array (num_places, *S) per observation leaf.
        replies: messages of the answers that have one, by place.
    """

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self.columns: dict[str, Array] = {}
        self.obs: list[Array] = []
        self.replies: dict[int, Reply] = {}

    def put(self, places: Array, batch: Batch, rows: Array, num_leaves: int) -> None:
        """Copy rows of a batch.

        Args:
            places: int64 (n,), distinct.
            batch: any batch of the pool.
            rows: int64 (n,), a row of the batch for each place.
            num_leaves: number of observation leaves.
        """
        source = batch.rows
        if not self.columns:
            self.columns = {name: self._empty(source.column(name)) for name in _COLUMNS}
            self.obs = [self._empty(source.obs(leaf)) for leaf in range(num_leaves)]
        has_infos = batch.flags & RowFlag.INFO
        for name, column in self.columns.items():
            if has_infos or name not in _INFO_COLUMNS:
                column[places] = source.column(name)[rows]
        for leaf, column in enumerate(self.obs):
            column[places] = source.obs(leaf)[rows]
        if self.replies or batch.flags & RowFlag.MESSAGE:
            replies = batch.replies()
            for place, row in zip(places.tolist(), rows.tolist()):
                self.replies.pop(place, None)
                if row in replies:
                    self.replies[place] = replies[row]

    def _empty(self, like: Array) -> Array:
        return np.zeros((self._num_places, *like.shape[1:]), like.dtype)


class JoinedRows:
    """Rows with memory of their own; see `core.layout.rows.Rows`.

    Args:
        columns: by name.
        obs, final: one array (B, *S) per observation leaf; `final` is empty if no row is flagged FINAL.
    """

    def __init__(self, columns: dict[str, Array], obs: list[Array], final: list[Array]) -> None:
        self.count = len(columns["env_id"])
        self._columns, self._obs, self._final = columns, obs, final

    def column(self, name: str) -> Array:
        """Return a column, (B,) or (B, ...)."""
        return self._columns[name]

    def obs(self, leaf: int) -> Array:
        """Return an observation leaf, (B, *S)."""
        return self._obs[leaf]

    def final(self, leaf: int) -> Array:
        """Return a leaf of final observations, (B, *S)."""
        return self._final[leaf]


def join_rows(
    last: RowStore, first: RowStore, rows: Array, envs: Array, begins: Array, ends: Array
) -> tuple[JoinedRows, dict[int, Reply]]:
    """Return rows, and their messages by step_id.

    Args:
        last: answers by row.
        first: first observations by env.
        rows: int64 (B,), the rows to deliver.
        envs: int64 (B,), the env of each.
        begins: bool (B,), rows that contain only the first observation of their env.
        ends: bool (B,), rows of SAME_STEP: the last step of an episode, and the first observation of the next one.
    """
    from_first = begins | ends
    source = last if last.columns else first
    columns: dict[str, Array] = {}
    for name in _COLUMNS:
        column = source.columns[name][rows]  # a copy
        chosen = begins if name in _STEP_COLUMNS else from_first
        if chosen.any():
            column[chosen] = first.columns[name][envs[chosen]]
        columns[name] = column
    columns["env_id"] = rows.copy()
    obs = [column[rows] for column in source.obs]
    final: list[Array] = []
    if from_first.any():
        if ends.any():
            final = [column.copy() for column in obs]
        for leaf, column in enumerate(obs):
            column[from_first] = first.obs[leaf][envs[from_first]]
    replies: dict[int, Reply] = {}
    if ends.any():
        _add_ends(columns, last, rows, ends)
    if last.replies or first.replies:
        step_ids = columns["step_id"].tolist()
        for i, (row, env_id) in enumerate(zip(rows.tolist(), envs.tolist())):
            own = None if begins[i] else last.replies.pop(row, None)
            following = first.replies.pop(env_id, None) if from_first[i] else None
            reply = _join_replies(own, following) if ends[i] else own or following
            if reply is not None:
                replies[step_ids[i]] = dataclasses.replace(reply, env_id=row, step_id=step_ids[i])
    return JoinedRows(columns, obs, final), replies


def _add_ends(columns: dict[str, Array], last: RowStore, rows: Array, ends: Array) -> None:
    """Add the columns of the last steps of episodes; `columns` has the flags and infos of resets in these rows."""
    step_flags = last.columns["flags"][rows]
    flags = columns["flags"]
    flags[ends] &= ~np.uint32(RowFlag.RESET)
    flags[ends] |= np.uint32(RowFlag.FINAL) | (step_flags[ends] & np.uint32(RowFlag.MESSAGE))
    has_info = ends & ((step_flags & np.uint32(RowFlag.INFO)) != 0)
    flags[has_info] |= np.uint32(RowFlag.FINAL_INFO)
    columns[FINAL_CELLS.tags] = last.columns[INFO_CELLS.tags][rows]
    columns[FINAL_CELLS.values] = last.columns[INFO_CELLS.values][rows]


def _join_replies(step: Reply | None, reset: Reply | None) -> Reply | None:
    """Return the message of the last step of an episode and of the reset after it as one."""
    if step is None:
        return reset
    moved: dict[str, Any] = {"final_info": step.info, "final_objects": step.objects}
    if reset is None:
        return dataclasses.replace(step, info=None, objects=None, **moved)
    return dataclasses.replace(reset, **moved)
