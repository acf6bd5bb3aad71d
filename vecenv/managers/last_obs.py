"""Last observations: the newest observation of each env, which `ready_obs` returns.

It stands behind the timesteps on the data path. With copy_on_get=False observations are views of the ring, and a row
of the ring is valid until `depth - 1` later batches have been received. An env may be ready for longer than that, so
its row is copied before the block of the row is used again.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..nested import copy_arrays, map_structure

__all__ = ["LastObservations"]


_NOTHING: Mapping[int, Any] = {}


class LastObservations:
    """Newest observations by env_id.

    Args:
        num_envs: number of envs.

    Attributes:
        rows: observation of each env, None before its first one.
    """

    def __init__(self, num_envs: int) -> None:
        self._all_ids = list(range(num_envs))
        self.open(None)

    def open(self, depth: int | None) -> None:
        """Forget all observations.

        Args:
            depth: the pool's depth if observations are views; None if they own their memory.
        """
        self.rows: list[Any] = [None] * len(self._all_ids)
        self._ids: Sequence[int] = ()  # the envs of _batch, if all its rows are newest
        self._batch: Any = None
        self._depth = depth
        self._views: dict[int, int] = {}  # env_id -> number of the batch that its row is a view of
        self._received: deque[list[int]] = deque()  # the envs of each batch that is still valid
        self._number = 0  # of the newest batch

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
        if self._depth is not None:
            self._received[-1].extend(ids)
            self._views.update(dict.fromkeys(ids, self._number))

    def put_one(self, env_id: int, obs: Any) -> None:
        """Store an observation that owns its memory."""
        self.rows[env_id] = obs
        self._batch = None
        self._views.pop(env_id, None)

    def release(self, ids: Sequence[int]) -> None:
        """Note that these envs are being stepped: their observations need no copy."""
        for env_id in ids if self._views else ():
            self._views.pop(env_id, None)

    def prepare_batch(self) -> Mapping[int, Any]:
        """Copy the rows that the next batch would overwrite. The caller calls this before each batch.

        Returns:
            {env_id: view} of the envs whose observation in `rows` is a copy now.
        """
        if self._depth is None:
            return _NOTHING
        copied: dict[int, Any] = {}
        if len(self._received) >= self._depth - 1:
            number = self._number - len(self._received) + 1
            for env_id in self._received.popleft():
                if self._views.get(env_id) == number:
                    copied[env_id] = self.rows[env_id]
                    self.put_one(env_id, copy_arrays(self.rows[env_id]))
        self._received.append([])
        self._number += 1
        return copied

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
