"""Home: where workers wake up, and that their envs never see it."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import psutil
import pytest

from vecenv.core import supervise
from vecenv.core.native import load
from vecenv.core.options import PoolOptions
from vecenv.core.process import ProcessPool
from vecenv.envs import toys

needs_cores = pytest.mark.skipif(
    load() is None or supervise.usable_cores() < 2 or supervise.usable_cores() != len(os.sched_getaffinity(0)),
    reason="the extension was not built, or there is one core",
)


class Affinity(toys.BusyEnv):
    """Rewards the number of cores that it may run on; action 1 leaves it the first one."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        if action == 1:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        return obs, float(len(os.sched_getaffinity(0))), *rest


def sleeping_on(pid: int, num_cores: int) -> set[int]:
    """Wait until a worker's affinity has so many cores; return it."""
    deadline = time.monotonic() + 30.0
    while len(cores := os.sched_getaffinity(pid)) != num_cores:
        assert time.monotonic() < deadline, cores
    return cores


@needs_cores
def test_workers_sleep_each_on_a_core_of_its_own_and_work_on_all() -> None:
    everywhere = os.sched_getaffinity(0)
    count = len(everywhere)
    with ProcessPool([lambda: Affinity(busy_us=100)] * 2 * count, PoolOptions(num_workers=count)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        for _ in range(3):
            assert pool.step(np.zeros(2 * count, np.int64)).rewards.tolist() == [float(count)] * 2 * count
            homes = [sleeping_on(pid, 1) for pid in pool.worker_pids]
            assert set.union(*homes) == everywhere


@needs_cores
def test_an_affinity_that_an_env_has_chosen_is_left_alone() -> None:
    count = len(os.sched_getaffinity(0))
    with ProcessPool([lambda: Affinity(busy_us=100)] * count, PoolOptions(num_workers=count)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        assert pool.step(np.ones(count, np.int64)).rewards.tolist() == [1.0] * count
        deadline = time.monotonic() + 30.0
        while any(psutil.Process(pid).status() != psutil.STATUS_SLEEPING for pid in pool.worker_pids):
            assert time.monotonic() < deadline, "a worker that has nothing to do does not sleep"
        assert pool.step(np.zeros(count, np.int64)).rewards.tolist() == [1.0] * count


@pytest.mark.parametrize(
    "num_workers, cores, usable, expected",
    [
        (2, {0, 1}, 2, [0, 1]),
        (3, {5, 1, 8}, 3, [1, 5, 8]),
        (1, {0}, 1, [None]),
        (2, {0, 1, 2}, 3, [None, None]),  # the system finds a free one
        (4, {0, 1}, 2, [None] * 4),
        (2, {0, 1, 2, 3}, 2, [None, None]),  # a quota says nothing of which
    ],
)
def test_only_where_each_core_has_one_worker(
    num_workers: int, cores: set[int], usable: int, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    monkeypatch.setattr(supervise, "usable_cores", lambda: usable)
    assert [supervise.own_core(worker_id, num_workers) for worker_id in range(num_workers)] == expected
    assert supervise.own_core(num_workers, num_workers) is None, "a worker added behind the others"
