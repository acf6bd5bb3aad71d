"""Evaluations with policies in actors: the table is that of a policy in this process, also if an actor is killed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.envs import SeedEnv
from tests.evaluation.test_shards import NUM_ENVS, SEEDS, CountingPolicy, KillingPolicy, assert_equal, fail, play_here
from tests.integrations.ray.pools import TWO_SHARDS, assert_names_its_shard
from vecenv import VectorEnv, evaluate

pytest.importorskip("ray", exc_type=ImportError)

pytestmark = [pytest.mark.ray, pytest.mark.extended]


def test_table_equals_that_of_a_local_policy_although_an_actor_dies(cluster: Any, tmp_path: Path) -> None:
    seeds: list[int] = []
    with VectorEnv([SeedEnv] * NUM_ENVS, backend=TWO_SHARDS) as envs:
        for make_policy in (CountingPolicy, functools.partial(KillingPolicy, tmp_path / "killed", 7)):
            seeds.clear()
            ours = evaluate(
                envs,
                where="shards",
                make_policy=make_policy,
                seeds=SEEDS,
                on_episode=lambda one: seeds.append(one.seed),
            )
            assert_equal(ours, play_here())
            assert sorted(seeds) == sorted(SEEDS)
        assert sum(shard.restarts for shard in envs.shards()) == 1


def test_exception_in_an_actor_names_its_shard_and_node(cluster: Any) -> None:
    with pytest.raises(Exception, match="no policy today") as caught:
        evaluate(SeedEnv, where="shards", make_policy=fail, seeds=SEEDS, num_envs=4, backend=TWO_SHARDS)
    assert_names_its_shard(caught.value)
