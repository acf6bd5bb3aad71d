"""Toy envs: known loads to measure with, and one env for every way in which an env can fail.

All are `gymnasium.Env`s that need NumPy only, follow their seed, and tell in their
docstring what they do and what that is good for. The first half behaves; the second half, from
`FaultEnv` on, is named after the crime. Never build one of those in a process that you need.
"""

from __future__ import annotations

import copy
import ctypes
import os
import random
import signal
import subprocess
import threading
import time
from typing import Any, ClassVar, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces

_STEP_RESULT = tuple[Any, float, bool, bool, dict[str, Any]]

# 2**16 and below are exact in float32, so a seed's residue survives the observation.
_SEED_MODULUS = 65_521

# Bound of the discrete observation of an env without end.
_MANY_STEPS = 2**31


class ToyEnv(gym.Env[Any, Any]):
    """Follow seed and actions and nothing else; every other toy changes one thing of it.

    The observation is float32 (4,): steps in this episode, sum of its actions, a draw from
    `np_random` made at its reset, and one made now. With `obs='discrete'` it is the number of
    steps, as an int. The reward is 1.0 a step and an episode terminates at step `length`.

    Nothing but the generator lasts from one episode to the next, so restoring it is enough to
    run an episode again. `num_resets` and `num_steps` count calls over the env's life.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        length: int | None = 10,
        *,
        obs: str = "box",
        truncate: bool = False,
        num_actions: int = 2,
        render_mode: str | None = None,
    ) -> None:
        """Make the env.

        Args:
            length: steps in an episode; None for an episode without end.
            obs: 'box' or 'discrete'.
            truncate: end episodes by truncation instead of termination.
            num_actions: size of the discrete action space.
            render_mode: accepted because `gymnasium.make` passes it; there is nothing to see.
        """
        if obs not in ("box", "discrete"):
            raise ValueError(f"obs must be 'box' or 'discrete', got {obs!r}")
        self.length = length
        self.truncate = truncate
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(num_actions)
        if obs == "box":
            self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        else:
            self.observation_space = spaces.Discrete((length or _MANY_STEPS) + 1)
        self.num_resets = 0
        self.num_steps = 0
        self.elapsed_steps = 0
        self.action_sum = 0.0
        self.episode_draw = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the generator goes on from where it is unless a seed is given."""
        super().reset(seed=seed)
        self.num_resets += 1
        self.elapsed_steps = 0
        self.action_sum = 0.0
        self.episode_draw = self.np_random.random()
        return self.observe(), self.inform()

    def step(self, action: Any) -> _STEP_RESULT:
        """Count one step and add up the action, if it is a number."""
        self.num_steps += 1
        self.elapsed_steps += 1
        if isinstance(action, (int, np.integer)) or (isinstance(action, np.ndarray) and action.size == 1):
            self.action_sum += int(action.item() if isinstance(action, np.ndarray) else action)
        over = self.length is not None and self.elapsed_steps >= self.length
        return self.observe(), 1.0, over and not self.truncate, over and self.truncate, self.inform()

    def observe(self) -> Any:
        """Return the observation of the present state; draws once from `np_random`."""
        draw = self.np_random.random()
        if isinstance(self.observation_space, spaces.Discrete):
            return self.elapsed_steps
        return np.array([self.elapsed_steps, self.action_sum, self.episode_draw, draw], np.float32)

    def inform(self) -> dict[str, Any]:
        """Return the info dict of the present state."""
        return {}


class CountEnv(ToyEnv):
    """Tell what was done to it, so that a lost, doubled or misdirected call is seen.

    The observation is float32 (4,): steps in this episode, episodes since the last seed, that
    seed modulo 65521 (-1 if there was none), and a draw. Info has `steps`, `episode` and `seed`,
    unabridged. The last two outlive an episode, unlike anything in `ToyEnv`.
    """

    def __init__(self, length: int | None = 10, **kwargs: Any) -> None:
        super().__init__(length, **kwargs)
        self.seed_given: int | None = None
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.seed_given = seed
            self.episode = 0
        self.episode += 1
        return super().reset(seed=seed, options=options)

    def observe(self) -> Any:
        obs = super().observe()
        if isinstance(obs, np.ndarray):
            obs[1:3] = self.episode, -1 if self.seed_given is None else self.seed_given % _SEED_MODULUS
        return obs

    def inform(self) -> dict[str, Any]:
        return {"steps": self.elapsed_steps, "episode": self.episode, "seed": self.seed_given}


