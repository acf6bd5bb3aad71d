"""Last observations: the newest observation of each env, which `ready_obs` returns.

It stands behind the timesteps on the data path.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

from ..values.nested import map_structure

__all__ = ["LastObservations"]


class LastObservations:
    """Newest observations of `num_envs` envs.

    Attributes:
        rows: observation of each env, None before its first one.
    """

    def __init__(self, num_envs: int) -> None:
        self._all_ids = list(range(num_envs))
        self.clear()

    def clear(self) -> None:
        """Drop all observations."""
        self.rows: list[Any] = [None] * len(self._all_ids)
        self._ids: Sequence[int] = ()  # the envs of _batch, if all its rows are newest
        self._batch: Any = None

    def put(self, ids: Sequence[int], batch: Any, rows: list[Any], skip: Collection[int] = ()) -> None:
        """Store the observations of the newest batch, or of a part of it.

        Args:
            ids: the env of each row.
            batch: nested arrays (B, *S); None if the observations have no layout.
            rows: the rows of the batch.
            skip: envs whose rows have no observation.
        """
        if skip:
            kept = [row for row, env_id in enumerate(ids) if env_id not in skip]
            ids, rows, self._batch = [ids[row] for row in kept], [rows[row] for row in kept], None
        else:
            self._ids, self._batch = ids, batch
        if ids == self._all_ids:
            self.rows = rows.copy()
        else:
            for env_id, row in zip(ids, rows):
                self.rows[env_id] = row

    def put_one(self, env_id: int, obs: Any) -> None:
        """Store an observation."""
        self.rows[env_id] = obs
        self._batch = None

    def load(self, rows: list[Any]) -> None:
        """Continue with the `rows` of another object."""
        self.clear()
        self.rows = rows

    def stacked(self, ids: list[int]) -> Any:
        """Return the observations of these envs as one batch, if they came in the same batch; else None.

        The arrays are (B, *S), nested like the space, in the order of `ids`.
        """
        if self._batch is None or ids == self._ids:
            return self._batch
        row_of = {env_id: row for row, env_id in enumerate(self._ids)}
        if not row_of.keys() >= set(ids):
            return None
        return map_structure(operator.itemgetter([row_of[env_id] for env_id in ids]), self._batch)
