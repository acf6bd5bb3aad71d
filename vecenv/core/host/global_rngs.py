"""GlobalRngs: global random generators of one's own (`random`, `numpy.random`) for each env of a process.

Stands around every call into an env. Envs that share a process share these generators too, so what
one draws would depend on its neighbours. The rules that prevent it:

* Each env has streams of its own, a function of its env_id. While it is constructed, reset by a
  command, called or closed they are swapped in; afterwards they are put away and the neutral state
  stands in the process: one constant, the same for every env, pool and process.
* A plain step or an autoreset is not worth a swap: it starts from the neutral state and afterwards a
  few words of memory tell whether anything was drawn (a few ns, in native/worker/serve.c). Nobody draws
  from the neutral state twice: after a draw it is put back. So a first draw has the same value
  whoever stepped before, and how many did.
* An env that has drawn, at whatever call, has its own streams swapped in around steps and autoresets
  too, from its next call on: about a microsecond each.

What an env draws is therefore a function of its own calls, alone or in company, in a worker or in the
caller's process. The caller's generators come back exactly as they were.

Both generators are the Mersenne Twister and keep 624 words and a position, 2,500 bytes; asking for the
state and setting it costs 60 us, copying the memory 0.2 us. Their layout is not promised, so it is
compared with what private generators say of themselves before it is used; where it differs, all envs
are swapped at every call by the slow way.

    random.Random       header | int position | uint32 words[624]          (and the attribute gauss_next)
    numpy's MT19937     uint32 words[624] | int position                   at `ctypes.state_address`
    RandomState         ... | int has_gauss | 4 bytes | double gauss | ... at an offset that is searched

What is not covered: draws that another thread of an env makes between its calls, and draws at the
import of a module, which happens once per process and not once per env.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import pickle
import random
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from ..layout.native import load

__all__ = ["EnvRngs", "GlobalRngs", "RngSwappingEnv", "is_exact"]

_WORDS = 624
_STATE_NBYTES = 4 * (_WORDS + 1)
_GAUSS_NBYTES = 16  # has_gauss, padding, gauss
_HEADER_NBYTES = object.__basicsize__

# Seeds of states are words of this sequence: the neutral state's first, then one branch per env_id.
_ENTROPY = 0x76656365_6E76

# The neutral state is not a seeded one: its positions differ from those that seeding leaves behind, so
# that an env which seeds the generators is seen like one which draws.
_NEUTRAL_DRAWS = 3

#: The words of both generators, and the second Gaussian of `random`; see `_MemoryAccessor` and `_CallAccessor`.
State = tuple[Any, Any]

#: (address of a uint32, its value while nobody has drawn)
WatchedWords = tuple[tuple[int, int], ...]


def _global_pair() -> tuple[random.Random, Any]:
    return random.random.__self__, np.random.mtrand._rand  # type: ignore[attr-defined]


def _seeded_pair(seed: int | tuple[int, ...]) -> tuple[random.Random, Any]:
    words = np.random.SeedSequence(seed).generate_state(4, np.uint32)
    return random.Random(int(words[0])), np.random.RandomState(words[1:])


def _memory_at(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


class _MemoryAccessor:
    """Exchanges the state of a pair of generators by copying memory."""

    def __init__(self, python: random.Random, numpy: Any, gauss_offset: int) -> None:
        bits = numpy._bit_generator
        self._owners = numpy, bits  # the memory is theirs
        self._python: Any = python
        start, words = id(python) + _HEADER_NBYTES, bits.ctypes.state_address
        areas = (start, _STATE_NBYTES), (words, _STATE_NBYTES), (id(numpy) + gauss_offset, _GAUSS_NBYTES)
        native = load()
        if native is None:
            self._exchange = functools.partial(_exchange, [_memory_at(*area) for area in areas])
        else:
            self._exchange = functools.partial(native.exchange, struct.pack("=6Q", *itertools.chain(*areas)))
        self._positions = start, words + 4 * _WORDS
        self._first_words = start + 4, words

    def save(self) -> State:
        words = bytearray(2 * _STATE_NBYTES + _GAUSS_NBYTES)
        self._exchange(words, None)
        return words, self._python.gauss_next

    def load(self, state: State) -> None:
        self._exchange(None, state[0])
        self._python.gauss_next = state[1]

    def swap(self, state: State) -> State:
        """Save, then load."""
        words = bytearray(2 * _STATE_NBYTES + _GAUSS_NBYTES)
        self._exchange(words, state[0])
        gauss, self._python.gauss_next = self._python.gauss_next, state[1]
        return words, gauss

    def watched_words(self, state: State) -> WatchedWords:
        # A draw moves the position. Seeding, and a draw of a whole lap, may bring it back where it
        # was: those change the first word.
        words = np.frombuffer(state[0], np.uint32)
        last = 2 * (_WORDS + 1) - 1
        values = words[0], words[last], words[1], words[_WORDS + 1]
        return tuple(zip(self._positions + self._first_words, map(int, values)))


def _exchange(areas: list[memoryview], keep: bytearray | None, fill: bytearray | None) -> None:
    """Do what `_native.exchange` does."""
    start = 0
    for area in areas:
        stop = start + len(area)
        if keep is not None:
            keep[start:stop] = area
        if fill is not None:
            area[:] = fill[start:stop]
        start = stop


class _CallAccessor:
    """The same through the generators' own functions, where their memory is laid out in another way."""

    def __init__(self, python: random.Random, numpy: Any) -> None:
        self._python, self._numpy = python, numpy

    def save(self) -> State:
        name, words, *rest = self._numpy.get_state()
        return self._python.getstate(), (name, words.tobytes(), *rest)

    def load(self, state: State) -> None:
        self._python.setstate(state[0])
        name, words, *rest = state[1]
        self._numpy.set_state((name, np.frombuffer(words, np.uint32), *rest))

    def swap(self, state: State) -> State:
        saved = self.save()
        self.load(state)
        return saved

    def watched_words(self, state: State) -> WatchedWords:
        return ()


