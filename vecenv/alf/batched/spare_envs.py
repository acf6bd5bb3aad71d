"""SpareEnvs: assigns envs to the rows of the batch when ended envs are reset at once.

    LAST of the env of row 2 -> its reset is sent -> the env joins the end of the queue of spare envs
                                the first env of the queue gets row 2; the next step delivers its FIRST

It stands between the pool and the assembler. The pool returns results in the order in which envs finish. They are
stored by env here, and the assembler reads them by row.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from vecenv.core.layout.flags import RowFlag
from vecenv.core.layout.spec import Array
from vecenv.core.parent.batch import Batch, raise_first
from vecenv.core.pool.pool import Pool
from vecenv.errors import ErrorRows
from vecenv.nested import map_structure
from vecenv.vector.infos import join_rows

__all__ = ["SpareEnvs"]

_INFO_FLAGS = RowFlag.INFO | RowFlag.MESSAGE


class SpareEnvs:
    """Resets ended envs at once, and gives their rows to spare envs.

    The last result of every env, spare or not, is stored here; `column`, `obs` and `infos` read those of the envs that
    have a row. Spare envs are used in the order in which their resets were sent, so the assignment of envs to rows does
    not depend on timing.

    Args:
        pool: a started pool.
        num_rows: B. All further envs of the pool are spare.

    Attributes:
        env_ids: int64 (B,), the env of each row.
    """

    def __init__(self, pool: Pool, num_rows: int) -> None:
        self._pool = pool
        self._num_envs, self._num_rows = pool.num_envs, num_rows
        self._columns: dict[str, Array] = {}
        self._leaves: list[Array] = []
        self._infos: dict[int, dict[str, Any]] = {}
        self._errors: dict[int, Exception] = {}  # by env_id, of stored results, until they are raised
        self._assign_rows()

    def _assign_rows(self) -> None:
        self.env_ids = np.arange(self._num_rows)
        self._is_resetting = np.zeros(self._num_rows, np.bool_)  # rows whose env is being reset
        self._spares = deque(range(self._num_rows, self._num_envs))
        self._has_row = np.zeros(self._num_envs, np.bool_)
        self._delivered_ids = self.env_ids.copy()  # the envs whose results the assembler reads

    def start(self, batch: Batch) -> int:
        """Begin after a reset of all envs: env i gets row i. The first observations of spare envs are kept.

        Args:
            batch: the results of the reset.

        Returns:
            The union of the rows' flags.
        """
        self._assign_rows()
        rows = batch.rows
        if not self._columns:
            names = ("reward", "terminated", "truncated", "flags")
            self._columns = {name: np.empty_like(rows.column(name)) for name in names}
            self._leaves = [np.empty_like(rows.obs(leaf.index)) for leaf in self._pool.obs_spec.leaves]
        self._infos.clear()
        self._errors.clear()
        self._store(batch)
        self._has_row[self.env_ids] = False
        return batch.flags

    def send(self, action: Any) -> None:
        """Step the envs that have a row and are not being reset.

        Args:
            action: nested like the action spec, arrays (B, *S).

        Raises:
            SpaceError: the action does not fit; nothing was stepped.
        """
        stepping = np.flatnonzero(~self._is_resetting)
        if len(stepping):
            some = action if len(stepping) == self._num_rows else map_structure(lambda leaf: leaf[stepping], action)
            self._pool.send(some, self.env_ids[stepping], ordered=False)

    def recv(self) -> int:
        """Wait for all steps and resets of envs that have a row, then start the resets of the envs that ended.

        Exceptions of envs are kept for `raise_errors`.

        Returns:
            The union of the rows' flags.
        """
        pool = self._pool
        while missing := self._num_rows - int(np.count_nonzero(self._has_row[self.env_ids])):
            self._store(pool.recv(min(missing, pool.outstanding())))
        flags = self._deliver()
        self._is_resetting = self._columns["terminated"][self.env_ids] | self._columns["truncated"][self.env_ids]
        if self._is_resetting.any():
            self._reset_ended(np.flatnonzero(self._is_resetting))
        return flags

    def _deliver(self) -> int:
        """Make the results of the envs with a row readable by the assembler; return the union of their flags."""
        self._has_row[self.env_ids] = False
        self._delivered_ids = self.env_ids.copy()
        return int(np.bitwise_or.reduce(self.column("flags")))

    def _reset_ended(self, rows: Array) -> None:
        """Start resets of the envs in these rows, and give the rows to the first spare envs of the queue."""
        ended = self.env_ids[rows]
        # The assembler reads the last results of ended envs before `recv` stores their resets: one thread does both.
        self._pool.reset(ended, ordered=False)
        self._spares.extend(ended.tolist())
        self.env_ids[rows] = [self._spares.popleft() for _ in range(len(rows))]

    # ---- resets of all, between steps ----------------------------------------------------------

    def wait_for_resets(self) -> None:
        """Wait for all outstanding resets. Between steps there are no other outstanding operations.

        Raises:
            Exception: raised by a reset.
        """
        if self._pool.outstanding():
            self._store(self._pool.recv())
        if self._errors:
            errors, self._errors = self._errors, {}
            raise_first(errors)

    def raise_errors(self, time_step: Any) -> None:
        """Raise the exception of the lowest env that has raised, if any, with the time step of all rows."""
        if self._errors:
            errors, self._errors = self._errors, {}
            raise_first(errors, ErrorRows(time_step, ~np.isin(self._delivered_ids, list(errors))))

    def has_undelivered(self) -> bool:
        """Return whether an env with a row has begun an episode whose first observation was not delivered yet."""
        return bool(self._is_resetting.any())

    def reset_others(self) -> int:
        """Reset the envs with a row, except those that have already begun an episode that was not delivered.

        Call `wait_for_resets` before.

        Exceptions of envs are kept for `raise_errors`.

        Returns:
            The union of the rows' flags.
        """
        others = self.env_ids[~self._is_resetting]
        if len(others):
            self._pool.reset(others, ordered=False)
            self._store(self._pool.recv())
        self._is_resetting = np.zeros(self._num_rows, np.bool_)
        return self._deliver()

    # ---- rows from the pool --------------------------------------------------------------------

    def _store(self, batch: Batch) -> None:
        if batch.flags & RowFlag.ERROR:
            self._errors.update(batch.errors())
        rows, ids = batch.rows, batch.env_ids
        for name, column in self._columns.items():
            column[ids] = rows.column(name)
        for index, leaf in enumerate(self._leaves):
            leaf[ids] = rows.obs(index)
        self._has_row[ids] = True
        if self._infos or batch.flags & _INFO_FLAGS:
            infos = batch.infos()
            for env_id, info in zip(ids.tolist(), infos):
                self._infos.pop(env_id, None)
                if info:
                    self._infos[env_id] = info

    # ---- rows, as the assembler reads them -----------------------------------------------------

    def column(self, name: str) -> Array:
        """Return a copy of a column, (B,): 'reward', 'terminated', 'truncated' or 'flags'."""
        column: Array = self._columns[name][self._delivered_ids]
        return column

    def obs(self, leaf: int) -> Array:
        """Return a copy of an observation leaf, (B, *S)."""
        rows: Array = self._leaves[leaf][self._delivered_ids]
        return rows

    def infos(self) -> dict[str, Any]:
        """Return the infos of the envs with a row in Gymnasium's form: arrays (B, ...) with masks."""
        if not self._infos:
            return {}
        return join_rows([self._infos.get(env_id, {}) for env_id in self._delivered_ids.tolist()])
