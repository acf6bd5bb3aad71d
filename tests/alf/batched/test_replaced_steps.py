"""ALF: a `step` that an env or its maker replaces is the one that is called."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from vecenv import alf


class ReplacesItsStep(gymnasium.Env[Any, Any]):
    """The reward is 1, and 2 from the fourth step on."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 3:
            self.step = self.later_step  # type: ignore[method-assign]
        return np.ones(1, np.float32), 1.0, False, False, {}

    def later_step(self, action: Any) -> Any:
        return np.ones(1, np.float32), 2.0, False, False, {}


def make(env_id: int = 0) -> Any:
    return alf.AlfGymWrapper(ReplacesItsStep())


def make_limited(env_id: int = 0) -> Any:
    return alf.TimeLimit(make(), 50)


@pytest.mark.parametrize("env_fn", [make, make_limited])
def test_alf_uses_a_step_that_an_env_replaces(env_fn: Any) -> None:
    envs = alf.ParallelAlfEnvironment([env_fn])
    try:
        envs.reset()
        rewards = [float(np.asarray(envs.step(np.zeros(1, np.int64)).reward)[0]) for _ in range(6)]
    finally:
        envs.close()
    assert rewards == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]


def make_doubled(env: Any) -> Any:
    """Return an environment whose rewards are doubled, by a `step` of the object."""
    step = env.step

    def doubled(action: Any) -> Any:
        time_step = step(action)
        return time_step._replace(reward=2 * time_step.reward)

    env.step = doubled
    return env


def double_inner(env_id: int = 0) -> Any:
    return make_doubled(make())


def double_limited(env_id: int = 0) -> Any:
    return make_doubled(make_limited())


def limit_doubled(env_id: int = 0) -> Any:
    return alf.TimeLimit(double_inner(), 50)


@pytest.mark.parametrize("backend", ["process", "serial"])
@pytest.mark.parametrize("env_fn", [double_inner, double_limited, limit_doubled])
def test_alf_uses_a_step_that_was_set_on_the_environment(env_fn: Any, backend: str) -> None:
    with alf.ParallelAlfEnvironment([env_fn], backend=backend) as envs:
        envs.reset()
        rewards = [float(np.asarray(envs.step(np.zeros(1, np.int64)).reward)[0]) for _ in range(4)]
    assert rewards == [2.0, 2.0, 2.0, 4.0]


def test_thread_environment_uses_a_step_that_was_set_on_the_environment() -> None:
    with alf.ThreadEnvironment(double_inner) as env:
        env.reset()
        rewards = [float(np.asarray(env.step(np.zeros(1, np.int64)).reward)[0]) for _ in range(4)]
    assert rewards == [2.0, 2.0, 2.0, 4.0]
