"""Seeds on their way into an env: which one each episode gets."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np

from vecenv.errors import ConfigError

SEED_BITS = 31  # what old simulators accept: a positive C int


def check_seed(seed: Any) -> int:
    """Give the seed as int.

    Raises:
        ConfigError: not an integer, or negative.
    """
    if isinstance(seed, bool) or not isinstance(seed, (numbers.Integral, np.integer)):
        raise ConfigError(f"seed: expected an integer >= 0, got {type(seed).__name__}: {seed!r}")
    if seed < 0:
        raise ConfigError(f"seed: expected an integer >= 0, got {seed!r}")
    return int(seed)


def episode_seed(seed: int, episode: int, dynamic: bool = True) -> int:
    """Compute the seed of one episode from the env's seed and the episode's index.

    A pure function: no generator is drawn from, so any episode can be had again without the ones before
    it, and envs in one process cannot disturb each other. Neighbouring seeds give unrelated sequences.

    Args:
        seed: the env's seed, at least 0.
        episode: index of the episode since the env was seeded, from 0.
        dynamic: False gives `seed` itself for every episode (evaluation).

    Returns:
        An int in 0 .. 2**31 - 1 if dynamic, else `seed`.

    Example:
        >>> episode_seed(7, 3) == episode_seed(7, 3), episode_seed(7, 3) == episode_seed(7, 4)
        (True, False)
        >>> episode_seed(7, 3, dynamic=False)
        7
    """
    if not dynamic:
        return seed
    word = np.random.SeedSequence((seed, episode)).generate_state(1, np.uint64)[0]
    return int(word) >> (64 - SEED_BITS)


class EpisodeSeeds:
    """Hands out the seed of each episode of one env: none until seeded, then by `episode_seed`.

    Example:
        >>> seeds = EpisodeSeeds()
        >>> seeds.advance() is None
        True
        >>> seeds.seed(5, dynamic_seed=False)
        >>> seeds.advance(), seeds.advance(), seeds.episode
        (5, 5, 2)
    """

    def __init__(self) -> None:
        self.base: int | None = None
        self.dynamic = True
        self.episode = 0
        """Index of the next episode since `seed`."""

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Start the sequence anew.

        Raises:
            ConfigError: the seed is not an integer >= 0.
        """
        self.base = check_seed(seed)
        self.dynamic = bool(dynamic_seed)
        self.episode = 0

    def advance(self) -> int | None:
        """Give the next episode's seed, or None if never seeded, and move on by one."""
        episode, self.episode = self.episode, self.episode + 1
        return None if self.base is None else episode_seed(self.base, episode, self.dynamic)

    @contextlib.contextmanager
    def for_reset(self) -> Iterator[int | None]:
        """As `advance`, around the reset that it is for: one that raises has not had its seed, and the next one has.

        Example:
            >>> seeds = EpisodeSeeds()
            >>> seeds.seed(5)
            >>> with contextlib.suppress(OSError), seeds.for_reset() as failed:
            ...     raise OSError
            >>> with seeds.for_reset() as seed:
            ...     pass
            >>> seed == failed, seeds.episode
            (True, 1)
        """
        before = self.get_state()
        try:
            yield self.advance()
        except BaseException:
            self.set_state(before)
            raise

    def get_state(self) -> dict[str, Any]:
        """Give what `set_state` takes; picklable."""
        return {"base": self.base, "dynamic": self.dynamic, "episode": self.episode}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue the sequence where `get_state` was called."""
        self.base, self.dynamic, self.episode = state["base"], state["dynamic"], state["episode"]
