"""Workers that are stopped while they wait for their parent, or before they begin: found, and no slow one is blamed."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from tests.faults.traces import kill, play, recovering_pool, stopped, undisturbed, wait_until
from tests.inside import engine_of, hub_of, waiter_of
from vecenv.core.layout.flags import Op
from vecenv.core.options import Limits
from vecenv.envs import toys
from vecenv.errors import WorkerTimeoutError

LARGE = 50_000_000
LIMITS = Limits(reset=1.0, step=1.0, call=1.0, close=0.5)


def stop(pool: Any, worker_id: int, *, between: bool = False) -> None:
    """Stop a worker; `between`: while no operation runs."""
    pid = pool.worker_pids[worker_id]
    if between:
        slots = [slot for slot in range(hub_of(pool).num_slots) if engine_of(pool).worker_of(slot) == worker_id]
        wait_until(lambda: all(hub_of(pool).state(slot).op == Op.NONE for slot in slots))
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


@contextlib.contextmanager
def raises_or_recovers(policy: str, text: str) -> Iterator[None]:
    if policy == "recover":
        yield
    else:
        with pytest.raises(WorkerTimeoutError, match=text):
            yield


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["recover", "raise"])
def test_worker_stopped_within_a_large_answer_is_late(policy: str, implementation: str) -> None:
    with recovering_pool([toys.CountEnv] * 2, limits=LIMITS, on_failure=policy) as pool:
        play(pool, 2)
        pool.submit_calls([lambda env: b"x" * LARGE] * 2)
        wait_until(lambda: all(hub_of(pool).state(slot).blocked for slot in range(2)))
        stop(pool, 1)
        with raises_or_recovers(policy, r"worker 1 .*did not finish call .*within 1\.0 s.*alive"):
            assert [len(answer) for answer in pool.collect_calls()] == [LARGE, LARGE]
            assert pool.statistics()["restarts"] == 1


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["recover", "raise"])
def test_worker_stopped_within_a_large_payload_is_late(policy: str, implementation: str) -> None:
    load_of = b"x" * LARGE
    text = "did not finish" if implementation == "native" else "has not begun"  # there, payloads come before operations
    options: dict[str, Any] = {"on_failure": policy, "max_log_bytes": 8 * LARGE}
    with recovering_pool([toys.CountEnv] * 2, limits=LIMITS, **options) as pool:
        play(pool, 2)
        wait_until(lambda: hub_of(pool).state(1).op == Op.NONE)
        with stopped(pool.worker_pids):
            pool.submit_calls([lambda env: len(load_of)] * 2)
        if implementation == "native":
            wait_until(lambda: bool(hub_of(pool).state(1).blocked))
        stop(pool, 1)
        with raises_or_recovers(policy, rf"worker 1 .*{text} call .*within 1\.0 s"):
            assert pool.collect_calls() == [LARGE, LARGE]
            assert pool.statistics()["restarts"] == 1


def test_wait_for_the_parent_excuses_a_worker_only_once(implementation: str) -> None:
    """A worker still marked as waiting would never be late, however long it hangs later."""
    with recovering_pool([toys.CountEnv], limits=LIMITS, num_workers=1) as pool:
        play(pool, 2)
        pool.submit_calls([lambda env: b"x" * LARGE])
        wait_until(lambda: bool(hub_of(pool).state(0).blocked))
        pool.collect_calls()
        wait_until(lambda: hub_of(pool).state(0).op == Op.NONE)
        assert not hub_of(pool).state(0).blocked


@pytest.mark.extended
def test_wait_for_a_payload_excuses_a_worker_only_once(implementation: str) -> None:
    """The same for a worker that has nothing to write."""
    with recovering_pool([toys.CountEnv], limits=LIMITS, num_workers=1, on_failure="raise") as pool:
        play(pool, 2)
        with stopped(pool.worker_pids):
            pool.reset(kwargs=[{"options": {"load": b"x" * LARGE}}])
        if implementation == "native":
            wait_until(lambda: bool(hub_of(pool).state(0).blocked))
        pool.recv()
        wait_until(lambda: hub_of(pool).state(0).op == Op.NONE)
        assert not hub_of(pool).state(0).blocked


@pytest.mark.extended
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("policy", ["recover", "raise"])
def test_worker_stopped_between_two_operations_is_late(policy: str, threads: int, implementation: str) -> None:
    """Such a worker was once waited for without a limit: it had not begun, so no clock ran."""
    expected = undisturbed([toys.CountEnv] * 4, 12)
    options = {"limits": LIMITS, "threads_per_worker": threads, "on_failure": policy}
    with (
        recovering_pool([toys.CountEnv] * 4, **options) as pool,
        raises_or_recovers(
            policy, r"worker 1 \(envs 2-3\) has not begun step of env [23] \(command \d+\) within 1\.0 s; it is alive"
        ),
    ):
        got = play(pool, 12, before=lambda pool, number: number in (5, 12) and stop(pool, 1, between=True))
        assert got.rows == expected.rows
        assert pool.statistics()["restarts"] == 2 and pool.statistics()["workers_added"] == 0


@pytest.mark.extended
def test_clock_of_a_command_not_begun_starts_when_it_is_sent(implementation: str) -> None:
    """Neither idle time of the worker nor time without polls counts."""
    with recovering_pool([toys.CountEnv] * 2, limits=LIMITS, on_failure="raise") as pool:
        play(pool, 2)
        with stopped(pool.worker_pids):
            pool.send(np.zeros(2, np.int64))
            threading.Event().wait(2 * LIMITS.step)  # the caller does something else
        assert pool.recv().lengths.tolist() == [3, 3]


@pytest.mark.extended
def test_dead_worker_without_outstanding_commands_is_not_late(implementation: str) -> None:
    hang = functools.partial(toys.Hangs, 3)
    with recovering_pool([hang, toys.CountEnv], limits=LIMITS, on_failure="raise") as pool:
        play(pool, 2)
        pool.send(np.zeros(2, np.int64), ordered=False)
        kill(pool, 0)
        pool.cancel([0])
        pool.recv()
        began = time.monotonic()
        for _ in range(3):  # the answers of the other one are waited for longer than the limit
            pool.send(np.zeros(1, np.int64), [1])
            pool.recv()
            pool.call(lambda env: time.sleep(0.4), [1])
        assert time.monotonic() - began > LIMITS.step


def slowly(pool: Any, work: Callable[..., Any], looks: list[int]) -> Callable[..., Any]:
    """Stop the workers while the parent works, and check deadlines afterwards."""

    def wrapper(*args: Any) -> Any:
        with stopped(pool.worker_pids):
            result = work(*args)
            waiter_of(pool).watchdog.check()
        looks.append(1)
        threading.Event().wait(0.02)
        return result

    return wrapper


@pytest.mark.extended
@pytest.mark.parametrize("way", ["up", "down"])
def test_slow_transfer_that_progresses_is_not_late(
    way: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pieces have 64 KiB; frames of 15 kB, or as much as a socket takes
    size = 4 << 20 if implementation == "native" else 1 << 20 if way == "up" else 12 << 20
    text, looks = b"x" * size, list[int]()
    with recovering_pool([toys.CountEnv] * 1, limits=LIMITS, on_failure="raise", num_workers=1) as pool:
        play(pool, 2)
        began = time.monotonic()
        if way == "up":
            pool.submit_calls([lambda env: b"x" * size])
            wait_until(lambda: bool(hub_of(pool).state(0).blocked))
            name = "take_messages" if implementation == "native" else "_take_next"
        else:
            name = "pump"
        monkeypatch.setattr(hub_of(pool), name, slowly(pool, getattr(hub_of(pool), name), looks))
        if way == "down":
            pool.submit_calls([lambda env: len(text)])
        assert pool.collect_calls() == [text if way == "up" else len(text)]
        monkeypatch.undo()
        assert time.monotonic() - began > LIMITS.call and len(looks) > 10, "too quick to show anything"
