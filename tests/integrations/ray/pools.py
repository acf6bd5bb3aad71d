"""Pools over the simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vecenv import RayOptions
from vecenv.core.options import PoolFailurePolicy, PoolOptions
from vecenv.core.pool.backends import make_pool
from vecenv.core.pool.pool import Pool
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.state.state import SNAPSHOTTER

TWO_SHARDS = RayOptions(num_shards=2, cpus_per_shard=1)


def ray_pool(env_fns: Sequence[Callable[[], Any]], ray: RayOptions = TWO_SHARDS, **options: Any) -> Pool:
    """Make a pool that recovers; options of PoolOptions and of PoolFailurePolicy alike."""
    policy = {name: options.pop(name) for name in list(options) if name in PoolFailurePolicy.__dataclass_fields__}
    failures = PoolFailurePolicy(**{"on_failure": "recover", "max_restarts": 100, **policy})
    merged = PoolOptions(failures=failures, **options)
    return make_pool(ray, env_fns, merged, adapt=adapt_and_build, snapshotter=SNAPSHOTTER)


def assert_names_its_shard(error: Any) -> None:
    """Check the note of an exception that both of `TWO_SHARDS` raise, with two envs each: the first one is reported."""
    info = error.shard
    envs = ("envs 0-1", "envs 2-3")[info.shard]
    assert f"raised in shard {info.shard} ({envs}), node {info.node_ip} ({info.node_id[:8]})" in error.__notes__[0]
