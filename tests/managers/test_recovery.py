"""A worker that is killed under a manager with `on_failure='recover'`: the same results, and training goes on."""

from __future__ import annotations

import functools
import os
import signal

import pytest

from tests.managers.fakes import actors
from vecenv import AsyncSubprocessEnvManager, EnvState, SyncSubprocessEnvManager, WorkerDiedError
from vecenv.envs.toys import CountEnv, ToyEnv

MANAGERS = [SyncSubprocessEnvManager, AsyncSubprocessEnvManager]
ENVS = {
    "gymnasium": [functools.partial(ToyEnv, 6)] * 4,
    "over episodes": [functools.partial(CountEnv, 3)] * 4,
    "old dialect": actors(4, length=4),
}
STEPS, KILLS = 16, {4: 0, 11: 1}


def play(manager_cls, env_fns, kills, **cfg):
    """Step all envs; kill the worker named before the step named. Returns all that the caller saw."""
    cfg = {"num_workers": 2, "wait_num": 100, "step_wait_timeout": None, "on_failure": "recover", **cfg}
    seen = []
    with manager_cls(env_fns, cfg) as manager:
        manager.seed(3)
        manager.launch({0: None, 1: {}, 2: None, 3: {}})
        for step in range(STEPS):
            while EnvState.RESET in manager.env_states.values():
                manager.step({})
            if step in kills:
                os.kill(manager.worker_pids[kills[step]], signal.SIGKILL)
            for env_id, timestep in manager.step(dict.fromkeys(manager.ready_obs, step % 2)).items():
                info = {key: value for key, value in timestep.info.items() if key != "recovered"}
                seen.append((step, env_id, timestep.obs.tolist(), timestep.reward.tolist(), timestep.done, info))
        return seen, manager.env_episode_count


@pytest.mark.filterwarnings("ignore:the state of env:UserWarning", "ignore:.*state:RuntimeWarning")
@pytest.mark.parametrize("kind", ENVS)
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_a_killed_worker_changes_nothing_that_the_caller_sees(manager_cls, kind):
    assert play(manager_cls, ENVS[kind], KILLS) == play(manager_cls, ENVS[kind], {})


def test_resets_that_the_manager_asks_for_are_repeated_too():
    env_fns = [functools.partial(CountEnv, 3)] * 4
    killed = play(SyncSubprocessEnvManager, env_fns, KILLS, max_retry=2)
    assert killed == play(SyncSubprocessEnvManager, env_fns, {}, max_retry=2)


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_what_kills_every_worker_ends_that_episode(manager_cls, tmp_path):
    cfg = {"num_workers": 2, "wait_num": 100, "step_wait_timeout": None, "reproducer_dir": str(tmp_path)}
    with manager_cls(actors(2), cfg) as manager:
        manager.launch()
        manager.step({0: 0, 1: 0})
        timesteps = manager.step({0: 0, 1: "die"})
        assert timesteps[0].done is False and timesteps[1].done is True and timesteps[1].info["truncated"] is True
        assert manager.env_episode_count == {0: 0, 1: 1}
        while EnvState.RESET in manager.env_states.values():
            manager.step({})
        assert len(manager.step({0: 0, 1: 0})) == 2


def test_it_can_be_made_an_error(tmp_path):
    cfg = {"num_workers": 2, "on_repeat": "raise", "reproducer_dir": str(tmp_path)}
    with SyncSubprocessEnvManager(actors(2), cfg) as manager:
        manager.launch()
        manager.step({0: 0, 1: 0})
        with pytest.raises(WorkerDiedError):
            manager.step({0: 0, 1: "die"})
        assert manager.closed
