"""The choice of workers and threads for a measured workload, and the workload of timings."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.layout.test_arena import plan_for
from tests.spaces import FIXED_SPACES
from vecenv.core.advice.auto import choose_options
from vecenv.core.advice.sizing import SERIAL, Setting, Workload, choose_setting
from vecenv.core.advice.waiting import read_workload
from vecenv.core.options import PoolOptions
from vecenv.core.processes.measure import Measurement, Times
from vecenv.core.system.segment import private_segment

MS, US = 1e6, 1e3


def test_envs_that_compute_get_a_worker_per_core():
    assert choose_setting(Workload(50 * US, 50 * US), 64, 2, may_thread=True) == Setting(2)
    assert choose_setting(Workload(50 * US, 50 * US), 1, 8, may_thread=True) == Setting(1)


def test_envs_that_wait_all_step_at_the_same_time():
    chosen = choose_setting(Workload(1 * MS, 20 * US), 64, 2, may_thread=True)
    assert chosen.num_workers * chosen.threads_per_worker >= 64
    assert chosen.num_workers < 64


def test_threads_are_never_chosen_without_permission():
    assert choose_setting(Workload(1 * MS, 20 * US), 64, 2, may_thread=False) == Setting(64)


def test_thousands_of_waiting_envs_get_only_as_many_slots_as_the_cores_can_use():
    chosen = choose_setting(Workload(1 * MS, 60 * US), 4096, 2, may_thread=True)
    assert chosen.num_workers * chosen.threads_per_worker <= 128


@pytest.mark.parametrize("num_envs, step_ns, expected", [(2, 2 * US, SERIAL), (64, 50 * US, Setting(2))])
def test_serial_is_chosen_only_for_cheap_and_few_steps(num_envs, step_ns, expected):
    workload = Workload(step_ns, step_ns)
    assert choose_setting(workload, num_envs, 2, may_thread=True, may_be_serial=True) == expected


def test_options_contain_the_choice_and_its_reason(caplog):
    found = Measurement(1000, Times(1, 2 * MS, 2 * MS), steps=Times(90, 90 * MS, 2 * MS), draws=True)
    with caplog.at_level("INFO", "vecenv"):
        options = choose_options(PoolOptions(num_workers="auto"), 8, found)
    assert (options.num_workers, options.threads_per_worker) == (8, 1)
    assert "no threads, because the env draws" in options.choice
    assert [record.getMessage() for record in caplog.records] == [options.choice]


def test_options_of_an_env_that_cannot_be_measured_are_the_defaults():
    options = choose_options(PoolOptions(num_workers="auto"), 1, Measurement(failure="ValueError: illegal move"))
    assert (options.num_workers, options.threads_per_worker) == (1, 1)
    assert "illegal move" in options.choice


# ---- timings -----------------------------------------------------------------------------------


def timings_of(num_envs, **values):
    plan = plan_for(FIXED_SPACES["dict"], num_envs=num_envs)
    timings = plan.counters.timings(private_segment(plan.counters.nbytes))
    for name, value in values.items():
        timings[name] = value
    return timings


def test_run_queue_delay_is_not_waiting():
    measured = {"long_num": 100, "long_wall_ns": 100, "long_cpu_ns": 10, "long_delay_ns": 85}
    timings = timings_of(4, num_steps=100, step_ns=1000, long_ns=1000, **measured)
    workload = read_workload(timings, (0, 0, 1, 1), lambda slot: slot)
    assert workload is not None and workload.waiting == pytest.approx(0.05)


def test_short_and_long_operations_are_weighted_by_their_whole_time():
    short = {"short_num": 10, "short_wall_ns": 10, "short_cpu_ns": 10}
    long = {"long_num": 100, "long_wall_ns": 100, "long_cpu_ns": 0}
    timings = timings_of(2, num_steps=100, step_ns=900, reset_ns=100, long_ns=750, **short, **long)
    workload = read_workload(timings, (0, 1), lambda slot: slot)
    assert workload is not None and workload.waiting == pytest.approx(0.75)
    assert workload.step_ns == 10


def test_threads_that_wait_for_each_other_do_not_count_as_waiting():
    measured = {"long_num": 100, "long_wall_ns": 100, "long_cpu_ns": 25}  # four threads share one interpreter lock
    timings = timings_of(4, num_steps=100, step_ns=1000, long_ns=1000, **measured)
    workload = read_workload(timings, (0, 1, 2, 3), lambda slot: 0)
    assert workload is not None and workload.waiting == 0


@pytest.mark.parametrize("values", [{}, {"short_num": 5, "short_wall_ns": 10}])
def test_too_few_measured_operations_give_no_verdict(values):
    timings = timings_of(2, num_steps=100, step_ns=1000, long_ns=1000, **values)
    assert read_workload(timings, (0, 1), lambda slot: slot) is None


def test_a_pool_without_steps_gives_no_verdict():
    assert read_workload(timings_of(2), (0, 1), lambda slot: slot) is None
    assert np.all(timings_of(2)["num_steps"] == 0)
