"""Observations: the last observation of each env, in batches for a policy."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from ..core.layout.spec import Array, Leaf, Spec

__all__ = ["Observations"]


class Observations:
    """Keeps one observation per env."""

    def __init__(self, space: Space[Any], num_envs: int) -> None:
        self._space = space
        root = Spec(space, "obs").root
        self._array = np.zeros((num_envs, *root.shape), root.dtype) if isinstance(root, Leaf) else None
        self._rows: list[Any] = [None] * num_envs  # of spaces that are not one array
        self._batch_spaces: dict[int, Space[Any]] = {}

    def put(self, obs: Any, env_ids: Array) -> None:
        """Keep a copy of the observations of the envs `env_ids`, int64 (B,): nested like the space, leaves (B, *S)."""
        if self._array is not None:
            self._array[env_ids] = obs
            return
        count = len(env_ids)
        space = self._batch_spaces.get(count)
        if space is None:
            space = self._batch_spaces[count] = batch_space(self._space, count)
        for env_id, row in zip(env_ids.tolist(), iterate(space, obs)):
            self._rows[env_id] = row

    def take(self, env_ids: Array) -> Any:
        """Return a copy of the observations of these envs, int64 (B,): nested like the space, leaves (B, *S)."""
        if self._array is not None:
            return self._array.take(env_ids, 0)
        empty: Any = create_empty_array(self._space, len(env_ids))
        return concatenate(self._space, [self._rows[env_id] for env_id in env_ids.tolist()], empty)
