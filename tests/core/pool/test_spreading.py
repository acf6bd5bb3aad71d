"""Envs that wait move to further workers by themselves; their answers stay the same."""

from __future__ import annotations

import functools
import os
import resource
import signal
import time
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import kill, play, recovering_pool, undisturbed
from tests.inside import force_spreading, opened_envs, timings_of
from vecenv import PerformanceWarning, VectorEnv
from vecenv.core.layout.flags import Autoreset
from vecenv.core.pool import process
from vecenv.core.processes.worker_group import WorkerGroup
from vecenv.envs import toys
from vecenv.errors import ConfigError


class LoggingEnv(toys.ToyEnv):
    """Appends its constructions and closes, with the process in which they happen, to a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.write("built")

    def write(self, what: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")

    def close(self) -> None:
        self.write("closed")


class BadCloseEnv(LoggingEnv):
    """Raises when it is closed, after it has noted that."""

    def close(self) -> None:
        super().close()
        raise OSError("the license server does not answer")


class OnceEnv(toys.CountEnv):
    """Raises at its second construction, or ends its process there; a file counts the constructions."""

    def __init__(self, path: Path, sign: int = 0) -> None:
        super().__init__(5)
        with path.open("a") as file:
            file.write("x")
        if path.stat().st_size == 2:
            if sign:
                os.kill(os.getpid(), sign)
            raise OSError("the port is in use")


class AlarmError(Exception):
    """Raised by the handler of a signal."""


class SignalingEnv(toys.CountEnv):
    """Sends a signal to the program at its second construction; a file counts the constructions."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(5)
        with path.open("a") as file:
            file.write("x")
        if path.stat().st_size == 2:
            os.kill(pid, signal.SIGUSR1)


class DriftingEnv(toys.ToyEnv):
    """Gives other observations in each process."""

    def step(self, action: Any) -> Any:
        obs, *others = super().step(action)
        return (obs + os.getpid() % 1000, *others)


def count_env_fns() -> list[Any]:
    return [functools.partial(toys.CountEnv, 3 + i % 4) for i in range(6)]


def with_files(kind: Any, folder: Path, num_envs: int = 4, **kwargs: Any) -> list[Any]:
    return [functools.partial(kind, folder / str(i), **kwargs) for i in range(num_envs)]


# ---- the verdict -----------------------------------------------------------------------------


