"""Rewards: as their space says, or with shared_memory=False as the env returns them."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.managers.fakes import IN_PROCESS, WITH_WORKERS
from vecenv.ding import (
    AsyncSubprocessEnvManager,
    BaseEnv,
    BaseEnvManager,
    BaseEnvTimestep,
    DingEnvWrapper,
    EnvState,
    SyncSubprocessEnvManager,
)

MANAGERS = [*IN_PROCESS, *WITH_WORKERS]
WITH_DICTS = [BaseEnvManager, SyncSubprocessEnvManager, AsyncSubprocessEnvManager]
WAITS_FOR_ALL = {"wait_num": 100, "step_wait_timeout": None, "num_workers": 1}

REWARDS: dict[str, Any] = {
    "float": 0.1,
    "int": 3,
    "bool": True,
    "float64": np.float64(0.1),
    "number array": np.array(0.5, np.float32),
    "float64 array": np.array([0.1]),
    "the usual": np.array([0.5], np.float32),
    "column": np.array([[1.0], [-1.0]], np.float32),
    "list": [np.array([1.0], np.float32), np.array([-1.0], np.float32)],
    "dict": {"left": 1.0, "right": np.array([-1.0], np.float32)},
    "None": None,
}
SPACES = [None, spaces.Box(-9, 9, (1,), np.float32), spaces.Box(-9, 9, (2, 1), np.float32), spaces.Dict({})]


class Pays(gymnasium.Env[Any, Any]):
    """An env with the same reward at each step; episodes have three steps."""

    observation_space = spaces.Box(0, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, reward: Any, space: Any = None) -> None:
        self.reward, self.num_steps = reward, 0
        if space is not None:
            self.reward_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.num_steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        return np.full(1, self.num_steps, np.float32), self.reward, self.num_steps == 3, False, {"n": self.num_steps}


class PaysInTimesteps(BaseEnv):
    """The same env with DI-engine's API."""

    def __init__(self, reward: Any, space: Any = None) -> None:
        self.inner = Pays(reward, space)
        self.observation_space, self.action_space = Pays.observation_space, Pays.action_space
        self.reward_space = space

    def reset(self) -> Any:
        return self.inner.reset()[0]

    def step(self, action: Any) -> BaseEnvTimestep:
        obs, reward, done, _, info = self.inner.step(action)
        if action == 1:
            return BaseEnvTimestep(None, reward, False, {"abnormal": True})
        return BaseEnvTimestep(obs, reward, done, info)

    def close(self) -> None:
        pass


DIALECTS = pytest.mark.parametrize("dialect", [Pays, PaysInTimesteps])


def launch(manager_cls: Any, env_fn: Any, **cfg: Any) -> Any:
    own = WAITS_FOR_ALL if manager_cls in WITH_WORKERS else {}
    manager = manager_cls([env_fn] * 2, {**own, **cfg})
    manager.launch()
    return manager


def step(manager: Any, action: int = 0) -> list[Any]:
    while EnvState.RESET in manager.env_states.values():
        manager.step({})
    results = manager.step(dict.fromkeys(manager.ready_obs_id, action))
    return results if isinstance(results, list) else list(results.values())


def is_same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two) and one.shape == two.shape
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(is_same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(is_same, one, two))
    return bool(one == two)


@DIALECTS
@pytest.mark.parametrize("max_retry", [1, 2], ids=["resets in the row", "resets by command"])
@pytest.mark.parametrize("manager_cls", WITH_DICTS)
def test_rewards_without_shared_memory_are_unchanged(manager_cls, max_retry, dialect):
    """Regression: they were float32 (1,), and a reward that did not fit the space was an error."""
    for name, reward in REWARDS.items():
        for space in SPACES if manager_cls is BaseEnvManager else SPACES[2:3]:
            env_fn = functools.partial(dialect, reward, space)
            with launch(manager_cls, env_fn, shared_memory=False, max_retry=max_retry) as manager:
                assert manager.reward_space == (SPACES[1] if space is None else space) or space is None
                for number in (1, 2, 3, 1):
                    for timestep in step(manager):
                        assert is_same(timestep.reward, reward), (name, space, timestep)
                        assert timestep.info["n"] == number and timestep.done == (number == 3)
                        assert not any(key.startswith("vecenv") for key in timestep.info)


