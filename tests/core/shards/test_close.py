"""Closing a pool of shards."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.core.shards.local_pools import LocalPool
from tests.faults.traces import play
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


def test_close_does_not_wait_for_a_shard_whose_loss_is_known() -> None:
    with LocalPool([CountEnv] * 4, max_restarts=100, limits=Limits(close=60.0)) as pool:
        play(pool, 1)
        while pool.shards()[1].state != "lost":  # else it has been replaced since
            pool.send(np.zeros(4, np.int64))
            pool.kill_shard(1)
            pool.recv()
        begin = time.monotonic()
    assert time.monotonic() - begin < 30.0
