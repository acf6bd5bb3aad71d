"""Shown: the newest observation of each env, as `ready_obs` hands them out.

Stands behind the timesteps on the data path. Where observations are views of the ring (copy_on_get=False)
a row lives for `depth - 1` later batches only, while an env may stay ready for much longer than that: what
is about to expire and is still to be shown gets memory of its own first.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..nested import copy_arrays, map_structure

__all__ = ["Shown"]


_NOTHING: Mapping[int, Any] = {}


class Shown:
    """Newest observations by env_id.

    Args:
        num_envs: how many envs.
        depth: of the pool, if observations are views; None if they own their memory.
    """

    def __init__(self, num_envs: int, depth: int | None) -> None:
        self.rows: list[Any] = [None] * num_envs
        self._all_ids = list(range(num_envs))
        self._ids: Sequence[int] = ()  # the envs of _batch, where all of it is newest
        self._batch: Any = None
        self._depth = depth
        self._views: dict[int, int] = {}  # env_id -> number of the batch that its row is a view of
        self._received: deque[list[int]] = deque()  # the envs of each batch that is still to be seen
        self._number = 0  # of the batch received last

    def put(self, ids: Sequence[int], batch: Any, rows: list[Any], skip: Collection[int] = ()) -> None:
        """Take in the batch received last, or a part of it.

        Args:
            ids: the env of each row.
            batch: nested arrays (B, *S); None if there are none.
            rows: the same, cut into rows.
            skip: envs whose rows mean nothing.
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
        """Take in an observation that owns its memory."""
        self.rows[env_id] = obs
        self._batch = None
        self._views.pop(env_id, None)

    def release(self, ids: Sequence[int]) -> None:
        """Note that these envs have been asked to go on: their observations need not be kept."""
        for env_id in ids if self._views else ():
            self._views.pop(env_id, None)

    def expect_batch(self) -> Mapping[int, Any]:
        """Save what the next batch to be received would overwrite. To be called before that.

        Returns:
            {env_id: what stood for it so far} of the envs whose observations have moved.
        """
        if self._depth is None:
            return _NOTHING
        moved: dict[int, Any] = {}
        if len(self._received) >= self._depth - 1:
            number = self._number - len(self._received) + 1
            for env_id in self._received.popleft():
                if self._views.get(env_id) == number:
                    moved[env_id] = self.rows[env_id]
                    self.put_one(env_id, copy_arrays(self.rows[env_id]))
        self._received.append([])
        self._number += 1
        return moved

    def stacked(self, ids: list[int]) -> Any:
        """Return these envs' observations as the batch that they came in; None if they came apart.

        Arrays (B, *S), nested like the space, in the order of `ids`.
        """
        if self._batch is None or ids == self._ids:
            return self._batch
        place = {env_id: row for row, env_id in enumerate(self._ids)}
        if not place.keys() >= set(ids):
            return None
        return map_structure(operator.itemgetter([place[env_id] for env_id in ids]), self._batch)
