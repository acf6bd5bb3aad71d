"""RowAnswers: the answers that the rows of a pool with spare envs owe, from the request to the delivery.

    request -> owed -> answer of the row's env, kept in `AnswerStore` -> delivered
                       end of an episode: another env serves the row, and its first observation is delivered, too

In DISABLED and NEXT_STEP modes the two are rows of two batches; in SAME_STEP mode they are one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..host.saving import SavedEnv
from ..layout.arena import read_record
from ..layout.flags import Autoreset, Op, RowFlag
from ..layout.info_cells import InfoColumns
from ..layout.rows import union_of_flags
from ..layout.spec import Array
from ..operations.engine import EnvSpaces
from ..operations.requests import refuse_busy_env, refuse_ordered
from ..parent.batch import Batch
from .resets import EnvResets, Reset
from .rows import AnswerStore, join_rows

__all__ = ["RowAnswers"]

# Plain integers: NumPy looks for attributes of an enum's member, and drops the exception of a signal handler there.
_ERROR, _RESET, _AUTORESET = int(RowFlag.ERROR), int(RowFlag.RESET), np.uint32(RowFlag.AUTORESET)
_NO_OP, _STEP_OP, _RESET_OP = int(Op.NONE), int(Op.STEP), int(Op.RESET)


class RowAnswers:
    """The state of each row, and the answers that have arrived and were not delivered.

    Args:
        num_rows: N, number of rows.
        mode: how the rows begin their next episodes.
        spaces: of one env.
        infos: the table of info cells.

    Attributes:
        owed: uint8 (N,), the `Op` whose answer the caller waits for.
        order: the rows that owe an answer, in the order of requests.
        ended: the rows whose episode has ended in an autoreset mode, and that are to get another env.
        is_fresh: bool (N,), rows whose env begins an episode that the caller has not seen.
    """

    #: Attributes that a saved pool contains.
    SAVED = (
        *("owed", "order", "ended", "is_fresh", "_has_last", "_is_over", "_has_failed"),
        *("_ends", "_last", "_last_objects"),
    )

    def __init__(self, num_rows: int, mode: Autoreset, spaces: EnvSpaces, infos: InfoColumns) -> None:
        self._spec, self._infos = spaces.obs, infos
        self._is_same_step = mode == Autoreset.SAME_STEP
        self._swaps_at_end = mode != Autoreset.DISABLED
        self.owed = np.zeros(num_rows, np.uint8)
        self.order: list[int] = []
        self.ended: list[int] = []
        self.is_fresh = np.zeros(num_rows, np.bool_)
        self._has_last = np.zeros(num_rows, np.bool_)  # the answer of its env has arrived
        self._is_over = np.zeros(num_rows, np.bool_)  # its episode has ended, and no other env has taken over
        self._has_failed = np.zeros(num_rows, np.bool_)  # the reset of its env raised
        self._ends: dict[int, bytes] = {}  # by row: the state that was put into its env, if its episode is over
        self._last = AnswerStore(num_rows, spaces)
        self._last_objects: dict[int, list[Any]] = {}  # by row: values of the last observation without a column

    # ---- requests --------------------------------------------------------------------------

    def check(self, op: Op, rows: Array, ordered: bool) -> None:
        """Raise StateError if one of these rows must not get a step or reset now."""
        if not self.order:
            return
        what = "send" if op == Op.STEP else "reset"
        busy = self.owed[rows] != _NO_OP if op == Op.STEP else self.owed[rows] == _RESET_OP
        if busy.any():
            row = int(rows[busy][0])
            refuse_busy_env(what, row, Op(int(self.owed[row])))
        if ordered and not set(self.order) <= set(rows.tolist()):
            refuse_ordered(what, len(self.order))

    def begins(self, rows: Array) -> Array:
        """Return which of these rows begin an episode with their next answer, bool (n,)."""
        begins: Array = self.is_fresh[rows] | self._has_failed[rows]
        return begins

    def can_begin(self, rows: Array) -> Array:
        """Return which of these rows can begin an episode with an env that is reset ahead, bool (n,)."""
        can_begin: Array = (self.is_fresh | self._is_over)[rows] & ~self._has_failed[rows]
        return can_begin

    def note_request(self, op: Op, rows: Array) -> list[int]:
        """Note that rows owe an answer; return those whose env must be reset again, because its reset raised."""
        self.owed[rows] = int(op)
        self.order += rows.tolist()
        failed = rows[self._has_failed[rows]]
        self._has_failed[failed] = False
        found: list[int] = failed.tolist()
        return found

    def forget(self, rows: Array) -> None:
        """Drop the answers that rows owe, or that were not delivered."""
        self._clear(rows)
        self._drop_ended(rows)

    def is_waiting(self) -> Array:
        """Return which rows wait for the answer of their env, bool (N,)."""
        is_waiting: Array = (self.owed != _NO_OP) & ~self._has_last & ~self.is_fresh
        return is_waiting

    # ---- envs ------------------------------------------------------------------------------

    def note_fresh(self, rows: Array) -> None:
        """Note that the envs of these rows were reset ahead, and that the rows begin an episode with them."""
        self.is_fresh[rows] = True
        self._is_over[rows] = False
        self._drop_ended(rows)

    def note_reset(self, resets: Mapping[int, Reset]) -> None:
        """Note that resets of rows were sent to the envs that serve them."""
        rows = np.array(list(resets))
        self.is_fresh[rows] = self._is_over[rows] = self._has_failed[rows] = False
        for row, reset in resets.items():
            self._ends.pop(row, None)
            if reset.state is not None and reset.state.is_over:
                self._ends[row] = reset.state.state

    # ---- answers ---------------------------------------------------------------------------

    def put(self, rows: Array, batch: Batch, index: Array) -> None:
        """Copy answers of rows, and note the episodes that have ended; `index`: the row of the batch for each row."""
        self._last.put(rows, batch, index)
        self._has_last[rows] = True
        dones = (batch.terminated | batch.truncated)[index]
        if batch.flags & _RESET or dones.any():
            flags = batch.row_flags[index]
            has_error = (flags & _ERROR) != 0
            is_reset = (flags & _RESET) != 0
            self._has_failed[rows[is_reset & has_error]] = True
            if self._ends:
                dones[is_reset] |= np.isin(rows[is_reset], list(self._ends))
            ended = rows[dones & ~has_error]
            self._is_over[ended] = True
            if self._swaps_at_end:
                self.ended += ended.tolist()

    def find_ready(self, has_first: Array) -> list[int]:
        """Return the rows whose answer is complete, in the order of requests.

        Args:
            has_first: bool (N,), rows whose env has its first observation.
        """
        is_ready = self.is_fresh & has_first
        is_ready |= self._has_last & ~self.is_fresh if self._is_same_step else self._has_last
        return [row for row in self.order if is_ready[row]]

    def take(self, rows: Array, envs: Array, resets: EnvResets) -> Batch:
        """Return the answers of these rows, which are complete, as a batch, which owns its memory.

        Args:
            rows, envs: int64 (B,), the rows, and the env of each.
            resets: has their first observations.
        """
        owes_step = self.owed[rows] == _STEP_OP
        begins = ~self._has_last[rows]
        ends = ~begins & self.is_fresh[rows] if self._is_same_step else np.zeros(len(rows), np.bool_)
        joined, replies = join_rows(self._last, resets.first, rows, envs, begins, ends)
        flags = joined.column("flags")
        started = (flags & _RESET) != 0
        if started.any():
            is_autoreset = started & owes_step
            flags[is_autoreset] &= ~np.uint32(_RESET)
            flags[is_autoreset & ((flags & _ERROR) == 0)] |= _AUTORESET
            joined.column("seed")[begins & ~owes_step] = -1  # the seed of a spare env is not that of the row
        taken = begins | ends
        if taken.any():
            resets.has_first[envs[taken]] = False
            self.is_fresh[rows[taken]] = False
            for row in rows[taken].tolist():
                self._ends.pop(row, None)
            self._has_failed[rows[taken]] = (flags[taken] & _ERROR) != 0
        self._clear(rows)
        if self._spec.num_objects:
            self._last_objects |= {reply.env_id: reply.objects for reply in replies.values() if reply.objects}
        return Batch(joined, union_of_flags(flags), self._spec, self._infos, replies)

    def end_of(self, row: int, begun: SavedEnv) -> tuple[SavedEnv, list[Array]]:
        """Return the end of the last episode of a row, and copies of the leaves of its last observation.

        Args:
            row: another env has taken it over, and the caller has not seen its first observation.
            begun: the state of that env. Its generators are those of the end, unless this was a state of its own.
        """
        columns, record = self._last.rows.columns, read_record(begun.record)
        for name in ("length", "seed", "return"):
            record[name] = columns[name][row]
        record["began_ns"], record["is_over"] = int(columns["seconds"][row] * 1e9), True
        end = begun._replace(record=record.tobytes(), objects=self._last_objects.get(row))
        end = end._replace(state=self._ends.get(row, begun.state))
        return end, [leaf[row].copy() for leaf in self._last.rows.leaves]

    def _clear(self, rows: Array) -> None:
        """Let rows owe nothing."""
        self._has_last[rows] = False
        self.owed[rows] = _NO_OP
        cleared = set(rows.tolist())
        self.order = [row for row in self.order if row not in cleared]

    def _drop_ended(self, rows: Array) -> None:
        dropped = set(rows.tolist())
        self.ended = [row for row in self.ended if row not in dropped]
