"""Spaces whose batches functions of the caller make: these batches look as those of SyncVectorEnv."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import batch_space, iterate

import vecenv
from tests.vector.own_spaces import Angle, Image, Pair
from vecenv.values.nested import equal


class AngleEnv(gymnasium.Env[Any, Any]):
    """Observes its actions: an angle and an image, alone or in a Dict; episodes have 3 steps."""

    def __init__(self, kind: str) -> None:
        parts = {"angle": Angle(), "image": Image(-9.0, 9.0, (2,)), "plain": spaces.Discrete(5)}
        self.observation_space = spaces.Dict(parts) if kind == "dict" else parts[kind]
        self.action_space = spaces.Tuple([Angle(), spaces.Discrete(2)]) if kind == "dict" else self.observation_space
        self.kind = kind
        # made by the same functions, in the worker
        self.batch = batch_space(Angle(), 3).shape

    def observe(self) -> Any:
        return {
            "angle": float(self.np_random.uniform()),
            "image": self.np_random.uniform(size=2).astype(np.float32),
            "plain": int(self.np_random.integers(5)),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        obs = self.observe()
        return (obs if self.kind == "dict" else obs[self.kind]), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.count += 1
        obs = self.observe()
        if self.kind != "dict":
            obs = action
        return obs, 0.0, self.count == 3, False, {}


@pytest.fixture(params=["serial", "forkserver", "spawn", "fork"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"backend": "serial"} if request.param == "serial" else {"context": request.param, "num_workers": 2}


def play(envs: Any) -> Iterator[Any]:
    envs.action_space.seed(3)
    yield envs.observation_space
    yield envs.reset(seed=5)[0]
    for _ in range(8):
        obs, rewards, terminated, *_ = envs.step(envs.action_space.sample())
        yield obs, rewards, terminated


@pytest.mark.parametrize("kind", ["angle", "dict"])
def test_batches_of_own_spaces_look_as_those_of_sync_vector_env(kind: str, options: dict[str, Any]) -> None:
    env_fns = [lambda: AngleEnv(kind)] * 3
    envs, reference = vecenv.VectorEnv(env_fns, **options), SyncVectorEnv(env_fns)
    for found, expected in zip(play(envs), play(reference), strict=True):
        assert equal(found, expected)
    assert equal(envs.observations, reference._observations)
    assert envs.get_attr("batch") == ((3,),) * 3
    envs.close()


class TransposedEnv(gymnasium.Env[Any, Any]):
    """Observes its actions."""

    observation_space = Image(-9.0, 9.0, (2,))
    action_space = spaces.Discrete(9)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(size=2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        return np.array([action, -action], np.float32), 0.0, bool(action == 8), False, {}


@pytest.mark.parametrize("copy", [True, False])
def test_batches_of_a_box_with_own_functions_look_as_those_of_sync_vector_env(
    copy: bool, options: dict[str, Any]
) -> None:
    envs = vecenv.VectorEnv([TransposedEnv] * 3, copy=copy, **options)
    reference = SyncVectorEnv([TransposedEnv] * 3)
    assert envs.observation_space == reference.observation_space
    assert equal(envs.reset(seed=5)[0], reference.reset(seed=5)[0])
    assert equal(envs.step([1, 8, 3])[0], reference.step([1, 8, 3])[0])
    assert equal(envs.step([1, 2, 3])[0], reference.step([1, 2, 3])[0])
    envs.step([4, 5, 6], env_id=[2, 0, 1])
    assert envs.step([4, 5], env_id=[2, 0])[0].tolist() == [[4.0, 5.0], [-4.0, -5.0]]
    envs.close()


def test_masked_reset_of_a_box_with_own_functions() -> None:
    autoreset: dict[str, Any] = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
    envs, reference = (
        vecenv.VectorEnv([TransposedEnv] * 3, **autoreset),
        SyncVectorEnv([TransposedEnv] * 3, **autoreset),
    )
    for each in (envs, reference):
        each.reset(seed=5)
        each.step([1, 8, 3])
    mask = {"reset_mask": np.array([False, True, False])}
    assert equal(envs.reset(options=dict(mask))[0], reference.reset(options=dict(mask))[0])
    envs.close()


class PairEnv(TransposedEnv):
    action_space = Pair(-9.0, 9.0, (2,))

    def step(self, action: Any) -> Any:
        assert action.shape == (2,)
        return np.float32(action), 0.0, False, False, {}


def test_actions_are_split_by_the_callers_functions(options: dict[str, Any]) -> None:
    envs, reference = vecenv.VectorEnv([PairEnv] * 3, **options), SyncVectorEnv([PairEnv] * 3)
    actions = np.arange(6, dtype=np.float32).reshape(2, 3)
    for each in (envs, reference):
        each.reset(seed=5)
    assert equal(envs.step(actions)[0], reference.step(actions)[0])
    envs.send(actions[:, :2], [0, 2])
    assert sorted(envs.recv()[0][0].tolist()) == [0.0, 1.0]
    envs.close()


def test_function_that_iterates_over_single_values_is_not_used() -> None:
    """SuperSuit registers one for Discrete, whose batch is a MultiDiscrete."""
    before = iterate.dispatch(spaces.Discrete)
    iterate.register(spaces.Discrete, lambda space, items: iter(items))
    try:
        with vecenv.VectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, backend="serial") as envs:
            envs.reset(seed=5)
            with pytest.raises(vecenv.SpaceError, match="int64"):
                envs.step(np.zeros(2))
    finally:
        iterate.register(spaces.Discrete, before)
