"""Log records and times of shards reach the driver, with the shard and its process named."""

from __future__ import annotations

import functools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.core.shards.local_pools import LocalPool
from tests.faults.traces import play
from vecenv.core.system import log_records
from vecenv.envs.toys import NullEnv, SleepEnv, ToyEnv
from vecenv.statistics import Statistics

pytestmark = pytest.mark.extended


class LoggingEnv(ToyEnv):
    """Writes log records in its constructor and in each step.

    Args:
        count: number of records of a step.
    """

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self.count = count
        logging.getLogger("simulator").info("built")

    def step(self, action: Any) -> Any:
        for number in range(self.count):
            logging.getLogger("simulator").warning("gear %d", number, extra={"gear": 3})
        return super().step(action)


def test_log_records_of_workers_reach_the_driver_with_their_shard(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "simulator"), LocalPool([LoggingEnv] * 2) as pool:
        play(pool, 2)
        pids = [pool.carrier.pid_of(shard) for shard in (0, 1)]
    texts = [record.getMessage() for record in caplog.records if record.name == "simulator"]
    for shard, pid in enumerate(pids):
        assert texts.count(f"shard {shard}, process {pid}: built") == 1
        assert texts.count(f"shard {shard}, process {pid}: gear 0") == 2
    assert {getattr(record, "gear", None) for record in caplog.records if "gear" in record.getMessage()} == {3}


def test_line_about_a_worker_that_died_in_a_shard_names_both(caplog: pytest.LogCaptureFixture) -> None:
    def inject(pool: Any, number: int) -> None:
        if number == 2:
            pool.kill_worker(1)

    with caplog.at_level(logging.INFO, "vecenv"), LocalPool([ToyEnv] * 4) as pool:
        play(pool, 4, inject)
        pid = pool.carrier.pid_of(1)
    (line,) = [record.getMessage() for record in caplog.records if "replaced, " in record.getMessage()]
    assert line.startswith(f"vecenv: shard 1, process {pid}: worker 0 (envs 2-3) died during ")


def test_flood_of_log_records_of_a_shard_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with LocalPool([functools.partial(LoggingEnv, 2000)] * 2) as pool:
        play(pool, 1)
    texts = [record.getMessage() for record in caplog.records]
    assert 0 < sum(": gear " in text for text in texts) <= 2 * 3 * log_records._MOST_PER_SECOND
    assert any("records were dropped" in text for text in texts)


def test_times_of_envs_and_workers_come_from_all_shards() -> None:
    env_fns = [functools.partial(SleepEnv, mean_ms) for mean_ms in (0.0, 0.0, 5.0)]
    with LocalPool(env_fns) as pool:
        assert len(pool.statistics().envs.step.num) == 0, "before the start"
        play(pool, 8)
        found = pool.statistics()
        assert found.envs.step.num.tolist() == [8, 8, 8]
        assert found.envs.step.sum[2] > found.envs.step.sum[0]
        assert found.envs.worker_id.tolist() == [0, 0, 1]
        assert found.workers.num_envs.tolist() == [2, 1]
        assert np.all(found.workers.busy_share > 0) and np.all(found.workers.rss_nbytes > 0)
        assert "step" in str(found)
        pool.kill_shard(0)
        pool.step([0, 0, 0])
        assert pool.statistics().envs.step.num[2] == 9, "also of a shard beside one that was replaced"
        assert {shard.state for shard in pool.shards()} == {"serving"}
    assert len(pool.statistics().envs.step.num) == 0, "after the end"
    assert {shard.state for shard in pool.shards()} == {"dead"}


def test_thread_that_reads_statistics_without_a_pause_disturbs_no_shard() -> None:
    def read() -> None:
        while not must_stop.is_set():
            found.append(pool.statistics())

    def kill_once(pool: LocalPool, number: int) -> None:
        if number == 20:
            pool.kill_shard(0)

    must_stop, found = threading.Event(), list[Statistics]()
    with LocalPool([ToyEnv] * 4) as pool, ThreadPoolExecutor(1) as threads:
        reader = threads.submit(read)
        try:
            play(pool, 40, kill_once)
        finally:
            must_stop.set()
        reader.result()
        last = pool.statistics()
    assert (last.envs.step.num + last.envs.reset.num)[2:].tolist() == [41, 41], "of the shard that was not killed"
    assert last.shards_replaced == 1 and len(found) > 10


def test_report_about_cheap_envs_names_the_hand_over_to_shards() -> None:
    with LocalPool([NullEnv] * 8) as pool:
        play(pool, 300)
        found = {verdict.name: verdict for verdict in pool.report()}
        assert pool.statistics().caller.waiting_share > 0
    assert "2 shards" in found["cheap envs"].cause and "where='shards'" in found["hand-over"].setting


def test_times_are_not_asked_for_with_timings_off() -> None:
    with LocalPool([ToyEnv] * 2, timings=False) as pool:
        play(pool, 1)
        calls = pool.statistics().shard_calls
        assert pool.statistics().shard_calls == calls and len(pool.statistics().envs.step.num) == 0
        assert pool.statistics().caller.seconds == 0
