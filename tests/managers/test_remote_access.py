"""Calls of envs' methods: an env's edits of the caller's list are written back."""

from __future__ import annotations

import functools
import os
import signal
import threading

import pytest

from tests.managers.fakes import IN_PROCESS, WITH_WORKERS, ActorEnv, actors
from vecenv import ConfigError
from vecenv.ding import BaseEnvManager

MANAGERS = [*IN_PROCESS, *WITH_WORKERS]


class Shaper(ActorEnv):
    """An env that shapes rewards as `cfg['how']` says. DI-engine's collectors use their own list, not the result."""

    def reward_shaping(self, transitions):
        how = self._cfg["how"]
        if how == "new":
            return [{"reward": 9.0} for _ in transitions]
        for transition in transitions:
            transition["reward"] = 9.0
        if how == "longer":
            return [*transitions, {"reward": 0.0}]
        return transitions if how == "in place" else None


def launch(manager_cls, how):
    manager = manager_cls([functools.partial(Shaper, {"how": how})] * 2)
    manager.launch()
    return manager


def transitions():
    return [{"reward": 0.0}, {"reward": 1.0}]


@pytest.mark.parametrize("how", ["in place", "nothing"])
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_reward_shaping_edits_the_callers_list(manager_cls, how):
    """Regression: only the result had the new rewards, since the env edited a copy."""
    with launch(manager_cls, how) as manager:
        mine = transitions()
        result = manager.reward_shaping(1, mine)
        assert mine == [{"reward": 9.0}] * 2 and result == (mine if how == "in place" else None)


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_reward_shaping_keeps_a_list_of_another_length_and_a_tuple(manager_cls):
    with launch(manager_cls, "longer") as manager:
        mine = transitions()
        assert len(manager.reward_shaping(0, mine)) == 3 and mine == transitions()
    with launch(manager_cls, "in place") as manager:
        fixed = tuple(transitions())
        assert manager.reward_shaping(0, fixed) == ({"reward": 9.0},) * 2 and fixed == tuple(transitions())


@pytest.mark.extended
def test_reward_shaping_returns_a_new_list():
    for manager_cls in (BaseEnvManager, *WITH_WORKERS):
        with launch(manager_cls, "new") as manager:
            mine = transitions()
            assert manager.reward_shaping(0, mine) == mine == [{"reward": 9.0}] * 2


@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_reward_shaping_after_a_crash_edits_the_callers_list(manager_cls):
    with launch(manager_cls, "in place") as manager:
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        mine = transitions()
        manager.reward_shaping(0, mine)
        assert mine == [{"reward": 9.0}] * 2


class Holder(ActorEnv):
    """An env with a method that keeps its argument and returns it."""

    def hold(self, thing):
        self.held = thing
        return thing


@pytest.mark.parametrize("manager_cls", IN_PROCESS)
def test_methods_in_process_take_and_return_the_same_objects(manager_cls):
    class Holds(manager_cls):
        @property
        def method_name_list(self):
            return [*super().method_name_list, "hold"]

    with Holds([Holder] * 2) as manager:
        manager.launch()
        lock = threading.Lock()  # it cannot be pickled
        results = manager.hold(lock)
        assert all(result is lock for result in results) and all(held is lock for held in manager.held)


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_method_errors_are_raised(manager_cls):
    with manager_cls(actors(2)) as manager:
        manager.launch()
        with pytest.raises(TypeError, match="not iterable"):
            manager.reward_shaping(0, 5)
        assert manager.reward_shaping(0, [1.0]) == [2.0]
        with pytest.raises(ConfigError, match="env_id 2 is not in"):
            manager.reward_shaping(2, [1.0])
