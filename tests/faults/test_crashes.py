"""Crashes and hangs, injected for real: the error names worker, env, phase and signal; never a hang."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import itertools
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces

from tests.faults.traces import kill
from tests.inside import hub_of
from vecenv.core.layout.flags import Op
from vecenv.core.layout.native import load
from vecenv.core.options import Limits, PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.envs import toys
from vecenv.errors import EnvError, StateError, WorkerDiedError, WorkerTimeoutError

OpenPool = Callable[..., ProcessPool]

#: Seconds that only an env which hangs needs, even on a busy machine.
LIMITS = Limits(construct=60.0, reset=1.0, step=1.0, call=1.0, close=1.0)

#: env, the phase of the fault, the error, a pattern of its text
CRASHES = [
    (toys.SegfaultAtInit, "construct", WorkerDiedError, "SIGSEGV"),
    (toys.ExitAtInit, "construct", WorkerDiedError, "exit code 3"),
    (toys.HangAtInit, "construct", WorkerTimeoutError, "did not finish construct"),
    (toys.SegfaultAtReset, "reset", WorkerDiedError, "SIGSEGV"),
    (toys.ExitAtReset, "reset", WorkerDiedError, "exit code 3"),
    (toys.HangAtReset, "reset", WorkerTimeoutError, "within 1.0 s"),
    (toys.SegfaultAtStep, "step", WorkerDiedError, "SIGSEGV"),
    (toys.ExitAtStep, "step", WorkerDiedError, "exit code 3"),
    (toys.HangAtStep, "step", WorkerTimeoutError, "within 1.0 s"),
    (toys.HangInC, "step", WorkerTimeoutError, "within 1.0 s"),
    (toys.StopSelf, "step", WorkerTimeoutError, "within 1.0 s"),
]


@pytest.fixture(params=["native", "python"])
def open_pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPool]:
    """Make process pools of four envs in two workers; close them after the test."""
    if request.param == "native" and load() is None:
        pytest.skip("the extension was not built")
    monkeypatch.setenv("VECENV_IMPLEMENTATION", request.param)
    pools: list[ProcessPool] = []

    def make(env_fns: list[Any], **options: Any) -> ProcessPool:
        limits = options.pop("limits", LIMITS)
        pool = ProcessPool(env_fns, PoolOptions(**{"num_workers": 2, "limits": limits, **options}))
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()
    pools.clear()


def wait_for_end(pids: Sequence[int]) -> None:
    """Wait until these processes have ended, reaped or not."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            select.select([descriptor], [], [], 30)
            os.close(descriptor)


def count() -> toys.CountEnv:
    return toys.CountEnv(100)


def run(pool: ProcessPool, steps: int = 3) -> None:
    pool.start()
    pool.reset()
    pool.recv().raise_errors()
    for _ in range(steps):
        pool.send(np.zeros(pool.num_envs, np.int64))
        pool.recv().raise_errors()


@pytest.mark.parametrize(("fault", "op", "error", "text"), CRASHES, ids=[crash[0].__name__ for crash in CRASHES])
def test_crash_error_names_worker_env_phase_and_signal(
    fault: Any, op: str, error: Any, text: str, open_pool: OpenPool
) -> None:
    limits = dataclasses.replace(LIMITS, construct=5.0) if fault is toys.HangAtInit else LIMITS
    pool = open_pool([count, count, count, functools.partial(fault, 1)], limits=limits)
    with pytest.raises(error, match=text) as caught:
        run(pool)
    assert caught.value.worker_id == 1 and caught.value.op == op
    assert "worker 1 (envs 2-3)" in str(caught.value)
    assert "env 3" in str(caught.value)
    if op != "construct":
        assert caught.value.env_ids == (3,)
    if error is WorkerTimeoutError:
        assert isinstance(caught.value, TimeoutError)
    assert (op == "construct") == pool.closed


def test_constructor_that_exits_is_an_error_of_its_env(open_pool: OpenPool) -> None:
    """The exit of a script used as an env must end neither the worker nor the program."""
    pool = open_pool([count, count, functools.partial(toys.RaiseSystemExit, moment="construct"), count])
    with pytest.raises(EnvError, match=r"construct of env 2 raised builtins.SystemExit: 3") as caught:
        pool.start()
    assert (caught.value.worker_id, caught.value.env_ids, caught.value.op) == (1, (2,), "construct")


