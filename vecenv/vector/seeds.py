"""Seeds of envs: those that the caller gave to resets, and those that were drawn for their generators.

    the caller's seeds -> record -> `last` <- note <- rows of resets

Used by the resets of `VectorEnv` and of the front ends above it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.layout.flags import RowFlag
from ..core.parent.batch import Batch

__all__ = ["EnvSeeds"]


class EnvSeeds:
    """The seeds of a pool's envs.

    Attributes:
        last: the seed that each env was given last, or that its generator was made from; None if it is unknown.
            Ordered by env_id.
    """

    def __init__(self, num_envs: int) -> None:
        self.last: tuple[int | None, ...] = (None,) * num_envs

    def record(self, seeds: Sequence[int | None], env_ids: Sequence[int]) -> None:
        """Keep the seeds of resets that were sent, one seed or None per env."""
        self._keep({env_id: seed for env_id, seed in zip(env_ids, seeds) if seed is not None})

    def note(self, batch: Batch) -> None:
        """Keep the seeds in the rows of resets; among them are those that were drawn."""
        flags = batch.row_flags & (RowFlag.RESET | RowFlag.ERROR)
        rows = np.flatnonzero((flags == RowFlag.RESET) & (batch.seeds >= 0))
        if len(rows):
            self._keep(dict(zip(batch.env_ids[rows].tolist(), batch.seeds[rows].tolist())))

    def _keep(self, given: dict[int, int]) -> None:
        self.last = tuple(given.get(env_id, known) for env_id, known in enumerate(self.last))