@functools.cache
def _gauss_offset() -> int | None:
    """Find where a RandomState keeps its second Gaussian; None if any part of the layout differs from ours."""
    python, numpy = _seeded_pair(1)
    python.random(), numpy.random_sample()
    words = python.getstate()[1]
    if type(python).__basicsize__ < _HEADER_NBYTES + _STATE_NBYTES:
        return None
    if bytes(_memory_at(id(python) + _HEADER_NBYTES, _STATE_NBYTES)) != struct.pack("=625I", words[-1], *words[:-1]):
        return None
    state = numpy.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return None
    laid_out = state["state"]["key"].tobytes() + struct.pack("=i", state["state"]["pos"])
    if bytes(_memory_at(numpy._bit_generator.ctypes.state_address, _STATE_NBYTES)) != laid_out:
        return None
    numpy.set_state(("MT19937", state["state"]["key"], 7, 1, 0.123456789))
    body = bytes(_memory_at(id(numpy), type(numpy).__basicsize__))
    offset = body.find(struct.pack("=d", 0.123456789)) - 8
    if offset < 0 or body[offset : offset + 4] != struct.pack("=i", 1):
        return None
    numpy.standard_normal()  # hands out the second Gaussian
    return offset if bytes(_memory_at(id(numpy) + offset, 4)) == bytes(4) else None


def is_exact() -> bool:
    """Tell whether the generators' memory can be read in place here."""
    return _gauss_offset() is not None


def _accessor_of(python: random.Random, numpy: Any) -> _MemoryAccessor | _CallAccessor:
    offset = _gauss_offset()
    is_known = type(python) is random.Random and type(numpy._bit_generator) is np.random.MT19937
    return _MemoryAccessor(python, numpy, offset) if offset is not None and is_known else _CallAccessor(python, numpy)


@functools.cache
def _neutral_state() -> State:
    python, numpy = _seeded_pair(_ENTROPY)
    for _ in range(_NEUTRAL_DRAWS):
        python.random(), numpy.random_sample()
    return _accessor_of(python, numpy).save()


# The generators belong to the process: of two threads that serve pools in it one goes without.
_process_lock = threading.RLock()


def _reset_in_child() -> None:
    """A forked worker has none of the threads that may have held it."""
    global _process_lock
    _process_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


class EnvRngs:
    """One env's streams, swapped in by `with`; not re-entrant.

    Attributes:
        state: where they stand.
        has_drawn: whether the env has drawn from them, or at a step from the neutral state.
    """

    def __init__(self, rngs: GlobalRngs, env_id: int) -> None:
        self._rngs = rngs
        self._generators = rngs.generators
        self.state = _accessor_of(*_seeded_pair((_ENTROPY, env_id))).save()
        self.has_drawn = not is_exact()

    def __enter__(self) -> None:
        if self._rngs.is_active:
            self._generators.load(self.state)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rngs.is_active:
            state = self._generators.swap(self._rngs.neutral_state)
            self.has_drawn = self.has_drawn or state != self.state
            self.state = state