@pytest.mark.extended
@pytest.mark.parametrize("fault", [toys.SegfaultAtStep, toys.HangInC, toys.StopSelf, toys.ExitAtStep])
def test_survivors_keep_their_answers_and_a_restarted_worker_works(
    fault: Any, open_pool: OpenPool, tmp_path: Any
) -> None:
    once = functools.partial(fault, 2, once=tmp_path / "struck")
    pool = open_pool([count, count, count, once])
    pool.start()
    pool.reset()
    pool.recv().raise_errors()
    pool.send(np.zeros(4, np.int64))
    pool.recv().raise_errors()
    pool.send(np.zeros(4, np.int64))
    with pytest.raises((WorkerDiedError, WorkerTimeoutError)):
        pool.recv()
    with pytest.raises((WorkerDiedError, WorkerTimeoutError)):
        pool.recv()  # still no hang
    before = pool.worker_pids
    pool.restart(1)
    assert pool.worker_pids[0] == before[0] and pool.worker_pids[1] != before[1]
    if pool.outstanding():
        batch = pool.recv()
        assert batch.env_ids.tolist() == [0, 1] and batch.lengths.tolist() == [2, 2]
    pool.reset([2, 3])
    assert pool.recv().lengths.tolist() == [0, 0]
    for step in (1, 2, 3):
        pool.send(np.zeros(4, np.int64))
        batch = pool.recv()
        batch.raise_errors()
        assert batch.lengths.tolist() == [2 + step, 2 + step, step, step]


@pytest.mark.extended
@pytest.mark.parametrize("ordered", [True, False])
def test_worker_killed_from_outside_is_named(ordered: bool, open_pool: OpenPool) -> None:
    pool = open_pool([count] * 3 + [functools.partial(toys.HangAtStep, 1)], limits=Limits(close=0.3))
    pool.start()
    pool.reset()
    pool.recv()
    pool.send(np.zeros(4, np.int64), ordered=ordered)
    os.kill(pool.worker_pids[1], signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="SIGKILL") as caught:
        while pool.outstanding():
            pool.recv(min_count=1)
            assert pool.outstanding() >= 1
    assert caught.value.exitcode == -signal.SIGKILL


@pytest.mark.extended
def test_idle_worker_killed_is_found_at_the_next_use(open_pool: OpenPool) -> None:
    pool = open_pool([count] * 4)
    run(pool)
    kill(pool, 0)
    pool.send(np.zeros(4, np.int64))
    with pytest.raises(WorkerDiedError, match="worker 0"):
        pool.recv()


@pytest.mark.extended
def test_death_during_a_call_is_named(open_pool: OpenPool) -> None:
    pool = open_pool([count] * 4)
    run(pool)
    with pytest.raises(WorkerDiedError, match=r"worker 0 .* died during call"):
        pool.call(lambda env: os.kill(os.getpid(), signal.SIGKILL), [1])


@pytest.mark.extended
def test_recv_timeout_is_not_the_step_limit(open_pool: OpenPool) -> None:
    pool = open_pool([count, count, count, functools.partial(toys.HangAtStep, 1)], limits=Limits(close=0.3))
    pool.start()
    pool.reset()
    pool.recv()
    pool.send(np.zeros(4, np.int64))
    with pytest.raises(WorkerTimeoutError, match="step of env 3"):
        pool.recv(timeout=0.1)
    assert pool.outstanding() == 4
    with pytest.raises(StateError, match="owes"):
        pool.send(np.zeros(4, np.int64))


@pytest.mark.extended
def test_envs_of_a_worker_are_timed_one_by_one(open_pool: OpenPool) -> None:
    slow = functools.partial(toys.BusyEnv, 200_000.0)
    pool = open_pool([slow] * 6, num_workers=1)
    run(pool, 2)  # six envs of 200 ms in one worker: 1.2 s a round, none over its limit of 1 s


class BigRows(toys.NullEnv):
    """Rows so large that a worker spends nearly all its time between claim and commit."""

    def __init__(self) -> None:
        super().__init__(None)
        self.observation_space = spaces.Box(0, 255, (1 << 21,), np.uint8)
        self._big = np.zeros(1 << 21, np.uint8)

    def reset(self, **kwargs: Any) -> Any:
        self._count = 0
        return self._big, {}

    def step(self, action: Any) -> Any:
        self._count += 1
        self._big[::4099] = self._count % 251  # this part is checked; the other pages make the copy large
        return self._big, float(self._count), False, False, {}


