"""An exception of one env costs the others no row in any front end, and may end its own episode only."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest

import vecenv
from tests.collection.sharded import ShardedVectorEnv
from vecenv import Collector, FailurePolicy, collect
from vecenv.ding import GymVectorEnvManager
from vecenv.integrations import envpool as envpool_face

from .test_caught_exceptions import ErraticEnv, play, play_plainly
from .test_other_rows import CountEnv, env_fns, expect_rows

TRUNCATE = FailurePolicy(on_exception="truncate", max_restarts=1000)


def ones(*values: float) -> Any:
    return np.array(values, np.float64).reshape(-1, 1)


# ---- Tianshou and TorchRL -----------------------------------------------------------------


def test_tianshou_vector_env_carries_rows_of_other_envs() -> None:
    VecenvVectorEnv = pytest.importorskip("vecenv.integrations.tianshou", exc_type=ImportError).VecenvVectorEnv
    envs = VecenvVectorEnv(env_fns(step=(2,), reset=(3,)), num_workers=2)
    envs.seed(1)
    envs.step(np.zeros(3, int))
    rows = expect_rows(lambda: envs.step(np.zeros(3, int)), "step 2")
    obs, rewards, _, _, infos = rows.result
    assert obs.ravel().tolist() == [102, 201, 302] and rewards.tolist() == [102, 0, 302]
    assert [info.get("count") for info in infos] == [102, None, 302]
    assert rows.mask.tolist() == [True, False, True]
    envs.reset([1])
    rows = expect_rows(lambda: envs.reset([1, 2]), "reset 3")
    assert rows.result[0].ravel().tolist() == [1200, 1300] and rows.mask.tolist() == [False, True]
    envs.close()


def test_tianshou_vector_env_ends_only_the_episode_that_raised() -> None:
    VecenvVectorEnv = pytest.importorskip("vecenv.integrations.tianshou", exc_type=ImportError).VecenvVectorEnv
    envs = VecenvVectorEnv(env_fns(step=(2,), reset=(2,)), num_workers=2, failures=TRUNCATE)
    envs.seed(1)
    envs.step(np.zeros(3, int))
    obs, rewards, _, truncated, infos = envs.step(np.zeros(3, int))
    assert obs.ravel().tolist() == [102, 201, 302] and rewards.tolist() == [102, 0, 302]
    assert truncated.tolist() == [False, True, False] and infos[1]["error"] == "LookupError: step 2"
    obs, infos = envs.reset([1])
    assert obs.ravel().tolist() == [1000] and infos[0]["error"] == "LookupError: reset 2"
    envs.close()


def test_torchrl_env_carries_rows_of_other_envs() -> None:
    VecenvEnv = pytest.importorskip("vecenv.integrations.torchrl", exc_type=ImportError).VecenvEnv
    env = VecenvEnv(env_fns(step=(2,), reset=(3,)), num_workers=2, categorical_action_encoding=True)
    env.set_seed(1)
    first = env.reset(seed=1)
    first["action"] = env.action_spec.zero()
    second = env.step(first)["next"]
    second["action"] = env.action_spec.zero()
    rows = expect_rows(lambda: env.step(second), "step 2")
    assert rows.result["observation"].ravel().tolist() == [102, 201, 302]
    assert rows.result["reward"].ravel().tolist() == [102, 0, 302]
    assert rows.mask.tolist() == [True, False, True]
    rows = expect_rows(lambda: env.reset(), "reset 3")
    assert rows.result["observation"].ravel().tolist() == [1100, 201, 1300]
    env.close()


def test_torchrl_env_ends_only_the_episode_that_raised() -> None:
    VecenvEnv = pytest.importorskip("vecenv.integrations.torchrl", exc_type=ImportError).VecenvEnv
    env = VecenvEnv(env_fns(step=(3,), reset=(3,)), num_workers=2, failures=TRUNCATE, categorical_action_encoding=True)
    env.set_seed(1)
    rollout = env.rollout(6, break_when_any_done=False)
    ended = rollout["next", "truncated"][..., 0]
    assert ended.tolist()[1][:5] == [False, False, True, False, False] and not ended[[0, 2]].any()
    assert rollout["next", "reward"][1, 2].item() == 0
    env.close()


# ---- faces over vector envs ---------------------------------------------------------------


def test_envpool_carries_rows_of_other_envs() -> None:
    vecenv_envs = {"backend": "serial"}
    gymnasium.register("RaisesForEnvPool-v0", functools.partial(CountEnv, {"step": (2,)}))
    try:
        envs = envpool_face.make("RaisesForEnvPool-v0", env_type="gymnasium", num_envs=2, **vecenv_envs)
        envs.reset()
        envs.step(np.zeros(2, int))
        with pytest.raises(LookupError) as caught:
            envs.step(np.zeros(2, int))
        obs, reward, _, _, info = caught.value.rows.result
        assert caught.value.rows.mask.tolist() == [False, False] and reward.tolist() == [0, 0]
        assert obs.shape == (2, 1) and info["elapsed_step"].tolist() == [2, 2]
        envs.close()
    finally:
        del gymnasium.registry["RaisesForEnvPool-v0"]


def test_manager_over_vector_envs_attaches_timesteps_of_other_envs() -> None:
    manager = GymVectorEnvManager(env_fns(step=(2,)), {"num_workers": 2})
    manager.seed(1)
    manager.reset()
    manager.step({0: 0, 1: 0, 2: 0})
    with pytest.raises(LookupError) as caught:
        manager.step({0: 0, 1: 0, 2: 0})
    timesteps = caught.value.timesteps
    assert {env_id: float(one.obs[0]) for env_id, one in timesteps.items()} == {0: 102, 2: 302}
    assert not hasattr(caught.value, "rows")
    assert {env_id: float(obs[0]) for env_id, obs in manager.ready_obs.items()} == {0: 102, 1: 201, 2: 302}
    manager.close()


def test_manager_over_vector_envs_ends_only_the_episode_that_raised() -> None:
    manager = GymVectorEnvManager(env_fns(step=(2,)), {"num_workers": 2, "failures": TRUNCATE})
    manager.seed(1)
    manager.reset()
    manager.step({0: 0, 1: 0, 2: 0})
    timesteps = manager.step({0: 0, 1: 0, 2: 0})
    assert [timesteps[i].done for i in range(3)] == [False, True, False]
    assert timesteps[1].info["error"] == "LookupError: step 2"
    manager.close()


def test_pettingzoo_vector_env_carries_rows_of_other_envs() -> None:
    pytest.importorskip("pettingzoo.classic.rps.rps", exc_type=ImportError)
    from vecenv.integrations.pettingzoo import PettingZooVectorEnv

    envs = PettingZooVectorEnv([_rps, functools.partial(_rps, 2)], num_workers=2)
    envs.reset(seed=0)
    envs.step([0, 1, 0, 1])
    with pytest.raises(LookupError) as caught:
        envs.step([0, 1, 0, 1])
    _, rewards, _, _, infos = caught.value.rows.result
    assert caught.value.rows.mask.tolist() == [True, True, False, False]
    assert rewards.tolist() == [-1, 1, 0, 0] and infos["alive"].tolist() == [True] * 4
    envs.close()
    envs = PettingZooVectorEnv([_rps, functools.partial(_rps, 2)], num_workers=2, failures=TRUNCATE)
    envs.reset(seed=0)
    envs.step([0, 1, 0, 1])
    _, rewards, _, truncations, _ = envs.step([0, 1, 0, 1])
    assert truncations.tolist() == [False, False, True, True] and rewards.tolist() == [-1, 1, 0, 0]
    envs.close()


def _rps(raises_at: int = 0) -> Any:
    from pettingzoo.classic.rps.rps import parallel_env

    env = parallel_env()
    step, calls = env.step, [0]

    def raising(actions: Any) -> Any:
        calls[0] += 1
        if calls[0] == raises_at:
            raise LookupError("rps")
        return step(actions)

    env.step = raising
    return env


def test_vec_env_wrapper_of_gymnasium_passes_rows_on() -> None:
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(vecenv.VectorEnv(env_fns(step=(1,)), backend="serial"))
    envs.reset(seed=1)
    rows = expect_rows(lambda: envs.step(np.zeros(3, int)), "step 1")
    assert rows.mask.tolist() == [True, False, True]
    envs.close()


# ---- observations that are objects, and spare envs ------------------------------------------


class TextEnv(CountEnv):
    """Observations are text."""

    def __init__(self, raises: Any) -> None:
        super().__init__(raises)
        self.observation_space = gymnasium.spaces.Text(10)

    def reset(self, **kwargs: Any) -> Any:
        return f"n{int(super().reset(**kwargs)[0][0])}", {}

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return f"n{int(obs[0])}", *rest


@pytest.mark.parametrize("options", [{"backend": "serial"}, {"num_workers": 2}], ids=["serial", "process"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_rows_repeat_observations_that_are_objects(options: Any, mode: str) -> None:
    fns = [functools.partial(TextEnv, {"step": (2,)} if i == 1 else {}) for i in range(3)]
    envs = vecenv.VectorEnv(fns, autoreset_mode=mode, **options)
    envs.reset(seed=1)
    envs.step([0, 0, 0])
    rows = expect_rows(lambda: envs.step([0, 0, 0]), "step 2")
    assert list(rows.result[0]) == ["n102", "n201", "n302"]
    envs.close()
    envs = vecenv.VectorEnv(fns, autoreset_mode=mode, failures=TRUNCATE, **options)
    envs.reset(seed=1)
    envs.step([0, 0, 0])
    obs, _, _, _, infos = envs.step([0, 0, 0])
    if mode == "SameStep":
        assert list(obs) == ["n102", "n1200", "n302"] and infos["final_obs"][1] == "n201"
    else:
        assert list(obs) == ["n102", "n201", "n302"]
    envs.close()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_spare_env_takes_over_after_an_exception(mode: str) -> None:
    fns = env_fns(step=(3,), reset=(2,))
    envs = vecenv.VectorEnv(fns, autoreset_mode=mode, num_spare_envs=3, num_workers=2, failures=TRUNCATE)
    envs.reset(seed=1)
    for _ in range(3):
        obs, rewards, _, truncated, infos = envs.step([0, 0, 0])
    assert truncated.tolist() == [False, True, False] and rewards.tolist() == [103, 0, 303]
    last = infos["final_obs"][1] if mode == "SameStep" else obs[1]
    ends = infos["final_info"] if mode == "SameStep" else infos
    assert last.tolist() == [202] and ends["error"][1] == "LookupError: step 3"
    if mode == "Disabled":
        envs.reset(options={"reset_mask": truncated})
    obs, *_ = envs.step([0, 0, 0])
    assert obs[[0, 2]].ravel().tolist() == [104, 304] and obs[1, 0] >= 1000
    envs.close()


# ---- shards ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_envs_in_shards_end_only_the_episode_that_raised(mode: str) -> None:
    fns = [functools.partial(ErraticEnv, i) for i in range(4)]
    actions = np.random.default_rng(1).integers(0, 3, (40, 4))

    def kill(envs: Any, number: int) -> None:
        if number == 20:
            envs.carrier_kill(0)

    envs = ShardedVectorEnv(fns, autoreset_mode=mode, failures=TRUNCATE)
    envs.carrier_kill = functools.partial(_kill_shard, envs)
    assert play(envs, mode, actions, kill) == play_plainly(fns, mode, actions)
    statistics = envs.statistics()
    assert statistics.exceptions > 5 and statistics.truncated == 0 and statistics.shards_replaced == 1
    envs.close()


def _kill_shard(envs: Any, shard: int) -> None:
    import os
    import select
    import signal

    pidfd = os.pidfd_open(envs.carrier.pid_of(shard))
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    select.select([pidfd], [], [])
    os.close(pidfd)


def test_error_of_an_env_in_a_shard_carries_rows_of_other_envs() -> None:
    envs = ShardedVectorEnv(env_fns(4, step=(2,)))
    envs.reset(seed=1)
    envs.step([0, 0, 0, 0])
    rows = expect_rows(lambda: envs.step([0, 0, 0, 0]), "step 2")
    assert rows.result[0].ravel().tolist() == [102, 201, 302, 402]
    assert rows.mask.tolist() == [True, False, True, True]
    envs.close()


class _Zeros:
    def __call__(self, obs: Any, env_id: Any) -> Any:
        return np.zeros(len(obs), int)


def test_collector_in_shards_keeps_rows_of_other_envs() -> None:
    envs = ShardedVectorEnv(env_fns(4, step=(3,)))
    collector = Collector(envs, batch_steps=24, where="shards", make_policy=_Zeros)
    with pytest.raises(LookupError) as caught:
        next(collector)
    collected = caught.value.collected
    assert [int((collected.env_id == i).sum()) for i in range(4)] == [3, 2, 6, 6]
    envs.close()
    envs = ShardedVectorEnv(env_fns(4, step=(3,)), failures=TRUNCATE)
    batch = next(Collector(envs, batch_steps=24, where="shards", make_policy=_Zeros))
    assert batch.lost.sum() == 1 and batch.env_id[batch.lost].tolist() == [1]
    envs.close()


def test_collect_by_finish_order_keeps_rows_of_other_envs() -> None:
    envs = vecenv.VectorEnv(env_fns(4, step=(3,)), num_workers=2)
    parts = []
    with pytest.raises(LookupError) as caught:
        while True:
            parts.append(collect(envs, lambda obs, env_id: np.zeros(len(obs), int), steps=60, min_count=1))
    parts.append(caught.value.collected)
    rewards, env_ids = (np.concatenate([getattr(one, name) for one in parts]) for name in ("rewards", "env_id"))
    for env_id in range(4):
        mine = rewards[env_ids == env_id]
        is_next = np.diff(mine) == 1
        assert (is_next | (mine[:-1] % 100 == 0)).all()  # else a step ends the episode
    assert (env_ids == 1).sum() == 2
    envs.close()