def test_envs_that_wait_get_workers_of_their_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "usable_cores", lambda: 2)
    with VectorEnv([functools.partial(toys.FixedSleepEnv, 2.0)] * 6) as envs, caplog.at_level("INFO", "vecenv"):
        assert len(envs.worker_pids) == 2
        envs.reset(seed=0)
        actions, until = np.zeros(6, np.int64), time.monotonic() + 60
        while len(envs.worker_pids) < 6 and time.monotonic() < until:
            envs.step(actions)
        assert len(set(envs.worker_pids)) == 6
        for _ in range(3):
            envs.step(actions)
        statistics = envs.statistics()
    assert "6 workers for 6 envs" in statistics.choice
    assert (statistics.restarts, statistics.workers_added, statistics.truncated) == (0, 4, 0)
    assert any("further workers, because the envs wait" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("num_workers", [2, "auto"])
def test_given_number_of_workers_is_kept(num_workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    force_spreading(monkeypatch, 0)
    with recovering_pool(count_env_fns(), num_workers=num_workers) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        pool.start()
        num_at_start = len(pool.worker_pids)
        play(pool, 5, start=False)
        assert len(pool.worker_pids) == num_at_start


@pytest.mark.parametrize("reason", ["not deterministic", "a constructor takes", "limited by descriptors"])
def test_envs_stay_with_a_warning_that_says_why(reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    force_spreading(monkeypatch, 1)
    with recovering_pool(count_env_fns(), num_workers=None) as pool:
        pool.start()
        if reason == "not deterministic":
            spec = types.SimpleNamespace(nondeterministic=True)
            monkeypatch.setitem(opened_envs(pool).properties, "spec", spec)
        elif reason == "a constructor takes":
            timings_of(pool)["construct_ns"] = 100e9
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if "descriptors" in reason:
                resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 5, hard))
            try:
                play(pool, 5, start=False)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(pool.worker_pids) == 2
    (warning,) = caught
    assert warning.category is PerformanceWarning and reason in str(warning.message)


def test_little_shared_memory_leaves_slots_for_few_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_little(group: WorkerGroup, nbytes: int) -> Any:
        asked.append(nbytes)
        if len(asked) == 1:
            raise ConfigError("too little shared memory")
        return create(group, nbytes)

    asked: list[int] = []
    create = WorkerGroup.create_segment
    force_spreading(monkeypatch, 1)
    monkeypatch.setattr(WorkerGroup, "create_segment", create_little)
    with recovering_pool([functools.partial(toys.CountEnv, 5)] * 20, num_workers=None) as pool:
        play(pool, 8)
        assert len(pool.worker_pids) == 10
    assert len(asked) == 2 and asked[1] < asked[0]


# ---- the move --------------------------------------------------------------------------------


@pytest.mark.parametrize("autoreset", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP], ids=lambda mode: mode.name)
@pytest.mark.parametrize("after", [0, 1, 4, 9])
def test_answers_of_moved_envs_are_the_same(after: int, autoreset: Autoreset, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(count_env_fns(), 20, autoreset=autoreset)
    force_spreading(monkeypatch, after)
    with recovering_pool(count_env_fns(), num_workers=None, autoreset=autoreset) as pool:
        traces = play(pool, 20)
        assert len(pool.worker_pids) == 6
    assert traces.rows == expected.rows and not any(traces.marks)


def test_envs_that_are_stepped_one_by_one_move_between_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(count_env_fns(), 20)
    force_spreading(monkeypatch, 3)
    with recovering_pool(count_env_fns(), num_workers=None) as pool:
        traces = play(pool, 20, in_order=False)
        assert len(pool.worker_pids) == 6
    assert traces.rows == expected.rows and not any(traces.marks)


def test_env_is_closed_before_it_is_built_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    force_spreading(monkeypatch, 2)
    with recovering_pool(with_files(LoggingEnv, tmp_path), num_workers=None) as pool:
        play(pool, 10)
        pids = pool.worker_pids
    for env_id in range(4):
        lines = [line.split() for line in (tmp_path / str(env_id)).read_text().splitlines()]
        expected = ["built", "closed"] if env_id % 2 == 0 else ["built", "closed", "built", "closed"]
        assert [what for what, _ in lines] == expected
        assert int(lines[-1][1]) in pids and len({pid for _, pid in lines}) == len(expected) // 2


def test_exception_of_close_is_logged_and_the_env_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = undisturbed([toys.ToyEnv] * 4, 10)
    force_spreading(monkeypatch, 2)
    pool = recovering_pool(with_files(BadCloseEnv, tmp_path), num_workers=None)
    traces = play(pool, 10)
    assert len(pool.worker_pids) == 4 and traces.rows == expected.rows
    assert sum("license server" in record.getMessage() for record in caplog.records) == 2
    with pytest.raises(OSError, match="license server"):
        pool.close()


@pytest.mark.parametrize("after", [1, 4])
def test_env_that_cannot_be_built_again_keeps_its_worker(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    env_fns = [functools.partial(toys.CountEnv, 5)] * 4
    expected = undisturbed(env_fns, 20)
    force_spreading(monkeypatch, after)
    moved = with_files(OnceEnv, tmp_path)
    with recovering_pool([env_fns[0], moved[1], env_fns[2], moved[3]], num_workers=None) as pool:
        traces = play(pool, 20)
        assert len(pool.worker_pids) == 2 and pool.statistics()["truncated"] == 0
    assert traces.rows == expected.rows and not any(traces.marks)
    assert [record.levelname for record in caplog.records if "the port is in use" in record.getMessage()] == ["WARNING"]


def test_worker_that_dies_while_it_builds_a_moved_env_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed([functools.partial(toys.CountEnv, 5)] * 4, 20)
    force_spreading(monkeypatch, 3)
    with recovering_pool(with_files(OnceEnv, tmp_path, sign=signal.SIGSEGV), num_workers=None) as pool:
        traces = play(pool, 20)
        assert len(pool.worker_pids) == 4
    assert traces.rows == expected.rows and not any(traces.marks)


def test_handler_that_raises_during_a_move_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ring(signum: int, frame: Any) -> None:
        raise AlarmError

    def call_again(call: Any, *args: Any) -> Any:
        try:
            return call(*args)
        except AlarmError:
            alarms.append(call.__name__)
            return call_again(call, *args)

    alarms: list[str] = []
    expected = undisturbed([functools.partial(toys.CountEnv, 5)] * 4, 20)
    force_spreading(monkeypatch, 3)
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with recovering_pool(with_files(SignalingEnv, tmp_path, pid=os.getpid()), num_workers=None) as pool:
            for name in ("send", "recv"):
                monkeypatch.setattr(pool, name, functools.partial(call_again, getattr(pool, name)))
            traces = play(pool, 20)
            assert len(pool.worker_pids) == 4
            monkeypatch.undo()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert alarms
    assert traces.rows == expected.rows and not any(traces.marks)


def test_only_the_first_env_moves_if_its_answers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    force_spreading(monkeypatch, 3)
    with recovering_pool([DriftingEnv] * 6, num_workers=None) as pool:
        traces = play(pool, 12)
        assert len(pool.worker_pids) == 3
        assert pool.statistics()["truncated"] == 1
    assert [len(marks) for marks in traces.marks].count(0) == 5


# ---- front ends and faults -------------------------------------------------------------------


def test_attributes_that_were_set_move_with_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    force_spreading(monkeypatch, 3)
    with VectorEnv(count_env_fns()) as envs:
        envs.reset(seed=1)
        envs.set_attr("title", [f"env {i}" for i in range(6)])
        for _ in range(8):
            envs.step(np.zeros(6, np.int64))
        assert len(envs.worker_pids) == 6
        assert envs.get_attr("title") == tuple(f"env {i}" for i in range(6))


@pytest.mark.parametrize("killed", range(4))
def test_killed_workers_of_moved_envs_lose_nothing(killed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill_one(pool: Any, number: int) -> None:
        if number in (2, 4, 5, 8, 12):
            kill(pool, killed % len(pool.worker_pids))

    expected = undisturbed(count_env_fns(), 20)
    force_spreading(monkeypatch, 4)
    with recovering_pool(count_env_fns(), num_workers=None) as pool:
        traces = play(pool, 20, kill_one)
        assert len(pool.worker_pids) == 6
    assert traces.rows == expected.rows
