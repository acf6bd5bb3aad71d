"""Steps that are refused before any env is stepped: before the first reset, and with actions outside their space."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text

from vecenv import BatchedVectorEnv, SpaceError, StateError, VectorEnv
from vecenv.envs.toys import SpaceEnv, ToyEnv

CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1")
BACKENDS = ["serial", "process"]


def sb3_vec_env(env_fns, **options):
    return pytest.importorskip("vecenv.integrations.sb3", exc_type=ImportError).SB3VecEnv(env_fns, **options)


FRONT_ENDS = [VectorEnv, sb3_vec_env]


# ---- before the first reset ------------------------------------------------------------------------


@pytest.mark.parametrize("env_fn", [ToyEnv, CARTPOLE], ids=["bare", "made"])
@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_step_before_reset_is_reset_needed(backend, front_end, env_fn):
    """Envs without Gymnasium's wrapper were stepped, and those with it raised an error of the env."""
    with contextlib.closing(front_end([env_fn] * 2, backend=backend)) as envs:
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"^step: envs \[0, 1\] were never reset") as caught:
            envs.step([0, 0])
        assert isinstance(caught.value, StateError)
        envs.reset()
        envs.step([0, 0])


def test_step_of_one_env_before_its_reset_is_reset_needed():
    with VectorEnv([ToyEnv] * 3, backend="serial") as envs:
        envs.async_reset([0, 2])
        for call in (lambda: envs.send([0], [1]), lambda: envs.step([0], [1])):
            with pytest.raises(gymnasium.error.ResetNeeded, match=r"^step: env 1 was never reset; call reset first"):
                call()
        envs.recv()
        with pytest.raises(gymnasium.error.ResetNeeded, match="env 1"):
            envs.step([0, 0, 0])
        envs.send([0, 0], [0, 2])
        assert sorted(envs.recv()[4]["env_id"].tolist()) == [0, 2]


def test_step_of_batched_vector_env_before_reset_is_reset_needed():
    batches = [functools.partial(CartPoleVectorEnv, 2)] * 2
    with BatchedVectorEnv(batches, backend="serial") as envs, pytest.raises(gymnasium.error.ResetNeeded):
        envs.step([0] * 4)


@pytest.mark.extended
def test_env_of_restarted_worker_needs_a_reset():
    with VectorEnv([ToyEnv] * 2, num_workers=2) as envs:
        envs.reset(seed=0)
        envs.pool.restart(1)
        with pytest.raises(gymnasium.error.ResetNeeded, match="env 1 was"):
            envs.step([0, 0])


# ---- actions outside their space ---------------------------------------------------------------------


class EvenNumbers(Discrete):
    """A space with a rule of its own."""

    def contains(self, x):
        return super().contains(x) and x % 2 == 0


OUTSIDE = [
    (Discrete(2), [0, 1], [1, 5], r"action: env 1: expected a member of Discrete\(2\), got 5$"),
    (Discrete(2, start=-1), [-1, 0], [1, 0], r"action: env 0: .*got 1$"),
    (EvenNumbers(8), [0, 2], [2, 3], r"action: env 1: .*got 3$"),
    (MultiDiscrete([2, 3]), [[1, 2], [0, 0]], [[1, 2], [0, 3]], r"env 1: .*MultiDiscrete.*got 3 at index 1$"),
    (MultiBinary(2), np.array([[1, 0], [0, 1]], np.int8), np.array([[1, 0], [0, 2]], np.int8), r"env 1: .*got \[0 2\]"),
    (
        Box(-1, 1, (2, 2), np.float32),
        np.full((2, 2, 2), 1, np.float32),
        np.array([[[0, 0], [0, 0]], [[0, 0], [1.5, 0]]], np.float32),
        r"env 1: expected a member of Box.*got 1.5 at index \(1, 0\)$",
    ),
    (
        Box(-1, 1, (1,), np.float32),
        np.zeros((2, 1), np.float32),
        np.array([[np.nan], [0]], np.float32),
        r"env 0: .*got nan at index 0$",
    ),
    (
        Dict(steer=Discrete(3), speed=Box(0, 1, (), np.float32)),
        {"steer": [0, 2], "speed": np.zeros(2, np.float32)},
        {"steer": [0, 3], "speed": np.zeros(2, np.float32)},
        r"action/steer: env 1: expected a member of Discrete\(3\), got 3$",
    ),
    (Text(2), ("ab", "c"), ("ab", "abc"), r"action: env 1: expected a member of Text.*got abc$"),
]


@pytest.mark.parametrize("checks", ["strict", "debug"])
@pytest.mark.parametrize("space, good, bad, text", OUTSIDE, ids=lambda value: type(value).__name__)
def test_action_outside_its_space_names_env_value_and_space(space, good, bad, text, checks):
    build = functools.partial(SpaceEnv, None, space)
    with VectorEnv([build] * 2, backend="serial", checks=checks) as envs:
        envs.reset(seed=0)
        envs.step(good)
        with pytest.raises(SpaceError, match=text) as caught:
            envs.step(bad)
        assert caught.value.path is not None and caught.value.path.startswith("action")
        assert envs.statistics()["steps"] == 2  # nothing was sent
        envs.step(good)


def test_actions_outside_their_space_reach_the_envs_by_default():
    """As from Gymnasium's vector envs."""
    with VectorEnv([ToyEnv] * 2, backend="serial") as envs:
        envs.reset(seed=0)
        envs.step([0, 99])


@pytest.mark.parametrize("checks", ["strict", "debug"])
def test_ids_of_envs_with_actions_outside_are_those_of_send(checks):
    with VectorEnv([ToyEnv] * 4, num_workers=1, checks=checks) as envs:
        envs.reset(seed=0)
        with pytest.raises(SpaceError, match="env 3: "):
            envs.send([0, 99], [1, 3])
        envs.send([0], [3])
        envs.recv()


@pytest.mark.parametrize("checks", ["strict", "debug"])
def test_action_outside_its_space_is_refused_by_sb3_vec_env(checks):
    with contextlib.closing(sb3_vec_env([ToyEnv] * 2, backend="serial", checks=checks)) as envs:
        envs.reset()
        with pytest.raises(SpaceError, match="env 1: .*got 99"):
            envs.step(np.array([0, 99]))


@pytest.mark.parametrize("checks", ["strict", "debug"])
def test_action_outside_its_space_is_refused_by_batched_vector_env(checks):
    batches = [functools.partial(CartPoleVectorEnv, 2)] * 2
    with BatchedVectorEnv(batches, backend="serial", checks=checks) as envs:
        envs.reset(seed=0)
        with pytest.raises(SpaceError, match="env 1: .*got 7 at index 1"):
            envs.step([0, 0, 0, 7])


class OldStepEnv(ToyEnv):
    """Steps as in Gym before 0.26."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


def test_step_of_four_values_names_the_wrapper_that_converts_it() -> None:
    with VectorEnv([OldStepEnv]) as envs:
        envs.reset(seed=0)
        with pytest.raises(TypeError, match="got tuple of 4; for Gym's old calls, wrap it in vecenv.ding.GymToGymn"):
            envs.step(np.zeros(1, np.int64))
