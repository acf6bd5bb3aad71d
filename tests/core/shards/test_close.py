"""Closing a pool of shards."""

from __future__ import annotations

import pytest

from vecenv.core.options import Limits, PoolFailurePolicy, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.shards.local_carrier import LocalCarrier
from vecenv.core.shards.sharded_engine import ShardedEngine
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.toys import CountEnv, HangAtReset
from vecenv.errors import WorkerTimeoutError


def test_close_raises_no_error_of_an_earlier_request() -> None:
    failures = PoolFailurePolicy(on_failure="raise")
    options = PoolOptions(num_workers=1, context="fork", failures=failures, limits=Limits(reset=0.1, close=0.1))
    env_fns = [CountEnv, HangAtReset, CountEnv]
    pool = Pool(ShardedEngine(env_fns, options, carrier=LocalCarrier(), num_shards=2, adapt=adapt_and_build))
    pool.start()
    pool.reset(seeds=[0, 1, 2])
    with pytest.raises(WorkerTimeoutError, match="did not finish reset of env 1"):
        pool.recv()
    pool.close()
