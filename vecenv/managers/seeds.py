"""Seeds: the argument of `manager.seed` by env, and the seeds that envs get with their resets."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..envs.seeding import check_seed, episode_seed
from ..errors import ConfigError

__all__ = ["ResetSeeds", "Seed", "seeds_by_env"]

#: (seed, dynamic_seed) as `manager.seed` was given them.
Seed: TypeAlias = "tuple[int, bool | None]"


class ResetSeeds:
    """The seeds of envs: those that wait for a reset, and those that envs have got.

    Attributes:
        waiting: the seeds that wait for a reset, by env_id. The next reset of the env that the caller asks for uses
            its seed once.
    """

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self.waiting: dict[int, Seed] = {}
        self.open()

    def open(self) -> None:
        """Begin with new envs; seeds that wait for a reset stay."""
        self._in_use: dict[int, Seed] = {}
        self._num_episodes = dict.fromkeys(range(self._num_envs), 0)  # begun since the env was seeded

    def save(self) -> dict[str, Any]:
        """Return all seeds and counts, as `load` takes them."""
        return {"waiting": self.waiting, "in_use": self._in_use, "num_episodes": self._num_episodes}

    def load(self, saved: dict[str, Any]) -> None:
        """Continue with the result of `save`."""
        self.waiting, self._in_use = saved["waiting"], saved["in_use"]
        self._num_episodes = saved["num_episodes"]

    def give(self, seeds: Mapping[int, int], dynamic_seed: bool | None) -> None:
        """Store the seeds of the caller, {env_id: seed}."""
        self.waiting.update((env_id, (seed, dynamic_seed)) for env_id, seed in seeds.items())

    def seed_for_reset(self, env_id: int, *, is_requested: bool, is_rebuilt: bool) -> Seed | None:
        """Return the seed of the env's next reset; None if its sequence of seeds continues.

        Args:
            env_id: the env.
            is_requested: the caller asks for this reset. Only then a seed of the caller's is used.
            is_rebuilt: the env is new, so it must be given its seed again.
        """
        seed = self.waiting.get(env_id) if is_requested else None
        if seed is None and is_rebuilt and env_id in self._in_use:
            # A sequence that starts at 0 again would repeat episodes. One with a derived seed does not.
            number, dynamic = self._in_use[env_id]
            seed = episode_seed(number, self._num_episodes[env_id], dynamic is not False), dynamic
        return seed

    def next_episode(self, env_id: int, seed: Seed | None) -> int:
        """Return the index of the episode that a reset with this seed, or none, begins in its sequence of seeds."""
        return self._num_episodes[env_id] if seed is None else 0

    def count_episode(self, env_id: int) -> None:
        """Count an episode that has begun."""
        self._num_episodes[env_id] += 1

    def on_used(self, env_id: int, seed: Seed | None) -> None:
        """An episode has begun with a request of a reset that had this seed, or none."""
        if seed is not None:
            self._in_use[env_id] = seed
            self._num_episodes[env_id] = 1
            if self.waiting.get(env_id) == seed:
                del self.waiting[env_id]


def seeds_by_env(seed: Any, num_envs: int) -> dict[int, int]:
    """Return {env_id: seed} for the argument of `BaseEnvManager.seed`, whose errors it raises."""
    if isinstance(seed, numbers.Integral):
        first = check_seed(seed)
        return {env_id: first + env_id for env_id in range(num_envs)}
    if isinstance(seed, Mapping):
        unknown = [env_id for env_id in seed if env_id not in range(num_envs)]
        if unknown:
            raise ConfigError(f"seed: no env {unknown[0]!r}; env ids are 0..{num_envs - 1}", key="seed")
        return {int(env_id): _check(env_id, value) for env_id, value in seed.items()}
    if isinstance(seed, np.ndarray | Sequence) and not isinstance(seed, str | bytes):
        if len(seed) != num_envs:
            raise ConfigError(f"seed: expected {num_envs} seeds, one per env, got {len(seed)}", key="seed")
        return {env_id: _check(env_id, value) for env_id, value in enumerate(seed)}
    raise TypeError(f"seed: expected an integer, a sequence or a dict, got {type(seed).__name__}")


def _check(env_id: int, value: Any) -> int:
    try:
        return check_seed(value)
    except ConfigError as error:
        raise ConfigError(f"env {env_id}: {error}", key="seed") from None
