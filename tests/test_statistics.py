"""`envs.statistics()`: counts, times of envs, workers and the caller, as a mapping, a dict of numbers and a table."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest

import vecenv
from tests.inside import opened_envs, timings_of
from vecenv import Statistics, VectorEnv
from vecenv.core.advice.times import read_envs
from vecenv.core.fallback.timing import bucket_of
from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.envs.toys import NullEnv
from vecenv.errors import ConfigError, StateError


class Naps(NullEnv):
    """Sleeps for 20 ms in each 10th step, and for 5 ms in a reset."""

    num_steps = 0

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(0.005)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        if self.num_steps % 10 == 0:
            time.sleep(0.02)
        return self._obs, 1.0, False, False, {}


@pytest.fixture
def envs(implementation: None) -> Iterator[VectorEnv]:
    with VectorEnv([Naps, NullEnv, NullEnv], num_workers=2) as envs:
        envs.reset()
        for _ in range(50):
            envs.step(np.zeros(3, np.int64))
        yield envs


@pytest.mark.extended
def test_statistics_count_each_step_and_reset(envs: VectorEnv) -> None:
    found = envs.statistics()
    assert found.steps == 150
    assert found.envs.step.num.tolist() == [50] * 3
    assert found.envs.reset.num.tolist() == [1] * 3
    for durations in (found.envs.step, found.envs.reset):
        assert (durations.buckets.sum(1) == durations.num).all()
        columns = durations.p50, durations.p99, durations.max
        assert all((low <= high).all() for low, high in itertools.pairwise(columns))
        assert (durations.mean <= durations.max).all()


@pytest.mark.extended
def test_statistics_show_the_slow_env(envs: VectorEnv) -> None:
    step, reset = envs.statistics().envs.step, envs.statistics().envs.reset
    assert step.p99[0] > 0.0175 and step.max[0] >= 0.02
    assert step.p50[0] < 0.002, "9 of 10 steps do not sleep"
    assert np.argmax(step.mean) == 0 and reset.max[0] >= 0.005


@pytest.mark.extended
def test_worker_shares_and_memory(envs: VectorEnv) -> None:
    workers = envs.statistics().workers
    assert workers.pid.tolist() == list(envs.worker_pids)
    assert workers.num_envs.sum() == 3
    assert ((workers.busy_share > 0) & (workers.busy_share <= 1)).all()
    np.testing.assert_allclose(workers.busy_share + workers.waiting_share, 1.0)
    assert (workers.rss_nbytes > 1 << 20).all()
    assert np.argmax(workers.busy_share) == envs.statistics().envs.worker_id[0]


@pytest.mark.extended
def test_caller_waits_for_slow_envs_and_not_during_its_own_work(envs: VectorEnv) -> None:
    before = envs.statistics().caller
    assert before.seconds > 0.1 and before.waiting_share + before.outside_share == 1.0
    time.sleep(0.3)  # the policy
    after = envs.statistics().caller
    outside = after.seconds * after.outside_share - before.seconds * before.outside_share
    assert outside > 0.25


class SendsLongInfos(NullEnv):
    """Has an info that is larger than the memory for messages, so its worker waits until the caller reads."""

    def step(self, action: Any) -> Any:
        return self._obs, 1.0, False, False, {"text": "x" * 1_000_000}


@pytest.mark.extended
def test_step_whose_info_waits_for_the_caller_counts_without_the_wait(implementation: None) -> None:
    with VectorEnv([SendsLongInfos] * 2, num_workers=2) as envs:
        envs.reset()
        for _ in range(4):
            envs.step_async(np.zeros(2, np.int64))
            time.sleep(0.6)  # the policy
            envs.step_wait()
        step = envs.statistics().envs.step
    assert step.num.tolist() == [4, 4]
    assert (step.buckets.sum(1) == step.num).all()
    assert (step.mean < 0.3).all()


def test_answer_age_grows_until_the_next_answer(envs: VectorEnv) -> None:
    time.sleep(0.05)
    assert (envs.statistics().envs.answer_age >= 0.05).all()
    envs.step(np.zeros(3, np.int64))
    assert (envs.statistics().envs.answer_age < 0.05).any()


@pytest.mark.extended
def test_env_that_hangs_keeps_its_worker_busy() -> None:
    class Hangs(NullEnv):
        def step(self, action: Any) -> Any:
            time.sleep(1.0)
            return super().step(action)

    with ProcessPool([Hangs], PoolOptions()) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        pool.send(np.zeros(1, np.int64))
        time.sleep(0.5)
        found = pool.statistics()
        assert found.workers.busy_share[0] > 0.3
        assert found.envs.step.num[0] == 0 and math.isnan(found.envs.step.p99[0])


def test_dead_worker_has_no_memory() -> None:
    with ProcessPool([NullEnv] * 2, PoolOptions(num_workers=2)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        pool.kill(0)
        found = pool.statistics()
        assert math.isnan(found.workers.rss_nbytes[0]) and found.workers.rss_nbytes[1] > 0


def test_counts_go_on_in_the_successor_of_a_worker(implementation: None) -> None:
    with VectorEnv([NullEnv] * 2, num_workers=1) as envs:
        envs.reset(seed=0)
        for step in range(20):
            if step == 10:
                os.kill(envs.worker_pids[0], signal.SIGKILL)
            envs.step(np.zeros(2, np.int64))
        found = envs.statistics()
        assert found.restarts == 1
        # the repetition is not timed; the step that the death interrupted may be counted in either worker or in none
        assert ((found.envs.step.num >= 19) & (found.envs.step.num <= 21)).all()


@pytest.mark.extended
def test_timings_false_writes_nothing(implementation: None) -> None:
    with VectorEnv([Naps, NullEnv], num_workers=1, engine={"timings": False}) as envs:
        envs.reset()
        for _ in range(5):
            envs.step(np.zeros(2, np.int64))
        assert opened_envs(envs.pool).plan.counters.words["timings"] == 0 and timings_of(envs.pool) is None
        found = envs.statistics()
        assert found["steps"] == 10 and len(found.envs.step.num) == 0 == found.caller.seconds
        assert len(found.workers.pid) == 1 and math.isnan(found.workers.busy_share[0])
        assert "step/num" not in found.as_dict()
        assert "env 0" not in str(found) and "worker 0" in str(found)


def test_timings_other_than_a_flag_are_refused() -> None:
    with pytest.raises(ConfigError, match="timings"):
        VectorEnv([NullEnv], engine={"timings": "yes"})  # type: ignore[arg-type]


@pytest.mark.extended
def test_statistics_are_a_read_only_mapping_of_counts(envs: VectorEnv) -> None:
    found = envs.statistics()
    assert isinstance(found, Statistics) and isinstance(found, Mapping)
    assert list(found) == [
        "steps", "restarts", "recycled", "workers_added", "replayed", "unproven", "truncated", "steps_replayed",
        "replay_seconds", "log_nbytes", "num_workers", "threads_per_worker", "choice",
        "exceptions", "shards_replaced", "shard_calls", "bytes_up", "bytes_down",
    ]  # fmt: skip
    assert found["steps"] == found.steps == dict(found)["steps"] == {**found}["steps"]
    assert found.get("envs") is None and "choice" in found and len(found) == 18
    with pytest.raises(KeyError):
        found["envs"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.steps = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        found["steps"] = 1  # type: ignore[index]
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found and copy.envs.step.num.tolist() == found.envs.step.num.tolist()


@pytest.mark.extended
def test_as_dict_has_numbers_that_json_can_write(envs: VectorEnv) -> None:
    found = envs.statistics().as_dict()
    assert {type(value) for value in found.values()} <= {int, float}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["step/num"] == 150 and found["step/max"] >= 0.02 and "choice" not in found
    assert {"reset/p99", "workers/busy_share_mean", "caller/waiting_share", "restarts"} <= set(found)


@pytest.mark.extended
def test_table_lists_slow_envs_first(envs: VectorEnv) -> None:
    lines = str(envs.statistics()).splitlines()
    assert lines[0].startswith("steps 150")
    listed = [line.split()[1] for line in lines if line.startswith("env ")]
    assert listed[0] == "0" and sorted(listed) == ["0", "1", "2"]
    assert any(line.startswith("worker 1") for line in lines) and lines[-1].startswith("caller")
    assert repr(envs.statistics()).startswith("Statistics(steps=150, restarts=0")


def test_table_of_many_envs_names_how_many_it_leaves_out() -> None:
    with VectorEnv([NullEnv] * 30, backend="serial") as envs:
        envs.reset()
        envs.step(np.zeros(30, np.int64))
        text = str(envs.statistics())
        assert "22 envs with quicker steps" in text and max(map(len, text.splitlines())) <= 120


def test_statistics_without_any_step_and_after_close() -> None:
    envs = VectorEnv([NullEnv] * 2, backend="serial")
    found = envs.statistics()
    assert found.steps == 0 and np.isnan(found.envs.step.p99).all() and np.isnan(found.envs.answer_age).all()
    assert "0" in str(found) and found.as_dict()["step/num"] == 0
    envs.close()
    assert envs.statistics().steps == 0 and len(envs.statistics().envs.step.p99) == 0
    assert str(envs.statistics()).startswith("steps 0") and envs.statistics().as_dict()["steps"] == 0


def test_batched_statistics_count_single_envs() -> None:
    make = lambda: gymnasium.make_vec("CartPole-v1", 4)  # noqa: E731
    with vecenv.BatchedVectorEnv([make] * 2, backend="serial") as envs:
        envs.reset(seed=0)
        envs.step(envs.action_space.sample())
        found = envs.statistics()
        assert isinstance(found, Statistics) and found.steps == 8 and found.envs.step.num.tolist() == [1, 1]


@pytest.mark.parametrize(
    "kind", [vecenv.ding.BaseEnvManager, vecenv.ding.SyncSubprocessEnvManager, vecenv.ding.GymVectorEnvManager]
)
def test_managers_have_statistics(kind: Any) -> None:
    make = lambda: gymnasium.make("CartPole-v1")  # noqa: E731
    manager = kind([make] * 2, kind.default_config())
    if kind is not vecenv.ding.GymVectorEnvManager:  # that one builds its envs at once
        with pytest.raises(StateError, match="launch the manager first"):
            manager.statistics()
    manager.launch()
    try:
        manager.step({0: 0, 1: 0})
        assert manager.statistics().steps == 2 and manager.statistics().envs.step.num.tolist() == [1, 1]
    finally:
        manager.close()


@pytest.mark.parametrize("exponent", range(12))
def test_quantiles_are_off_by_an_eighth_at_most(exponent: int) -> None:
    plan_timings = np.zeros(1, _dtype())
    durations = np.random.default_rng(exponent).lognormal(np.log(300 * 10.0 ** (exponent / 2)), 0.7, 5000).astype(int)
    np.add.at(plan_timings["step_buckets"][0], [bucket_of(ns) for ns in durations.tolist()], 1)
    plan_timings["num_steps"], plan_timings["step_ns"] = len(durations), durations.sum()
    plan_timings["max_step_ns"] = durations.max()
    step = read_envs(plan_timings, [0]).step
    for share in (0.1, 0.5, 0.9, 0.99, 1.0):
        exact = np.quantile(durations, share) / 1e9
        if exact > 300e-9:  # bucket 0 has all durations below 256 ns
            assert abs(step.quantile(share)[0] / exact - 1) < 0.13
    with pytest.raises(ValueError, match="share"):
        step.quantile(1.5)


def _dtype() -> Any:
    with ProcessPool([NullEnv], PoolOptions(num_workers=1)) as pool:
        pool.start()
        timings = timings_of(pool)
        assert timings is not None
        return timings.dtype


@pytest.mark.extended
def test_statistics_read_during_steps_are_never_nonsense() -> None:
    with VectorEnv([NullEnv] * 8, num_workers=2) as envs:
        envs.reset()
        must_stop, found = threading.Event(), []

        def read() -> None:
            while not must_stop.is_set():
                found.append(envs.statistics())

        thread = threading.Thread(target=read)
        thread.start()
        try:
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                envs.step(np.zeros(8, np.int64))
        finally:
            must_stop.set()
            thread.join()
        assert len(found) > 5
        for one in found[1:]:
            step = one.envs.step
            assert (step.buckets.sum(1) >= step.num).all()
            assert (step.num == 0).all() or (np.maximum(step.p99, step.mean) <= step.max)[step.num > 0].all()
            assert (one.workers.busy_share <= 1).all() and (one.envs.answer_age[step.num > 0] >= 0).all()
        assert all((old.envs.step.num <= new.envs.step.num).all() for old, new in itertools.pairwise(found))


def test_alf_environment_has_statistics() -> None:
    env = vecenv.alf.create_environment("CartPole-v1", num_parallel_environments=2, tensors=False, backend="serial")
    try:
        env.reset()
        env.step(np.zeros(2, np.int64))
        assert env.statistics().steps == 2 and env.statistics().envs.reset.num.tolist() == [1, 1]
    finally:
        env.close()
