"""CPU affinity: workers sleep pinned to a core, and their envs never notice it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import psutil
import pytest

from vecenv.core.layout.native import load
from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.core.processes import worker
from vecenv.envs import toys

needs_cores = pytest.mark.skipif(
    load() is None or worker.usable_cores() < 2 or worker.usable_cores() != len(os.sched_getaffinity(0)),
    reason="the extension was not built, or there is one core",
)


class Affinity(toys.BusyEnv):
    """Rewards the number of cores that it may use; action 1 pins it to the first one."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        if action == 1:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        return obs, float(len(os.sched_getaffinity(0))), *rest


def open_pool(envs_per_worker: int) -> ProcessPool:
    count = len(os.sched_getaffinity(0))
    pool = ProcessPool([lambda: Affinity(busy_us=100)] * envs_per_worker * count, PoolOptions(num_workers=count))
    pool.start()
    pool.reset()
    pool.recv()
    return pool


def fall_asleep(pool: ProcessPool) -> list[set[int]]:
    """Wait until all workers sleep; return the cores on which each may wake up."""
    deadline = time.monotonic() + 30.0
    while any(psutil.Process(pid).status() != psutil.STATUS_SLEEPING for pid in pool.worker_pids):
        assert time.monotonic() < deadline, "a worker that has nothing to do does not sleep"
    return [os.sched_getaffinity(pid) for pid in pool.worker_pids]


def sleep_pinned(pool: ProcessPool) -> list[set[int]]:
    """Step until all workers sleep pinned; a busy system may need several tries."""
    deadline = time.monotonic() + 60.0
    while True:
        rewards = pool.step(np.zeros(pool.num_envs, np.int64)).rewards
        assert set(rewards.tolist()) == {float(len(os.sched_getaffinity(0)))}, "an env sees a worker's home"
        masks = fall_asleep(pool)
        if all(len(mask) == 1 for mask in masks):
            return masks
        assert time.monotonic() < deadline, masks


@pytest.mark.extended
@needs_cores
def test_workers_sleep_each_on_a_core_of_its_own_and_work_on_all() -> None:
    with open_pool(2) as pool:
        for _ in range(3):
            assert set.union(*sleep_pinned(pool)) == os.sched_getaffinity(0)


@pytest.mark.extended
@needs_cores
def test_affinity_set_by_an_env_is_left_alone() -> None:
    with open_pool(1) as pool:
        for action in (1, 0, 0):
            assert set(pool.step(np.full(pool.num_envs, action)).rewards.tolist()) == {1.0}
            fall_asleep(pool)


@pytest.mark.extended
@needs_cores
def test_affinity_set_from_outside_is_left_alone() -> None:
    with open_pool(1) as pool:
        (mask, *_) = sleep_pinned(pool)
        other = {max(os.sched_getaffinity(0) - mask)}
        os.sched_setaffinity(pool.worker_pids[0], other)
        for _ in range(3):
            assert pool.step(np.zeros(pool.num_envs, np.int64)).rewards[0] == 1.0
            assert fall_asleep(pool)[0] == other


class Waits(Affinity):
    """Like `Affinity`, but sleeps a while; action 2 rewards the core count of a process that the env starts."""

    def step(self, action: Any) -> Any:
        time.sleep(0.002)
        obs, cores, *rest = super().step(0)
        if action == 2:
            program = "import os, sys; sys.exit(len(os.sched_getaffinity(0)))"
            cores = float(subprocess.run([sys.executable, "-c", program]).returncode)
        return obs, cores, *rest


def step_until(pool: ProcessPool, expected: float) -> None:
    """Step until every env may use this many cores."""
    deadline = time.monotonic() + 60.0
    while set(pool.step(np.zeros(pool.num_envs, np.int64)).rewards.tolist()) != {expected}:
        assert time.monotonic() < deadline


@pytest.mark.extended
@needs_cores
def test_threads_whose_envs_wait_stay_on_one_core_and_what_they_start_does_not() -> None:
    count = len(os.sched_getaffinity(0))
    env_fns = [functools.partial(Waits, busy_us=1)] * 2 * count
    with ProcessPool(env_fns, PoolOptions(num_workers=count, threads_per_worker=2)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        for _ in range(2):
            step_until(pool, 1.0)
            threads = [thread.id for pid in pool.worker_pids for thread in psutil.Process(pid).threads()]
            masks = {frozenset(os.sched_getaffinity(thread)) for thread in threads}
            assert {core for mask in masks if len(mask) == 1 for core in mask} == os.sched_getaffinity(0)
            rewards = pool.step(np.full(pool.num_envs, 2)).rewards
            assert set(rewards.tolist()) == {float(count)}


@pytest.mark.parametrize(
    "num_workers, cores, usable, expected",
    [
        (2, {0, 1}, 2, [0, 1]),
        (3, {5, 1, 8}, 3, [1, 5, 8]),
        (1, {0}, 1, [None]),
        (2, {0, 1, 2}, 3, [None, None]),  # the system finds a free core
        (4, {0, 1}, 2, [None] * 4),
        (2, {0, 1, 2, 3}, 2, [None, None]),  # a quota does not name the cores
    ],
)
def test_pinning_needs_one_worker_per_core(
    num_workers: int, cores: set[int], usable: int, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    monkeypatch.setattr(worker, "usable_cores", lambda: usable)
    assert [worker.preferred_core(worker_id, num_workers) for worker_id in range(num_workers)] == expected
    assert worker.preferred_core(num_workers, num_workers) is None, "a worker added behind the others"
