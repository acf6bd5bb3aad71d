"""`vecenv top`: numbers of a running pool, read from its shared memory; wrong targets; the screen in a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import json
import os
import pickle
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from tests.core.shards.local_pools import LocalPool
from tests.core.shards.model_carrier import ModelCarrier
from tests.inside import hub_of, opened_envs, send_all_counters, show_starts_after, timings_of
from vecenv import VectorEnv
from vecenv.cli import main
from vecenv.cli.pool_reader import PoolFile, PoolReader, running_pools
from vecenv.core.advice.sizing import SERIAL, Setting
from vecenv.core.layout.counters import COUNTERS_VERSION
from vecenv.core.layout.flags import Op
from vecenv.core.options import Limits, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.shards.recorded_pool import RecordedPool, Task
from vecenv.core.shards.requests import RunTask
from vecenv.core.shards.sharded_engine import ShardedEngine
from vecenv.core.shards.task_calls import TaskCall
from vecenv.core.system.clock import Deadline, now_ns
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.toys import NullEnv
from vecenv.errors import ConfigError, WorkerTimeoutError
from vecenv.values.pickling import dump_by_value

OWNER = """
import sys
from vecenv import VectorEnv
from vecenv.envs.toys import NullEnv
envs = VectorEnv([NullEnv] * 2, num_workers=1)
envs.reset()
print("open", flush=True)
sys.stdin.read()
envs.close()
"""


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the files of other tests out of sight."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "vecenv"


class ShortEpisodes(NullEnv):
    """Each episode has two steps, with a reward of 1.5 each."""

    num_steps = 0

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        return self._obs, 1.5, self.num_steps % 2 == 0, False, {}


def stepped(num_steps: int = 7, **options: Any) -> VectorEnv:
    envs = VectorEnv([ShortEpisodes] * 4, **options)
    envs.reset()
    for _ in range(num_steps):
        envs.step(np.zeros(4, np.int64))
    return envs


def numbers(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return the line of JSON that `vecenv top` prints."""
    assert main(["top", *words, "--json", "--once", "--interval", "0.01"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line with which `vecenv top` refuses."""
    assert main(["top", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


# ---- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"backend": "serial"}], ids=["process", "serial"])
def test_top_json_counts_steps_and_episodes(
    options: dict[str, Any], implementation: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with stepped(**options):
        found = numbers(capsys, str(os.getpid()))
    # every third step is the autoreset
    assert found["steps"] == 4 * 5 and found["episodes"] == 4 * 2 and found["mean_return"] == 3.0
    assert [env["num_steps"] for env in found["envs"]] == [5] * 4
    assert [env["doing"] for env in found["envs"]] == ["idle"] * 4
    assert all(0 < env["mean"] <= env["max"] and env["since"] > 0 for env in found["envs"])
    pids = {one["pid"] for one in found["workers"]}
    assert (pids == {os.getpid()}) == (options == {"backend": "serial"})
    assert [env_id for one in found["workers"] for env_id in one["env_ids"]] == [0, 1, 2, 3]
    assert all(one["rss_nbytes"] > 1e6 and 0 <= one["busy_share"] <= 1 for one in found["workers"])
    assert found["restarts"] == found["exceptions"] == 0 and found["owner_state"] == "running"


class RaisesAtThirdStep(ShortEpisodes):
    """Raises once."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.num_steps == 3:
            raise ValueError("once")
        return result


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"backend": "serial"}], ids=["process", "serial"])
def test_top_counts_exceptions_that_ended_an_episode(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    failures = {"on_exception": "truncate"}
    with VectorEnv([ShortEpisodes, RaisesAtThirdStep], failures=failures, **options) as envs:
        envs.reset()
        for _ in range(7):
            envs.step(np.zeros(2, np.int64))
        found = numbers(capsys, str(os.getpid()))
        assert main(["top", str(os.getpid()), "--once", "--interval", "0.01"]) == 0
        shown = capsys.readouterr().out
    assert found["exceptions"] == 1 and [env["num_exceptions"] for env in found["envs"]] == [0, 1]
    assert "exceptions 1" in shown


@pytest.mark.extended
def test_top_without_timings_shows_steps_and_workers(capsys: pytest.CaptureFixture[str]) -> None:
    with stepped(num_workers=2, engine={"timings": False}):
        found = numbers(capsys)
        assert found["steps"] == 20 and found["episodes"] is None
        assert [one["busy_share"] for one in found["workers"]] == [None, None]
        assert [env["doing"] for env in found["envs"]] == ["idle"] * 4
        assert main(["top", "--once", "--interval", "0.01"]) == 0
        assert "timings=False" in capsys.readouterr().out


@pytest.mark.extended
def test_top_once_prints_tables(capsys: pytest.CaptureFixture[str]) -> None:
    with stepped(num_workers=2) as envs:
        assert main(["top", "--once", "--interval", "0.01"]) == 0
        out = capsys.readouterr().out
        assert f"process {os.getpid()}" in out and "episodes 8, mean return 3" in out
        for pid in envs.worker_pids:
            assert re.search(rf"^ +\d +{pid} +\d-\d +\d+% +[\d,]+ MiB +running *$", out, re.MULTILINE)
        assert len(re.findall(r"^ +\d +\d +idle +[\d.]+ .?s ", out, re.MULTILINE)) == 4


class HangsInStep(NullEnv):
    def step(self, action: Any) -> Any:
        threading.Event().wait()


@pytest.mark.extended
def test_top_shows_the_hanging_env_and_its_worker(capsys: pytest.CaptureFixture[str]) -> None:
    with VectorEnv([NullEnv, HangsInStep, NullEnv], num_workers=3, timeouts={"close": 0.1}) as envs:
        envs.async_reset()
        envs.recv(3)
        envs.send(np.zeros(3, np.int64))
        envs.recv(2)
        found = numbers(capsys)
        assert [env["doing"] for env in found["envs"]] == ["idle", "step", "idle"]
        assert found["envs"][1]["since"] > 0.01
        assert found["workers"][1]["busy_share"] > 0.9
        worker = psutil.Process(envs.worker_pids[0])
        worker.kill()
        worker.wait(30)
        found = numbers(capsys)
        assert (found["workers"][0]["state"], found["envs"][0]["doing"]) == ("dead", "dead")


@pytest.mark.extended
def test_top_counts_restarts_and_new_workers(capsys: pytest.CaptureFixture[str]) -> None:
    with stepped(num_workers=2) as envs:
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        for _ in range(3):
            envs.step(np.zeros(4, np.int64))
        found = numbers(capsys)
        assert found["restarts"] == 1
        assert [one["pid"] for one in found["workers"]] == list(envs.worker_pids)
        assert [one["state"] for one in found["workers"]] == ["running"] * 2


# ---- shards -----------------------------------------------------------------------------------


@pytest.mark.extended
def test_top_shows_the_shards_of_a_pool(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalPool([NullEnv] * 5) as pool:
        pool.start()
        first = numbers(capsys)
        assert [one["state"] for one in first["shards"]] == ["serving"] * 2
        assert [one["since"] for one in first["shards"]] == [None] * 2, "no request was answered"
        pool.reset(seeds=range(5))
        pool.recv()
        for number in range(4):
            if number == 2:
                pool.kill_shard(1)
            pool.step(np.zeros(5, np.int64))
        pool.kill_worker(0)
        pool.step(np.zeros(5, np.int64))
        found = numbers(capsys)
        assert (found["backend"], found["name"], found["steps"]) == ("shards", first["name"], pool.count_steps())
        pids = [pool.carrier.pid_of(shard) for shard in (0, 1)]
        assert [(one["shard"], one["pid"], one["env_ids"]) for one in found["shards"]] == [
            (0, pids[0], [0, 1, 2]),
            (1, pids[1], [3, 4]),
        ]
        assert [one["restarts"] for one in found["shards"]] == [0, 1] and found["restarts"] == 1
        assert [one["worker_restarts"] for one in found["shards"]] == [1, 0]
        assert sum(one["steps"] for one in found["shards"]) == found["steps"]
        assert found["shards"][0]["steps"] == 3 * 5
        assert all(0 < one["since"] < 60 for one in found["shards"])
        assert main(["top", "--once", "--interval", "0.01"]) == 0
        shown = capsys.readouterr().out
        assert re.search(rf"^ +1 +- +{pids[1]} +3-4 +serving +1 +0 +0 +[\d.]+ .?s *$", shown, re.MULTILINE)


@pytest.mark.extended
@pytest.mark.parametrize("setting", [None, SERIAL], ids=["workers", "serial"])
def test_top_shows_the_workers_and_envs_of_shards(
    setting: Setting | None,
    implementation: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    send_all_counters(monkeypatch)
    with LocalPool([ShortEpisodes] * 5, setting=setting, shard_context="fork") as pool:
        pool.start()
        before = numbers(capsys)
        pool.reset(seeds=range(5))
        pool.recv()
        for _ in range(7):
            pool.step(np.zeros(5, np.int64))
        found = numbers(capsys)
        pids = [pool.carrier.pid_of(shard) for shard in (0, 1)]
        if setting is None:
            pids = [psutil.Process(pid).children()[0].pid for pid in pids]
    assert before["workers"] == [] and {env["worker_id"] for env in before["envs"]} == {-1}
    assert [(one["shard"], one["worker_id"], one["pid"], one["env_ids"]) for one in found["workers"]] == [
        (0, 0, pids[0], [0, 1, 2]),
        (1, 0, pids[1], [3, 4]),
    ]
    assert all(one["rss_nbytes"] > 1e6 and 0 < one["busy_share"] <= 1 for one in found["workers"])
    assert {one["state"] for one in found["workers"]} == {"running"}
    assert found["steps"] == 5 * 5 and found["episodes"] == 5 * 2 and found["mean_return"] == 3.0
    assert [(env["shard"], env["worker_id"]) for env in found["envs"]] == [(0, 0)] * 3 + [(1, 0)] * 2
    assert [env["num_steps"] for env in found["envs"]] == [5] * 5
    assert all(0 < env["mean"] <= env["max"] and env["since"] > 0 for env in found["envs"])
    assert {env["doing"] for env in found["envs"]} == {"idle"} and found["exceptions"] == 0


@pytest.mark.extended
def test_top_shows_the_new_workers_of_shards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    send_all_counters(monkeypatch)
    with LocalPool([NullEnv] * 4, shard_context="fork") as pool:
        pool.start()
        pool.reset(seeds=range(4))
        pool.recv()
        before = numbers(capsys)
        pool.kill_worker(0)
        pool.kill_shard(1)
        pool.step(np.zeros(4, np.int64))
        pool.step(np.zeros(4, np.int64))
        found = numbers(capsys)
    pids, old_pids = ([one["pid"] for one in numbers["workers"]] for numbers in (found, before))
    assert len(pids) == len(old_pids) == 2 and not set(pids) & set(old_pids)
    assert [one["state"] for one in found["workers"]] == ["running"] * 2
    assert all(env["num_steps"] > 0 for env in found["envs"])


@pytest.mark.extended
def test_top_without_timings_shows_the_workers_of_shards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    send_all_counters(monkeypatch)
    with LocalPool([NullEnv] * 4, shard_context="fork", timings=False) as pool:
        pool.start()
        pool.reset(seeds=range(4))
        pool.recv()
        found = numbers(capsys)
        assert main(["top", "--once", "--interval", "0.01"]) == 0
    assert [one["busy_share"] for one in found["workers"]] == [None] * 2 and found["episodes"] is None
    assert {one["state"] for one in found["workers"]} == {"running"}


@pytest.mark.extended
def test_top_shows_the_env_of_a_shard_that_hangs(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalPool([NullEnv, HangsInStep, NullEnv], limits=Limits(close=0.1)) as pool:
        pool.start()
        pool.reset(seeds=range(3))
        pool.recv()
        pool.send(np.zeros(3, np.int64), ordered=False)
        first = numbers(capsys)
        assert sorted(pool.recv(2).env_ids.tolist()) == [0, 2]
        with pytest.raises(WorkerTimeoutError):
            pool.recv(1, timeout=2.5)  # two heartbeats
        found = numbers(capsys)
    assert [env["doing"] for env in first["envs"]] == ["asked"] * 3
    assert [env["doing"] for env in found["envs"]] == ["idle", "step", "idle"]
    assert 0.5 < found["envs"][1]["since"] < 60


def _make_stepping_task(pool: RecordedPool) -> Task:
    """Return a task that steps all envs."""

    def step(argument: Any, shared: Any) -> None:
        pool.step((np.zeros(2, np.int64),))

    return step


@pytest.mark.extended
def test_top_shows_the_env_that_hangs_in_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalPool([HangsInStep] * 4, limits=Limits(close=0.1)) as pool:
        pool.start()
        pool.reset(seeds=range(4))
        pool.recv()
        op = RunTask(1, dump_by_value(_make_stepping_task), pickle.dumps(None), False)
        call = TaskCall(1, lambda generation: (op, None))
        pool.submit_task(call)
        hub_of(pool).wait_for_task([call], now_ns() + 2_500_000_000)  # two heartbeats
        found = numbers(capsys)
    assert not call.error and [env["doing"] for env in found["envs"]] == ["idle"] * 2 + ["step", "idle"]


class ShowsStart(ModelCarrier):
    """Its first process has room at once, and the others after a look at the pool that is being started.

    Args:
        look: called when a line of the log names the missing resources.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        super().__init__()
        self.missing = "2 CPUs"
        self._look = look

    def _may_start(self) -> bool:
        return bool(self._starting) and (not self.missing or self._starting[0][0] == 0)

    def waiting_for(self, shard: int) -> str:
        self._look()
        found, self.missing = self.missing, ""
        return found


@pytest.mark.extended
def test_top_shows_shards_that_are_ready_and_that_wait_for_room(
    runtime_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readers, found, shown = [], [], []

    def look() -> None:
        readers.append(PoolReader(only_pool()))
        found.append(numbers(capsys))
        assert main(["top", "--once", "--interval", "0.01"]) == 0
        shown.append(capsys.readouterr().out)

    show_starts_after(0.1, monkeypatch)
    options = PoolOptions(num_workers=1, context="fork")
    engine = ShardedEngine([NullEnv] * 4, options, carrier=ShowsStart(look), num_shards=2, adapt=adapt_and_build)
    with Pool(engine) as pool:
        pool.start()
        (first,), (screen,), (reader,), after = found, shown, readers, numbers(capsys)
        assert reader.read().num_steps == 0 and reader.pool.name == after["name"] == "NullEnv"
    assert (first["is_starting"], after["is_starting"], first["name"]) == (True, False, "")
    assert [(one["state"], one["pid"]) for one in first["shards"]] == [("ready", os.getpid()), ("waiting", 0)]
    assert [one["env_ids"] for one in first["shards"]] == [[0, 1], [2, 3]]
    assert ", starting: 4 x env, up" in screen and re.search(r"^ +1 +- +- +2-3 +waiting ", screen, re.MULTILINE)
    assert list(runtime_folder.iterdir()) == []


@pytest.mark.extended
def test_file_of_a_pool_whose_shards_do_not_start_vanishes(runtime_folder: Path) -> None:
    options = PoolOptions(num_workers=1, context="fork", limits=Limits(construct=0.1))
    carrier = ModelCarrier()
    carrier.missing = "2 CPUs"
    pool = Pool(ShardedEngine([NullEnv] * 2, options, carrier=carrier, num_shards=2, adapt=adapt_and_build))
    with pytest.raises(ConfigError, match="found no place"):
        pool.start()
    assert list(runtime_folder.iterdir()) == []


@pytest.mark.extended
def test_pool_of_shards_without_monitor_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalPool([NullEnv] * 2, monitor=False) as pool:
        pool.start()
        pool.reset(seeds=range(2))
        pool.recv()
        assert "no pool of this user is running" in fails(capsys, "--json")


# ---- targets ----------------------------------------------------------------------------------


@pytest.mark.extended
def test_top_without_pools_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no pool of this user is running" in fails(capsys, "--json")
    assert f"process {os.getpid()} has no pool" in fails(capsys, str(os.getpid()), "--json")
    with stepped(0, num_workers=1, engine={"monitor": False}), stepped(0, backend="serial", engine={"monitor": False}):
        assert "monitor=False" in fails(capsys, str(os.getpid()), "--json")
    assert "there is no process 4194305" in fails(capsys, "4194305", "--json")  # above the largest pid of Linux


def test_top_lists_several_pools(capsys: pytest.CaptureFixture[str]) -> None:
    with stepped(num_workers=1), stepped(num_steps=1, backend="serial"):
        first, second = (pool.number for pool in running_pools())
        assert main(["top", "--once"]) == 0
        out = capsys.readouterr().out
        assert f"vecenv top {os.getpid()} --pool {first}    4 x ShortEpisodes, process" in out
        assert f"vecenv top {os.getpid()} --pool {second}    4 x ShortEpisodes, serial" in out
        assert "2 pools are running" in fails(capsys, "--json")
        assert numbers(capsys, "--pool", str(second))["steps"] == 4
        assert numbers(capsys, str(os.getpid()), "--pool", str(first))["steps"] == 20
        assert "has no pool 99999" in fails(capsys, str(os.getpid()), "--pool", "99999", "--json")


def test_top_refuses_processes_of_other_users(capsys: pytest.CaptureFixture[str]) -> None:
    if os.getuid() != 0:
        assert "belongs to another user (uid 0)" in fails(capsys, "1", "--json")
        return
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=65534) as process:
        assert "belongs to another user (uid 65534)" in fails(capsys, str(process.pid), "--json")
        process.communicate()


@pytest.mark.extended
def test_top_refuses_another_layout(runtime_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stepped(num_workers=1) as envs:
        (file,) = runtime_folder.iterdir()
        content = json.loads(file.read_text())
        file.write_text(json.dumps({**content, "layout": 0}))
        assert f"layout 0, this version reads layout {COUNTERS_VERSION}" in fails(capsys, str(os.getpid()), "--json")
        assert "no pool of this user" in fails(capsys, "--json")
        file.write_text(json.dumps(content))
        header = opened_envs(envs.pool).plan.counters.header(opened_envs(envs.pool).counters)
        for at, value in ((0, 1), (1, 0), (2, -1), (3, 5), (4, 1 << 60), (11, 64)):
            before, header[at] = int(header[at]), value
            assert "its counters are broken" in fails(capsys, "--json")
            header[at] = before
        assert numbers(capsys)["steps"] == 20


def test_top_opens_only_the_memory_that_the_file_names(
    runtime_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stepped(num_workers=1):
        (file,) = runtime_folder.iterdir()
        content = json.loads(file.read_text())
        for change in ({"descriptor": 0}, {"descriptor": 99999}, {"inode": 1}, {"device": True}, {"name": None}):
            file.write_text(json.dumps({**content, **change}))
            assert "has no pool" in fails(capsys, str(os.getpid()), "--json")
        file.write_text(json.dumps(content)[:-9])
        assert "has no pool" in fails(capsys, str(os.getpid()), "--json")


# ---- owners -----------------------------------------------------------------------------------


@contextlib.contextmanager
def owner() -> Iterator[subprocess.Popen[str]]:
    """Run a process with a pool; it closes the pool when its input ends."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.extended
def test_top_reads_a_stopped_owner_and_ends_with_the_pool(
    runtime_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with owner() as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert numbers(capsys)["owner_state"] == "stopped"
        command = [sys.executable, "-m", "vecenv", "top", str(process.pid), "--json", "--interval", "0.05"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as top:
            assert top.stdout is not None
            assert json.loads(top.stdout.readline())["pid"] == process.pid
            process.send_signal(signal.SIGCONT)
            process.communicate()
            _, err = top.communicate()
        assert (top.returncode, err) == (1, f"vecenv top: the pool of process {process.pid} has ended\n")
    assert list(runtime_folder.iterdir()) == []


@pytest.mark.extended
@pytest.mark.parametrize("reader", ["top", "pool"])
def test_file_of_a_killed_owner_vanishes(reader: str, runtime_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with owner() as process:
        (file,) = runtime_folder.iterdir()
        process.kill()
        process.wait()
        assert file.exists()
        if reader == "top":
            assert "no pool of this user is running" in fails(capsys, "--json")
        else:
            stepped(0, backend="serial").close()
        assert not file.exists()


@pytest.mark.extended
def test_forked_child_keeps_the_file(runtime_folder: Path) -> None:
    with stepped(num_workers=1) as envs, stepped(0, backend="serial") as serial:
        pid = os.fork()
        if pid == 0:
            envs.close()
            serial.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(list(runtime_folder.iterdir())) == 2 and len(running_pools()) == 2
    assert list(runtime_folder.iterdir()) == []


@pytest.mark.extended
def test_file_of_garbage_vanishes(runtime_folder: Path) -> None:
    envs = stepped(0, backend="serial")
    assert len(list(runtime_folder.iterdir())) == 1
    del envs
    gc.collect()
    assert list(runtime_folder.iterdir()) == []


# ---- reading ----------------------------------------------------------------------------------


def only_pool() -> PoolFile:
    (pool,) = running_pools()
    return pool


@pytest.mark.extended
def test_thousand_readers_leave_nothing() -> None:
    with stepped(num_workers=2):
        pool = only_pool()

        def attach() -> None:
            assert PoolReader(pool).read().num_steps == 20

        def held() -> tuple[int, int]:
            return len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_text().splitlines())

        attach()
        before = held()
        for _ in range(1000):
            attach()
        assert held() == before


def test_reader_cannot_write() -> None:
    with stepped(num_workers=1):
        reader = PoolReader(only_pool())
        with pytest.raises(ValueError, match="read-only"):
            reader._workers["pid"][0] = 1


@pytest.mark.parametrize(
    "name, value",
    [
        ("num_steps", -1),
        ("num_steps", 1 << 40),
        ("step_ns", -5),
        ("step_ns", 1 << 62),
        ("max_reset_ns", -(1 << 63)),
        ("step_buckets", -1),
        ("step_buckets", 1 << 50),
    ],
)
def test_broken_counters_of_an_env_are_not_shown(name: str, value: int, capsys: pytest.CaptureFixture[str]) -> None:
    with stepped(num_workers=1) as envs:
        timings = timings_of(envs.pool)
        assert timings is not None
        timings[name][2] = value
        found = numbers(capsys)
        assert [env["num_steps"] for env in found["envs"]] == [5, 5, 0, 5]
        assert found["envs"][2]["mean"] is found["envs"][2]["p99"] is found["envs"][2]["max"] is None
        assert main(["top", "--once", "--interval", "0.01"]) == 0


@pytest.mark.parametrize(
    "change",
    [{"op": 77}, {"env_id": 4}, {"env_id": 3}, {"started_ns": 0}, {"started_ns": 1 << 61}],
    ids=str,
)
def test_broken_operations_are_not_shown(change: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    with stepped(num_workers=2) as envs:
        envs_of_pool = opened_envs(envs.pool)
        is_native = envs_of_pool.implementation == "native"
        slots = envs_of_pool.plan.counters.slots(envs_of_pool.counters, is_native=is_native)
        slots["env_id"][0], slots["op"][0] = 1, Op.STEP
        assert numbers(capsys)["envs"][1]["doing"] == "step"
        for name, value in change.items():
            slots[name][0] = value
        assert [env["doing"] for env in numbers(capsys)["envs"]] == ["idle"] * 4
        slots["op"][0] = Op.NONE


def test_operation_that_changes_while_it_is_read_is_read_again() -> None:
    with stepped(num_workers=1):
        reader = PoolReader(only_pool())
        slots = reader._slots.copy()
        slots["op"][0], slots["step_id"][0], slots["env_id"][0] = Op.STEP, 1000, 2
        slots["started_ns"][0] = 1

        class Changing:
            """The slots of a worker that begins the next operation while the first one is read."""

            num_reads = 0

            def __len__(self) -> int:
                return len(slots)

            def __getitem__(self, name: str) -> Any:
                self.num_reads += 1
                if self.num_reads == 4:  # before the start of the first one is read
                    slots["started_ns"][0], slots["env_id"][0] = now_ns(), 3
                    slots["step_id"][0], slots["op"][0] = 1001, Op.RESET
                return slots[name]

        reader._slots = Changing()
        found = reader._read_slots(reader._slot_of_env)
        assert (found["operations"][0], found["current_envs"][0]) == ("reset", 3) and found["since"][0] < 60.0


# ---- stacks -----------------------------------------------------------------------------------


def test_stack_is_not_requested_of_another_process() -> None:
    with stepped(num_workers=1) as envs:
        reader = PoolReader(only_pool())
        table = opened_envs(envs.pool).plan.counters.workers(opened_envs(envs.pool).counters)
        (worker,) = reader.read().workers
        assert "serve" in reader.request_stack(worker) or "no stack" not in reader.request_stack(worker)
        table["started"][0] += 1  # the pid now seems to belong to another process
        (worker,) = reader.read().workers
        assert "another process" in reader.request_stack(worker)


# ---- the screen -------------------------------------------------------------------------------

_CARTPOLE = gymnasium.make("CartPole-v1")


class LikeCartPole(gymnasium.Env):
    observation_space, action_space = _CARTPOLE.observation_space, _CARTPOLE.action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(4, np.float32), 1.0, False, False, {}


class Sleeper(LikeCartPole):
    def step(self, action: Any) -> Any:
        time.sleep(0.002)
        return super().step(action)


class Hanging(LikeCartPole):
    def step(self, action: Any) -> Any:
        threading.Event().wait()


class Terminal:
    """A program under a pseudo terminal of 40 lines of 120 characters."""

    def __init__(self, *command: str) -> None:
        self.fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True
        )
        os.close(theirs)
        self.text = ""

    def wait_for(self, pattern: str, meanwhile: Callable[[], object]) -> re.Match[str]:
        """Wait until the text since the last call contains a pattern; call `meanwhile` again and again."""
        deadline = Deadline(60.0)
        while not deadline.is_over():
            meanwhile()
            while select.select([self.fd], [], [], 0.0)[0]:
                self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(self.fd, 1 << 16).decode())
            found = re.search(pattern, self.text)
            if found is not None:
                self.text = self.text[found.end() :]
                return found
        raise AssertionError(f"{pattern!r} is not in {self.text[-4000:]}")

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def end(self) -> tuple[int, str]:
        """Read until the program has ended; return its exit code and standard error."""
        with contextlib.suppress(OSError):  # EIO: no process has the terminal open
            while os.read(self.fd, 1 << 16):
                pass
        assert self.process.stderr is not None
        return self.process.wait(20), self.process.stderr.read()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self.fd)


@pytest.mark.extended
def test_screen_of_cartpoles_sleepers_and_a_hanging_env() -> None:
    env_fns = [functools.partial(gymnasium.make, "CartPole-v1")] * 64 + [Sleeper] * 16 + [Hanging]
    with VectorEnv(env_fns, num_workers=27, batch_size=64, timeouts={"close": 0.1}) as envs:
        envs.async_reset(seed=0)
        ids = envs.recv(81)[4]["env_id"]
        envs.send(np.zeros(81, np.int64), ids)

        def step() -> None:
            ids = envs.recv()[4]["env_id"]
            envs.send(np.zeros(len(ids), np.int64), ids)

        screen = Terminal(sys.executable, "-m", "vecenv", "top", str(os.getpid()), "--interval", "0.2")
        try:
            hanging = r" 80 +26 +step +[\d.]+ m?s +0 "
            screen.wait_for(r"81 x CartPole-v1, up", step)
            screen.wait_for(r"[1-9][\d,]* steps/s", step)
            screen.wait_for(r"episodes [1-9][\d,]*, mean return \d+", step)
            screen.wait_for(rf" 26 +{envs.worker_pids[26]} +78-80 +\d+% +\d+ MiB +running", step)
            screen.wait_for(r"env +worker +doing[^\n]*\n" + hanging, step)  # the slowest one is the first
            assert re.search(r" (6[4-9]|7\d) +2\d +(step|idle) +", screen.wait_for(r"(.|\n)*quit", step)[0])
            screen.press("s")
            screen.wait_for(r"sorted by mean", step)
            screen.press("d26\r")
            found = screen.wait_for(
                r"SIGRTMAX-2 was sent to worker 26, pid (\d+); its Python stacks(.|\n)*in step", step
            )
            assert int(found[1]) == envs.worker_pids[26]
            assert psutil.pid_exists(envs.worker_pids[26])
            screen.press("d99\r")
            screen.wait_for(r"there is no such worker", step)
            screen.press("q")
            assert screen.end() == (0, "")
        finally:
            screen.close()


@pytest.mark.extended
def test_screen_of_shards_shows_their_envs_at_a_key() -> None:
    with LocalPool([NullEnv] * 5) as pool:
        pool.start()
        pool.reset(seeds=range(5))
        pool.recv()
        screen = Terminal(sys.executable, "-m", "vecenv", "top", str(os.getpid()), "--interval", "0.05")

        def step() -> None:
            pool.step(np.zeros(5, np.int64))

        try:
            screen.wait_for(r"5 x NullEnv, up", step)
            screen.wait_for(r"shard +node +pid[^\n]*\n +0 +- +\d+ +0-2 +serving +0 +0 +[1-9][\d,]* +[\d.]+ .?s", step)
            screen.press("e")
            screen.wait_for(
                r"shard +worker +pid +envs[^\n]*\n +\d +0 +\d+ +(0-2|3-4) +[\d-]+%? +\d+ MiB +running", step
            )
            screen.wait_for(r"env +shard +worker +doing", step)
            screen.wait_for(r" 4 +1 +0 +(asked|idle|step) +[^ ]+( .?s)? +[1-9][\d,]* ", step)
            screen.press("s")
            screen.wait_for(r"s sort \(mean\)   e shards   q quit", step)
            screen.press("e")
            screen.wait_for(r"shard +node +pid", step)
            screen.press("q")
            assert screen.end() == (0, "")
        finally:
            screen.close()


@pytest.mark.extended
def test_screen_ends_with_the_pool() -> None:
    with owner() as process:
        screen = Terminal(sys.executable, "-m", "vecenv", "top", str(process.pid), "--interval", "0.05")
        try:
            screen.wait_for("steps/s", lambda: None)
            process.communicate()
            assert screen.end() == (1, f"vecenv top: the pool of process {process.pid} has ended\n")
        finally:
            screen.close()


@pytest.mark.extended
def test_screen_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with stepped(0, num_workers=1):
        assert "use --once or --json" in fails(capsys)


# ---- titles -----------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_workers_have_titles(context: str) -> None:
    with stepped(num_workers=2, context=context) as envs:
        for _ in range(2):
            for worker_id, pid in enumerate(envs.worker_pids):
                title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
                expected = f"vecenv worker {worker_id}: envs {2 * worker_id}-{2 * worker_id + 1}"
                assert title and expected.startswith(title) and (context == "fork" or title == expected)
                assert Path(f"/proc/{pid}/comm").read_text() == f"vecenv worker {worker_id}\n"
            os.kill(envs.worker_pids[1], signal.SIGKILL)
            envs.step(np.zeros(4, np.int64))