@pytest.mark.extended
@pytest.mark.native
def test_worker_stopped_between_claim_and_commit_blocks_no_others_and_loses_nothing() -> None:
    """SIGSTOP inside the copy, three times around the ring and more, SIGCONT; no torn row, none lost."""
    if load() is None:
        pytest.skip("the extension was not built")
    pool = ProcessPool([BigRows] * 3, PoolOptions(num_workers=2, limits=Limits(close=2.0)))
    with pool:
        pool.start()
        pool.reset()
        pool.recv()
        counts = np.zeros(3, np.int64)
        pool.send(np.zeros(3, np.int64), ordered=False)

        def turn() -> list[int]:
            batch = pool.recv(min_count=1)
            ids = batch.env_ids.copy()
            counts[ids] += 1
            np.testing.assert_array_equal(batch.rewards, counts[ids])  # each one once, and in order
            for row, env_id in enumerate(ids.tolist()):
                assert (batch.obs[row, ::4099] == counts[env_id] % 251).all(), "a torn row"
            pool.send(np.zeros(len(ids), np.int64), ids, ordered=False)
            return ids.tolist()

        hits, give_up = 0, time.monotonic() + 60.0
        for attempt in itertools.count():
            while 2 not in turn():
                pass
            deadline = time.monotonic() + 1e-3 * (attempt % 4)
            while hub_of(pool).state(1).op != Op.STEP and time.monotonic() < deadline:
                pass  # nearly all of a step is its copy
            os.kill(pool.worker_pids[1], signal.SIGSTOP)
            before = counts.copy()
            turn()
            if hub_of(pool).num_stragglers():
                hits += 1
                for _ in range(40):  # the ring has 12 blocks
                    turn()
                assert (counts - before)[:2].sum() >= 40, "the other worker goes on"
            os.kill(pool.worker_pids[1], signal.SIGCONT)
            if hits == 3 or time.monotonic() > give_up:
                break
        assert hits, "no stop fell between claim and commit: the test shows nothing"
        pool.recv()
        assert pool.outstanding() == 0


def children_of(pool: ProcessPool) -> list[psutil.Process]:
    return [child for pid in pool.worker_pids for child in psutil.Process(pid).children(recursive=True)]


@pytest.mark.extended
@pytest.mark.parametrize("end", ["segfault", "hang"])
def test_processes_started_by_an_env_end_with_its_worker(end: str, open_pool: OpenPool) -> None:
    pool = open_pool([functools.partial(toys.SpawnsChild, tidy=False), count], limits=Limits(call=0.3, close=0.3))
    run(pool, 1)
    children = children_of(pool)
    assert len(children) == 1
    if end == "segfault":
        with pytest.raises(WorkerDiedError, match="SIGSEGV"):
            pool.call(lambda env: ctypes.string_at(0), [0])
    else:
        with pytest.raises(WorkerTimeoutError):
            pool.call(lambda env: threading.Event().wait(), [0])
        pool.close()
    assert psutil.wait_procs(children, timeout=30)[1] == []


@pytest.mark.extended
@pytest.mark.usefixtures("patient_stacks")
def test_env_that_hangs_in_close_is_named(open_pool: OpenPool, caplog: pytest.LogCaptureFixture) -> None:
    pool = open_pool([count, count, count, functools.partial(toys.HangAtStep, moment="close")])
    run(pool, steps=1)
    with caplog.at_level("WARNING", logger="vecenv"):
        pool.close()
    (record,) = caplog.records
    assert "worker 1 (envs 2-3) did not finish close of env 3 within 1 s" in record.getMessage()
    assert "in close" in record.getMessage()  # its Python stack


def test_env_that_dies_in_close_is_named(open_pool: OpenPool, caplog: pytest.LogCaptureFixture) -> None:
    pool = open_pool([count, count, count, functools.partial(toys.SegfaultAtStep, moment="close")])
    run(pool, steps=1)
    with caplog.at_level("WARNING", logger="vecenv"):
        pool.close()
    (record,) = caplog.records
    assert "worker 1 (envs 2-3) died during close of env 3: killed by SIGSEGV" in record.getMessage()


@pytest.mark.extended
def test_workers_that_die_in_one_step_are_all_named(open_pool: OpenPool) -> None:
    pool = open_pool([toys.ExitAtStep] * 4)
    run(pool, steps=0)
    pool.send(np.zeros(4, np.int64))
    wait_for_end(pool.worker_pids)
    with pytest.raises(WorkerDiedError) as caught:
        pool.recv()
    (note,) = caught.value.__notes__
    assert sorted(text.partition(" (")[0] for text in (str(caught.value), note)) == ["worker 0", "worker 1"]


@pytest.mark.extended
def test_envs_over_their_limit_are_all_named(open_pool: OpenPool) -> None:
    pool = open_pool([toys.HangAtStep] * 2)
    run(pool, steps=0)
    pool.send(np.zeros(2, np.int64))
    began = [0, 0]
    while not all(began):
        began = [hub_of(pool).state(slot).started_ns for slot in range(2)]
        os.sched_yield()
    while time.monotonic_ns() < max(began) + 1.2e9 * pool.options.limits.step:  # the parent does not poll
        os.sched_yield()
    with pytest.raises(WorkerTimeoutError, match=r"step of env 0 \(command 3\) within") as caught:
        pool.recv()
    (note,) = caught.value.__notes__
    assert "step of env 1 (command 4) within" in note
