"""Seeds on their way into an env: which one each episode gets, and who owns the global generators meanwhile."""

from __future__ import annotations

import ctypes
import numbers
import random
import struct
from types import TracebackType
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

    def get_state(self) -> dict[str, Any]:
        """Give what `set_state` takes; picklable."""
        return {"base": self.base, "dynamic": self.dynamic, "episode": self.episode}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue the sequence where `get_state` was called."""
        self.base, self.dynamic, self.episode = state["base"], state["dynamic"], state["episode"]


class GlobalStreams:
    """One env's own copy of the global generators (`random`, `numpy.random`), swapped in by `with`.

    Inside the block the module-level functions draw from this env's streams; on leaving, the caller's come
    back just as they were and this env's are kept for the next time. Not re-entrant; one thread at a time,
    because the generators belong to the whole process.

    Example:
        >>> one, two = GlobalStreams.from_seed(1), GlobalStreams.from_seed(1)
        >>> with one:
        ...     a = random.random()
        >>> with two:
        ...     b = random.random()
        >>> a == b
        True
    """

    def __init__(self) -> None:
        """Start from the states the process has now."""
        self._own: tuple[Any, Any] = _get_global_states()
        self._outer: tuple[Any, Any] | None = None

    @classmethod
    def from_seed(cls, seed: int) -> GlobalStreams:
        """Start from states that are a function of the seed alone; the process's own stay untouched."""
        streams = cls()
        words = np.random.SeedSequence(seed).generate_state(4, np.uint32)
        streams._own = (random.Random(int(words[0])).getstate(), np.random.RandomState(words[1:]).get_state())
        return streams

    def __enter__(self) -> GlobalStreams:
        assert self._outer is None, "GlobalStreams entered twice"
        self._outer = _get_global_states()
        _set_global_states(self._own)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._outer is not None, "GlobalStreams left without being entered"
        self._own = _get_global_states()
        _set_global_states(self._outer)
        self._outer = None

    def get_state(self) -> tuple[Any, Any]:
        """Give the states of (`random`, `numpy.random`) as these modules' own getters do; picklable."""
        return self._own

    def set_state(self, state: tuple[Any, Any]) -> None:
        """Take over states got by `get_state`; takes effect at the next `with`."""
        self._own = state


def _get_global_states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set_global_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])


# Both generators are the Mersenne Twister: 624 words and a position. Reading a few words in place costs well
# under a microsecond; asking for the state copies 625 words each and takes ten. A draw moves the position; when
# that comes round to the same value the words have been replaced, so position and one word tell draws apart.
_WORDS = 624
_WORD_NBYTES = 4


def _bit_generator() -> Any:
    return np.random.get_bit_generator()  # type: ignore[attr-defined]  # there since NumPy 1.24, not in its stubs


class _Peek:
    """Reads position and first word of the two global generators in place, where the layout can be proven."""

    def __init__(self) -> None:
        self._python = self._find_python()
        self._numpy = self._find_numpy()

    def __call__(self) -> tuple[Any, Any]:
        python = bytes(self._python) if self._python is not None else hash(random.getstate())
        if self._numpy is not None and self._numpy[2] is _bit_generator():
            position: Any = (self._numpy[0].value, self._numpy[1].value)
        else:
            state = np.random.get_state(legacy=False)
            position = repr(state)
        return python, position

    @staticmethod
    def _find_python() -> Any:
        # CPython lays random.Random out as object header, int index, 624 words. Not promised, so it is
        # compared with getstate() here, and left alone where it differs.
        instance = getattr(random, "_inst", None)
        if instance is None or object.__basicsize__ + _WORD_NBYTES * (_WORDS + 1) > type(instance).__basicsize__:
            return None
        address = id(instance) + object.__basicsize__
        words = instance.getstate()[1]
        if bytes((ctypes.c_char * 12).from_address(address)) != struct.pack("=III", words[-1], words[0], words[1]):
            return None
        return (ctypes.c_char * 8).from_address(address)

    @staticmethod
    def _find_numpy() -> tuple[Any, Any, Any] | None:
        generator = _bit_generator()
        if not isinstance(generator, np.random.MT19937):
            return None
        address = generator.ctypes.state_address
        position = ctypes.c_uint32.from_address(address + _WORDS * _WORD_NBYTES)
        word = ctypes.c_uint32.from_address(address)
        state: Any = generator.state["state"]
        if (position.value, word.value) != (int(state["pos"]), int(state["key"][0])):
            return None
        return position, word, generator


_peek: _Peek | None = None


def global_positions() -> tuple[Any, Any]:
    """Give where (`random`, `numpy.random`) stand; compare two answers to learn whether either was drawn from.

    Under a microsecond where the generators' memory can be read in place, some tens of microseconds elsewhere. A draw
    that only hands out a cached second Gaussian does not show.
    """
    global _peek
    if _peek is None:
        _peek = _Peek()
    return _peek()
