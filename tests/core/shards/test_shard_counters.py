"""Counters of shards are copied about once a second, and written to the counters of the driver on its own clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.inside import send_all_counters
from vecenv.core.layout.counters import TIMINGS_NBYTES, CountersPlan
from vecenv.core.layout.flags import Op
from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.core.shards.carrier import ShardPlace
from vecenv.core.shards.shard_counters import CountersCopy, ShardCounters
from vecenv.core.shards.shard_status import ShardState, ShardStatus
from vecenv.core.shards.shard_table import ShardTable
from vecenv.core.system.clock import now_ns
from vecenv.core.system.segment import private_segment
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.toys import NullEnv

#: The clock of another machine is ahead by this.
AHEAD_NS = 10**15


class Driver:
    """The counters of a pool of two shards with three envs each."""

    def __init__(self) -> None:
        self.plan = CountersPlan(6, 6, has_shards=True)
        self.memory = private_segment(self.plan.nbytes)
        self.table = ShardTable(self.plan, self.memory, [[0, 1, 2], [3, 4, 5]])

    @property
    def workers(self) -> Any:
        return self.plan.workers(self.memory)

    @property
    def slots(self) -> Any:
        return self.plan.slots(self.memory, is_native=True)


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    options = PoolOptions(num_workers=2, context="fork")
    with ProcessPool([NullEnv] * 3, options, adapt=adapt_and_build) as pool:
        pool.start()
        pool.reset(seeds=range(3))
        pool.recv()
        pool.step(np.zeros(3, np.int64))
        yield pool


def counters_of(pool: ProcessPool) -> ShardCounters:
    return ShardCounters(*pool.counters, is_native=pool.implementation == "native")


def copy_of(pool: ProcessPool) -> CountersCopy:
    found = counters_of(pool).copy_if_due(is_in_task=False)
    assert found is not None
    return found


def test_counters_are_copied_once_a_second(pool: ProcessPool) -> None:
    counters = counters_of(pool)
    assert counters.copy_if_due(is_in_task=False) is not None
    assert counters.copy_if_due(is_in_task=False) is None


def test_copy_has_workers_slots_and_times_of_the_envs_of_its_shard(pool: ProcessPool) -> None:
    driver, copy = Driver(), copy_of(pool)
    driver.table.count(1, copy)
    assert driver.plan.slot_of_env(driver.memory).tolist() == [0, 1, 2, 3, 3, 5]
    assert driver.workers["pid"].tolist() == [0, 0, 0, pool.worker_pids[0], 0, pool.worker_pids[1]]
    assert driver.workers["worker_id"][[3, 5]].tolist() == [0, 1] and set(driver.workers["stack_fd"][[3, 5]]) == {-1}
    theirs, ours = (plan.timings(memory) for plan, memory in (pool.counters, (driver.plan, driver.memory)))
    assert theirs is not None and ours is not None
    assert ours["num_steps"].tolist() == [0, 0, 0, 1, 1, 1]
    for name in set(ours.dtype.names or ()) - {"ended_ns"}:
        assert np.array_equal(ours[name][3:], theirs[name])


def test_broken_counters_are_copied(pool: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> None:
    send_all_counters(monkeypatch)
    plan, memory = pool.counters
    counters = counters_of(pool)
    is_native = pool.implementation == "native"
    arrays: list[Any] = [plan.slot_of_env(memory), plan.workers(memory), plan.slots(memory, is_native=is_native)]
    kept = [array.copy() for array in arrays]
    for value in (-1, 1 << 30, -(1 << 63)):
        arrays[0][:] = value
        for name in ("pid", "started", "worker_id"):
            arrays[1][name] = value
        arrays[2]["env_id"], arrays[2]["started_ns"], arrays[2]["op"] = value % (1 << 32), value, Op.STEP
        copy = counters.copy_if_due(is_in_task=False)
        assert copy is not None
        Driver().table.count(0, copy)
    for array, before in zip(arrays, kept):
        array[:] = before


def test_times_of_another_clock_are_moved(pool: ProcessPool) -> None:
    driver, copy = Driver(), copy_of(pool)
    assert copy.timings is not None
    at, words = copy.timings
    timings = driver.plan.timings(driver.memory)
    assert timings is not None
    words[at % (TIMINGS_NBYTES // 8) == timings.dtype.fields["ended_ns"][1] // 8] += AHEAD_NS
    slots = {**copy.slots, "op": np.array([Op.STEP, Op.NONE]), "env_id": np.array([1, 0])}
    slots["started_ns"] = np.array([copy.taken_ns + AHEAD_NS - 3_000_000_000, 0])
    before = now_ns()
    driver.table.count(1, copy._replace(taken_ns=copy.taken_ns + AHEAD_NS, slots=slots))
    counted_ns = int(driver.plan.shards(driver.memory)["counted_ns"][1])
    assert before <= counted_ns <= now_ns()
    assert driver.slots["started_ns"][[3, 5]].tolist() == [counted_ns - 3_000_000_000, 0]
    assert (driver.slots["op"][3], driver.slots["env_id"][3]) == (Op.STEP, 4)
    assert np.all(timings["ended_ns"][3:] <= counted_ns) and np.all(timings["ended_ns"][3:] > before - 60_000_000_000)


def test_workers_of_a_lost_shard_are_removed(pool: ProcessPool) -> None:
    driver, copy = Driver(), copy_of(pool)
    status = ShardStatus(1, [3, 4, 5], ShardState.SERVING)
    driver.table.note(status, ShardPlace(7))
    driver.table.count(0, copy)
    driver.table.count(1, copy)
    driver.table.note(dataclasses.replace(status, counts={"restarts": 1}), ShardPlace(7))
    assert np.count_nonzero(driver.workers["pid"]) == 4
    driver.table.note(dataclasses.replace(status, state=ShardState.BUILDING), None)
    assert np.flatnonzero(driver.workers["pid"]).tolist() == [0, 2]
    assert driver.plan.shards(driver.memory)["state"].tolist()[:2] == [b"waiting"] * 2
