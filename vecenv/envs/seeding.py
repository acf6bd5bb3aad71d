"""The seed of each episode, computed from the env's seed and passed to the env at a reset."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np

from vecenv.errors import ConfigError

SEED_BITS = 31  # old simulators accept only a positive C int


def check_seed(seed: Any) -> int:
    """Return the seed as int; ConfigError if it is not an integer, or is negative."""
    if isinstance(seed, bool) or not isinstance(seed, (numbers.Integral, np.integer)):
        raise ConfigError(f"seed: expected an integer >= 0, got {type(seed).__name__}: {seed!r}")
    if seed < 0:
        raise ConfigError(f"seed: expected an integer >= 0, got {seed!r}")
    return int(seed)


def episode_seed(seed: int, episode: int, dynamic: bool = True) -> int:
    """Compute the seed of one episode from the env's seed and the episode's index.

    This is a pure function that uses no generator. So any episode can be repeated without the episodes before
    it, and envs in one process do not affect each other. Neighbouring seeds give unrelated sequences.

    Args:
        seed: the env's seed, at least 0.
        episode: index of the episode since the env was seeded, from 0.
        dynamic: False returns `seed` itself for every episode (used for evaluation).

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
    """The sequence of episode seeds of one env: None until `seed` is called, then values of `episode_seed`.

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
        #: Index of the next episode since `seed`.
        self.episode = 0
        self.stride = 1

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Start a new sequence at episode 0; ConfigError if the seed is not an integer >= 0."""
        self.base = check_seed(seed)
        self.dynamic = bool(dynamic_seed)
        self.go_to(0)

    def go_to(self, episode: int, stride: int = 1) -> None:
        """Continue with the episode of this index, and then with every `stride`-th one."""
        self.episode, self.stride = episode, stride

    def advance(self) -> int | None:
        """Return the next episode's seed, or None before `seed` was called, and go to the next episode."""
        episode, self.episode = self.episode, self.episode + self.stride
        return None if self.base is None else episode_seed(self.base, episode, self.dynamic)

    @contextlib.contextmanager
    def for_reset(self) -> Iterator[int | None]:
        """Yield the next episode's seed, as `advance` does, for a reset inside the `with` block.

        If the block raises, the sequence goes back by one, so the next reset gets the same seed.

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
        """Return the position in the sequence, picklable, for `set_state`."""
        return {"base": self.base, "dynamic": self.dynamic, "episode": self.episode, "stride": self.stride}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue the sequence from a state that `get_state` returned."""
        self.base, self.dynamic = state["base"], state["dynamic"]
        self.go_to(state["episode"], state["stride"])
