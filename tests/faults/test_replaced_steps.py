"""An env that replaces its own `step` within an episode is stepped by the new one, in every front end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.faults.front_ends import FRONT_ENDS, SERIAL, play


class Replaces(gymnasium.Env[Any, Any]):
    """The reward is 1, and 2 from the third step of an episode on: by a new `step`, or by the step itself."""

    observation_space, action_space = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)
    replaces = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        vars(self).pop("step", None)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            return self.later_step(action)
        if self.steps == 1 and self.replaces:
            self.step = self.later_step  # type: ignore[method-assign]
        return self._take(1.0)

    def later_step(self, action: Any) -> Any:
        return self._take(2.0)

    def _take(self, reward: float) -> Any:
        self.steps += 1
        return np.full(1, self.steps, np.float32), reward, self.steps == 4, False, {}


class ReplacesWrapped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Replaces its `env` in the second step of an episode, by one that doubles rewards."""

    replaces = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.inner, self.other, self.steps = env, gymnasium.wrappers.TransformReward(env, _double), 0

    def reset(self, **kwargs: Any) -> Any:
        self.env, self.steps = self.inner, 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.replaces and self.steps == 2:
            self.env = self.other
        obs, reward, *rest = super().step(action)
        return obs, (reward if self.replaces or self.steps < 2 else _double(reward)), *rest


def _double(reward: Any) -> Any:
    return 2 * reward


def _limited() -> Any:
    return gymnasium.wrappers.OrderEnforcing(gymnasium.wrappers.TimeLimit(Replaces(), 50))


def _by_wrapper() -> Any:
    return gymnasium.wrappers.TimeLimit(ReplacesWrapped(Same()), 50)


class Same(Replaces):
    """Its rewards are the same; it replaces nothing."""

    replaces = False

    def step(self, action: Any) -> Any:
        return self.later_step(action) if self.steps >= 2 else self._take(1.0)


class SameWrapped(ReplacesWrapped):
    """Its rewards are the same; it replaces nothing."""

    replaces = False


def _same_by_wrapper() -> Any:
    return gymnasium.wrappers.TimeLimit(SameWrapped(Same()), 50)


@pytest.mark.parametrize(("env_fn", "same"), [(_limited, Same), (_by_wrapper, _same_by_wrapper)])
@pytest.mark.parametrize("name", FRONT_ENDS)
def test_replaced_steps_are_used(name: str, env_fn: Any, same: Any) -> None:
    assert play(name, [env_fn] * 2, context="fork") == play(name, [same] * 2, context="fork")


@pytest.mark.parametrize("name", SERIAL)
def test_replaced_steps_are_used_in_one_process(name: str) -> None:
    assert play(name, [_limited] * 2, backend="serial") == play(name, [Same] * 2, backend="serial")


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
@pytest.mark.parametrize("options", [{}, {"num_spare_envs": 2}], ids=str)
def test_replaced_steps_are_used_with_spare_envs(context: str, options: dict[str, Any]) -> None:
    rows = [play("VectorEnv", [one] * 2, context=context, **options) for one in (_limited, Same)]
    assert rows[0] == rows[1]
