"""In this process values are copied, and values that cannot be copied are passed by reference."""

from __future__ import annotations

import threading

import gymnasium
import numpy as np
import pytest

from tests.managers.fakes import ActorEnv
from vecenv.ding import BaseEnvManager, BaseEnvManagerV2, BaseEnvTimestep, DingEnvWrapper, SyncSubprocessEnvManager
from vecenv.envs.toys import UnpicklableInfo


@pytest.fixture(params=["native", "twin"])
def implementation(request, monkeypatch):
    if request.param == "twin":
        monkeypatch.setenv("VECENV_IMPLEMENTATION", "python")


class Locks(ActorEnv):
    """An env that keeps its reset parameters; its infos have a lock and an array that it keeps."""

    def __init__(self):
        super().__init__()
        self.lock, self.array, self.params = threading.Lock(), np.zeros(2), []

    def reset(self, **params):
        self.params.append(params)
        return super().reset()

    def step(self, action):
        obs, reward, done, info = super().step(action)
        return BaseEnvTimestep(obs, reward, done, {**info, "nested": {"lock": self.lock, "array": self.array}})


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("max_retry", [1, 2])
def test_unpicklable_parts_pass_by_reference(max_retry):
    """Regression: such infos were an error of the env's step, and such actions a TypeError."""
    lock, array = threading.Lock(), np.zeros(2)
    with BaseEnvManager([Locks, Locks], {"max_retry": max_retry}) as manager:
        manager.launch({0: {"lock": lock}, 1: None})
        for _ in range(6):  # more steps than an episode has
            timesteps = manager.step({0: {"lock": lock, "array": array}, 1: 0})
            for env_id, timestep in timesteps.items():
                nested = timestep.info["nested"]
                assert nested["lock"] is manager.lock[env_id]
                assert nested["array"] is not manager.array[env_id]
        assert [params["lock"] is lock for params in manager.params[0]] == [True, True]
        kept = manager.kept[0][0]
        assert kept["lock"] is lock and np.array_equal(kept["array"], array) and kept["array"] is not array


class WritesOn(gymnasium.Env):
    """An env that returns the same info each time, and writes to its arrays: small, large, and nested ones."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.arrays = np.zeros(2), np.zeros(100), np.zeros(3)
        self.info = {"few": self.arrays[0], "many": self.arrays[1], "in": [{"deep": self.arrays[2]}]}

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), self.info

    def step(self, action):
        for array in self.arrays:
            array += 1
        return np.zeros(1, np.float32), 0.0, bool(self.arrays[0][0] % 3 == 0), False, self.info


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_infos_do_not_change_when_the_env_writes_to_them(manager_cls, shared_memory):
    with manager_cls([lambda: DingEnvWrapper(WritesOn())], {"shared_memory": shared_memory}) as manager:
        manager.launch()
        infos = [manager.step({0: np.array(0)})[0].info for _ in range(7)]
        for number, info in enumerate(infos, 1):
            for array in (info["few"], info["many"], info["in"][0]["deep"]):
                assert (array == number).all()


class LockedObs(ActorEnv):
    """An env whose observation is a lock."""

    def _obs(self):
        return {"lock": self.__dict__.setdefault("lock", threading.Lock())}


def test_unpicklable_observations_pass_by_reference():
    with BaseEnvManager([LockedObs], {"shared_memory": False}) as manager:
        manager.launch()
        obs = manager.step({0: 0})[0].obs
        assert obs["lock"] is manager.lock[0] and manager.ready_obs[0]["lock"] is manager.lock[0]


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, BaseEnvManagerV2])
def test_info_with_a_lock_is_not_an_error(manager_cls):
    with manager_cls([lambda: gymnasium.wrappers.TimeLimit(UnpicklableInfo(at=1), 3)]) as manager:
        manager.launch()
        for _ in range(4):
            manager.step({0: 0})
        assert manager.env_episode_count == {0: 1}
