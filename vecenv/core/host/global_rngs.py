"""Gives each env of a process its own state of the global random generators (`random`, `numpy.random`, torch's).

This module wraps every call into an env. Envs in one process share these generators, so without it the
random values of one env would depend on the other envs. The rules that prevent this:

* Each env has its own RNG state. It begins from the entropy of the pool and the env's id. The entropy has one
  digest for each of the caller's generators, which are read and not moved; the number of the pool in its
  process is added. So runs without seeds differ, runs with equal seeds are equal, and two pools differ.
* A reset with a seed sets the env's RNG state from this seed alone.
* The env's own state is swapped in while the env is constructed, reset by a command, called or closed. After
  the call it is saved, and the generators get the neutral state of the pool.
* It is also swapped in for the first 16 steps and autoresets after the constructor or a reset with a seed, and
  for all of them once the env has drawn since then. This takes one or two microseconds per call.
* That would be too expensive for all steps of envs that do not draw. Each of their later steps and autoresets
  starts from the neutral state, of which only the next 8 words, the window, are replaced by those of the env's
  own state. After the call, a comparison of a few words of memory shows whether the env drew random values (a
  few ns, in native/worker/serve.c). After a draw the env's own state continues behind the words that were drawn.

The random values of an env are therefore a function of its own calls. It does not matter which other envs
share the process, and whether that is a worker or the caller's. The caller's generators are restored exactly.
One limit is left: if an env draws for the first time after these 16 calls, and takes more words in this step
than the window has, the words behind it are those of the neutral state, which the envs of a pool share. This
concerns that one step only. Other words for each env would take about 230 per generator and step: a refill
makes each new word from three old ones, so fewer would leave some new words equal.

torch's CPU generator takes part only while torch is imported; nothing here imports it. If the call of an env
imports torch, the states of all envs get their part for torch right then. So it does not matter which env
imports it first. The same holds for torch's generators of CUDA devices, which exist once torch has started CUDA in
the process; from then on, the states of all its envs are swapped in at every call.

Not covered are draws by another thread of an env between its calls, draws at the import of a module, which
happens once per process and not once per env, and torch's generators of other devices than CPU and CUDA.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import pickle
import random
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from ..system.fork_guard import ForkGuard
from . import torch_generator
from .generator_states import NO_TORCH, Accessor, State, TorchParts, WatchedWords, entropy_of, global_accessor, parts_of

__all__ = [
    "EnvRngs",
    "FirstCallsEnv",
    "GlobalRngs",
    "RngSwappingEnv",
    "pool_entropy",
    "reseed_running_env",
    "torch_imports",
]


def _digest(*parts: object) -> int:
    """Return a number of 128 bits that depends on all parts."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=16).digest(), "little")


# Numbers of the pools that this process makes outside its envs.
_pool_numbers = itertools.count()
#: Steps and autoresets of a new env, or after a reset with a seed, in which its RNG state is swapped in.
_FIRST_CALLS = 16


def pool_entropy() -> int:
    """Return the entropy from which the RNG states of the envs of a new pool begin.

    Each of its three parts is a digest of the state of one of the caller's global generators, which are not moved, and
    of the number of the pool in this process, or in the env that makes it. So a program that seeds and uses only one
    generator can be repeated. If torch is not imported, its part is that of NumPy's generator.
    """
    env_rngs = _running_env or (None if _innermost is None else _innermost.plain_env())
    if env_rngs is None:
        return _entropy_of_generators(next(_pool_numbers))
    env_rngs.num_pools += 1
    if env_rngs is _running_env:
        return _entropy_of_generators(env_rngs.num_pools)
    live = env_rngs.load_continued()
    try:
        return _entropy_of_generators(env_rngs.num_pools)
    finally:
        env_rngs.rngs.generators.load(live)


def _entropy_of_generators(number: int) -> int:
    """Return an entropy that depends on the present states of the global generators, and on a number."""
    python, numpy = pickle.dumps(random.getstate()), pickle.dumps(np.random.get_state(legacy=False))
    generator = torch_generator.loaded_generator()
    torch = numpy if generator is None else generator.get_state().numpy().tobytes()
    return entropy_of(*(_digest("pool", state, number) for state in (python, numpy, torch)))


