"""Infos as sequences, one per agent: every manager returns them in the form of the env."""

from __future__ import annotations

import functools
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.managers.fakes import HANG_SECONDS, IN_PROCESS, WITH_WORKERS
from vecenv.ding import (
    AsyncSubprocessEnvManager,
    BaseEnv,
    BaseEnvManager,
    BaseEnvTimestep,
    EnvState,
    GymVectorEnvManager,
    SyncSubprocessEnvManager,
    TreeArray,
)

MANAGERS = [*IN_PROCESS, *WITH_WORKERS]
WAITS_FOR_ALL = {"wait_num": 100, "step_wait_timeout": None, "num_workers": 1}
FLAGS = {"terminated", "truncated", "TimeLimit.truncated"}
KINDS = pytest.mark.parametrize("kind", [list, tuple])


class Duel(BaseEnv):
    """An env of two agents, with an info and a reward for each; episodes have three steps."""

    observation_space = spaces.Box(-1, 1, (2, 2), np.float32)
    action_space = spaces.Discrete(2)
    reward_space = spaces.Box(-1, 1, (2, 1), np.float32)

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.num_steps = 0

    def reset(self) -> Any:
        self.num_steps = 0
        return np.zeros((2, 2), np.float32)

    def step(self, action: Any) -> BaseEnvTimestep:
        if action == "die":
            os._exit(3)
        self.num_steps += 1
        done = self.num_steps == 3
        infos: list[dict[str, Any]] = [{"name": "left"}, {"at": np.full(2, self.num_steps)}]
        if done:
            infos[0]["eval_episode_return"], infos[1]["eval_episode_return"] = 1.0, -1.0
        if action == "abnormal":
            infos[1]["abnormal"] = True
        if action == "lose":
            return BaseEnvTimestep(None, None, False, self.kind(infos))
        obs = np.full((2, 2), self.num_steps / 3, np.float32)
        return BaseEnvTimestep(obs, np.array([[1.0], [-1.0]], np.float32), done, self.kind(infos))

    def close(self) -> None:
        pass


def make(manager_cls: Any, kind: type, num_envs: int = 2, **cfg: Any) -> Any:
    own = WAITS_FOR_ALL if manager_cls in WITH_WORKERS else {}
    return manager_cls([functools.partial(Duel, kind)] * num_envs, {**own, **cfg})


def step(manager: Any, action: Any = 0) -> dict[int, Any]:
    """Step all ready envs; return {env_id: (done, info)}."""
    while EnvState.RESET in manager.env_states.values():
        manager.ready_obs  # noqa: B018
        if EnvState.RESET in manager.env_states.values():
            manager.step({})
    results = manager.step(dict.fromkeys(manager.ready_obs_id, action))
    if isinstance(results, list):
        return {tree.env_id.item(): (tree.done.item(), tree.info) for tree in results}
    return {env_id: (timestep.done, timestep.info) for env_id, timestep in results.items()}


@KINDS
@pytest.mark.parametrize("max_retry", [1, 2], ids=["resets in the row", "resets by command"])
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_agent_infos_have_the_form_of_the_envs_infos(manager_cls, max_retry, kind):
    with make(manager_cls, kind, max_retry=max_retry) as manager:
        manager.launch()
        for number in (1, 2, 3, 1, 2, 3):
            for done, infos in step(manager).values():
                assert type(infos) is kind and len(infos) == 2 and done == (number == 3)
                assert infos[0]["name"] == "left" and infos[1]["at"].tolist() == [number] * 2
                for agent, info in enumerate(infos):
                    flags = {name.replace(".", "_") if type(info) is TreeArray else name for name in FLAGS}
                    extra = flags | {"eval_episode_return"} if done else set()
                    assert set(info.keys()) == {("name", "at")[agent]} | extra
                    if done:
                        assert info["eval_episode_return"] == (1.0, -1.0)[agent] and info["terminated"]


@pytest.mark.extended
@KINDS
@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_killed_worker_changes_only_recovered_in_each_agent_info(manager_cls, kind):
    with make(manager_cls, kind) as manager:
        manager.launch()
        step(manager)
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        for done, infos in step(manager).values():
            assert type(infos) is kind and not done and infos[1]["at"].tolist() == [2, 2]
            assert [info["recovered"] for info in infos] == ["replayed"] * 2 and not FLAGS & set(infos[0].keys())
        assert [infos[1]["eval_episode_return"] for _, infos in step(manager).values()] == [-1.0] * 2


@pytest.mark.extended
@KINDS
@pytest.mark.parametrize("max_retry", [1, 2], ids=["resets in the row", "resets by command"])
@pytest.mark.parametrize("manager_cls", WITH_WORKERS)
def test_abandoned_episode_has_an_info_per_agent(manager_cls, max_retry, kind, tmp_path):
    with make(manager_cls, kind, 1, max_retry=max_retry, reproducer_dir=str(tmp_path)) as manager:
        manager.launch()
        step(manager)
        ((done, infos),) = step(manager, "die").values()
        assert done and type(infos) is kind and len(infos) == 2
        assert all(info["truncated"] and info["recovered"] == "truncated" for info in infos)
        ((done, infos),) = step(manager).values()
        assert not done and infos[1]["at"].tolist() == [1, 1]


