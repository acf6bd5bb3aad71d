"""SpareEnvs: which env stands for which row of the batch, where ended envs are reset at once.

    LAST of the env in seat 2 -> its reset is sent -> it joins the end of the queue of spares
                                 the first of the queue takes seat 2; the next step shows its FIRST

Between the pool and the assembler: rows come from the pool in the order in which envs finish and are
kept by env; the assembler reads them by seat.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from vecenv.core.layout.rows import RowFlag
from vecenv.core.layout.spec import Array
from vecenv.core.parent.batch import Batch
from vecenv.core.pool.pool import Pool
from vecenv.nested import map_structure
from vecenv.vector.infos import join_rows

__all__ = ["SpareEnvs"]

_INFO_FLAGS = RowFlag.INFO | RowFlag.MESSAGE


class SpareEnvs:
    """Rows of the envs by seat, where ended envs are reset at once and spare ones take their place.

    Every env, spare or not, has its last row here; `column` and `obs` read those of the seated ones.
    Spares are taken in the order in which their resets were asked for, so who sits where does not
    depend on time.

    Attributes:
        env_ids: int64 (B,): which env sits in each seat.
    """

    def __init__(self, pool: Pool, num_rows: int) -> None:
        self._pool = pool
        self._num_envs, self._num_rows = pool.num_envs, num_rows
        self._columns: dict[str, Array] = {}
        self._leaves: list[Array] = []
        self._infos: dict[int, dict[str, Any]] = {}
        self._assign_rows()

    def _assign_rows(self) -> None:
        self.env_ids = np.arange(self._num_rows)
        self._is_resetting = np.zeros(self._num_rows, np.bool_)  # seats whose env begins an episode
        self._spares = deque(range(self._num_rows, self._num_envs))
        self._has_row = np.zeros(self._num_envs, np.bool_)
        self._delivered_ids = self.env_ids.copy()  # whose rows the assembler reads

    def start(self, batch: Batch) -> None:
        """Seat the envs by id after a reset of all; the spares' first observations are kept."""
        self._assign_rows()
        rows = batch.rows
        if not self._columns:
            names = ("reward", "terminated", "truncated", "flags")
            self._columns = {name: np.empty_like(rows.column(name)) for name in names}
            self._leaves = [np.empty_like(rows.obs(leaf.index)) for leaf in self._pool.obs_spec.leaves]
        self._infos.clear()
        self._store(batch)
        self._has_row[self.env_ids] = False

    def send(self, action: Any) -> None:
        """Step the seated envs whose episode goes on.

        Raises:
            SpaceError: the action does not fit; nothing was stepped.
        """
        stepping = np.flatnonzero(~self._is_resetting)
        if len(stepping):
            some = action if len(stepping) == self._num_rows else map_structure(lambda leaf: leaf[stepping], action)
            self._pool.send(some, self.env_ids[stepping], ordered=False)

    def recv(self) -> int:
        """Wait for the envs that were stepped and for the begun episodes; reset ended ones.

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
        """Let the assembler read the seated envs; return the union of their flags."""
        self._has_row[self.env_ids] = False
        self._delivered_ids = self.env_ids.copy()
        return int(np.bitwise_or.reduce(self.column("flags")))

    def _reset_ended(self, rows: Array) -> None:
        """Reset the envs that have ended, and give their seats to those that wait longest."""
        ended = self.env_ids[rows]
        # The rows of the ended are read before their resets are received: both are for this thread to do.
        self._pool.reset(ended, ordered=False)
        self._spares.extend(ended.tolist())
        self.env_ids[rows] = [self._spares.popleft() for _ in range(len(rows))]

    # ---- resets of all, between steps ----------------------------------------------------------

    def wait_for_resets(self) -> None:
        """Wait for the episodes that envs begin: between steps nothing else is under way.

        Raises:
            Exception: what a reset raised.
        """
        if self._pool.outstanding():
            self._store(self._pool.recv())

    def has_undelivered(self) -> bool:
        """Tell whether a seated env has an episode that was begun and not shown."""
        return bool(self._is_resetting.any())

    def reset_others(self) -> int:
        """Reset the seated envs that have not begun an episode already; for settled ones.

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
        batch.raise_errors()
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
        """Return a column (B,), copied."""
        column: Array = self._columns[name][self._delivered_ids]
        return column

    def obs(self, leaf: int) -> Array:
        """Return an observation leaf (B, *S), copied."""
        rows: Array = self._leaves[leaf][self._delivered_ids]
        return rows

    def infos(self) -> dict[str, Any]:
        """Return the infos of the seated envs as Gymnasium's vector envs do, arrays (B, ...) with masks."""
        if not self._infos:
            return {}
        return join_rows([self._infos.get(env_id, {}) for env_id in self._delivered_ids.tolist()])
