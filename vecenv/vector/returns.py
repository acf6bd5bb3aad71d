"""EpisodeReturns: the sums of rewards with several numbers, for episode statistics."""

from __future__ import annotations

import numpy as np

from ..core.layout.flags import RowFlag
from ..core.layout.spec import Array
from ..core.parent.batch import Batch

__all__ = ["EpisodeReturns"]


class EpisodeReturns:
    """Adds up the rewards of each env; workers do so only for rewards of one number. K is the shape of one reward."""

    def __init__(self, num_envs: int, reward_shape: tuple[int, ...]) -> None:
        self._sums = np.full((num_envs, *reward_shape), np.nan)  # unknown before the first reset

    def add(self, batch: Batch) -> Array:
        """Add the rewards of a batch; return the sums of its rows' episodes, float64 (B, *K).

        Each delivered batch has to be added exactly once, in the order of delivery.
        """
        env_ids, flags = batch.env_ids, batch.row_flags
        sums: Array = self._sums[env_ids]
        is_first = (flags & (RowFlag.RESET | RowFlag.AUTORESET)) != 0
        sums[is_first] = 0.0
        is_step = ~is_first & ((flags & RowFlag.ERROR) == 0)
        sums[is_step] += batch.rewards[is_step]
        self._sums[env_ids] = sums
        self._sums[env_ids[(flags & RowFlag.FINAL) != 0]] = 0.0  # the same step began the next episode
        return sums

    def set(self, sums: Array | float) -> None:
        """Set the sums of all envs, float64 (N, *K); NaN: they are unknown until the next episode."""
        self._sums[:] = sums
