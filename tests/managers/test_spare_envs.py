"""Managers with spare envs give the same episodes as without, and do not wait for slow resets."""

from __future__ import annotations

import functools
import os
import signal

import numpy as np
import pytest

from vecenv import ConfigError
from vecenv.ding import AsyncSubprocessEnvManager, SubprocessEnvManagerV2, SyncSubprocessEnvManager
from vecenv.envs.toys import CountEnv, Exits, RaiseAtReset, ToyEnv
from vecenv.values.nested import copy_arrays

NUM_ENVS = 3
SPARES = {"num_spare_envs": NUM_ENVS}


class Parametrized(CountEnv):
    """Takes the length of its episodes as an argument of `reset`; a draw shows each episode's seed."""

    def reset(self, *, length=None, **kwargs):
        self.length = length or self.length
        return super().reset(**kwargs)


ENV_FNS = [functools.partial(Parametrized, 2 + env_id) for env_id in range(NUM_ENVS)]


def play(manager_class, cfg, program="." * 20, env_fns=ENV_FNS, dynamic_seed=True, disturb=None):
    """Return the observations and ends of each env, in order: '.' steps all that are ready, digits force resets."""
    found = [[] for _ in env_fns]
    with manager_class(env_fns, cfg) as manager:
        manager.seed(5, dynamic_seed)
        manager.launch()
        for number, order in enumerate(program):
            if disturb is not None:
                disturb(manager, number)
            if order == ".":
                ready = copy_arrays(manager.ready_obs)
                for env_id, obs in ready.items():
                    found[env_id].append(obs.tolist())
                timesteps = manager.step({env_id: (number + env_id) % 2 for env_id in ready})
                for env_id, timestep in timesteps.items():
                    found[env_id].append((timestep.obs.tolist(), bool(timestep.done), timestep.info["steps"]))
            elif order == "s":
                manager.seed({1: 99}, dynamic_seed)
            elif order == "r":
                manager.reset()
            else:
                manager.reset({int(order): {"length": 4} if order == "2" else None})
    return found


@pytest.mark.extended
@pytest.mark.parametrize("program", ["." * 20, "...1...2.....1.r.....s1....."])
@pytest.mark.parametrize("dynamic_seed", [True, False])
def test_spare_envs_of_a_manager_change_no_episode(program, dynamic_seed):
    expected = play(SyncSubprocessEnvManager, {}, program, dynamic_seed=dynamic_seed)
    for cfg in (SPARES, {"num_spare_envs": 2 * NUM_ENVS, "num_workers": 2, "reset_timeout": 30.0}):
        assert play(SyncSubprocessEnvManager, cfg, program, dynamic_seed=dynamic_seed) == expected


@pytest.mark.extended
def test_spare_envs_work_with_reset_inplace():
    expected = play(SyncSubprocessEnvManager, {"reset_inplace": True})
    assert play(SyncSubprocessEnvManager, {"reset_inplace": True, **SPARES}) == expected


@pytest.mark.extended
def test_spare_envs_of_the_asynchronous_manager_change_no_episode():
    def episodes(cfg):
        seen = {env_id: [] for env_id in range(NUM_ENVS)}
        with AsyncSubprocessEnvManager(ENV_FNS, {"wait_num": 1, "step_wait_timeout": None, **cfg}) as manager:
            manager.seed(5)
            manager.launch()
            while min(map(len, seen.values())) < 12:
                timesteps = manager.step(dict.fromkeys(manager.ready_obs, 1))
                for env_id, timestep in timesteps.items():
                    seen[env_id].append((timestep.obs.tolist(), bool(timestep.done)))
        return [own[:12] for own in seen.values()]

    assert episodes(SPARES) == episodes({})


@pytest.mark.extended
def test_killed_workers_change_no_episode_with_spare_envs():
    rng = np.random.default_rng(3)

    def kill(manager, number):
        if number % 4 == 2:
            os.kill(manager.worker_pids[rng.integers(len(manager.worker_pids))], signal.SIGKILL)

    expected = play(SyncSubprocessEnvManager, {})
    assert play(SyncSubprocessEnvManager, SPARES, disturb=kill) == expected


@pytest.mark.extended
def test_spare_env_that_dies_in_its_reset_is_recovered(tmp_path):
    env_fns = [functools.partial(ToyEnv, length=2), functools.partial(ToyEnv, length=3)]

    def rewards(env_fns, cfg):
        with SyncSubprocessEnvManager(env_fns, {**cfg, "num_spare_envs": 2}) as manager:
            manager.seed(1)
            manager.launch()
            return [manager.step(dict.fromkeys(manager.ready_obs, 1))[0].obs.tolist() for _ in range(9)]

    dying = [functools.partial(Exits, 2, moment="autoreset", once=tmp_path / "fault", length=2), env_fns[1]]
    resets = [functools.partial(Exits, 2, moment="reset", once=tmp_path / "other", length=2), env_fns[1]]
    expected = rewards(env_fns, {})
    assert rewards(dying, {}) == expected == rewards(resets, {}) and (tmp_path / "other").exists()


def test_failed_reset_of_a_spare_env_is_repeated(tmp_path):
    make = functools.partial(RaiseAtReset, 2, once=tmp_path / "fault", length=2)
    with SyncSubprocessEnvManager([make], {"num_spare_envs": 1, "max_retry": 2, "retry_waiting_time": 0.0}) as manager:
        manager.seed(1)
        manager.launch()
        steps = [manager.step({0: 1})[0].info["steps"] for _ in range(9)]
    assert steps == [1, 2, 1, 2, 1, 2, 1, 2, 1] and (tmp_path / "fault").exists()


@pytest.mark.extended
def test_spare_envs_work_with_v2_managers():
    with SubprocessEnvManagerV2(ENV_FNS, SPARES) as manager:
        manager.launch()
        for _ in range(8):
            assert manager.ready_obs.shape == (NUM_ENVS, 4)
            manager.step([1] * NUM_ENVS)
        assert "num_envs=3, num_spare_envs=3" in repr(manager)


@pytest.mark.parametrize("count", [1, 4, -3, "3", 1.5])
def test_wrong_numbers_of_spare_envs_are_refused(count):
    with pytest.raises(ConfigError, match="SyncSubprocessEnvManager: num_spare_envs: expected a "):
        SyncSubprocessEnvManager(ENV_FNS, {"num_spare_envs": count})


def test_videos_are_refused_with_spare_envs(tmp_path):
    with SyncSubprocessEnvManager(ENV_FNS, SPARES) as manager, pytest.raises(ConfigError, match="num_spare_envs must"):
        manager.enable_save_replay(tmp_path)
