"""Pools whose shards are child processes, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psutil

from tests.faults.traces import end
from vecenv.core.advice.sizing import Setting
from vecenv.core.options import DEFAULT_START_METHOD, PoolFailurePolicy, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.shards.local_carrier import LocalCarrier
from vecenv.core.shards.sharded_engine import ShardedEngine
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.state.state import SNAPSHOTTER


class LocalPool(Pool):
    """A pool of two shards that recovers; options of PoolOptions and of its failures alike.

    A shard has a worker, which is a child of its process, unless `num_cpus` or `setting` says something else. The
    processes of shards start by the method `shard_context`.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        *,
        shard_timeout: float = 30.0,
        num_cpus: int | None = None,
        setting: Setting | None = None,
        shard_context: str = DEFAULT_START_METHOD,
        **options: Any,
    ) -> None:
        policy = {name: options.pop(name) for name in list(options) if name in PoolFailurePolicy.__dataclass_fields__}
        failures = PoolFailurePolicy(**{"on_failure": "recover", **policy})
        self.carrier = LocalCarrier(shard_context)
        engine = ShardedEngine(
            env_fns,
            PoolOptions(**{"num_workers": 1, "context": "fork", "failures": failures, **options}),
            carrier=self.carrier,
            num_shards=2,
            adapt=adapt_and_build,
            snapshotter=SNAPSHOTTER,
            shard_timeout=shard_timeout,
            num_cpus=num_cpus,
            setting=setting,
        )
        super().__init__(engine)

    def kill_shard(self, shard: int) -> None:
        """Kill the process of a shard, and wait until it has ended."""
        end(self.carrier.pid_of(shard))

    def kill_worker(self, shard: int) -> None:
        """Kill the worker of a shard, and wait until it has ended."""
        (worker,) = psutil.Process(self.carrier.pid_of(shard)).children()
        end(worker.pid)
