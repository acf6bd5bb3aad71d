"""Seeds that a manager was given and has not passed on yet; each is used once."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..envs.seeding import check_seed
from ..errors import ConfigError

__all__ = ["seeds_by_env"]


def seeds_by_env(seed: Any, num_envs: int) -> dict[int, int]:
    """Return {env_id: seed} for what `manager.seed` was given, which stays as it is.

    Args:
        seed: an integer s gives env i the seed s + i; a sequence has one seed per env; a dict
            names the envs meant.

    Raises:
        ConfigError: a wrong number of seeds, a negative one, an env_id that does not exist.
        TypeError: anything else.
    """
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
