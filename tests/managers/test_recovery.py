"""Workers killed under a manager with `on_failure='recover'`: results do not change, and training continues."""

from __future__ import annotations

import functools
import os
import signal

import gymnasium
import numpy as np
import pytest

from tests.inside import seed_of
from tests.managers.fakes import ActorEnv, actors
from vecenv import WorkerDiedError
from vecenv.ding import AsyncSubprocessEnvManager, DingEnvWrapper, EnvState, SyncSubprocessEnvManager
from vecenv.envs.toys import CountEnv, ToyEnv

MANAGERS = [SyncSubprocessEnvManager, AsyncSubprocessEnvManager]
ENVS = {
    "gymnasium": [functools.partial(ToyEnv, 6)] * 4,
    "over episodes": [functools.partial(CountEnv, 3)] * 4,
    "old dialect": actors(4, length=4),
}
STEPS, KILLS = 16, {4: 0, 11: 1}


def play(manager_cls, env_fns, kills, **cfg):
    """Step all envs, and kill workers as `kills` says, {step: worker}; return all results."""
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


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:the state of env:UserWarning", "ignore:.*state:RuntimeWarning")
@pytest.mark.parametrize("kind", ENVS)
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_killed_worker_changes_no_result(manager_cls, kind):
    assert play(manager_cls, ENVS[kind], KILLS) == play(manager_cls, ENVS[kind], {})


@pytest.mark.extended
def test_killed_worker_with_reset_commands_changes_no_result():
    env_fns = [functools.partial(CountEnv, 3)] * 4
    killed = play(SyncSubprocessEnvManager, env_fns, KILLS, max_retry=2)
    assert killed == play(SyncSubprocessEnvManager, env_fns, {}, max_retry=2)


@pytest.mark.extended
@pytest.mark.parametrize("cfg", [{}, {"auto_reset": False}, {"reset_inplace": True}, {"copy_on_get": False}], ids=repr)
def test_abandoned_episode_ends_with_the_last_delivered_observation(tmp_path, cfg):
    """Regression: it ended with zeros if other envs had made steps since."""
    gate = tmp_path / "gate"  # nothing opens it
    os.mkfifo(gate)
    cfg = {"num_workers": 2, "wait_num": 1, "step_wait_timeout": 1e-3, "max_log_bytes": 0, **cfg}
    with AsyncSubprocessEnvManager(actors(2, length=1000), cfg) as manager:
        manager.launch()
        while not (timesteps := manager.step({env_id: 0 for env_id in manager.ready_obs_id if env_id})):
            pass
        assert timesteps[1].obs.tolist() == [1, 1, 1]
        manager.step({0: 0, 1: str(gate)})
        for _ in range(20):
            assert 1 not in manager.step({0: 0})
        os.kill(manager.worker_pids[1], signal.SIGKILL)
        while 1 not in (timesteps := manager.step({0: 0})):
            pass
        _, reward, done, info = timesteps[1]
        obs = info.get("final_obs", timesteps[1].obs)
        assert (obs.tolist(), reward.tolist(), done, info["truncated"]) == ([1, 1, 1], [0], True, True)


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_killed_worker_without_a_log_truncates_the_episode(manager_cls):
    """Regression: managers refused max_log_bytes=0, unlike VectorEnv."""
    with manager_cls([functools.partial(CountEnv, 9)] * 2, {"num_workers": 2, "max_log_bytes": 0}) as manager:
        manager.launch()
        manager.step({0: 0, 1: 0})
        while 0 not in manager.ready_obs_id:
            manager.step({})
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        timesteps = manager.step({0: 0})
        while 0 not in timesteps:
            timesteps = manager.step({})
        assert timesteps[0].done and timesteps[0].info["truncated"] and timesteps[0].info["recovered"] == "truncated"


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_action_that_kills_every_worker_truncates_the_episode(manager_cls, tmp_path):
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


