"""ALF: a `step` that an env or its maker replaces is the one that is called."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.faults.test_replaced_steps import Replaces
from tests.faults.traces import kill
from tests.inside import pool_of
from vecenv import alf
from vecenv.errors import StateError


def make(env_id: int = 0) -> Any:
    return alf.AlfGymWrapper(Replaces())


def make_limited(env_id: int = 0) -> Any:
    return alf.TimeLimit(make(), 50)


def rewards_of(env: Any, num_steps: int = 4) -> list[float]:
    """Reset and step an environment of one env; return its rewards."""
    env.reset()
    return [float(np.asarray(env.step(np.zeros(1, np.int64)).reward)[0]) for _ in range(num_steps)]


@pytest.mark.parametrize("env_fn", [make, make_limited])
def test_alf_uses_a_step_that_an_env_replaces(env_fn: Any) -> None:
    with alf.ParallelAlfEnvironment([env_fn]) as envs:
        assert rewards_of(envs) == [1.0, 1.0, 2.0, 2.0]


def make_doubled(env: Any, name: str = "step") -> Any:
    """Return an environment whose rewards are doubled, by a method of the object."""
    step = getattr(env, name)

    def doubled(action: Any) -> Any:
        time_step = step(action)
        return time_step._replace(reward=2 * time_step.reward)

    setattr(env, name, doubled)
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
        assert rewards_of(envs) == [2.0, 2.0, 4.0, 4.0]


def test_thread_environment_uses_a_step_that_was_set_on_the_environment() -> None:
    with alf.ThreadEnvironment(double_inner) as env:
        assert rewards_of(env) == [2.0, 2.0, 4.0, 4.0]


# ---- methods that are set when the worker has built the environment -------------------------------


class ChangesOuter(gymnasium.Env[Any, Any]):
    """The reward is the number of the step, of 5 in an episode. In the third step of its life it calls `change`."""

    observation_space, action_space = spaces.Box(-9, 9, (1,), np.float64), spaces.Discrete(2)

    def __init__(self) -> None:
        self.life_steps = 0
        self.change: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1), {"steps": 0}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.life_steps += 1
        if self.life_steps == 3:
            self.change()
        return np.full(1, self.steps / 3), float(self.steps), self.steps == 5, False, {"steps": self.steps}


def make_changing(change: Any, is_limited: bool, env_id: int = 0) -> Any:
    """Return an environment with 4 steps in an episode if it is limited; change(inner, outer) sets methods later."""
    gym_env = ChangesOuter()
    inner = alf.AlfGymWrapper(gym_env, env_id)
    outer = alf.TimeLimit(inner, 4) if is_limited else inner
    gym_env.change = functools.partial(change, inner, outer)
    return outer


def double_outer_step(inner: Any, outer: Any) -> None:
    make_doubled(outer)


def double_inner_step(inner: Any, outer: Any) -> None:
    make_doubled(inner)


def double_own_step_of_inner(inner: Any, outer: Any) -> None:
    make_doubled(inner, "_step")


def rows_of(env: Any, before: Any = None) -> list[Any]:
    """Reset and step an environment of one env; return its rows."""
    rows = []
    for number in range(12):
        if before is not None and number:
            before(number)
        time_step = env.step(np.ones(1, np.int64)) if number else env.reset()
        fields = ("step_type", "reward", "discount", "observation", "prev_action")
        row = [np.asarray(getattr(time_step, name)).tolist() for name in fields]
        rows.append((*row, np.asarray(time_step.env_info["steps"]).tolist()))
    return rows


def expected_rows(is_limited: bool) -> list[Any]:
    rows = []
    num_steps, discount = (4, 1.0) if is_limited else (5, 0.0)
    for number in range(12):
        step, life_steps = number % (num_steps + 1), number - number // (num_steps + 1)
        factor = 2 if life_steps > 3 else 1
        kind = 0 if step == 0 else 2 if step == num_steps else 1
        obs = float(np.float32(step / 3))
        row = [kind], [float(factor * step)], [discount if kind == 2 else 1.0], [[obs]], [0 if step == 0 else 1], [step]
        rows.append(row)
    return rows


CHANGES = [double_outer_step, double_inner_step, double_own_step_of_inner]


@pytest.mark.parametrize("backend", ["process", "serial"])
@pytest.mark.parametrize("is_limited", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_step_that_is_set_on_an_environment_later_is_used_from_the_next_one(
    change: Any, is_limited: bool, backend: str, implementation: str
) -> None:
    env_fn = functools.partial(make_changing, change, is_limited)
    with alf.ParallelAlfEnvironment([env_fn], tensors=False, backend=backend) as envs:
        assert rows_of(envs) == expected_rows(is_limited)


@pytest.mark.parametrize("when", [2, 5, 9])
def test_step_that_is_set_later_is_restored(when: int) -> None:
    env_fn = functools.partial(make_changing, double_inner_step, True)
    with alf.ParallelAlfEnvironment([env_fn], tensors=False) as envs:
        rows = rows_of(envs, lambda number: kill(pool_of(envs), 0) if number == when else None)
        assert rows == expected_rows(True)
        assert envs.statistics().restarts == 1


def set_reset(inner: Any, outer: Any) -> None:
    reset = outer.reset

    def later() -> Any:
        time_step = reset()
        return time_step._replace(observation=time_step.observation + np.float32(7))

    outer.reset = later


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_reset_that_is_set_on_an_environment_later_is_used(backend: str) -> None:
    env_fn = functools.partial(make_changing, set_reset, True)
    with alf.ParallelAlfEnvironment([env_fn], tensors=False, backend=backend) as envs:
        obs = [row[3][0][0] for row in rows_of(envs)]
    assert [obs[0], obs[5], obs[10]] == [0.0, 7.0, 7.0]


def halve_discount(inner: Any, outer: Any) -> None:
    step = outer.step
    outer.step = lambda action: step(action)._replace(discount=np.float32(0.5))


def test_step_that_is_set_later_must_not_change_discounts() -> None:
    env_fn = functools.partial(make_changing, halve_discount, False)
    with alf.ParallelAlfEnvironment([env_fn], tensors=False) as envs:
        envs.reset()
        for _ in range(3):
            envs.step(np.zeros(1, np.int64))
        with pytest.raises(
            StateError, match=r"set on AlfGymWrapper has returned a time step of type 1 with discount 0\.5"
        ):
            envs.step(np.zeros(1, np.int64))
