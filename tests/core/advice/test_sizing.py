"""The choice of workers and threads for a measured workload, and the workload of timings."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.core.advice.rounds import EnvCost, Rounds
from tests.core.advice.test_rules import durations
from tests.core.layout.test_arena import plan_for
from tests.spaces import FIXED_SPACES
from vecenv.core.advice.auto import choose_options
from vecenv.core.advice.sizing import (
    ENDS,
    SERIAL,
    Setting,
    Workload,
    choose_setting,
    choose_spares,
    estimate_gain,
    load_of,
    round_ns,
)
from vecenv.core.advice.times import SlowOperations, find_slow_operations
from vecenv.core.advice.waiting import read_workload
from vecenv.core.options import PoolOptions
from vecenv.core.processes.measure import Measurement, Times
from vecenv.core.system.segment import private_segment
from vecenv.report import Verdict

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


# ---- the model of a round ------------------------------------------------------------------------

#: Kind of envs -> waiting and computing part of a step, the same of a reset, steps of an episode.
COSTS = {
    "cheap": (0, 10 * US, 0, 0, 10**9),
    "computing": (0, 500 * US, 0, 0, 10**9),
    "sleeping": (1 * MS, 50 * US, 0, 0, 10**9),
    "long resets that wait": (1 * MS, 50 * US, 500 * MS, 0, 100),
    "short episodes": (0, 50 * US, 50 * MS, 0, 25),
    "rare resets": (0, 50 * US, 50 * MS, 0, 500),
    "resets that compute": (0, 50 * US, 0, 20 * MS, 250),
    "sleeping with resets": (1 * MS, 50 * US, 20 * MS, 0, 250),
}
#: Settings for 8 envs on two cores.
SETTINGS = [SERIAL, Setting(2), Setting(2, 4), Setting(8), Setting.with_spares(8, 8), Setting.with_spares(8, 4)]


def times_of(kind: str, ends: str, setting: Setting, load: float) -> tuple[float, float]:
    """Return the time of a round by the model and by the simulation, in nanoseconds."""
    step_wait, step_busy, reset_wait, reset_busy, episode = COSTS[kind]
    share = 1 / episode
    workload = Workload(
        step_wait + step_busy + share * (reset_wait + reset_busy),
        step_busy + share * reset_busy,
        slow_ns=reset_wait + reset_busy,
        slow_busy_ns=reset_busy,
        slow_share=share if reset_wait + reset_busy else 0.0,
        ends=(ends,),
    )
    num_slots = min(8 + setting.num_spares, setting.num_workers * setting.threads_per_worker)
    overhead = 500 if setting == SERIAL else 40_000 if num_slots > min(setting.num_workers, 2) else 700
    cost = EnvCost(step_wait, step_busy, reset_wait, reset_busy, episode, ends)
    rounds = Rounds(cost, 8, setting, 2, load, overhead)
    return round_ns(workload, 8, setting, 2, load, 1.0), rounds.run(min(4 * (episode + 1), 2004))


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("kind", [kind for kind, cost in COSTS.items() if cost[-1] < 10**9])
def test_model_of_a_round_is_within_a_factor_of_the_simulation(kind, ends):
    """A lockstep with resets of 0.5 s was said to be 8 times faster with more workers, and was 1.3 times."""
    assert_near_simulation(kind, ends)


@pytest.mark.parametrize("kind", [kind for kind, cost in COSTS.items() if cost[-1] == 10**9])
def test_model_of_a_round_without_resets_is_within_a_factor_of_the_simulation(kind):
    assert_near_simulation(kind, "aligned")


def assert_near_simulation(kind: str, ends: str) -> None:
    ratios = {}
    for setting in SETTINGS:
        model, simulated = times_of(kind, ends, setting, 0.0)
        ratios[str(setting)] = model / (simulated + (8_000 if setting.num_workers else 3_000))
    assert all(1 / 1.5 < ratio < 1.5 for ratio in ratios.values()), ratios


@pytest.mark.parametrize("setting", [SERIAL, Setting(2), Setting(8)], ids=str)
def test_model_of_a_round_knows_the_load_of_other_programs(setting):
    model, simulated = times_of("computing", "aligned", setting, 2.0)
    assert 1 / 1.3 < model / simulated < 1.3
    assert model > 1.2 * times_of("computing", "aligned", setting, 0.0)[0]


def test_load_follows_from_the_delay_of_workers():
    assert load_of(100.0, 50.0, 2, 2) == pytest.approx(2)  # two workers have half of two cores
    assert load_of(100.0, 75.0, 8, 2) == 0  # eight share two cores
    assert load_of(100.0, 5.0, 2, 2) == 0


def test_gain_that_depends_on_unknown_ends_has_a_wide_range():
    """Equal episodes gain much by more workers, random ones little: the gain is printed only if it is known."""
    slow = Workload(6 * MS, 0.1 * MS, 0, 500 * MS, 0, 0.01)
    low, high = estimate_gain(slow, 16, Setting(2), Setting(16), 2)
    assert low < 1.3 and high > 6 and math.isnan(Verdict("waiting envs", "", 0, "share", "", low, high).gain)
    for ends, expected in (("aligned", 7.2), ("random", 1.12)):
        low, high = estimate_gain(dataclasses.replace(slow, ends=(ends,)), 16, Setting(2), Setting(16), 2)
        assert low < expected < high < 1.5 * low
    aligned_ns = round_ns(dataclasses.replace(slow, ends=("aligned",)), 16, Setting(2), 2)
    low, high = estimate_gain(slow, 16, Setting(2), Setting(16), 2, measured_ns=aligned_ns)
    assert low < 7.2 < high < 1.5 * low, "the measured round excludes the other patterns"


def test_spare_envs_are_chosen_by_the_ends_of_episodes():
    slow = Workload(6 * MS, 0.1 * MS, 0, 500 * MS, 0, 0.01)
    chosen = [choose_spares(dataclasses.replace(slow, ends=(ends,)), 16, 2).num_spares for ends in ENDS]
    assert chosen[0] == 16 and chosen[2] == 8, "rows that share spare envs need fewer, unless all end at once"


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


def slow_resets_of(counts: list[int]) -> SlowOperations:
    steps, resets = durations([[1e-3] * 200] * len(counts)), durations([[0.2] * count for count in counts])
    return find_slow_operations(steps, resets)


@pytest.mark.parametrize(
    "counts, ends",
    [
        ([4] * 8, ENDS[:1]),
        ([5, 5, 5, 5, 5, 6, 5, 5], ENDS[1:2]),
        ([2, 9, 4, 6, 1, 7, 3, 5], ENDS[2:]),
        ([2, 2], ENDS),
        ([1] * 8, ENDS),
    ],
    ids=["equal", "nearly equal", "random", "two envs", "first ones only"],
)
def test_ends_of_episodes_follow_from_the_numbers_of_resets(counts, ends):
    found = slow_resets_of(counts)
    assert found.ends == ends
    assert found.share == pytest.approx(sum(count - 1 for count in counts) / (200 * len(counts)))
    assert found.seconds == pytest.approx(0.2 if max(counts) > 1 else 0)
    assert found.first_seconds == pytest.approx(0.2 * len(counts))


def test_slow_steps_are_slow_operations():
    """In SAME_STEP mode a step that ends an episode contains the reset."""
    found = find_slow_operations(durations([[1e-3] * 95 + [0.1] * 5] * 4), durations([[0.1]] * 4))
    assert found.share == pytest.approx(0.05) and found.seconds == pytest.approx(0.1, rel=0.15)


def test_first_resets_are_no_cost_of_steps():
    measured = {"long_num": 100, "long_wall_ns": 100, "long_cpu_ns": 10}
    timings = timings_of(4, num_steps=100, step_ns=1000, num_resets=2, reset_ns=1000, long_ns=2000, **measured)
    workload = read_workload(timings, (0, 0, 1, 1), lambda slot: slot)
    assert workload is not None and workload.step_ns == pytest.approx(15)


def test_a_pool_without_steps_gives_no_verdict():
    assert read_workload(timings_of(2), (0, 1), lambda slot: slot) is None
    assert np.all(timings_of(2)["num_steps"] == 0)