def _derive(entropy: int, *numbers: int) -> int:
    """Return another entropy, of which each part depends on the same part of this one, and on these numbers."""
    return entropy_of(*(_digest(part, *numbers) for part in parts_of(entropy)))


def _entropy_of_seed(seed: Any) -> int | None:
    """Return the entropy from which the RNG state of an env begins in a reset with this seed; None: it is not valid."""
    seeds = seed if isinstance(seed, list | tuple | np.ndarray) else [seed]
    if all(one is None for one in seeds) or not all(one is None or isinstance(one, int | np.integer) for one in seeds):
        return None
    part = _digest("seed", *(None if one is None else int(one) for one in seeds))
    return entropy_of(part, part, part)


# The generators are global to the process. If two threads serve pools in it, only one of them can swap states.
_process_lock = threading.RLock()


def _reset_in_child() -> None:
    """Replace the lock after a fork: the thread that may have held it does not exist in the child."""
    global _process_lock
    _process_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


def _merged(first: TorchParts, second: TorchParts) -> TorchParts:
    """Return the parts of the first, and those of the second that are missing there."""
    return first[0] or second[0], first[1] or second[1]


class EnvRngs:
    """The RNG state of one env. A `with` block swaps it in; not re-entrant.

    Attributes:
        state: the state after the env's last call.
        entropy: from which this state began.
        has_drawn: whether the env has drawn since then.
        swaps_left: number of the next steps and autoresets in which the state is swapped in, even if it has not drawn.
        window: the next words of the state, for the first draws in a step.
        late_torch: for an env whose state was restored, the parts of torch's generators that do not exist yet.
        num_pools: how many pools the env has made since then.
    """

    def __init__(self, rngs: GlobalRngs, env_id: int) -> None:
        self.rngs = rngs
        self._generators = rngs.generators
        self.outer: EnvRngs | None = None
        self.late_torch = NO_TORCH
        self.begin_from(_derive(rngs.entropy, rngs.first_env_id + env_id))

    def begin_from(self, entropy: int) -> None:
        """Replace the state by the one that begins from an entropy."""
        self.entropy, self.late_torch = entropy, NO_TORCH
        self.swaps_left, self.num_pools = _FIRST_CALLS, 0
        self.state = self._generators.state_of(entropy)
        self.window = self._generators.window_of(self.state)
        self.has_drawn = not self._generators.window_addresses

    @property
    def is_swapped(self) -> bool:
        """Whether the state is swapped in for the next step or autoreset."""
        return self.has_drawn or self.swaps_left > 0

    def take_up_torch(self, generators: Accessor) -> None:
        """Add the parts of torch's new generators to the state, and use this accessor from now on."""
        parts = _merged(self._generators.torch_parts(self.state), self.late_torch)
        self._generators.load(self.state)
        self._generators = generators
        self.set_state(generators.without_torch(generators.save()), parts)
        self.window = generators.window_of(self.state)
        self.has_drawn = self.has_drawn or not generators.window_addresses

    def set_state(self, rest: State, parts: TorchParts) -> None:
        """Set the state from its part without torch and from torch's parts, of which a missing one begins anew."""
        first = self._generators.torch_parts(self._generators.state_of(self.entropy))
        cpu, cuda = (new and (part or new) for part, new in zip(parts, first))
        self.state = self._generators.with_torch(rest, (cpu, cuda))
        cpu, cuda = (part if new is None else None for part, new in zip(parts, first))
        self.late_torch = cpu, cuda

    def load(self) -> None:
        """Load the state into the generators."""
        self._generators.load(self.state)

    def load_continued(self) -> State:
        """Load the state that the env has within a call without a swap; return the one before it."""
        live = self._generators.save()
        self._generators.load(self._generators.continued(self.state, live, self.rngs.neutral_state))
        return live

    def __enter__(self) -> None:
        global _running_env
        if self.rngs.is_active:
            self._generators.load(self.state)
            self.outer, _running_env = _running_env, self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _running_env
        self.rngs.fork_guard.check(error)
        if self.rngs.is_active:
            _running_env = self.outer
            state = self._generators.swap(self.rngs.neutral_state)
            self.has_drawn = self.has_drawn or state != self.state
            self.state = state


