"""Episodes that the checks play: random actions, and an env with its own states of the global generators."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.envs.adapt import adapt, ensure_spaces, original
from vecenv.envs.arrays import action_to_ndarray
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.values.nested import equal
from vecenv.values.pickling import dump_by_value

__all__ = ["Run", "exhaust", "find_difference", "is_ding", "sample_action"]

_T = TypeVar("_T")

_NAMES = ("observation", "reward", "terminated", "truncated")


def is_ding(env: Any) -> bool:
    """Return whether `BaseEnv`'s rules for dtypes, rewards and scores apply to the env."""
    return bool(getattr(type(env), "uses_old_calls", False)) and not getattr(type(env), "is_old_api_adapter", False)


def sample_action(env: Any, space: Any, obs: Any = None) -> Any:
    """Return a random action in the form that the env accepts, from the generator of its action space.

    If `obs`, the last observation, is a dict with an `action_mask` for a Discrete space, as in board games, the action
    is a legal one (mask not 0). The env is the user's, not adapted.
    """
    mask = _legal_mask(space, obs)
    action = space.sample() if mask is None else space.sample(mask)
    if not is_ding(env):
        return action
    try:
        return action_to_ndarray(action)
    except TypeError:  # a Tuple of actions cannot be converted to arrays
        return action


def _legal_mask(space: Any, obs: Any) -> Any:
    """Return the mask as int8 (n,) for `Discrete.sample`; None if there is no mask or no legal action."""
    mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
    if not isinstance(mask, np.ndarray) or not isinstance(space, spaces.Discrete) or mask.shape != (int(space.n),):
        return None
    legal = mask.astype(bool)
    return legal.astype(np.int8) if legal.any() else None


class _GlobalRngs:
    """The states of the global generators for one env; `with` installs them, and then restores the caller's."""

    def __init__(self, seed: int) -> None:
        words = np.random.SeedSequence(seed).generate_state(4, np.uint32)
        self.own: Any = (random.Random(int(words[0])).getstate(), np.random.RandomState(words[1:]).get_state())
        self._outer: Any = None

    def __enter__(self) -> None:
        self._outer = _swap(self.own)

    def __exit__(self, *exc_info: object) -> None:
        self.own = _swap(self._outer)


def _swap(states: Any) -> Any:
    before = (random.getstate(), np.random.get_state())
    random.setstate(states[0])
    np.random.set_state(states[1])
    return before


def _positions() -> tuple[bytes, bytes]:
    return pickle.dumps(random.getstate()), pickle.dumps(np.random.get_state())


class Run:
    """One env with its own actions and its own states of the global generators."""

    def __init__(self, env_fn: Callable[[], Any], seed: int) -> None:
        self.rngs = _GlobalRngs(seed)
        self.draws_globally = False
        with self.rngs:
            self.env: gymnasium.Env[Any, Any] = adapt(env_fn())
            try:
                ensure_spaces(self.env)
                self.actions: Any = pickle.loads(dump_by_value(self.env.action_space))
            except BaseException:
                self.env.close()
                raise
        self.actions.seed(seed)

    def save(self) -> bytes | None:
        """Return the state of the env, global generators and actions between two episodes; None if not possible."""
        snapshot = SNAPSHOTTER.capture(self.env)
        return None if snapshot is None else dump_by_value((snapshot.state, self.rngs.own, self.actions))

    def load(self, saved: bytes) -> str | None:
        """Restore a state that another run saved. Return the reason if that is not possible, else None."""
        state, rngs, self.actions = pickle.loads(saved)
        with self.rngs:
            try:
                SNAPSHOTTER.restore(self.env, state)
            except Exception as error:  # also of the env's reset or hook: the failure is the result
                return f"its state cannot be restored in a new env: {type(error).__name__}: {error}"
        self.rngs.own = rngs
        return None

    def play(self, max_steps: int, reset: dict[str, Any]) -> Generator[None, None, list[tuple[Any, ...]]]:
        """Play one episode; yield None after each step, and return its results, those of the reset first."""
        played = []
        for result in self.results(max_steps, reset):
            played.append(result)
            yield
        return played

    def results(self, max_steps: int, reset: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Play one episode; yield the result of the reset, then that of each step.

        Between two results, the process has its own states of the global generators.
        """
        with self._watched():
            obs, _ = self.env.reset(**reset)
        yield (pickle.dumps(obs),)  # pickled, because envs may reuse their arrays
        for _ in range(max_steps):
            with self._watched():
                action = sample_action(original(self.env), self.actions, obs)
                obs, reward, terminated, truncated, _ = self.env.step(action)
            yield pickle.dumps(obs), np.array(reward), bool(terminated), bool(truncated)
            if terminated or truncated:
                return

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Call the env with its global generators; note whether it draws from them."""
        with self.rngs:
            before = None if self.draws_globally else _positions()
            yield
            self.draws_globally = self.draws_globally or _positions() != before

    def close(self) -> None:
        with self.rngs:
            self.env.close()


def exhaust(steps: Generator[None, None, _T]) -> _T:
    """Run a generator to its end; return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


def find_difference(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]], what: str) -> str | None:
    """Return the first difference between two episodes named `what`, as `Run.play` returns them; None if equal."""
    for step, (left, right) in enumerate(zip(one, other, strict=False)):
        for name, a, b in zip(_NAMES, left, right, strict=False):
            values = (pickle.loads(a), pickle.loads(b)) if isinstance(a, bytes) else (a, b)
            if not equal(*values):
                where = "its reset" if step == 0 else f"step {step - 1}"
                return f"{what} differs, {name} of {where}"
    return None
