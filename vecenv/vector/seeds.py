"""Seeds of resets: drawn for the first reset where the caller gives none, and recorded.

    the caller's seeds, or None -> draw_missing: seeds for first resets -> Pool.reset -> record -> `last`

Used by the resets of `VectorEnv` and of the front ends above it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence

from ..core.pool.pool import Pool
from ..envs.adapt import has_generator

__all__ = ["EnvSeeds", "draw_seed"]

_LOG = logging.getLogger(__name__)
#: Drawn seeds are below this limit, which some simulators require.
_SEED_LIMIT = 2**31


def draw_seed(num_envs: int) -> int:
    """Draw the seed of env 0 for an unseeded first reset, and log it; env i gets this seed plus i."""
    seed = secrets.randbelow(_SEED_LIMIT - num_envs)
    _LOG.info("unseeded reset: env i gets seed %d + i", seed)
    return seed


class EnvSeeds:
    """The seeds of a pool's envs.

    Attributes:
        last: the seed that each env was given last, or None; ordered by env_id.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.last: tuple[int | None, ...] = (None,) * pool.num_envs
        self._unseeded = set(range(pool.num_envs))  # envs that have not been reset yet

    def draw_missing(self, seeds: Sequence[int | None], env_ids: Sequence[int]) -> list[int | None]:
        """Return the seeds for the resets of these envs; draw one for each first reset without a seed.

        Drawn seeds make an unseeded run repeatable: `record` keeps them in `last`. An env that already has its
        generator, for example because its env_fn reset it, keeps that and gets no seed. To check for generators, this
        method calls the envs and blocks until they answer.

        Args:
            seeds: the caller's seed for each env of the pool.
            env_ids: the envs that will be reset.

        Returns:
            One seed or None per env, ordered as `env_ids`.

        Raises:
            Exception: any error of `Pool.call`.
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
        """Keep the seeds of resets that were sent; `seeds` is the result of `draw_missing` for these env ids."""
        given = {env_id: seed for env_id, seed in zip(env_ids, seeds) if seed is not None}
        self.last = tuple(given.get(env_id, known) for env_id, known in enumerate(self.last))
        self._unseeded.difference_update(env_ids)
