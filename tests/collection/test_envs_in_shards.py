"""Collectors over shards that step their envs in their own process: batches are those of a policy in this process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.collection.plain_loop import DiceEnv
from tests.collection.sharded import KeptPolicy, ShardedVectorEnv, assert_equal
from tests.core.shards.model_carrier import ModelCarrier
from tests.core.shards.test_envs_in_shards import EndsProcess, arm, ending_env_fns
from tests.faults.traces import end
from vecenv import Collector, VectorEnv
from vecenv.core.advice.sizing import SERIAL

NUM_ENVS, ROUNDS = 6, 12

pytestmark = pytest.mark.extended


def collector_of(envs: VectorEnv, *policy: Any, **options: Any) -> Collector:
    return Collector(envs, *policy, batch_steps=NUM_ENVS * ROUNDS, time_major=True, seed=3, **options)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_batches_equal_those_of_a_local_policy(mode: AutoresetMode) -> None:
    with (
        VectorEnv([DiceEnv] * NUM_ENVS, backend="serial", autoreset_mode=mode) as theirs,
        ShardedVectorEnv([DiceEnv] * NUM_ENVS, 2, ModelCarrier(), setting=SERIAL, autoreset_mode=mode) as ours,
    ):
        expected = collector_of(theirs, KeptPolicy())
        found = collector_of(ours, where="shards", make_policy=KeptPolicy)
        for _ in range(3):
            assert_equal(next(found), next(expected))
        statistics = ours.statistics()
        assert statistics.num_workers == 0 and statistics.workers.shard.tolist() == [0, 1]
        assert statistics.envs.worker_id.tolist() == [0, 0, 0, 1, 1, 1] and str(ours.report())


@pytest.mark.parametrize("how", ["exit", "kill", "hang"])
def test_env_that_ends_its_shard_amid_a_rollout_changes_nothing(how: str, tmp_path: Path) -> None:
    """The second shard is lost by an env in a rollout, the first one by a kill between two rollouts."""
    env_fns = ending_env_fns(arm(tmp_path, 1), how)
    with (
        VectorEnv([EndsProcess] * NUM_ENVS, backend="serial") as theirs,
        ShardedVectorEnv(env_fns, 2, setting=SERIAL, shard_timeout=1.0) as ours,
    ):
        expected = collector_of(theirs, KeptPolicy())
        found = collector_of(ours, where="shards", make_policy=KeptPolicy)
        for number in range(4):
            if number == 2:
                end(ours.carrier.pid_of(0))
            batch = next(found)
            assert_equal(batch, next(expected))
            assert not len(batch.renewed_envs) and not batch.lost.any()
        counts = ours.statistics()
        assert counts.shards_replaced == 2 and counts.replayed == 6 and counts.truncated == 0


def test_env_that_ends_its_shard_in_every_rollout_is_truncated(tmp_path: Path) -> None:
    env_fns = ending_env_fns(arm(tmp_path, 1000), "exit")
    with ShardedVectorEnv(env_fns, 2, setting=SERIAL, failures={"reproducer_dir": str(tmp_path)}) as envs:
        found = collector_of(envs, where="shards", make_policy=functools.partial(KeptPolicy))
        batches = [next(found) for _ in range(2)]
        counts = envs.statistics()
    assert counts.shards_replaced == 2 and counts.num_workers == 1 and counts.truncated >= 1
    assert all(np.isfinite(batch.rewards).all() for batch in batches)
