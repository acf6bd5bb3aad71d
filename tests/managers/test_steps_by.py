"""The shortcut past Gymnasium's own wrappers in envs of managers; see `core.host.shortcut`."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.core.host.test_shortcut import files_of, needs_known_release
from tests.faults.test_replaced_steps import Replaces
from vecenv.core.host.shortcut import Shortcut
from vecenv.ding import BaseEnvManager, DingEnvWrapper, SyncSubprocessEnvManager
from vecenv.managers.env_driver import DriverSettings, EnvDriver, ResetRequest

SETTINGS = DriverSettings(autoreset=False, abnormal_ends=False)
cartpole = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=7)


def make_ding() -> DingEnvWrapper:
    return DingEnvWrapper(cartpole())


def warm(managed: EnvDriver) -> Any:
    """Let the env make its checks, and return the object that a worker steps."""
    managed.reset(request=ResetRequest({}))
    for _ in range(2):
        managed.reset()
        managed.step(0)
        managed.step(0)
    managed.reset()
    return Shortcut.to(managed)


@needs_known_release
def test_shortcut_skips_wrappers_of_gymnasium() -> None:
    managed = EnvDriver(cartpole, 0, SETTINGS)
    stand_in = warm(managed)
    assert files_of(stand_in.step) == ["cartpole.py"]
    assert len(files_of(managed.step)) > 2
    assert [stand_in.step(number % 2)[3] for number in range(7)] == [False] * 6 + [True]
    assert managed.env.get_wrapper_attr("_elapsed_steps") == 7
    stand_in.reset()
    assert managed.env.get_wrapper_attr("_elapsed_steps") == 0


@needs_known_release
def test_shortcut_steps_the_new_env_after_a_rebuild() -> None:
    managed = EnvDriver(cartpole, 0, SETTINGS)
    stand_in = warm(managed)
    stand_in.step(0)
    old = managed.env
    managed.rebuild()
    with pytest.raises(gymnasium.error.ResetNeeded):
        stand_in.step(0)
    warm(managed)
    stand_in.step(0)
    assert managed.env.get_wrapper_attr("_elapsed_steps") == 1
    assert old.get_wrapper_attr("_elapsed_steps") == 1
    assert files_of(stand_in.step) == ["cartpole.py"]


def test_shortcut_is_not_taken_if_the_driver_changes_results() -> None:
    managed = EnvDriver(make_ding, 0, SETTINGS)
    assert Shortcut.to(managed) is managed


@pytest.mark.parametrize("cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_shortcut_keeps_time_limits(cls: Any) -> None:
    manager = cls([cartpole] * 2)
    manager.launch()
    try:
        for number in range(4 * 7):
            timesteps = manager.step({0: np.int64(number % 2), 1: np.int64(number % 2)})
            assert [timesteps[env_id].done for env_id in range(2)] == [number % 7 == 6] * 2
    finally:
        manager.close()


@pytest.mark.extended
@needs_known_release
def test_shortcut_is_taken_in_workers() -> None:
    manager = SyncSubprocessEnvManager([cartpole], {"max_retry": 1})
    manager.launch()
    try:
        for _ in range(2):
            for number in range(7):
                manager.step({0: number % 2})
        with pytest.raises(AssertionError) as caught:
            manager.step({0: 7})
        assert "common.py" not in str(caught.value.__cause__)
    finally:
        manager.close()


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
@pytest.mark.parametrize("make", [Replaces, lambda: DingEnvWrapper(Replaces())])
def test_manager_uses_a_step_that_an_env_replaces(manager_cls: Any, make: Any) -> None:
    with manager_cls([make], {"episode_num": 2}) as manager:
        manager.launch()
        rewards = []
        while not manager.done:
            timestep = manager.step({0: np.array(0)})[0]
            rewards.append(float(np.ravel(timestep.reward)[0]))
        assert rewards == [1.0, 1.0, 2.0, 2.0] * 2
