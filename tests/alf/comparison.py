"""Helpers for tests of ALF environments: comparison of time steps, and an environment written for ALF only."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np

from vecenv.alf import (
    AlfEnvironment,
    AlfEnvironmentBaseWrapper,
    AlfGymWrapper,
    BoundedTensorSpec,
    TensorSpec,
    restart,
    termination,
    transition,
    truncation,
)
from vecenv.envs.toys import CountEnv, ToyEnv
from vecenv.values.nested import map_structure


def assert_same(left: Any, right: Any) -> None:
    """Fail unless two time steps are equal in fields, structure, dtypes, shapes and values."""
    for name in left._fields:
        map_structure(functools.partial(_assert_leaf, name), getattr(left, name), getattr(right, name))


def _assert_leaf(name: str, left: Any, right: Any) -> None:
    left, right = np.asarray(left), np.asarray(right)
    assert left.dtype == right.dtype and left.shape == right.shape, f"{name}: {left!r} and {right!r}"
    np.testing.assert_array_equal(left, right, err_msg=name)


def toy(env_id: int = 0, length: int = 3, **kwargs: Any) -> AlfGymWrapper:
    """Make a ToyEnv of that length as an ALF environment."""
    return AlfGymWrapper(ToyEnv(length, **kwargs), env_id)


def counting(env_id: int = 0, **kwargs: Any) -> AlfGymWrapper:
    """Make a CountEnv whose episodes have env_id + 2 steps; its infos are `steps`, `episode` and `seed`."""
    return AlfGymWrapper(CountEnv(env_id + 2, **kwargs), env_id)


def covered(env_id: int = 0, make: Any = counting, **kwargs: Any) -> AlfEnvironmentBaseWrapper:
    """Make the same env behind a wrapper, so that workers send time steps instead of the env's five values."""
    return AlfEnvironmentBaseWrapper(make(env_id, **kwargs))


def alternating(env_id: int = 0) -> AlfGymWrapper:
    """Make an env that ends alternately by truncation and termination, with a different length each time."""
    return AlfGymWrapper(Alternating(), env_id)


class Alternating(gymnasium.Env[Any, Any]):
    """Episode k has 2 + k % 3 steps. An even k terminates, an odd k truncates, and k % 5 == 4 does both."""

    observation_space = gymnasium.spaces.Dict(
        {"z": gymnasium.spaces.Discrete(100), "a": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)}
    )
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float64)
    episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.count = 0
        return self._observe(np.zeros(2)), {}

    def step(self, action):
        assert action.dtype == np.float64
        self.count += 1
        over = self.count >= 2 + self.episode % 3
        both = self.episode % 5 == 4
        terminated, truncated = self.episode % 2 == 0 or both, self.episode % 2 == 1 or both
        info = {"count": self.count, "half": self.count / 2}
        if over:
            info["TimeLimit.truncated"] = truncated
        return self._observe(action), float(action.sum()), over and terminated, over and truncated, info

    def _observe(self, action):
        return {"z": self.count, "a": action + self.np_random.random()}


class VectorReward(AlfEnvironment):
    """An ALF environment with rewards of two numbers, discount 0.5 at odd steps, a late info key and five steps."""

    def __init__(self, env_id: int = 0, names: Any = None) -> None:
        self._env_id = np.int32(env_id)
        self._count = 0
        self._seed = 0

    def observation_spec(self):
        return TensorSpec((2,), np.float64)

    def action_spec(self):
        return {"move": BoundedTensorSpec((), np.int64, 0, 4), "push": BoundedTensorSpec((1,), np.float32, -1, 1)}

    def reward_spec(self):
        return TensorSpec((2,))

    def env_info_spec(self):
        return {"half": TensorSpec(())}

    def seed(self, seed):
        self._seed = seed

    def _observe(self):
        return np.array([self._count, self._seed], np.float64)

    def _reset(self):
        self._count = 0
        info = {"half": np.float32(0)}
        return restart(self._observe(), self.action_spec(), self.reward_spec(), self._env_id, info)

    def _step(self, action):
        if self._count == 5:
            return self.reset()
        self._count += 1
        info = {"half": np.float32(self._count / 2)}
        if self._count == 4:
            info["late"] = np.arange(2)
        reward = np.array([self._count, action["move"]], np.float32)
        what = (self._observe(), action, reward, self.reward_spec())
        if self._count == 5:
            end = termination if self._env_id % 2 else truncation
            return end(*what, env_id=self._env_id, env_info=info)
        discount = 0.5 if self._count % 2 else 1.0
        return transition(*what, discount=discount, env_id=self._env_id, env_info=info)
