"""ALF: an env that replaces its own `step` within an episode is stepped by the new one."""

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