class RngSwappingEnv:
    """Stands in for an env that draws from the global generators: its own are there while it steps and resets."""

    def __init__(self, env: Any, env_rngs: EnvRngs) -> None:
        self._env = env
        self._env_rngs = env_rngs

    def step(self, action: Any) -> Any:
        """Step the env."""
        with self._env_rngs:
            return self._env.step(action)

    def reset(self) -> Any:
        """Reset the env."""
        with self._env_rngs:
            return self._env.reset()


class GlobalRngs:
    """The streams of the envs of one process; the rules take effect within `with`.

    On leaving, the process's generators are again as they were on entering. If another thread is
    within, this one goes without: its envs draw from whatever state there is.

    Attributes:
        watched_words: (address of a uint32, value) of words that a draw from the neutral state changes; empty
            where memory cannot be read.
        is_active: whether the generators are in our hands.
        is_threaded: whether `disable_swapping` was called.

    Example:
        >>> rngs = GlobalRngs()
        >>> before = random.getstate()
        >>> with rngs:
        ...     with rngs.of(3):
        ...         value = random.random()
        >>> rngs.has_drawn(3), rngs.has_drawn(4), random.getstate() == before
        (True, False, True)
    """

    def __init__(self) -> None:
        self.generators = _accessor_of(*_global_pair())
        self.neutral_state = _neutral_state()
        self.watched_words = self.generators.watched_words(self.neutral_state)
        self.is_active = False
        self.is_threaded = False
        self._callers_state: State | None = None
        self._lock = _process_lock
        self._env_rngs: dict[int, EnvRngs] = {}

    def __enter__(self) -> GlobalRngs:
        self._lock = _process_lock
        if self._lock.acquire(False):
            self._callers_state = self.generators.swap(self.neutral_state)
            self.is_active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_active:
            assert self._callers_state is not None
            self.is_active = False
            self.generators.load(self._callers_state)
            self._lock.release()

    def of(self, env_id: int) -> EnvRngs:
        """Return the streams of an env, to be entered around a call into it."""
        env_rngs = self._env_rngs.get(env_id)
        if env_rngs is None:
            env_rngs = self._env_rngs[env_id] = EnvRngs(self, env_id)
        return env_rngs

    def has_drawn(self, env_id: int) -> bool:
        """Tell whether the env's streams have to be swapped in at every call."""
        return self.of(env_id).has_drawn

    def note_draw(self, env_id: int) -> None:
        """Take note that an env drew from the neutral state, and put that back."""
        self.of(env_id).has_drawn = True
        if self.is_active:
            self.generators.load(self.neutral_state)

    def call_swapped(self, env_id: int, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call into an env that has its streams in any case."""
        with self.of(env_id):
            return call(*args, **kwargs)

    def call_lazily(self, env_id: int, call: Callable[..., Any], *args: Any) -> Any:
        """Step or autoreset an env by the rules that a slot follows."""
        env_rngs = self.of(env_id)
        if env_rngs.has_drawn:
            with env_rngs:
                return call(*args)
        try:
            return call(*args)
        finally:
            if self.is_active and self.generators.save() != self.neutral_state:
                self.note_draw(env_id)

    def disable_swapping(self, env_id: int) -> None:
        """From here on several threads call envs at once: swap nothing, go on from one env's streams, watch for draws.

        A swap would hit envs of the other threads, so nothing can be promised to any of them.
        """
        self.is_active, self.is_threaded = False, True
        self.generators.load(self.of(env_id).state)
        self.watched_words = self.generators.watched_words(self.generators.save())

    def forget(self, env_id: int) -> None:
        """Begin anew with an env that is built again."""
        self._env_rngs.pop(env_id, None)

    def pack_state(self, env_id: int, state: bytes) -> bytes:
        """Put an env's streams, if it has drawn from them, beside its state; between two of its calls."""
        env_rngs = self.of(env_id)
        return pickle.dumps((env_rngs.state if env_rngs.has_drawn else None, state), protocol=5)

    def unpack_state(self, env_id: int, packed: bytes) -> bytes:
        """Go on from what `pack_state` gave; return the env's state."""
        drawn, state = pickle.loads(packed)
        if drawn is not None:
            env_rngs = self.of(env_id)
            env_rngs.state, env_rngs.has_drawn = drawn, True
        return bytes(state)