@DIALECTS
@pytest.mark.parametrize("manager_cls", [m for m in MANAGERS if m not in WITH_DICTS])
def test_rewards_in_trees_without_shared_memory_are_unchanged(manager_cls, dialect):
    for reward in (0.5, np.array(0.5, np.float32), REWARDS["column"], REWARDS["dict"]):
        with launch(manager_cls, functools.partial(dialect, reward), shared_memory=False) as manager:
            for _ in range(4):
                for tree in step(manager):
                    got = tree.reward.json() if isinstance(reward, dict) else tree.reward
                    assert np.shape(got) == np.shape(reward) if not isinstance(reward, dict) else got["left"] == 1.0


@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_rewards_after_a_crash_are_unchanged(manager_cls):
    column = REWARDS["column"]
    with launch(manager_cls, functools.partial(PaysInTimesteps, column, SPACES[1]), shared_memory=False) as manager:
        step(manager)
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        for result in [*step(manager), *step(manager)]:
            assert result.reward.tolist() == column.tolist() and result.info["n"] in (2, 3)
        assert "terminated" in result.info


@pytest.mark.parametrize("manager_cls", WITH_DICTS)
def test_rewards_of_abnormal_timesteps_are_unchanged(manager_cls):
    with launch(manager_cls, functools.partial(PaysInTimesteps, 0.5), shared_memory=False) as manager:
        assert [timestep.reward for timestep in step(manager, 1)] == [0.5, 0.5]
    with launch(manager_cls, functools.partial(PaysInTimesteps, 0.5)) as manager:
        assert [timestep.reward.tolist() for timestep in step(manager, 1)] == [[0.5], [0.5]]


@pytest.mark.parametrize("manager_cls", WITH_DICTS)
def test_rewards_that_do_not_fit_their_space_raise(manager_cls):
    says = pytest.raises((ValueError, RuntimeError), match=r"reward: expected one number, got shape \(2, 1\)")
    with launch(manager_cls, functools.partial(PaysInTimesteps, REWARDS["column"])) as manager, says:
        step(manager)


@DIALECTS
@pytest.mark.parametrize("copy_on_get", [True, False])
@pytest.mark.parametrize("max_retry", [1, 2], ids=["resets in the row", "resets by command"])
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_rewards_are_numbers_if_the_space_has_shape_0(manager_cls, max_retry, copy_on_get, dialect):
    """Regression: they were arrays (1,)."""
    space = spaces.Box(-9, 9, (), np.float32)
    env_fn = functools.partial(dialect, 0.5, space)
    with launch(manager_cls, env_fn, max_retry=max_retry, copy_on_get=copy_on_get) as manager:
        assert manager.reward_space == space
        kept = []
        for number in (1, 2, 3, 1):
            for result in step(manager):
                assert type(result.reward) is np.ndarray and result.reward in space
                kept.append((result.reward, result.info["n"] == number))
        assert [(reward.item(), is_right) for reward, is_right in kept] == [(0.5, True)] * 8


@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_rewards_after_a_crash_are_numbers(manager_cls):
    with launch(manager_cls, functools.partial(Pays, 0.5, spaces.Box(-9, 9, (), np.float32))) as manager:
        step(manager)
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        assert [(result.reward.shape, result.reward.item()) for result in step(manager)] == [((), 0.5)] * 2


def test_rewards_of_a_wrapped_env_have_shape_1():
    env = DingEnvWrapper(Pays(0.5, spaces.Box(-9, 9, (), np.float32)), {"env_wrapper": None})
    env.reset()
    assert env.reward_space == spaces.Box(-9, 9, (1,), np.float32) and env.step(0).reward in env.reward_space