class NullEnv(ToyEnv):
    """Return one cached tuple, so that all time measured is the library's; never ends."""

    def __init__(self, length: int | None = None, **kwargs: Any) -> None:
        if length is not None:
            raise ValueError("a null env has no state, hence no episode length")
        super().__init__(None, **kwargs)
        self._obs = self.make_obs()
        self._result: _STEP_RESULT = (self._obs, 1.0, False, False, {})

    def make_obs(self) -> Any:
        """Return the one observation."""
        return np.zeros(4, np.float32) if isinstance(self.observation_space, spaces.Box) else 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            super(ToyEnv, self).reset(seed=seed)
        return self._obs, {}

    def step(self, action: Any) -> _STEP_RESULT:
        return self._result


class FrameEnv(NullEnv):
    """Return one cached stack of frames, uint8 (4, 84, 84): the cost of moving Atari's observations."""

    def make_obs(self) -> Any:
        self.observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
        return np.arange(4 * 84 * 84, dtype=np.uint8).reshape(4, 84, 84)


class BusyEnv(NullEnv):
    """Keep a core busy for `busy_us` microseconds a step, like a simulator of known cost."""

    def __init__(self, busy_us: float = 50.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.busy_us = busy_us
        self._busy_ns = int(busy_us * 1000)

    def step(self, action: Any) -> _STEP_RESULT:
        clock = time.perf_counter_ns
        end = clock() + self._busy_ns
        while clock() < end:
            pass
        return self._result


class SleepEnv(NullEnv):
    """Sleep an exponential time with mean `mean_ms` a step, like an env behind a network.

    `total_sleep` holds the seconds slept so far, as measured: a sleep takes longer than asked.
    """

    def __init__(self, mean_ms: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mean_ms = mean_ms
        self.total_sleep = 0.0

    def step(self, action: Any) -> _STEP_RESULT:
        self.num_steps += 1
        start = time.perf_counter()
        time.sleep(self.np_random.exponential(self.mean_ms) / 1000.0)
        self.total_sleep += time.perf_counter() - start
        return self._result


class KeepsAction(ToyEnv):
    """Keep every action object it was given, and notice when one changes afterwards.

    That happens if a library hands out a view of a buffer that it reuses. Info describes the last
    action: `action_type` (class name), `action_dtype`, `action_writeable`, `own_memory` (False
    if the array borrows memory that is no NumPy array's). `kept` is the list.

    Raises:
        RuntimeError: from `step`, if an earlier action has changed or shares memory with this one.
    """

    def __init__(self, action_space: spaces.Space[Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if action_space is not None:
            self.action_space = copy.deepcopy(action_space)
        self.kept: list[Any] = []
        self._as_given: list[Any] = []

    def step(self, action: Any) -> _STEP_RESULT:
        for number, (kept, as_given) in enumerate(zip(self.kept, self._as_given), 1):
            if not _equal(kept, as_given):
                raise RuntimeError(f"action {number} was {as_given!r} when given and is {kept!r} now")
            if any(np.may_share_memory(a, b) for a in _arrays(kept) for b in _arrays(action)):
                raise RuntimeError(f"action {number} shares memory with action {len(self.kept) + 1}")
        self.kept.append(action)
        self._as_given.append(copy.deepcopy(action))
        return super().step(action)

    def inform(self) -> dict[str, Any]:
        if not self.kept:
            return {}
        arrays = _arrays(self.kept[-1])
        return {
            "action_type": type(self.kept[-1]).__name__,
            "action_dtype": " ".join(str(array.dtype) for array in arrays),
            "action_writeable": all(array.flags.writeable for array in arrays),
            "own_memory": all(_owner(array) is not None for array in arrays),
        }


class NoisyGlobal(ToyEnv):
    """Draw from the global generators of `random` and NumPy at every call.

    Its last two numbers are such draws, so its results depend on who else draws in the process.
    """

    def observe(self) -> Any:
        obs = super().observe()
        if isinstance(obs, np.ndarray):
            obs[2:] = random.random(), np.random.random()
        return obs


class SpaceEnv(ToyEnv):
    """Observe samples of any space you name, seeded from `np_random` at each reset."""

    def __init__(
        self,
        space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Copies: a space carries the generator that samples it.
        self.observation_space = copy.deepcopy(self.observation_space if space is None else space)
        self.action_space = copy.deepcopy(self.action_space if action_space is None else action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return super().reset(options=options)

    def observe(self) -> Any:
        return self.observation_space.sample()


class AliasedObs(ToyEnv):
    """Write each observation into the same array, as many simulators do."""

    def __init__(self, length: int | None = 10, **kwargs: Any) -> None:
        super().__init__(length, **kwargs)
        self._buffer = np.zeros(4, np.float32)

    def observe(self) -> Any:
        self._buffer[:] = super().observe()
        return self._buffer


class FaultEnv(ToyEnv):
    """Base of the criminals: behaves like `ToyEnv` until the call that its crime waits for.

    A subclass names the `moment` ('init', 'reset' or 'step') and either commits the crime in
    `commit`, called first thing in that call, or spoils what `observe` or `inform` return
    while `guilty` is true.
    """

    moment: ClassVar[str] = "step"

    def __init__(self, at: int | None = 1, *, once: str | os.PathLike[str] | None = None, **kwargs: Any) -> None:
        """Make the env.

        Args:
            at: number of the reset or step, from 1 and over the whole life of the env, at which
                it happens; None for every one. Crimes at init happen at init.
            once: path of a file that the crime creates; where it exists already nothing happens.
                With it an env that was rebuilt after a failure does not fail again.
            kwargs: as for ToyEnv.
        """
        super().__init__(**kwargs)
        self.at = at
        self.once = once
        self.guilty = False
        self._judge("init", 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._judge("reset", self.num_resets + 1)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> _STEP_RESULT:
        self._judge("step", self.num_steps + 1)
        return super().step(action)

    def commit(self) -> None:
        """Do what the class is named after."""

    def inform(self) -> dict[str, Any]:
        return {"steps": self.elapsed_steps}

    def _judge(self, moment: str, number: int) -> None:
        self.guilty = moment == self.moment and (moment == "init" or self.at in (None, number))
        if self.guilty and self.once is not None:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                self.guilty = False
        if self.guilty:
            self.commit()


class WeirdError(Exception):
    """An exception that cannot be made again from its args, so it pickles but does not unpickle."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code
        self.reason = reason


class UnpicklableError(Exception):
    """An exception that carries something which does not pickle."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class RaiseAtStep(FaultEnv):
    """Raise ZeroDivisionError: the plain bug in an env's own code."""

    def commit(self) -> None:
        raise ZeroDivisionError("toy env divides by zero at a step")


class RaiseAtReset(FaultEnv):
    """Raise ValueError from reset."""

    moment = "reset"

    def commit(self) -> None:
        raise ValueError("toy env cannot reset")


class RaiseAtInit(FaultEnv):
    """Raise RuntimeError from the constructor, as an env whose game files are missing."""

    moment = "init"

    def commit(self) -> None:
        raise RuntimeError("toy env cannot be built")


class RaiseWeirdError(FaultEnv):
    """Raise a WeirdError: naive re-creation of the exception breaks whoever receives it."""

    def commit(self) -> None:
        raise WeirdError(7, reason="toy env is weird")


class RaiseUnpicklableError(FaultEnv):
    """Raise an UnpicklableError: sending the exception itself fails."""

    def commit(self) -> None:
        raise UnpicklableError("toy env holds a lock")


class _Exits(FaultEnv):
    def commit(self) -> NoReturn:
        os._exit(3)


class ExitAtStep(_Exits):
    """Leave with `os._exit(3)`: no exception, no cleanup, no word; some C libraries do so."""


class ExitAtReset(_Exits):
    """Leave with `os._exit(3)` in reset."""

    moment = "reset"


class ExitAtInit(_Exits):
    """Leave with `os._exit(3)` in the constructor."""

    moment = "init"


class _Segfaults(FaultEnv):
    def commit(self) -> None:
        # A real one, from C: a signal sent by kill() would be the gentle version.
        ctypes.string_at(0)


class SegfaultAtStep(_Segfaults):
    """Read address 0 in C: the worker dies by SIGSEGV."""


class SegfaultAtReset(_Segfaults):
    """Read address 0 in C in reset."""

    moment = "reset"


class SegfaultAtInit(_Segfaults):
    """Read address 0 in C in the constructor."""

    moment = "init"


class _Hangs(FaultEnv):
    def commit(self) -> None:
        threading.Event().wait()


class HangAtStep(_Hangs):
    """Wait for ever in Python: the GIL is free, signals are heard."""


class HangAtReset(_Hangs):
    """Wait for ever in Python in reset."""

    moment = "reset"


class HangAtInit(_Hangs):
    """Wait for ever in Python in the constructor."""

    moment = "init"


class HangInC(FaultEnv):
    """Wait for ever in C without letting go of the GIL: no Python code of the worker runs again."""

    def commit(self) -> None:
        libc = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL
        while True:  # pause() returns after a signal
            libc.pause()


class StopSelf(FaultEnv):
    """Stop its process with SIGSTOP: alive to the system, silent to everyone."""

    def commit(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class LeaksMemory(FaultEnv):
    """Keep `nbytes` more bytes at every step; `at` counts for nothing here."""

    def __init__(self, nbytes: int = 1 << 20, **kwargs: Any) -> None:
        super().__init__(**{"at": None, **kwargs})
        self.nbytes = nbytes
        self._kept: list[bytes] = []

    def commit(self) -> None:
        self._kept.append(b"x" * self.nbytes)  # not zeros: the pages have to be real


class SpawnsChild(FaultEnv):
    """Start a process of its own, as browsers and game engines do, and name it in info (`child_pid`).

    `close` ends it unless `tidy=False`; an env that is killed leaves it behind.
    """

    moment = "reset"

    def __init__(self, at: int | None = 1, *, tidy: bool = True, **kwargs: Any) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.tidy = tidy
        super().__init__(at, **kwargs)

    def commit(self) -> None:
        if self.child is None:
            quiet = subprocess.DEVNULL
            self.child = subprocess.Popen(["sleep", "3600"], stdin=quiet, stdout=quiet, stderr=quiet)

    def inform(self) -> dict[str, Any]:
        return {**super().inform(), "child_pid": self.child.pid if self.child else None}

    def close(self) -> None:
        if self.child is not None and self.tidy:
            self.child.kill()
            self.child.wait()
            self.child = None
        super().close()


class WrongDtype(FaultEnv):
    """Observe float64 where the space says float32."""

    def observe(self) -> Any:
        obs = super().observe()
        return np.asarray(obs, np.float64) if self.guilty else obs


class WrongShape(FaultEnv):
    """Observe (3,) where the space says (4,)."""

    def observe(self) -> Any:
        obs = super().observe()
        return np.zeros(3, np.float32) if self.guilty else obs


class HugeInfo(FaultEnv):
    """Put `nbytes` bytes into info under `blob`: more than any buffer made for rare data."""

    def __init__(self, nbytes: int = 1 << 20, at: int | None = None, **kwargs: Any) -> None:
        super().__init__(at, **kwargs)
        self.nbytes = nbytes

    def inform(self) -> dict[str, Any]:
        info = super().inform()
        return {**info, "blob": bytes([self.elapsed_steps % 256]) * self.nbytes} if self.guilty else info


class UnpicklableInfo(FaultEnv):
    """Put a lock into info under `lock`: not even cloudpickle sends that."""

    def inform(self) -> dict[str, Any]:
        info = super().inform()
        return {**info, "lock": threading.Lock()} if self.guilty else info


def _arrays(value: Any) -> list[np.ndarray[Any, Any]]:
    """List the arrays of a nested action, in order."""
    if isinstance(value, np.ndarray):
        return [value]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [array for child in children for array in _arrays(child)]


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(_equal, left, right))
    return type(left) is type(right) and bool(np.all(left == right))


def _owner(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return the array that owns the memory, None if no array does."""
    base: Any = array
    while isinstance(base, np.ndarray) and not base.flags.owndata:
        base = base.base
    return base if isinstance(base, np.ndarray) else None
