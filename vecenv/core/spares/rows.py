"""Rows of a pool with spare envs: they are copied when they arrive, and put together when they are delivered.

    batch of the engine -> AnswerStore.put            one for answers of rows, one for first observations of envs
                           AnswerStore, AnswerStore -> join_rows -> Rows of a batch

`RowAnswers` decides which answers make up a row.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..layout.columns import FINAL_CELLS, INFO_CELLS, Group, names_of
from ..layout.flags import RowFlag
from ..layout.messages import Reply
from ..layout.rows import Rows
from ..layout.spec import Array
from ..operations.engine import EnvSpaces
from ..parent.batch import Batch

__all__ = ["AnswerStore", "join_rows"]

_STEP_COLUMNS = names_of(Group.STEP)


class AnswerStore:
    """The newest answer of each row, or of each env.

    Args:
        count: number of rows or envs.
        spaces: of one env.

    Attributes:
        rows: the answers.
        replies: messages of the answers that have one, by row or env.
    """

    def __init__(self, count: int, spaces: EnvSpaces) -> None:
        self.rows = Rows.zeros(count, spaces.obs, spaces.reward_shape)
        self.replies: dict[int, Reply] = {}

    def put(self, owners: Array, batch: Batch, index: Array) -> None:
        """Copy rows of a batch: `index`, int64 (n,), to those of these rows or envs, int64 (n,)."""
        self.rows.put(owners, batch.rows, index)
        if self.replies or batch.flags & RowFlag.MESSAGE:
            replies = batch.replies()
            for owner, row in zip(owners.tolist(), index.tolist()):
                self.replies.pop(owner, None)
                if row in replies:
                    self.replies[owner] = replies[row]


def join_rows(
    last: AnswerStore, first: AnswerStore, rows: Array, envs: Array, begins: Array, ends: Array
) -> tuple[Rows, dict[int, Reply]]:
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
    columns: dict[str, Array] = {}
    for name, answers in last.rows.columns.items():
        column = answers[rows]  # a copy
        chosen = begins if name in _STEP_COLUMNS else from_first
        if chosen.any():
            column[chosen] = first.rows.columns[name][envs[chosen]]
        columns[name] = column
    columns["env_id"] = rows.copy()
    obs = [leaf[rows] for leaf in last.rows.leaves]
    final: list[Array] = []
    if from_first.any():
        if ends.any():
            final = [leaf.copy() for leaf in obs]
        for ours, theirs in zip(obs, first.rows.leaves):
            ours[from_first] = theirs[envs[from_first]]
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
    return Rows(len(rows), columns, obs, final), replies


def _add_ends(columns: dict[str, Array], last: AnswerStore, rows: Array, ends: Array) -> None:
    """Add the columns of the last steps of episodes; `columns` has the flags and infos of resets in these rows."""
    step_flags = last.rows.columns["flags"][rows]
    flags = columns["flags"]
    flags[ends] &= ~np.uint32(RowFlag.RESET)
    flags[ends] |= np.uint32(RowFlag.FINAL) | (step_flags[ends] & np.uint32(RowFlag.MESSAGE))
    has_info = ends & ((step_flags & np.uint32(RowFlag.INFO)) != 0)
    flags[has_info] |= np.uint32(RowFlag.FINAL_INFO)
    columns[FINAL_CELLS.tags] = last.rows.columns[INFO_CELLS.tags][rows]
    columns[FINAL_CELLS.values] = last.rows.columns[INFO_CELLS.values][rows]


def _join_replies(step: Reply | None, reset: Reply | None) -> Reply | None:
    """Return the message of the last step of an episode and of the reset after it as one."""
    if step is None:
        return reset
    moved: dict[str, Any] = {"final_info": step.info, "final_objects": step.objects}
    if reset is None:
        return dataclasses.replace(step, info=None, objects=None, **moved)
    return dataclasses.replace(reset, **moved)