@pytest.mark.extended
def test_on_repeat_raise_closes_the_manager(tmp_path):
    cfg = {"num_workers": 2, "on_repeat": "raise", "reproducer_dir": str(tmp_path)}
    with SyncSubprocessEnvManager(actors(2), cfg) as manager:
        manager.launch()
        manager.step({0: 0, 1: 0})
        with pytest.raises(WorkerDiedError):
            manager.step({0: 0, 1: "die"})
        assert manager.closed


class Told(CountEnv):
    """An env whose info has the arguments of its reset; action 1 kills the process."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        self.told = {"told_seed": seed, "told_options": options}
        return obs, info

    def step(self, action):
        if action == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return (*super().step(action)[:4], dict(self.told))


WAYS = [{}, {"auto_reset": False}, {"reset_inplace": True}, {"max_retry": 2}, {"max_retry": 2, "reset_inplace": True}]


@pytest.mark.extended
@pytest.mark.parametrize("cfg", WAYS, ids=" ".join)
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_abandoned_episode_keeps_seed_and_parameters(manager_cls, cfg, tmp_path):
    """Regression: the new env was unseeded, and had no reset parameters."""
    cfg = {"num_workers": 1, "reproducer_dir": str(tmp_path), **cfg}
    with manager_cls([functools.partial(Told, 4)], cfg) as manager:
        manager.seed([8], dynamic_seed=False)
        manager.launch({0: {"options": {"level": 3}}})
        for _ in range(6):
            if manager.env_states[0] is EnvState.NEED_RESET:
                manager.reset()
            manager.ready_obs  # noqa: B018
            manager.step({0: 0})
        lost = manager.step({0: 1})[0]
        assert lost.done and lost.info["recovered"] == "truncated"
        if manager.env_states[0] is EnvState.NEED_RESET:
            manager.reset()
        first = manager.ready_obs[0]
        if cfg.get("reset_inplace"):
            assert np.array_equal(lost.obs, first) and "final_obs" in lost.info
        for _ in range(8):  # two episodes
            if manager.env_states[0] is EnvState.NEED_RESET:
                manager.reset()
            manager.ready_obs  # noqa: B018
            timestep = manager.step({0: 0})[0]
            assert timestep.info["told_seed"] == 8 and timestep.info["told_options"] == {"level": 3}


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_killed_worker_before_a_reset_keeps_the_seed(manager_cls, tmp_path):
    """The worker dies between two calls, the episode cannot be repeated, and the next call is a reset."""
    with manager_cls([functools.partial(Entropic, 4)], {"num_workers": 1, "step_wait_timeout": None}) as manager:
        manager.seed([8], dynamic_seed=False)
        manager.launch({0: {"options": {"level": 3}}})
        manager.step({0: 0})
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        manager.reset({0: {"options": {"level": 4}}})
        info = manager.step({0: 0})[0].info
        assert info["told_seed"] == 8 and info["told_options"] == {"level": 4}


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_killed_worker_before_a_reset_keeps_the_waiting_seed(manager_cls):
    with manager_cls([functools.partial(Entropic, 4)], {"num_workers": 1, "step_wait_timeout": None}) as manager:
        manager.seed([8], dynamic_seed=False)
        manager.launch()
        manager.step({0: 0})
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        manager.seed([9], dynamic_seed=False)
        manager.reset()
        assert manager.step({0: 0})[0].info["told_seed"] == 9


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_abandoned_episode_of_an_unseeded_env_is_followed_by_another_seed(manager_cls, tmp_path):
    """Without a seed, later episodes could not be repeated."""
    cfg = {"num_workers": 1, "step_wait_timeout": None, "reproducer_dir": str(tmp_path)}
    with manager_cls([functools.partial(Told, 4)], cfg) as manager:
        manager.launch()
        assert manager.step({0: 0})[0].info["told_seed"] is None
        (first,) = manager.np_random_seed
        assert manager.step({0: 1})[0].info["recovered"] == "truncated"
        manager.ready_obs  # noqa: B018
        assert manager.step({0: 0})[0].info["told_seed"] is None
        (second,) = manager.np_random_seed
        assert 0 <= first < 2**31 and 0 <= second < 2**31 and first != second


@pytest.mark.extended
@pytest.mark.parametrize("dynamic_seed", [None, True])
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_abandoned_episode_is_followed_by_new_seeds(manager_cls, dynamic_seed, tmp_path):
    """With its old seed, an env would repeat its first episode."""
    cfg = {"num_workers": 1, "step_wait_timeout": None, "reproducer_dir": str(tmp_path)}
    with manager_cls([functools.partial(Told, 2)], cfg) as manager:
        manager.seed([8], dynamic_seed)
        manager.launch()
        seeds = []
        for action in (0, 0, 0, 0, 1, 0, 0, 0, 0):  # two episodes, an abandoned one, two more
            manager.ready_obs  # noqa: B018
            timestep = manager.step({0: action})[0]
            if timestep.done and action == 0:
                seeds.append(timestep.info["told_seed"])
        assert len(set(seeds)) == 4


class SeedsItself(ToyEnv):
    """An env that makes its generator when it gets a seed, and whose reset has a required parameter."""

    rng = None

    def reset(self, *, seed=None, level):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.luck = self.rng.random() + level
        return super().reset(seed=seed)


class OldSeedsItself(ActorEnv):
    """The same env with the old API."""

    rng = None

    def seed(self, seed, dynamic_seed=True):
        self.rng = np.random.default_rng(seed)

    def reset(self, level):
        self.luck = self.rng.random() + level
        return super().reset()


SEEDED = {
    "gymnasium": functools.partial(SeedsItself, 4),
    "old dialect": functools.partial(OldSeedsItself, {"length": 4}),
}


@pytest.mark.extended
@pytest.mark.parametrize("found_by", ["step", "reset", "reset after its end"])
@pytest.mark.parametrize("cfg", WAYS, ids=" ".join)
@pytest.mark.parametrize("env_fn", SEEDED.values(), ids=SEEDED)
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_rebuilt_env_is_seeded_before_its_first_reset(manager_cls, env_fn, cfg, found_by):
    """Regression: an autoreset or the manager reset it without a seed, and the exception closed the manager."""
    cfg = {"num_workers": 1, "max_log_bytes": 0, "step_wait_timeout": None, **cfg}
    with manager_cls([env_fn], cfg) as manager:
        manager.seed([8])
        manager.launch({0: {"level": 1}})
        for _ in range(4 if found_by == "reset after its end" else 2):
            manager.step({0: 0})
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        if found_by == "step":
            assert manager.step({0: 0})[0].info["recovered"] == "truncated"
        if found_by != "step" or cfg.get("auto_reset") is False:
            manager.reset({0: {"level": 1}})
        assert list(manager.ready_obs) == [0]
        assert [manager.step({0: 0})[0].done for _ in range(4)] == [False] * 3 + [True]


class Entropic(Told):
    """An env that draws from the system's entropy, so that no episode can be repeated."""

    def observe(self):
        return super().observe() + np.float32(int.from_bytes(os.urandom(2), "big"))


@pytest.mark.parametrize("lazy", [True, False])
def test_unseeded_ding_env_is_replayed_from_its_first_episode(lazy):
    """Regression: its first reset drew from the system's entropy, so it could not be repeated."""
    env_fn = functools.partial(DingEnvWrapper, None, {"env_id": "CartPole-v1"}) if lazy else eager
    with SyncSubprocessEnvManager([env_fn] * 2, {"num_workers": 1}) as manager:
        manager.launch()
        assert seed_of(manager)[0] == [None, None]  # it was not seeded by `seed`
        manager.step({0: 0, 1: 1})
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        timesteps = manager.step({0: 0, 1: 1})
        assert [timesteps[env_id].info["recovered"] for env_id in (0, 1)] == ["replayed", "replayed"]


def eager():
    return DingEnvWrapper(gymnasium.make("CartPole-v1"))
