"""Pools warn once if their envs wait; they measure that in the workers."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

from tests.inside import opened_envs, timings_of
from vecenv import PerformanceWarning
from vecenv.core.advice.times import read_workload
from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.core.system.run_delay import open_run_delay
from vecenv.envs.toys import BusyEnv, NullEnv


def counts_delays() -> bool:
    file = open_run_delay()
    if file is None:
        return False
    file.close()
    return True


pytestmark = pytest.mark.skipif(not counts_delays(), reason="this system counts no run-queue delay")


class NapEnv(NullEnv):
    """Sleeps for 3 ms at each step, much longer than the work of a step takes on a busy machine."""

    def step(self, action):
        time.sleep(0.003)
        return self._result


class NapInReset(NullEnv):
    """Sleeps for 10 ms in each reset, and ends its episode with the third step."""

    def reset(self, **kwargs):
        time.sleep(0.01)
        self.num_steps = 0
        return super().reset(**kwargs)

    def step(self, action):
        self.num_steps += 1
        return self._obs, 1.0, self.num_steps >= 3, False, {}


class Computing(BusyEnv):
    """Computes for 2 ms of CPU time at each step."""

    def step(self, action):
        until = time.thread_time_ns() + 2_000_000
        while time.thread_time_ns() < until:
            pass
        return self._result


def run(pool, seconds=0.6, least=25):
    """Step all envs; return the warnings."""
    actions = np.zeros(pool.num_envs, np.int64)
    pool.reset()
    pool.recv()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        until = time.monotonic() + seconds
        num = 0
        while time.monotonic() < until or num < least:
            pool.step(actions)
            num += 1
    return caught


def workload_of(pool):
    slots = opened_envs(pool).slots
    return read_workload(timings_of(pool), slots.by_env, slots.worker_of)


@pytest.mark.extended
@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("kind", [NapEnv, NapInReset])
def test_sleeping_envs_give_one_warning_and_one_log_line(kind, caplog):
    with ProcessPool([kind] * 16, PoolOptions(num_workers=2)) as pool:
        pool.start()
        with caplog.at_level("INFO", "vecenv"):
            caught = run(pool, least=80)
    assert [warning.category for warning in caught] == [PerformanceWarning]
    text = str(caught[0].message)
    assert "num_workers=" in text and "threads_per_worker=" in text and "send()" in text
    assert "times as many steps per second" in text
    assert [record.getMessage() for record in caplog.records if "wait for" in record.getMessage()] == [text]


@pytest.mark.extended
def test_warning_names_the_line_of_the_caller():
    with ProcessPool([NapEnv] * 16, PoolOptions(num_workers=2)) as pool:
        pool.start()
        (warning,) = run(pool)
    assert warning.filename == __file__


@pytest.mark.extended
@pytest.mark.filterwarnings("error::vecenv.errors.PerformanceWarning")
def test_warning_as_an_error_leaves_the_pool_usable():
    with ProcessPool([NapEnv] * 16, PoolOptions(num_workers=2)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        actions = np.zeros(16, np.int64)
        with pytest.raises(PerformanceWarning):
            for _ in range(1000):
                pool.step(actions)
        assert pool.outstanding() == 0
        assert len(pool.step(actions).env_ids) == 16
        pool.step(actions)  # it is raised only once


@pytest.mark.extended
@pytest.mark.parametrize("options", [PoolOptions(num_workers=16), PoolOptions(num_workers=4, threads_per_worker=4)])
def test_envs_with_slots_of_their_own_give_no_warning(options):
    with ProcessPool([NapEnv] * 16, options) as pool:
        pool.start()
        assert run(pool) == []


@pytest.mark.extended
@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("num_workers", [64, 32])
def test_computing_envs_in_many_workers_beside_busy_loops_give_no_warning(num_workers):
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        with ProcessPool([Computing] * 64, PoolOptions(num_workers=num_workers)) as pool:
            pool.start()
            assert run(pool, seconds=0.0) == []
            workload = workload_of(pool)
            assert workload is not None
            assert workload.waiting < 0.25
            assert workload.step_ns > 4e6, "the envs did not have to wait for cores"
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.extended
def test_threads_that_compute_in_turns_give_no_warning():
    with ProcessPool([Computing] * 8, PoolOptions(num_workers=1, threads_per_worker=4)) as pool:
        pool.start()
        assert run(pool) == []


@pytest.mark.usefixtures("implementation")
def test_timings_count_every_step_reset_and_constructor():
    with ProcessPool([NapInReset] * 3, PoolOptions(num_workers=1)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        for _ in range(9):  # steps 4 and 8 reset
            pool.step(np.zeros(3, np.int64))
        timings = timings_of(pool)
        assert timings["num_steps"].tolist() == [7] * 3
        assert timings["num_resets"].tolist() == [3] * 3
        assert (timings["reset_ns"] >= 30e6).all() and (timings["step_ns"] < timings["reset_ns"]).all()
        assert (timings["construct_ns"] > 0).all()


@pytest.mark.extended
@pytest.mark.usefixtures("implementation")
def test_time_that_a_worker_waits_for_its_parent_does_not_count():
    class Verbose(NullEnv):
        def step(self, action):
            return self._obs, 1.0, False, False, {"text": "x" * 300_000}  # more than the ring of messages

    with ProcessPool([Verbose] * 2, PoolOptions(num_workers=1)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        for _ in range(3):
            pool.send(np.zeros(2, np.int64))
            time.sleep(0.05)
            pool.recv()
        timings = timings_of(pool)
        assert (timings["step_ns"] < 100e6).all()
