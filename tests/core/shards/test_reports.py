"""Log records and times of shards reach the driver, with the shard and its process named."""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.core.shards.local_pools import LocalPool
from tests.core.shards.model_carrier import ModelCarrier
from tests.faults.traces import play
from tests.inside import show_starts_after
from vecenv.core.options import PoolFailurePolicy, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.shards.sharded_engine import ShardedEngine
from vecenv.core.system import log_records
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.toys import NullEnv, SleepEnv, ToyEnv
from vecenv.statistics import ShardInfo, Shards, Statistics

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


def test_shards_print_as_a_table_with_ranges_of_env_ids() -> None:
    with LocalPool([ToyEnv] * 5) as pool:
        assert str(pool.shards()).splitlines()[1].split() == ["shard", "0", "-", "-", "0-2", "waiting", "0"]
        play(pool, 2, lambda pool, number: pool.kill_shard(1) if number == 1 else None)
        shards = pool.shards()
        pids = [pool.carrier.pid_of(shard) for shard in (0, 1)]
    head, *lines = str(shards).splitlines()
    assert head.split() == ["node", "pid", "envs", "state", "restarts"]
    assert [line.split() for line in lines] == [
        ["shard", "0", "-", str(pids[0]), "0-2", "serving", "0"],
        ["shard", "1", "-", str(pids[1]), "3-4", "serving", "1"],
    ]
    assert [shard.env_ids for shard in shards[1:]] == [(3, 4)], "still a list"
    with_nodes = Shards([ShardInfo(0, 7, "abcdef0123", "10.0.0.3", (0, 1, 2, 4), "serving", 0)])
    assert "10.0.0.3 (abcdef01)    7  0-2, 4  serving" in str(with_nodes)
    assert str(Shards()) == "no shards"


class BuiltOnceFileExists(ToyEnv):
    """Its constructor waits for a file.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        while not path.exists():
            time.sleep(0.01)


class CreatesFile(logging.Handler):
    """Creates a file once a log line contains a text."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__()
        self._path, self._text = path, text

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self._path.touch()


def test_log_shows_which_shards_still_build_their_envs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    show_starts_after(0.1, monkeypatch)
    path = tmp_path / "built"
    handler = CreatesFile(path, "1 of 2 shards are ready")
    logging.getLogger("vecenv").addHandler(handler)
    try:
        with LocalPool([ToyEnv, functools.partial(BuiltOnceFileExists, path)]) as pool:
            pool.start()
            pid = pool.carrier.pid_of(1)
    finally:
        logging.getLogger("vecenv").removeHandler(handler)
    lines = [line for record in caplog.records if "shards are ready" in (line := record.getMessage())]
    assert re.fullmatch(
        rf"vecenv: 1 of 2 shards are ready after \d+ s; shard 1 \(env 1\) builds its envs \(process {pid}\)", lines[-1]
    )


class RoomAfterLines(ModelCarrier):
    """Has room for processes only after some lines of the log have named the missing resources.

    Args:
        num_lines: how many lines.
    """

    def __init__(self, num_lines: int) -> None:
        super().__init__()
        self.take_room(num_lines)

    def take_room(self, num_lines: int) -> None:
        self.missing = "2 CPUs; there is node 10.0.0.3: CPU 0 free of 2"
        self._num_lines = num_lines

    def waiting_for(self, shard: int) -> str:
        self._num_lines -= 1
        found, self.missing = self.missing, self.missing if self._num_lines else ""
        return found


def test_log_shows_at_regular_intervals_what_shards_wait_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    show_starts_after(0.1, monkeypatch)
    options = PoolOptions(num_workers=1, context="fork")
    engine = ShardedEngine([ToyEnv] * 3, options, carrier=RoomAfterLines(3), num_shards=3, adapt=adapt_and_build)
    with Pool(engine) as pool:
        pool.start()
    lines = [record.getMessage() for record in caplog.records]
    for line in lines[:3]:
        assert line.startswith("vecenv: 0 of 3 shards are ready after 0 s; shard 0 (env 0) waits for 2 CPUs; there is ")
        assert line.endswith("CPU 0 free of 2, and so do 2 others")


def test_log_shows_at_regular_intervals_what_successors_wait_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    show_starts_after(0.1, monkeypatch)
    carrier = RoomAfterLines(1)
    options = PoolOptions(num_workers=1, context="fork", failures=PoolFailurePolicy(on_failure="recover"))
    engine = ShardedEngine([ToyEnv] * 6, options, carrier=carrier, num_shards=3, adapt=adapt_and_build)
    with Pool(engine) as pool:
        play(pool, 1)
        caplog.clear()
        carrier.take_room(2)
        carrier.lose(1)
        carrier.lose(2)
        pool.step([0] * 6)
    lines = [line for record in caplog.records if "are ready" in (line := record.getMessage())]
    assert len(lines) >= 2
    for line in lines[:2]:
        assert re.match(
            r"vecenv: 1 of 3 shards are ready after \d s; shard 1 \(envs 2-3\) waits for 2 CPUs; there ", line
        )
        assert line.endswith("CPU 0 free of 2, and so does another")


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
        assert found.workers.shard.tolist() == [0, 1] and "worker 1 (shard 1)" in str(found)
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
