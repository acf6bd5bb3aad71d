"""Seeds of the episodes of an evaluation: each seed is one episode."""

from __future__ import annotations

import numbers
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..errors import ConfigError
from ..values.checks import check_whole

__all__ = ["MOST_SEED", "read_seeds"]

#: Largest seed. Generators of simulators in C take an int32.
MOST_SEED = 2**31 - 1
#: Most wrong seeds that an error names.
_MOST_NAMED = 5


def read_seeds(seeds: Iterable[int] | None, episodes: int | None, *, name: str = "seeds") -> tuple[int, ...]:
    """Return the seeds of an evaluation, one per episode, in the caller's order; arguments are those of `evaluate`.

    Raises:
        ConfigError: both or neither are given, a seed is not such a number, or a seed appears twice.
    """
    if (seeds is None) == (episodes is None):
        given = "got neither" if seeds is None else "got both"
        raise ConfigError(f"seeds: expected either seeds=[...] or episodes=K, {given}", key="seeds")
    if episodes is not None:
        return tuple(range(min(check_whole("episodes", episodes, 1), MOST_SEED + 1)))
    if isinstance(seeds, str | bytes) or not isinstance(seeds, Iterable):
        raise ConfigError(f"{name}: expected a list with one seed per episode, got {seeds!r}", key=name)
    found = tuple(_read_seed(name, seed) for seed in seeds)
    if not found:
        raise ConfigError(f"{name}: expected at least one seed, got none", key=name)
    twice = [seed for seed, count in Counter(found).items() if count > 1]
    if twice:
        named = ", ".join(map(str, twice[:_MOST_NAMED])) + (", ..." if len(twice) > _MOST_NAMED else "")
        raise ConfigError(f"{name}: {named} given twice; each seed is one episode", key=name)
    return found


def _read_seed(name: str, seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or not 0 <= int(seed) <= MOST_SEED:
        raise ConfigError(f"{name}: expected whole numbers from 0 to {MOST_SEED}, got {seed!r}", key=name)
    return int(seed)
