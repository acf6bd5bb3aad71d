"""Collectors with policies in actors: the batches are those of a policy in this process, also if an actor is killed."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.simulated_cluster import pool_processes
from tests.collection.plain_loop import DiceEnv
from tests.collection.sharded import DrawingPolicy, KeptPolicy, KillingPolicy, assert_equal
from tests.core.shards.test_envs_in_shards import EndsProcess, arm, ending_env_fns
from tests.faults.traces import wait_until
from tests.integrations.ray.cluster import title_of
from tests.integrations.ray.pools import TWO_SHARDS, assert_names_its_shard
from vecenv import Collector, RayOptions, VectorEnv
from vecenv.envs.toys import SpaceEnv

ray = pytest.importorskip("ray", exc_type=ImportError)

pytestmark = [pytest.mark.ray, pytest.mark.extended]

NUM_ENVS, ROUNDS = 4, 16


def collector_of(envs: VectorEnv, policy: Any = None, **options: Any) -> Collector:
    return Collector(envs, policy, **{"batch_steps": NUM_ENVS * ROUNDS, "time_major": True, "seed": 3, **options})


def test_batches_equal_those_of_a_local_policy_although_actors_die(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actor of envs 2 and 3 is killed during a rollout, the other one between two rollouts."""
    local = DrawingPolicy()
    num_puts, put = [0], ray.put

    def counted_put(value: Any) -> Any:
        num_puts[0] += 1
        return put(value)

    monkeypatch.setattr(ray, "put", counted_put)
    make_policy = functools.partial(KillingPolicy, str(tmp_path), ROUNDS + 5, 3)
    with (
        VectorEnv([DiceEnv] * NUM_ENVS, backend="serial") as theirs,
        VectorEnv([DiceEnv] * NUM_ENVS, backend=TWO_SHARDS) as ours,
    ):
        expected = collector_of(theirs, local)
        collector = collector_of(ours, where="shards", make_policy=make_policy)
        for number in range(4):
            local.set_weights(number)
            assert collector.set_weights(number) == number + 1
            if number == 3:
                pid = ours.shards()[0].pid
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda pid=pid: not title_of(pid).startswith("ray::ShardActor"))
            batch = next(collector)
            assert_equal(batch, next(expected))
            assert batch.version == number + 1 and not len(batch.renewed_envs)
        assert [shard.restarts for shard in ours.shards()] == [1, 1]
        assert num_puts[0] == 4, "one for each version of the weights, for all actors"


def test_env_that_kills_the_actor_it_is_stepped_in_changes_nothing(cluster: Any, tmp_path: Path) -> None:
    env_fns = ending_env_fns(arm(tmp_path, 1), "kill")
    options = RayOptions(num_shards=2, cpus_per_shard=1, num_workers="auto")
    with (
        VectorEnv([EndsProcess] * len(env_fns), backend="serial") as theirs,
        VectorEnv(env_fns, backend=options) as ours,
    ):
        assert "steps its 3 envs in its own process" in ours.statistics().choice
        expected = collector_of(theirs, KeptPolicy(), batch_steps=len(env_fns) * ROUNDS)
        found = collector_of(ours, where="shards", make_policy=KeptPolicy, batch_steps=len(env_fns) * ROUNDS)
        for _ in range(3):
            assert_equal(next(found), next(expected))
        assert [shard.restarts for shard in ours.shards()] == [0, 1]
        counts = ours.statistics()
        assert counts.replayed == 3 and counts.num_workers == 0
        assert "vecenv worker" not in str(pool_processes())


class StatelessPolicy:
    """Its actions depend on the observations and on the weights."""

    def __init__(self) -> None:
        self.weights = 0

    def __call__(self, obs: np.ndarray, env_id: np.ndarray) -> Any:
        return (obs.reshape(len(obs), -1).sum(1).astype(np.int64) + env_id + self.weights) % 2

    def set_weights(self, weights: int) -> None:
        self.weights = weights


@pytest.mark.parametrize("other", [TWO_SHARDS, "serial"], ids=["ray", "serial"])
def test_collector_in_shards_continues_in_another_program(cluster: Any, other: Any, tmp_path: Path) -> None:
    def collector_of_shards(envs: VectorEnv, seed: int | None) -> Collector:
        collector = collector_of(envs, where="shards", make_policy=StatelessPolicy, seed=seed)
        collector.set_weights(1)
        return collector

    with VectorEnv([DiceEnv] * NUM_ENVS, backend=TWO_SHARDS) as envs:
        collector = collector_of_shards(envs, 3)
        next(collector)
        envs.save(tmp_path / "state")
        expected = [next(collector), next(collector)]
    with VectorEnv([DiceEnv] * NUM_ENVS, backend=other, resume=tmp_path / "state") as envs:
        policy = StatelessPolicy()
        policy.set_weights(1)
        collector = collector_of(envs, policy, seed=None) if other == "serial" else collector_of_shards(envs, None)
        for batch in expected:
            assert_equal(next(collector), batch, has_bootstrap=False)


def make_pixel_policy() -> Any:
    return lambda obs, env_id: np.zeros(len(env_id), np.int64)


@pytest.mark.parametrize("sync", [True, False])
def test_rollouts_of_many_bytes_arrive_as_arrays_of_the_caller(cluster: Any, sync: bool) -> None:
    """A rollout of one actor has 12 MiB, so it passes the store of Ray."""
    from gymnasium.spaces import Box

    env_fns = [functools.partial(SpaceEnv, Box(0, 255, (256, 256, 3), np.uint8))] * NUM_ENVS
    with VectorEnv(env_fns, backend=TWO_SHARDS) as envs:
        collector = collector_of(envs, where="shards", make_policy=make_pixel_policy, batch_steps=128, sync=sync)
        batches = [next(collector) for _ in range(2)]
        assert all(batch.obs.nbytes >= 12 << 20 and batch.obs.flags.writeable for batch in batches)
        assert (batches[0].next_obs[-1] == batches[1].obs[0]).all() or not sync


def fail() -> Any:
    raise ZeroDivisionError("no policy today")


def test_exception_in_an_actor_names_its_shard_and_node(cluster: Any) -> None:
    with VectorEnv([DiceEnv] * NUM_ENVS, backend=TWO_SHARDS) as envs:
        collector = collector_of(envs, where="shards", make_policy=fail)
        with pytest.raises(ZeroDivisionError, match="no policy today") as caught:
            next(collector)
        assert_names_its_shard(caught.value)
