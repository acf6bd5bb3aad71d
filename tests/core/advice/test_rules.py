"""Rules of reports on constructed statistics: each symptom gives its verdict, and a healthy pool gives none."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from vecenv import Durations, Report, Statistics, Verdict
from vecenv.core.advice.facts import PoolFacts, SettingNames
from vecenv.core.advice.rules import diagnose
from vecenv.core.advice.sizing import SERIAL, Setting, Workload
from vecenv.core.advice.times import read_envs, read_workers
from vecenv.core.fallback.timing import bucket_of
from vecenv.core.parent.pickled_infos import PickledInfos
from vecenv.statistics import CallerTimes, EnvTimes

FACTS = PoolFacts(setting=Setting(4), cores=4, machine_cores=4)
#: The dtype of `ArenaPlan.timings`, as far as the rules read it.
BOUNDS = read_envs(None, ()).step.bounds


def durations(of_envs: list[list[float]]) -> Durations:
    """Return the durations of each env, given in seconds."""
    buckets = np.zeros((len(of_envs), len(BOUNDS) - 1), np.int64)
    for env_id, seconds in enumerate(of_envs):
        np.add.at(buckets[env_id], [bucket_of(int(one * 1e9)) for one in seconds], 1)
    return Durations(
        num=np.array([len(seconds) for seconds in of_envs]),
        sum=np.array([sum(seconds) for seconds in of_envs]),
        max=np.array([max(seconds, default=np.nan) for seconds in of_envs]),
        buckets=buckets,
        bounds=BOUNDS,
    )


def statistics(
    steps: list[list[float]],
    resets: list[list[float]] | None = None,
    *,
    waiting: float,
    copying: float = 0.0,
    outside: float = 0.0,
    num_workers: int = 4,
) -> Statistics:
    """Return the statistics of a pool.

    Args:
        steps, resets: seconds of each operation, by env.
        waiting, copying, outside: seconds of the caller; all 0: they are not known.
        num_workers: the envs are spread evenly over these; 0: the serial backend.
    """
    worker_of = np.arange(len(steps)) * num_workers // len(steps) if num_workers else np.full(len(steps), -1)
    unknown = np.full(len(steps), np.nan)
    envs = EnvTimes(durations(steps), durations(resets or [[0.001]] * len(steps)), unknown, unknown, worker_of)
    env_ids = [np.flatnonzero(worker_of == one).tolist() for one in range(num_workers)]
    total = waiting + copying + outside
    caller = CallerTimes(total, waiting / total, copying / total, outside / total) if total else CallerTimes()
    counts: dict[str, Any] = dict.fromkeys(
        ("restarts", "recycled", "workers_added", "replayed", "unproven", "truncated", "steps_replayed"), 0
    )
    return Statistics(
        steps=sum(map(len, steps)),
        replay_seconds=0.0,
        log_nbytes=0,
        num_workers=num_workers,
        threads_per_worker=1,
        choice="",
        envs=envs,
        workers=read_workers([10 + one for one in range(num_workers)], env_ids, 1, None, {}, 0),
        caller=caller,
        **counts,
    )


def facts(**changes: Any) -> PoolFacts:
    return dataclasses.replace(FACTS, **changes)


def only(report: Report, name: str) -> Verdict:
    """Return the only verdict, which has this name."""
    assert [verdict.name for verdict in report] == [name], str(report)
    return report.verdicts[0]


# 8 envs of 2 ms on 4 workers: 100 rounds of 4 ms, of which little is lost.
STEADY = [[0.002] * 100] * 8


def test_healthy_pool_has_no_verdict():
    report = diagnose(statistics(STEADY, waiting=0.42, outside=0.03), FACTS)
    assert len(report) == 0 and "a step takes 2 ms" in report.note and str(report).startswith("no verdict: nothing")


def test_cheap_envs_recommend_the_serial_backend():
    found = statistics([[2e-6] * 5000] * 4, [[1e-6]] * 4, waiting=1.25, outside=0.01)
    verdict = only(diagnose(found, FACTS), "cheap envs")
    assert verdict.number == pytest.approx(2e-6, rel=0.01) and verdict.setting.startswith("backend='serial'")
    assert 15 < verdict.gain < 21 and verdict.gain_low < verdict.gain < verdict.gain_high
    assert str(verdict).startswith("cheap envs: a step of the 4 envs takes 2 us per env, and 63 us with the hand-over")
    assert str(verdict).endswith("times as many steps per second")


def test_cheap_envs_behind_a_slow_policy_are_no_cause():
    found = statistics([[2e-6] * 5000] * 4, [[1e-6]] * 4, waiting=1.25, outside=50.0)
    assert only(diagnose(found, FACTS), "slow policy").gain < 2.1


def test_cheap_envs_in_shards_recommend_this_machine():
    found = statistics([[2e-6] * 5000] * 64, [[1e-6]] * 64, waiting=15.0, outside=0.3)
    remote, cheap = diagnose(found, facts(num_shards=2))
    assert (remote.name, cheap.name) == ("hand-over", "cheap envs") and remote.gain > cheap.gain > 20
    assert "47.8 us with the hand-over to 2 shards" in cheap.cause and cheap.setting.startswith("backend='process' on")
    _, cheap = diagnose(found, facts(num_shards=2, cores=1))
    assert cheap.setting == "backend='serial', which survives no crash of an env"


def test_hand_over_to_shards_recommends_policies_in_the_shards():
    found = statistics([[0.003] * 100] * 16, waiting=1.8, outside=0.1)  # four envs per worker
    found = dataclasses.replace(found, workers=dataclasses.replace(found.workers, shard=np.array([0, 0, 1, 1])))
    verdict = only(diagnose(found, facts(num_shards=2, cores=1)), "hand-over")
    assert verdict.cause.startswith("a round of all envs takes 18 ms, and worker 0 (shard 0), the slowest one, steps ")
    assert "steps envs for 11.9 ms of it" in verdict.cause
    assert "where='shards'" in verdict.setting
    assert verdict.number == pytest.approx(0.006, rel=0.05)
    assert verdict.gain_high == pytest.approx(1.9 / 1.3, rel=0.02) and verdict.gain_low == 1.0
    without = facts(num_shards=4, cores=1, names=SettingNames(collect=""))
    assert only(diagnose(found, without), "hand-over").setting == "more envs per shard"


def test_busy_shards_have_no_verdict():
    found = statistics([[0.003] * 100] * 16, waiting=1.25, outside=0.1)
    assert not len(diagnose(found, facts(num_shards=4, cores=1)))


def test_steps_before_the_loss_of_a_shard_count():
    """The times of a shard begin with its newest actor."""
    found = statistics([[0.003] * 100] * 8 + [[0.003] * 10] * 8, waiting=1.25, outside=0.1)
    assert not len(diagnose(dataclasses.replace(found, steps=1600), facts(num_shards=4, cores=1)))


def test_one_process_recommends_workers_for_slow_envs():
    found = statistics(STEADY, waiting=0.0, num_workers=0)
    verdict = only(diagnose(found, facts(setting=SERIAL)), "one process")
    assert verdict.setting == "backend='process' with num_workers=4" and 3 < verdict.gain <= 4
    assert not len(diagnose(statistics([[2e-6] * 5000] * 4, waiting=0.0, num_workers=0), facts(setting=SERIAL)))


def test_stragglers_recommend_send_and_recv():
    uneven = [[0.001] * 95 + [0.05] * 5] * 8
    found = statistics(uneven, waiting=2.5, outside=0.1)  # nearly every second round has a straggler
    verdict = only(diagnose(found, FACTS), "stragglers")
    assert "send() and recv" in verdict.setting and 30 < verdict.number < 60
    assert verdict.gain_high == pytest.approx(2.6 / (0.69 + 0.1), rel=0.1)
    assert verdict.gain_low == pytest.approx(verdict.gain_high / 1.5)
    assert "slowest" not in verdict.cause


def test_stragglers_name_the_slow_env():
    found = statistics([[0.001] * 100] * 7 + [[0.02] * 100], waiting=2.1)
    assert "env 7 is the slowest" in only(diagnose(found, FACTS), "stragglers").cause
    found = dataclasses.replace(found, workers=dataclasses.replace(found.workers, shard=np.array([0, 0, 1, 1])))
    verdict = only(diagnose(found, facts(num_shards=2, cores=1)), "stragglers")
    assert "env 7 of worker 3 (shard 1) is the slowest" in verdict.cause


def test_stragglers_that_delay_nobody_are_no_cause():
    """With `send` and `recv` the workers are busy while the caller waits."""
    uneven = [[0.001] * 95 + [0.05] * 5] * 8
    assert not len(diagnose(statistics(uneven, waiting=0.7, outside=0.05), FACTS))


@pytest.mark.parametrize("in_steps", [False, True], ids=["own", "within steps"])
def test_slow_resets_recommend_spare_envs(in_steps):
    resets = [0.3] * (1 if in_steps else 6)
    steps = [0.002] * 95 + ([0.302] * 5 if in_steps else [0.002] * 5)
    found = statistics([steps] * 8, [resets] * 8, waiting=8.0, outside=0.05)
    report = diagnose(found, facts(resets_in_steps=in_steps))
    verdict = next(one for one in report if one.name == "slow resets")
    assert verdict.number == pytest.approx(0.3) and "num_spare_envs" in verdict.setting and verdict.gain > 2
    assert "as long as 15" in verdict.cause


def test_slow_resets_of_a_front_end_without_spare_envs_recommend_none():
    found = statistics([[0.002] * 100] * 8, [[0.3] * 6] * 8, waiting=8.0, outside=0.05)
    report = diagnose(found, facts(names=SettingNames(spare_envs="")))
    assert "quicker resets" in next(one for one in report if one.name == "slow resets").setting


def test_first_resets_are_no_slow_resets():
    assert not len(diagnose(statistics(STEADY, [[0.3]] * 8, waiting=1.0, outside=0.05), facts(cores=2)))


def test_waiting_envs_recommend_threads():
    found = statistics([[0.02] * 50] * 16, waiting=4.1)
    workload = Workload(step_ns=20e6, busy_ns=0.2e6)
    verdict = only(diagnose(found, facts(workload=workload)), "waiting envs")
    assert verdict.number == pytest.approx(0.99) and "threads_per_worker=" in verdict.setting and verdict.gain > 3


def test_slow_policy_recommends_to_overlap():
    verdict = only(diagnose(statistics(STEADY, waiting=0.42, outside=0.9), FACTS), "slow policy")
    assert verdict.number == pytest.approx(0.68, abs=0.01) and "send() and recv" in verdict.setting
    assert verdict.gain_high == pytest.approx(1.32 / 0.9) and verdict.gain_low == 1.0


@pytest.mark.parametrize("outside, names", [(20.0, SettingNames()), (0.9, SettingNames(overlap=""))])
def test_slow_policy_that_cannot_overlap_must_be_quicker(outside, names):
    verdict = only(diagnose(statistics(STEADY, waiting=0.42, outside=outside), facts(names=names)), "slow policy")
    assert verdict.setting.startswith("a quicker policy") and 1.5 < verdict.gain < 2


def test_work_of_the_front_end_is_no_policy():
    found = statistics([[20e-6] * 20_000] * 8, waiting=0.9, outside=1.0)  # 50 us a round
    assert [one.name for one in diagnose(found, FACTS)] == []


def test_too_many_threads_name_the_calls():
    found = statistics(STEADY, waiting=1.6)
    # an env that waits for its own threads does not wait for anything else
    case = facts(compute_threads=(4, 4, 4, 4), helper_share=0.75, workload=Workload(2e6, 0.5e6))
    verdict = only(diagnose(found, case), "too many threads")
    assert verdict.number == 16 and "torch.set_num_threads(1)" in verdict.setting
    assert np.isnan(verdict.gain) and str(verdict).endswith("the gain is not known")


def test_threads_with_cores_of_their_own_are_no_cause():
    case = facts(compute_threads=(2, 2, 2, 2), helper_share=0.5, cores=8, machine_cores=8)
    assert not len(diagnose(statistics(STEADY, waiting=0.42), case))


def test_few_cores_of_a_cgroup_recommend_a_higher_limit():
    found = statistics([[0.008] * 100] * 8, waiting=1.62)  # each step takes four times as long on a quarter of a core
    case = facts(cores=1, machine_cores=64, core_limit="cpu.max of the cgroup")
    verdict = only(diagnose(found, case), "too few cores")
    assert verdict.number == 1 and "cpu.max of the cgroup" in verdict.cause
    assert verdict.gain_high == pytest.approx(4, 0.1)
    assert "4 cores" in verdict.setting


def test_many_workers_for_short_steps_recommend_fewer():
    found = statistics([[30e-6] * 5000] * 16, [[30e-6]] * 16, waiting=5.0, num_workers=16)
    verdict = only(diagnose(found, facts(setting=Setting(16))), "too few cores")
    assert verdict.setting == "num_workers=4" and verdict.gain > 1.2


def test_many_workers_for_long_steps_are_no_cause():
    found = statistics([[0.008] * 100] * 8, waiting=1.62, num_workers=8)
    assert not len(diagnose(found, facts(setting=Setting(8))))


def pickled(num: int, load_ns: int) -> PickledInfos:
    infos = PickledInfos()
    for _ in range(num):
        infos.note({"log": "x" * 500, "solver": {"steps": np.zeros(100)}, "lives": 3}, 1600, load_ns)
    return infos


def test_pickled_infos_name_the_key_and_its_bytes():
    found = statistics(STEADY, waiting=0.42, outside=0.1)
    verdict = only(diagnose(found, facts(pickled_infos=pickled(800, 200_000))), "pickled infos")
    assert "'solver/steps'" in verdict.cause and 800 < verdict.number < 1100 and "infos='columns'" in verdict.setting
    assert math.isnan(verdict.gain), "the time in which workers copy and pickle infos is not measured"


@pytest.mark.parametrize("num, load_ns", [(20, 5_000_000), (800, 2_000)], ids=["few", "cheap"])
def test_few_or_cheap_pickled_infos_are_no_cause(num, load_ns):
    found = statistics(STEADY, waiting=0.42, outside=0.1)
    assert not len(diagnose(found, facts(pickled_infos=pickled(num, load_ns))))


def test_pickled_infos_of_numbers_mean_that_all_cells_are_used():
    infos = PickledInfos()
    for _ in range(32):
        infos.note({"a": 1, "b": np.zeros(8)}, 300, 1000)
    key, nbytes = infos.largest() or ("", 0.0)
    assert key == "b" and nbytes > 64
    assert PickledInfos().largest() is None


def test_copies_recommend_views():
    found = statistics(STEADY, waiting=0.42, copying=0.3, outside=0.05)
    verdict = only(diagnose(found, FACTS), "copies")
    assert verdict.setting.startswith("copy=False") and verdict.gain == pytest.approx(0.77 / 0.47)
    report = diagnose(found, facts(names=SettingNames(views="")))
    assert "uint8" in only(report, "copies").setting


def test_slow_core_names_its_worker():
    found = statistics([[0.002] * 100] * 6 + [[0.006] * 100] * 2, waiting=1.25)
    verdict = only(diagnose(found, FACTS), "slow core")
    assert "worker 3" in verdict.cause and "13" in verdict.setting and verdict.number == pytest.approx(3, rel=0.13)
    assert verdict.gain == pytest.approx(3, rel=0.13)


def test_slow_env_alone_in_its_worker_is_no_slow_core():
    found = statistics([[0.002] * 100] * 3 + [[0.006] * 100], waiting=0.65)
    assert [one.name for one in diagnose(found, FACTS) if one.name == "slow core"] == []


def test_short_runs_and_pools_without_timings_have_no_verdict():
    report = diagnose(statistics([[0.002] * 4] * 8, waiting=2.0), FACTS)
    assert not len(report) and report.note == "too little was measured: 32 steps of 8 envs in 2 s"
    report = diagnose(statistics([[0.002] * 100] * 8, waiting=0.1), FACTS)
    assert report.note.endswith("in 100 ms")
    assert "timings=False" in diagnose(statistics([], waiting=0.0, num_workers=0), FACTS).note


def test_largest_gain_comes_first():
    found = statistics(STEADY, waiting=0.1, copying=2.0, outside=0.9)
    gains = [one.gain for one in diagnose(found, facts(pickled_infos=pickled(800, 800_000)))]
    assert len(gains) > 1 and gains == sorted(gains, reverse=True)


def test_report_as_dict_is_json():
    report = Report((Verdict("copies", "cause", 0.5, "share", "copy=False"),))
    assert report.as_dict() == {
        "verdicts": [
            {
                "name": "copies",
                "cause": "cause",
                "number": 0.5,
                "unit": "share",
                "setting": "copy=False",
                "gain_low": None,
                "gain_high": None,
                "gain": None,
                "text": "copies: cause. copy=False: the gain is not known",
            }
        ],
        "note": "",
    }
    assert list(report) == list(report.verdicts)