@KINDS
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_abnormal_agent_makes_the_timestep_abnormal_and_not_other_agents(manager_cls, kind):
    with make(manager_cls, kind) as manager:
        manager.launch()
        for _, infos in step(manager, "abnormal").values():
            assert type(infos) is kind and "abnormal" not in infos[0] and infos[1]["abnormal"]
        states = set(manager.env_states.values())
        assert states == {EnvState.RUN if manager_cls in IN_PROCESS else EnvState.ERROR}


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_missing_observation_makes_each_agent_info_abnormal(manager_cls):
    with make(manager_cls, list) as manager:
        manager.launch()
        for _, infos in step(manager, "lose").values():
            assert [bool(info["abnormal"]) for info in infos] == [True, True] and infos[0]["name"] == "left"


@pytest.mark.parametrize("max_retry", [1, 2], ids=["resets in the row", "resets by command"])
@pytest.mark.parametrize("manager_cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
def test_reset_inplace_puts_final_obs_into_each_agent_info(manager_cls, max_retry):
    with make(manager_cls, tuple, reset_inplace=True, max_retry=max_retry, episode_num=2) as manager:
        manager.launch()
        ends = []
        while not manager.done:
            manager.ready_obs  # noqa: B018
            for timestep in manager.step(dict.fromkeys(manager.ready_obs, 0)).values():
                assert type(timestep.info) is tuple
                ends += [info["final_obs"][0, 0] for info in timestep.info if timestep.done]
        assert ends == [1.0] * 8


def test_infos_kept_by_the_env_are_not_written_to():
    class Keeps(Duel):
        def step(self, action):
            timestep = super().step(action)
            self.kept = timestep.info
            return timestep

    with BaseEnvManager([functools.partial(Keeps, list)]) as manager:
        manager.launch()
        for _ in range(3):
            ((_, infos),) = step(manager).values()
        assert "terminated" in infos[0] and "terminated" not in manager.kept[0][0]


class Named(Duel):
    """An env whose info is a dict that has the key by chance."""

    def step(self, action):
        timestep = super().step(action)
        return timestep._replace(info={"agent_infos": list(timestep.info)})


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_dict_info_with_agent_infos_stays_a_dict(manager_cls):
    with manager_cls([functools.partial(Named, list)]) as manager:
        manager.launch()
        assert set(manager.step({0: 0})[0].info) == {"agent_infos", *FLAGS}


@KINDS
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_gym_vector_manager_returns_agent_infos(backend, kind):
    with GymVectorEnvManager([functools.partial(Duel, kind)] * 2, {"backend": backend}) as manager:
        manager.reset()
        for number in (1, 2, 3, 1):
            for done, infos in step(manager).values():
                assert type(infos) is kind and infos[1]["at"].tolist() == [number] * 2 and done == (number == 3)
                assert [info.get("eval_episode_return") for info in infos] == ([1.0, -1.0] if done else [None, None])
                assert ("terminated" in infos[0]) == done


def test_trees_of_agent_infos_convert_to_json_and_stack():
    with make(IN_PROCESS[1], list) as manager:
        manager.launch()
        trees = manager.step([0, 0])
        assert trees[0].json()["info"][0] == {"name": "left"}
        assert TreeArray.stack(trees).info[1][1].at.tolist() == [1, 1]
        assert TreeArray(trees[0]).info[0].name == "left"


class HangsInReset(Duel):
    """An env whose reset hangs once, in its first process."""

    def __init__(self, kind: type, marker: Any = None) -> None:
        super().__init__(kind)
        self.marker = marker

    def reset(self) -> Any:
        if self.marker is not None and self.num_steps and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            threading.Event().wait(HANG_SECONDS)
        return super().reset()


@pytest.mark.extended
@KINDS
def test_hung_reset_of_another_env_gives_an_info_per_agent(kind, tmp_path):
    env_fns = [functools.partial(HangsInReset, kind, tmp_path / "hung"), functools.partial(HangsInReset, kind)]
    cfg = {"num_workers": 1, "reset_timeout": 1.0, "max_retry": 2, "wait_num": 100, "step_wait_timeout": None}
    cfg["on_failure"] = "raise"  # else the other env is restored
    with AsyncSubprocessEnvManager(env_fns, {**cfg, "retry_waiting_time": 0.0}) as manager:
        manager.launch()
        for ids in ((0,), (0,), (0, 1)):
            last = manager.step(dict.fromkeys(ids, 0))
        assert last[0].done and not last[1].done
        with pytest.warns(RuntimeWarning, match="env 0 hung"):
            lost = manager.step({1: 0})[1]  # waits in the same worker until that reset ends
        assert lost.obs is None and type(lost.info) is kind and list(lost.info) == [{"abnormal": True}] * 2
        assert manager.env_states[1] is EnvState.ERROR
