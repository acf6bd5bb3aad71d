"""Actions of float64 for a space of float32 are not rounded: results equal those of Gymnasium's vector envs."""

from __future__ import annotations

import contextlib
import functools
import os
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium import Env, spaces
from gymnasium.vector import SyncVectorEnv

from tests.vector.comparison import assert_same
from vecenv import SpaceError, VectorEnv
from vecenv.envs import toys

PENDULUM = functools.partial(gymnasium.make, "Pendulum-v1")
pytestmark = pytest.mark.filterwarnings("ignore:.*is pickled each time:UserWarning")


class PowerOfPair(toys.SpaceEnv):
    """Returns the sum of its actions as reward, in the precision in which they arrive."""

    def __init__(self) -> None:
        super().__init__(None, spaces.Dict(arm=spaces.Box(-1, 1, (2,), np.float32), gear=spaces.Discrete(3)))

    def step(self, action):
        obs, _, terminated, truncated, info = super().step({"arm": np.zeros(2, np.float32), "gear": 0})
        return obs, float(action["arm"].sum()) + float(action["gear"]), terminated, truncated, info


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_float64_actions_give_the_results_of_sync_vector_env(backend):
    actions = np.random.default_rng(0).uniform(-2, 2, (30, 3, 1))
    sync = SyncVectorEnv([PENDULUM] * 3)
    with contextlib.closing(VectorEnv([PENDULUM] * 3, backend=backend)) as envs, contextlib.closing(sync):
        assert_same(envs.reset(seed=0), sync.reset(seed=0))
        for row in actions:
            assert_same(envs.step(row), sync.step(row))


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_float64_leaf_of_nested_actions_is_not_rounded(backend):
    actions = {"arm": np.array([[0.1, 0.2], [0.3, 0.4]]), "gear": np.array([1, 2])}
    with contextlib.closing(VectorEnv([PowerOfPair] * 2, backend=backend)) as envs:
        envs.reset(seed=0)
        rewards = envs.step(actions)[1]
    assert rewards.tolist() == [0.1 + 0.2 + 1.0, 0.3 + 0.4 + 2.0]


@pytest.mark.extended
def test_float64_actions_are_not_rounded_after_a_kill():
    actions = np.random.default_rng(0).uniform(-2, 2, (20, 2, 1))
    sync = SyncVectorEnv([PENDULUM] * 2)
    with contextlib.closing(VectorEnv([PENDULUM] * 2, num_workers=1)) as envs, contextlib.closing(sync):
        envs.reset(seed=0)
        sync.reset(seed=0)
        for t, row in enumerate(actions):
            if t == 10:
                os.kill(envs.worker_pids[0], signal.SIGKILL)
            got, expected = envs.step(row), sync.step(row)
            assert_same(got[:4], expected[:4])
        assert envs.statistics().restarts == 1


def test_float64_actions_of_some_envs_are_sent():
    with contextlib.closing(VectorEnv([PowerOfPair] * 3, backend="serial")) as envs:
        envs.reset(seed=0)
        envs.send({"arm": np.array([[0.1, 0.2]]), "gear": np.array([0])}, [2])
        assert envs.recv(1)[1].tolist() == [0.1 + 0.2]


@pytest.mark.parametrize("checks, text", [("strict", "expected float32"), ("debug", "env 1")])
def test_float64_actions_are_checked(checks, text):
    with contextlib.closing(VectorEnv([PENDULUM] * 2, backend="serial", checks=checks)) as envs:
        envs.reset(seed=0)
        with pytest.raises(SpaceError, match=text):
            envs.step(np.array([[0.5], [2.5]]))
        if checks == "debug":
            envs.step(np.array([[0.5], [1.5]]))


class RewardIsAction(Env):
    """The reward is the action; an episode has `length` steps."""

    observation_space = action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, length):
        self.length, self.steps = length, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(action[0]), self.steps >= self.length, False, {}


def test_float64_actions_are_not_rounded_while_a_spare_env_takes_over():
    env_fns = [functools.partial(RewardIsAction, length) for length in (2, 100)]
    with contextlib.closing(VectorEnv(env_fns, backend="serial", num_spare_envs=2)) as envs:
        envs.reset(seed=0)
        assert [envs.step(np.full((2, 1), 0.1))[1][1] for _ in range(6)] == [0.1] * 6


@pytest.mark.parametrize("checks", ["strict", "debug"])
def test_actions_outside_their_space_name_the_row_that_a_spare_env_serves(checks):
    env_fns = [functools.partial(RewardIsAction, length) for length in (1, 100)]
    wrong = np.full((2, 1), 2, np.float32)
    with contextlib.closing(VectorEnv(env_fns, backend="serial", num_spare_envs=2, checks=checks)) as envs:
        envs.reset(seed=0)
        envs.step(wrong / 4)
        with pytest.raises(SpaceError, match="env 0: expected a member"):  # it begins an episode
            envs.step(wrong)
        envs.step(wrong / 4)
        with pytest.raises(SpaceError, match="env 0: expected a member"):  # a spare env serves it
            envs.step(wrong)


def test_float64_actions_of_a_wrong_shape_are_refused():
    with contextlib.closing(VectorEnv([PENDULUM] * 2, backend="serial")) as envs:
        envs.reset(seed=0)
        with pytest.raises(SpaceError, match=r"expected float32 \(2, 1\), got float64 \(2, 3\)"):
            envs.step(np.zeros((2, 3)))