# In the thread that holds `_process_lock`: the env whose RNG state is swapped in, and the innermost `with` block.
_running_env: EnvRngs | None = None
_innermost: GlobalRngs | None = None


def _take_up_torch() -> None:
    """Give the generators of torch that exist since just now the states of the env that is being called.

    In another thread than that of the envs, this waits for the next `with` block.
    """
    if torch_generator.loaded_generator() is None or not _process_lock.acquire(False):
        return
    try:
        rngs, running = _innermost, _running_env
        if rngs is not None and rngs.is_active:
            old, accessor = rngs.generators, _present_accessor()
            live = accessor.save()
            callers = accessor.torch_parts(live)
            envs = _merged(old.torch_parts(old.save()), rngs.take_up_torch(accessor, running))
            while rngs is not None:
                if running is not None and running.rngs is rngs:
                    running = running.outer
                outer = rngs.outer
                rngs.keep_for_caller(callers if outer is None else outer.take_up_torch(accessor, running))
                rngs = outer
            accessor.load(accessor.with_torch(accessor.without_torch(live), envs))
    finally:
        _process_lock.release()


def _present_accessor() -> Accessor:
    """Return the accessor of all global generators; the first call with torch has it report the start of CUDA."""
    global _is_cuda_expected
    if torch_generator.loaded_generator() is not None and not _is_cuda_expected:
        _is_cuda_expected = True
        torch_generator.call_on_cuda(_on_cuda)
    return global_accessor()


def _on_cuda() -> None:
    global _has_cuda
    _has_cuda = True
    _take_up_torch()


_is_cuda_expected = _has_cuda = False

#: Notices that torch is imported; to be entered where envs are called.
torch_imports = torch_generator.TorchImports(_take_up_torch)


def reseed_running_env(seed: int, number: int = 0) -> None:
    """Set the RNG state of the env that is being called from a seed, as a reset with this seed does.

    It is called within a call of the env that swaps the state in: construct, reset, call or close.

    Args:
        seed: the seed.
        number: 0, or another number for each further env with this seed.
    """
    running, entropy = _running_env, _entropy_of_seed([seed, number] if number else seed)
    if running is not None and entropy is not None:
        running.begin_from(entropy)
        running.load()


class RngSwappingEnv:
    """Replaces an env that draws from the global generators: swaps in its RNG state for each step and reset."""

    def __init__(self, env: Any, env_rngs: EnvRngs) -> None:
        self._env = env
        self._env_rngs = env_rngs

    def step(self, action: Any) -> Any:
        """Step the env with its own RNG state."""
        with self._env_rngs:
            return self._env.step(action)

    def reset(self) -> Any:
        """Reset the env with its own RNG state."""
        with self._env_rngs:
            return self._env.reset()


class FirstCallsEnv:
    """Replaces an env that has not drawn, for its first steps and autoresets; `call` makes and counts these calls."""

    def __init__(self, env: Any, call: Callable[..., Any]) -> None:
        self._env = env
        self._call = call

    def step(self, action: Any) -> Any:
        """Step the env."""
        return self._call(self._env.step, action)

    def reset(self) -> Any:
        """Reset the env."""
        return self._call(self._env.reset)


