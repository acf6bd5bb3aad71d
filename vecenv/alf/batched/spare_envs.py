"""Seats: which env stands for which row of the batch, where ended envs are reset at once.

    LAST of the env in seat 2 -> its reset is sent -> it joins the end of the queue of spares
                                 the first of the queue takes seat 2; the next step shows its FIRST

Between the pool and the assembler: rows come from the pool in the order in which envs finish and are
kept by env; the assembler reads them by seat.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from vecenv.alf.base.nests import map_structure
from vecenv.core.layout.rows import RowFlag
from vecenv.core.layout.spec import Array
from vecenv.core.parent.batch import Batch
from vecenv.core.pool.pool import Pool
from vecenv.vector.infos import join_rows

__all__ = ["Seats"]

_NEWS = RowFlag.INFO | RowFlag.MESSAGE


class Seats:
    """Rows of the envs by seat, where ended envs are reset at once and spare ones take their place.

    Every env, spare or not, has its last row here; `column` and `obs` read those of the seated ones.
    Spares are taken in the order in which their resets were asked for, so who sits where does not
    depend on time.

    Attributes:
        of: int64 (B,): which env sits in each seat.
    """

    def __init__(self, pool: Pool, num_seats: int) -> None:
        self._pool = pool
        self._num_envs, self._num_seats = pool.num_envs, num_seats
        self._columns: dict[str, Array] = {}
        self._leaves: list[Array] = []
        self._infos: dict[int, dict[str, Any]] = {}
        self._place()

    def _place(self) -> None:
        self.of = np.arange(self._num_seats)
        self._waiting = np.zeros(self._num_seats, np.bool_)  # seats whose env begins an episode
        self._spares = deque(range(self._num_seats, self._num_envs))
        self._has_row = np.zeros(self._num_envs, np.bool_)
        self._shown = self.of.copy()  # whose rows the assembler reads

    def begin(self, batch: Batch) -> None:
        """Seat the envs by id after a reset of all; the spares' first observations are kept."""
        self._place()
        rows = batch.rows
        if not self._columns:
            names = ("reward", "terminated", "truncated", "flags")
            self._columns = {name: np.empty_like(rows.column(name)) for name in names}
            self._leaves = [np.empty_like(rows.obs(leaf.index)) for leaf in self._pool.obs_spec.leaves]
        self._infos.clear()
        self._keep(batch)
        self._has_row[self.of] = False

    def send(self, action: Any) -> None:
        """Step the seated envs whose episode goes on.

        Raises:
            SpaceError: the action does not fit; nothing was stepped.
        """
        moving = np.flatnonzero(~self._waiting)
        if len(moving):
            some = action if len(moving) == self._num_seats else map_structure(lambda leaf: leaf[moving], action)
            self._pool.send(some, self.of[moving], ordered=False)

    def recv(self) -> int:
        """Wait for the envs that were stepped and for the begun episodes; reset ended ones.

        Returns:
            The union of the rows' flags.
        """
        pool = self._pool
        while missing := self._num_seats - int(np.count_nonzero(self._has_row[self.of])):
            self._keep(pool.recv(min(missing, pool.outstanding())))
        flags = self._show()
        self._waiting = self._columns["terminated"][self.of] | self._columns["truncated"][self.of]
        if self._waiting.any():
            self._replace(np.flatnonzero(self._waiting))
        return flags

    def _show(self) -> int:
        """Let the assembler read the seated envs; return the union of their flags."""
        self._has_row[self.of] = False
        self._shown = self.of.copy()
        return int(np.bitwise_or.reduce(self.column("flags")))

    def _replace(self, seats: Array) -> None:
        """Reset the envs that have ended, and give their seats to those that wait longest."""
        ended = self.of[seats]
        # The rows of the ended are read before their resets are received: both are for this thread to do.
        self._pool.reset(ended, ordered=False)
        self._spares.extend(ended.tolist())
        self.of[seats] = [self._spares.popleft() for _ in range(len(seats))]

    # ---- resets of all, between steps ----------------------------------------------------------

    def settle(self) -> None:
        """Wait for the episodes that envs begin: between steps nothing else is under way.

        Raises:
            Exception: what a reset raised.
        """
        if self._pool.outstanding():
            self._keep(self._pool.recv())

    def has_begun(self) -> bool:
        """Tell whether a seated env has an episode that was begun and not shown."""
        return bool(self._waiting.any())

    def begin_others(self) -> int:
        """Reset the seated envs that have not begun an episode already; for settled ones.

        Returns:
            The union of the rows' flags.
        """
        others = self.of[~self._waiting]
        if len(others):
            self._pool.reset(others, ordered=False)
            self._keep(self._pool.recv())
        self._waiting = np.zeros(self._num_seats, np.bool_)
        return self._show()

    # ---- rows from the pool --------------------------------------------------------------------

    def _keep(self, batch: Batch) -> None:
        batch.raise_errors()
        rows, ids = batch.rows, batch.env_ids
        for name, column in self._columns.items():
            column[ids] = rows.column(name)
        for index, leaf in enumerate(self._leaves):
            leaf[ids] = rows.obs(index)
        self._has_row[ids] = True
        if self._infos or batch.flags & _NEWS:
            infos = batch.infos()
            for env_id, info in zip(ids.tolist(), infos):
                self._infos.pop(env_id, None)
                if info:
                    self._infos[env_id] = info

    # ---- rows, as the assembler reads them -----------------------------------------------------

    def column(self, name: str) -> Array:
        """Return a column (B,), copied."""
        column: Array = self._columns[name][self._shown]
        return column

    def obs(self, leaf: int) -> Array:
        """Return an observation leaf (B, *S), copied."""
        rows: Array = self._leaves[leaf][self._shown]
        return rows

    def infos(self) -> dict[str, Any]:
        """Return the infos of the seated envs as Gymnasium's vector envs do, arrays (B, ...) with masks."""
        if not self._infos:
            return {}
        return join_rows([self._infos.get(env_id, {}) for env_id in self._shown.tolist()])
