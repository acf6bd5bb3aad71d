"""Pools with one env and with thousands: start, step, death, hang and close."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenv.core.options import Limits, PoolFailurePolicy, PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.envs import toys
from vecenv.errors import WorkerTimeoutError

RECOVERING = PoolFailurePolicy(on_failure="recover")


class HangsWhenClosed(toys.NullEnv):
    """Does not return from `close`."""

    def close(self) -> None:
        time.sleep(1000.0)


def step(pool: ProcessPool) -> list[int]:
    """Step all envs; return their numbers of steps in the episode."""
    pool.send(np.zeros(pool.num_envs, np.int64))
    batch = pool.recv(timeout=120.0)
    batch.raise_errors()
    lengths: list[int] = batch.lengths.tolist()
    return lengths


@pytest.mark.parametrize("count", [1, 4096, pytest.param(16384, marks=pytest.mark.slow)])
def test_pool_of_any_size_outlives_a_death_and_a_hang(count: int, tmp_path: Path) -> None:
    hangs = functools.partial(toys.Hangs, 4, length=None, once=tmp_path / "hung")
    env_fns: list[Any] = [toys.NullEnv if count > 1 else hangs] * count
    env_fns[count // 2] = hangs
    limits = Limits(step=2.0, close=60.0)
    options = PoolOptions(num_workers=min(count, 2), limits=limits, failures=RECOVERING)
    with ProcessPool(env_fns, options) as pool:
        pool.start()
        pool.reset(seeds=np.arange(count))
        pool.recv(timeout=120.0).raise_errors()
        assert step(pool) == [1] * count
        os.kill(pool.worker_pids[0], signal.SIGKILL)
        assert step(pool) == [2] * count
        assert step(pool) == [3] * count
        assert step(pool) == [4] * count, "one of them hung"
        assert (tmp_path / "hung").exists() and pool.statistics()["restarts"] == 2


@pytest.mark.parametrize("count", [*(pytest.param(n, marks=pytest.mark.extended) for n in (940, 1252)), 1900])
def test_env_that_hangs_in_close_is_named(count: int, caplog: pytest.LogCaptureFixture) -> None:
    """The parent once named env 1753 of 2000 for each later one, and failed where a line of its notes was cut."""
    env_fns: list[Any] = [toys.NullEnv] * 2000
    env_fns[count] = HangsWhenClosed
    pool = ProcessPool(env_fns, PoolOptions(num_workers=1, limits=Limits(close=1.0)))
    pool.start()
    pool.close()
    [line] = [record.getMessage() for record in caplog.records if "did not finish" in record.getMessage()]
    assert line.startswith(
        f"vecenv: worker 0 (envs 0-1999) did not finish close of env {count} within 1 s; it is killed"
    )


@pytest.mark.extended
def test_step_that_hangs_among_thousands_is_named() -> None:
    env_fns: list[Any] = [toys.NullEnv] * 4096
    env_fns[3000] = functools.partial(toys.HangAtStep, 1)
    with ProcessPool(env_fns, PoolOptions(num_workers=2, limits=Limits(step=2.0, close=0.5))) as pool:
        pool.start()
        pool.reset()
        pool.recv(timeout=120.0).raise_errors()
        with pytest.raises(WorkerTimeoutError, match=r"worker 1 \(envs 2048-4095\) .* of env 3000"):
            step(pool)
