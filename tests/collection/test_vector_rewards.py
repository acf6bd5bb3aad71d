"""Collected rewards with several numbers: whole in every order of rounds, mode and backend, and from shards."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.collection.sharded import ShardedVectorEnv
from tests.faults.traces import end
from tests.vector.two_goals import TwoGoals, limited, policy, sums
from vecenv import Collector, SpaceError, VectorEnv, collect

BACKENDS = pytest.mark.parametrize("backend", ["serial", "process"])
MODES = pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
NUM_ENVS = 3


@MODES
@BACKENDS
@pytest.mark.parametrize("time_major", [False, True])
def test_collect_returns_all_numbers(mode: AutoresetMode, time_major: bool, backend: str) -> None:
    with VectorEnv([limited, functools.partial(limited, 4)], autoreset_mode=mode, backend=backend) as envs:
        batches = [collect(envs, policy, steps=10, time_major=time_major) for _ in range(2)]
    for batch in batches:
        assert len(batch) == 10
        t = batch.step + 1.0
        assert np.array_equal(batch.rewards, np.stack([t, -2 * t], -1))
    first = batches[0]
    ends = first.terminated | first.truncated
    expected = [sums(3 if env_id == 0 else 4) for env_id in first.env_id[ends].tolist()]
    assert first.episode_returns.tolist() == expected
    assert first.episode_returns.shape == (ends.sum(), 2)


@pytest.mark.parametrize("options", [{"episodes": 5}, {"steps": 9, "min_count": 1}, {"steps": 9, "overlap": True}])
def test_collect_in_other_orders_returns_all_numbers(options: dict[str, Any]) -> None:
    with VectorEnv([limited] * NUM_ENVS) as envs:
        batch = collect(envs, policy, **options)
        t = batch.step + 1.0
        assert np.array_equal(batch.rewards, np.stack([t, -2 * t], -1))
        assert batch.episode_returns.tolist() == [sums()] * len(batch.episode_lengths)


class Estimating:
    """Estimates (1, 2) for each observation."""

    def __init__(self, shape: tuple[int, ...] = (2,)) -> None:
        self.shape = shape

    def __call__(self, obs: Any, env_id: Any) -> Any:
        return policy(obs, env_id)

    def bootstrap(self, obs: Any, env_id: Any) -> Any:
        return np.broadcast_to(np.array([1.0, 2.0])[: self.shape[0] if self.shape else 1], (len(env_id), *self.shape))


def test_bootstrap_has_an_estimate_for_each_number() -> None:
    with VectorEnv([limited] * 2, backend="serial") as envs:
        batch = collect(envs, Estimating(), steps=8, time_major=True)
        assert batch.bootstrap is not None
        expected = np.zeros((4, 2, 2))
        expected[2:] = 1.0, 2.0  # truncated, and the last row
        assert np.array_equal(batch.bootstrap, expected)
        with pytest.raises(SpaceError, match=r"bootstrap of the policy: expected shape \(2, 2\), got \(2, 1\)"):
            collect(envs, Estimating((1,)), steps=8, time_major=True)


@pytest.mark.parametrize("sync", [True, False])
def test_collector_in_shards_returns_all_numbers_after_the_loss_of_one(sync: bool) -> None:
    with ShardedVectorEnv([limited] * 4, 2) as envs:
        options: dict[str, Any] = {"batch_steps": 16, "time_major": True, "make_policy": Estimating, "sync": sync}
        collector = Collector(envs, where="shards", **options)
        for number in range(4):
            if number == 1:
                end(envs.carrier.pid_of(0))
            batch = next(collector)
            t = batch.step + 1.0
            assert np.array_equal(batch.rewards, np.stack([t, -2 * t], -1))
            assert batch.bootstrap is not None and batch.bootstrap.shape == (*batch.step.shape, 2)
            assert batch.episode_returns.tolist() == [sums()] * len(batch.episode_lengths)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_episode_statistics_of_shards_after_their_rollouts(num_shards: int) -> None:
    env_fns = [functools.partial(TwoGoals, 5)] * NUM_ENVS
    with ShardedVectorEnv(env_fns, num_shards, episode_statistics=True) as envs:
        collector = Collector(envs, batch_steps=2 * NUM_ENVS, where="shards", make_policy=make_policy, time_major=True)
        batch = next(collector)
        assert batch.rewards.tolist() == [[[1.0, -2.0]] * NUM_ENVS, [[2.0, -4.0]] * NUM_ENVS]
        ended = {}
        for number in range(3):
            infos = envs.step(np.zeros(NUM_ENVS, np.int64))[4]
            if "episode" in infos:
                ended[number] = infos["episode"]["r"].tolist()
        assert ended == {2: [sums(5)] * NUM_ENVS}


def make_policy() -> Any:
    return policy
