"""Seeds: what the resets of single envs are given, and were.

    seeds that a caller gives, or none -> fill: drawn ones in a first reset -> Pool.reset -> note -> `last`

Stands beside the resets of `VectorEnv` and of the faces on it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence

from ..core.pool.pool import Pool
from ..envs.adapt import has_generator

__all__ = ["EnvSeeds", "draw_seed"]

_LOG = logging.getLogger(__name__)
#: Seeds drawn here stay below this, as some simulators ask.
_SEED_LIMIT = 2**31


def draw_seed(num_envs: int) -> int:
    """Draw the seed of env 0 in an unseeded first reset, so that it can be told; env i is to get this and i."""
    seed = secrets.randbelow(_SEED_LIMIT - num_envs)
    _LOG.info("unseeded reset: env i gets seed %d + i", seed)
    return seed


class EnvSeeds:
    """The seeds of a pool's envs.

    Attributes:
        last: the seed that each env was last given, None where it got none.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.last: tuple[int | None, ...] = (None,) * pool.num_envs
        self._unseeded = set(range(pool.num_envs))  # envs without a reset so far

    def draw_missing(self, seeds: Sequence[int | None], env_ids: Sequence[int]) -> list[int | None]:
        """Return the seeds of these envs' resets, drawn for those that begin unseeded, so that they can be told.

        An env that has its generator already, as after a reset in its env_fn, keeps it. Asks such envs, and so
        blocks as long as a call of them does.

        Args:
            seeds: of all envs, as the caller gave them.
            env_ids: those that are to be reset.

        Raises:
            Exception: as `Pool.call`.
        """
        asked = [seeds[env_id] for env_id in env_ids]
        new = [i for i, env_id in enumerate(env_ids) if asked[i] is None and env_id in self._unseeded]
        if new:
            first = draw_seed(self._pool.num_envs)
            has_own = self._pool.call(has_generator, [env_ids[i] for i in new], pure=True)
            for i, keeps in zip(new, has_own):
                asked[i] = None if keeps else first + env_ids[i]
        return asked

    def record(self, seeds: Sequence[int | None], env_ids: Sequence[int]) -> None:
        """Remember the seeds, as `draw_missing` gave them, of resets that were sent."""
        given = {env_id: seed for env_id, seed in zip(env_ids, seeds) if seed is not None}
        self.last = tuple(given.get(env_id, known) for env_id, known in enumerate(self.last))
        self._unseeded.difference_update(env_ids)