class GlobalRngs:
    """The RNG states of the envs of one process; the rules above apply inside a `with` block.

    At the end of the block the process's generators have the state from before it. If another thread is
    inside such a block, nothing is swapped for this thread: its envs draw from the current state.

    Args:
        first_env_id: number of env 0 among all envs whose random values must differ: those of other pools of this run
            count, too.
        entropy: result of `pool_entropy`; see `PoolOptions.rng_entropy`.

    Attributes:
        watched_words: (address of a uint32, value) of words that a draw from the neutral state changes; empty
            where memory cannot be read.
        is_active: whether this object controls the generators, so that states are swapped.
        is_threaded: whether `disable_swapping` was called.
        on_torch: called when torch's generator was added.
        called_env: returns the env that a slot is calling, or None.
        outer: the `with` block of this thread around that of this object.
        fork_guard: goes around all calls into envs, too. A worker installs it.

    Example:
        >>> rngs = GlobalRngs()
        >>> before = random.getstate()
        >>> with rngs:
        ...     with rngs.of(3):
        ...         value = random.random()
        >>> rngs.has_drawn(3), rngs.has_drawn(4), random.getstate() == before
        (True, False, True)
    """

    def __init__(self, first_env_id: int = 0, entropy: int = 0) -> None:
        self.first_env_id = first_env_id
        self.entropy = entropy
        self.generators = _present_accessor()
        self.neutral_state = self.generators.state_of(entropy)
        self._watch(self.generators.watched_words(self.neutral_state))
        self.is_active = False
        self.is_threaded = False
        self.fork_guard = ForkGuard()
        self.outer: GlobalRngs | None = None
        self.on_torch: Callable[[], object] = lambda: None
        self.called_env: Callable[[], int | None] = lambda: None
        self._plain_env: EnvRngs | None = None
        self._has_drawn_unseen = ctypes.c_uint32(0)
        self._callers_state: State | None = None
        self._lock = _process_lock
        self._env_rngs: dict[int, EnvRngs] = {}

    def _watch(self, words: WatchedWords) -> None:
        self.watched_words = words
        self._words = [(ctypes.c_uint32.from_address(address), value) for address, value in words]

    def __enter__(self) -> GlobalRngs:
        global _innermost
        self._lock = _process_lock
        if self._lock.acquire(False):
            has_torch, has_cuda = self.generators.has_torch, self.generators.has_cuda
            if (not has_torch and torch_generator.loaded_generator() is not None) or (_has_cuda and not has_cuda):
                before = self.generators
                live = before.save()
                self.take_up_torch(_present_accessor(), None)
                before.load(live)
            self.outer, _innermost = _innermost, self
            self._callers_state = self.generators.swap(self.neutral_state)
            self.is_active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _innermost
        if self.is_active or self.is_threaded:
            assert self._callers_state is not None
            self.is_active = self.is_threaded = False
            _innermost = self.outer
            self.generators.load(self._callers_state)
            self._lock.release()

    def take_up_torch(self, generators: Accessor, running: EnvRngs | None) -> TorchParts:
        """Add torch's new generators to all states; return the parts for the env that is being called.

        Args:
            generators: the accessor from now on. The generators are left with any state.
            running: the env whose state is swapped in, if it is one of these.
        """
        if self.is_active:
            assert self._callers_state is not None
            parts = self.generators.torch_parts(self._callers_state)
            self.generators.load(self._callers_state)
            self._callers_state = generators.with_torch(generators.without_torch(generators.save()), parts)
        self.generators = generators
        self.neutral_state = generators.state_of(self.entropy)
        self._watch(generators.watched_words(self.neutral_state))
        for env_rngs in self._env_rngs.values():
            env_rngs.take_up_torch(generators)
        if running is not None and running.rngs is not self:
            running = None
        plain = self.plain_env() if running is None else None
        if plain is not None and generators.has_cuda:
            # Draws from CUDA's generators are not noticed, so this call counts as one that draws.
            self._has_drawn_unseen.value = 1
            self._watch(((ctypes.addressof(self._has_drawn_unseen), 0),))
        self.on_torch()
        if plain is not None:
            return generators.with_torch_window(self.neutral_state, generators.torch_parts(plain.state))
        return generators.torch_parts(self.neutral_state if running is None else running.state)

    def plain_env(self) -> EnvRngs | None:
        """Return the RNG state of the env that is being called without a swap; None if there is none."""
        env_id = self.called_env() if self.is_active else None
        return self._plain_env if env_id is None else self.of(env_id)

    def keep_for_caller(self, parts: TorchParts) -> None:
        """Have the end of the block leave these parts of a state to torch's new generators."""
        assert self._callers_state is not None
        rest, kept = (
            self.generators.without_torch(self._callers_state),
            self.generators.torch_parts(self._callers_state),
        )
        self._callers_state = self.generators.with_torch(rest, _merged(kept, parts))

    def of(self, env_id: int) -> EnvRngs:
        """Return the RNG state of an env; enter it with `with` around a call into the env."""
        env_rngs = self._env_rngs.get(env_id)
        if env_rngs is None:
            env_rngs = self._env_rngs[env_id] = EnvRngs(self, env_id)
        return env_rngs

    def has_drawn(self, env_id: int) -> bool:
        """Return whether the env has drawn since its state began."""
        return self.of(env_id).has_drawn

    def reseed(self, env_id: int, seed: Any) -> None:
        """Set the RNG state of an env from the seed of a reset: a whole number, or a sequence of them for a batch.

        Other seeds are ignored; None is one of them.
        """
        entropy = _entropy_of_seed(seed)
        if entropy is not None:
            self.of(env_id).begin_from(entropy)

    def begin_anew(self, env_id: int, number: int) -> None:
        """Give an env that replaces an abandoned one another state, which depends on this number, too."""
        self.of(env_id).begin_from(_derive(self.entropy, self.first_env_id + env_id, number))

    def note_draw(self, env_id: int) -> None:
        """Record that an env drew from the neutral state with its window, and restore the neutral state."""
        env_rngs = self.of(env_id)
        env_rngs.has_drawn = True
        if self.is_active:
            seen = self.generators.swap(self.neutral_state)
            self._has_drawn_unseen.value = 0
            env_rngs.state = self.generators.continued(env_rngs.state, seen, self.neutral_state)

    def restore_neutral(self) -> bool:
        """Restore the neutral state; return whether the generators had another one, because an env drew or seeded."""
        if not self.is_active or self.generators.save() == self.neutral_state:
            return False
        self.generators.load(self.neutral_state)
        return True

    def call_swapped(self, env_id: int, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of an env with the env's RNG state swapped in; return its value."""
        with self.of(env_id):
            return call(*args, **kwargs)

    def call_lazily(self, env_id: int, call: Callable[..., Any], *args: Any) -> Any:
        """Step or autoreset an env as a slot does: swap its RNG state in only at first, or if it has drawn before."""
        env_rngs = self.of(env_id)
        if env_rngs.is_swapped:
            env_rngs.swaps_left = max(env_rngs.swaps_left - 1, 0)
            with env_rngs:
                return call(*args)
        if self.is_active:
            self.generators.load_window(env_rngs.window)
        self._plain_env = env_rngs
        try:
            with self.fork_guard:
                return call(*args)
        finally:
            self._plain_env = None
            if self.is_active and self.has_moved():
                self.note_draw(env_id)

    def has_moved(self) -> bool:
        """Return whether a watched word has changed: an env has drawn from the neutral state, or seeded."""
        return any(word.value != value for word, value in self._words)

    def disable_swapping(self, env_id: int) -> None:
        """Stop swapping, because several threads call envs at once; continue from this env's state, and detect draws.

        A swap would change the generators for envs in other threads too. The draws of these envs are therefore not
        reproducible.
        """
        self.is_active, self.is_threaded = False, True
        self.generators.load(self.of(env_id).state)
        self._watch(self.generators.watched_words(self.generators.save()))

    def forget(self, env_id: int) -> None:
        """Drop the RNG state of an env that is going to be rebuilt; it starts again from its seed."""
        self._env_rngs.pop(env_id, None)

    def pack_state(self, env_id: int, state: bytes) -> bytes:
        """Return `state` pickled with the env's RNG state, or the entropy from which that begins; between two calls."""
        env_rngs = self.of(env_id)
        parts = _merged(self.generators.torch_parts(env_rngs.state), env_rngs.late_torch)
        drawn = (self.generators.without_torch(env_rngs.state), parts) if env_rngs.has_drawn else None
        counts = 0 if drawn else env_rngs.swaps_left, env_rngs.num_pools  # after a draw, it is swapped in always
        return pickle.dumps((env_rngs.entropy, drawn, counts, state), protocol=5)

    def unpack_state(self, env_id: int, packed: bytes) -> bytes:
        """Restore the env's RNG state from the result of `pack_state`; return the state of the env."""
        entropy, drawn, counts, state = pickle.loads(packed)
        env_rngs = self.of(env_id)
        env_rngs.begin_from(entropy)
        env_rngs.swaps_left, env_rngs.num_pools = counts
        if drawn is not None:
            env_rngs.set_state(*drawn)
            env_rngs.has_drawn = True
        return bytes(state)
