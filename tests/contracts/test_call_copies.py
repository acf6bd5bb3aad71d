"""Arguments and results of calls are copies with every backend: the results of a program do not depend on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from vecenv import BatchedVectorEnv, VectorEnv
from vecenv.alf import AlfGymWrapper, ParallelAlfEnvironment
from vecenv.ding import BaseEnvManager, SyncSubprocessEnvManager


class Goal:
    """An object of the program."""

    def __init__(self) -> None:
        self.values = np.ones(2)


class Goals(gymnasium.Env):
    """An env that keeps its arguments and returns them."""

    observation_space, action_space = spaces.Box(-1e9, 1e9, (1,), np.float64), spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self) -> None:
        self.render_mode = "rgb_array"
        self.goal: Any = Goal()
        self.table, self.options, self.lock = np.zeros(2), None, threading.Lock()
        self.frame = np.zeros((2, 2, 3), np.uint8)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if options:
            self.options = options
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.table += 1
        self.frame += 1
        return np.zeros(1), float(np.sum(self.goal.values)), False, False, {}

    def set_goal(self, goal: Any) -> None:
        self.goal = goal

    def note(self, items: Any) -> int:
        items.append(1)
        return len(items)

    def get_table(self) -> Any:
        return self.table

    def get_goal(self) -> Any:
        return self.goal

    def call_hook(self, hook: Callable[[], Any]) -> Any:
        return hook()

    def render(self) -> Any:
        return self.frame


def probe(call: Any, step: Any, get: Any = None, set_value: Any = None, render: Any = None) -> dict[str, Any]:
    """Return the effects of later changes on the other side; `call` and `get` return one value per env."""
    found: dict[str, Any] = {}
    goal = Goal()
    call("set_goal", goal)
    goal.values += 10
    found["argument changed later"] = [one.values.tolist() for one in call("get_goal")]
    items: list[int] = []
    found["one list for all envs"] = [*call("note", items), *items]
    tables, goals = call("get_table"), call("get_goal")
    before = [table.tolist() for table in tables]
    step()
    found["result after a step"] = [table.tolist() for table in tables] == before
    for one, table in zip(goals, tables):
        one.values[:], table[:] = -100, -100
    found["result written to"] = [*(one.values.tolist() for one in call("get_goal")), *map(min, call("get_table"))]
    calls: list[int] = []
    found["closure"] = [*call("call_hook", lambda: calls.append(1) or len(calls)), *calls]
    if get is not None:
        get("table")[0][:] = -100
        found["attribute written to"] = [min(table) for table in get("table")]
    if set_value is not None:
        goal = Goal()
        set_value("goal", goal)
        goal.values += 10
        found["attribute changed later"] = [one.values.tolist() for one in call("get_goal")]
    if render is not None:
        frames = render()
        before = [frame.tolist() for frame in frames]
        step()
        found["frame after a step"] = [frame.tolist() for frame in frames] == before
    return found


def vector_env(backend: str) -> Any:
    with VectorEnv([Goals] * 2, backend=backend) as envs:
        options = {"list": [1]}
        envs.reset(seed=0, options=options)
        options["list"].append(2)
        found = probe(envs.call, lambda: envs.step([0, 0]), envs.get_attr, envs.set_attr, envs.render)
        found["options"] = envs.get_attr("options")
        envs.metadata["render_modes"].append("human")
        found["metadata"] = [one["render_modes"] for one in envs.get_attr("metadata")]
        envs.call_async("note", items := [5])
        items.append(6)  # before the call is made, with envs in this process
        return {**found, "items": envs.call_wait()}


def batched(backend: str) -> Any:
    with BatchedVectorEnv([lambda: SyncVectorEnv([Goals] * 2)] * 2, backend=backend) as envs:
        envs.reset(seed=0)
        return probe(envs.call, lambda: envs.step([0] * 4), envs.get_attr, envs.set_attr, envs.render)


def sb3(backend: str) -> Any:
    pytest.importorskip("stable_baselines3")
    from vecenv.integrations.sb3 import SB3VecEnv

    with contextlib.closing(SB3VecEnv([Goals] * 2, backend=backend)) as envs:
        envs.reset()
        step = lambda: envs.step(np.zeros(2, np.int64))  # noqa: E731
        return probe(envs.env_method, step, envs.get_attr, envs.set_attr, envs.get_images)


def tianshou(backend: str) -> Any:
    pytest.importorskip("tianshou", exc_type=ImportError)
    from vecenv.integrations.tianshou import VecenvVectorEnv

    with contextlib.closing(VecenvVectorEnv([Goals] * 2, backend=backend)) as envs:
        envs.reset()
        step = lambda: envs.step(np.zeros(2, np.int64))  # noqa: E731
        return probe(envs.vector_env.call, step, envs.get_env_attr, envs.set_env_attr, envs.render)


def alf(backend: str) -> Any:
    make = lambda env_id=0: AlfGymWrapper(Goals(), env_id)  # noqa: E731
    with contextlib.closing(ParallelAlfEnvironment([make] * 2, tensors=False, backend=backend)) as envs:
        envs.reset()
        return probe(envs.call_envs_with_same_args, lambda: envs.step(np.zeros(2, np.int64)))


def manager(backend: str) -> Any:
    base: Any = BaseEnvManager if backend == "serial" else SyncSubprocessEnvManager

    class Manager(base):
        method_name_list = ["set_goal", "get_goal", "note", "get_table", "call_hook"]

    with Manager([Goals] * 2, {}) as envs:
        envs.launch()
        call = lambda name, *args: getattr(envs, name)(*args)  # noqa: E731
        return probe(call, lambda: envs.step({0: 0, 1: 0}), lambda name: getattr(envs, name))


@pytest.mark.parametrize("face", [vector_env, batched, sb3, tianshou, alf, manager])
@pytest.mark.parametrize("implementation", ["native", "python"])
def test_calls_in_one_process_give_the_results_of_workers(
    face: Callable[[str], Any], implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = face("process")
    assert expected["argument changed later"][0] == [1, 1] and expected["result after a step"] is True
    monkeypatch.setenv("VECENV_IMPLEMENTATION", implementation)
    assert face("serial") == expected


def test_locks_are_shared_with_envs_of_one_process() -> None:
    with VectorEnv([Goals] * 2, backend="serial") as envs:
        lock, items = threading.Lock(), [1]
        envs.set_attr("goal", {"lock": lock, "items": items})
        items.append(2)
        for found, env in zip(envs.get_attr("goal"), envs.envs):
            assert found["lock"] is lock and found["items"] == [1] and found["items"] is not env.goal["items"]
        assert [one is env.lock for one, env in zip(envs.get_attr("lock"), envs.envs)] == [True, True]
