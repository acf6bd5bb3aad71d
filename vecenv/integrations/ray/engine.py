"""Make the engine of a pool on a Ray cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ...core.host.replay import Snapshotter
from ...core.options import PoolOptions, check_env_fns
from ...core.shards.sharded_engine import ShardedEngine
from ...errors import ConfigError
from ...ray_options import RayOptions
from .carrier import RayCarrier
from .placement import Placement

__all__ = ["make_ray_engine"]


def make_ray_engine(
    env_fns: Sequence[Callable[[], Any]],
    options: PoolOptions,
    ray: RayOptions,
    *,
    adapt: Callable[[Any], Any] | None,
    snapshotter: Snapshotter,
) -> ShardedEngine:
    """Make an engine whose shards are actors of Ray. Nothing is started, and no resources are reserved.

    Args:
        env_fns, options, adapt, snapshotter: as for `ShardedEngine`, but `num_workers` is None.

    Raises:
        DependencyError: Ray is not installed.
        ConfigError: an argument is wrong, Ray is not initialised, or the cluster lacks resources.
    """
    fns = check_env_fns(env_fns)
    if options.num_workers is not None:
        raise ConfigError(
            "num_workers: with backend='ray' each shard has `cpus_per_shard` workers; set that, as in "
            "RayOptions(cpus_per_shard=...)",
            key="num_workers",
        )
    placement = Placement(ray, len(fns))
    return ShardedEngine(
        fns,
        dataclasses.replace(options, num_workers=placement.cpus_per_shard),
        carrier=RayCarrier(placement),
        num_shards=placement.num_shards,
        adapt=adapt,
        snapshotter=snapshotter,
        shard_timeout=ray.shard_timeout,
        replace_timeout=ray.replace_timeout,
    )
