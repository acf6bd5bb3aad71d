"""Processes in rare cases: reused pids, processes that do not end, failed starts, descriptors of others."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests import descriptors
from tests.faults.traces import kill, stopped, wait_until
from tests.inside import engine_of, own_fork_servers, worker_group_of
from tests.programs import run_python
from vecenv.core.options import Limits, PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.core.processes import worker
from vecenv.envs import toys
from vecenv.errors import ClosedError, WorkerDiedError


def opened(num_workers: int = 1, context: str = "forkserver", **limits: Any) -> ProcessPool:
    options = PoolOptions(num_workers=num_workers, context=context, limits=Limits(**limits))
    pool = ProcessPool([toys.CountEnv] * 2, options)
    pool.start()
    pool.reset()
    pool.recv()
    return pool


# ---- pids -----------------------------------------------------------------------------------


@contextmanager
def stranger(pid: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that leads a session of its own under this pid, which was free; skip if that is impossible."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    for _ in range(100):
        try:
            last.write_text(str(pid - 1))
        except OSError:
            break
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as one:
            try:
                if one.pid == pid:
                    yield one
                    return
            finally:
                one.kill()
    pytest.skip("no process can be given a pid of choice here")


@pytest.mark.extended
def test_reused_pid_of_a_dead_worker_is_not_killed() -> None:
    """The fork server has reaped the worker, so its pid is free as long as the parent does not wait for answers."""
    with opened() as pool:
        pid = kill(pool, 0)
        wait_until(lambda: not psutil.pid_exists(pid))
        with stranger(pid) as other:
            pool.reset()
            with pytest.raises(WorkerDiedError, match="killed by SIGKILL"):
                pool.recv(timeout=30.0)
            pool.close()
            other.communicate(b"\n", timeout=30.0)
            assert other.returncode == 0


# ---- processes that do not end --------------------------------------------------------------


@contextmanager
def stopped_server() -> Iterator[None]:
    """Stop the fork servers: they neither reap their children nor report their ends, which are awaited for 0.2 s."""
    with (
        pytest.MonkeyPatch.context() as patch,
        stopped([server.pid for server in own_fork_servers()]),
    ):
        patch.setattr(worker, "_END_SECONDS", 0.2)
        yield


@pytest.mark.extended
def test_stopped_fork_server_does_not_block_close(caplog: pytest.LogCaptureFixture) -> None:
    pool = opened(2, close=0.1)
    with stopped_server(), caplog.at_level("WARNING", logger="vecenv"):
        kill(pool, 0)
        pool.reset()
        with pytest.raises(WorkerDiedError, match="exit code unknown"):
            pool.recv(timeout=30.0)
        pool.close()
        assert pool.closed
    assert caplog.messages == [], "they have ended, as their pidfds tell"


@pytest.mark.extended
def test_worker_that_survives_a_kill_is_left_to_the_system(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without pidfds, only the fork server knows when a worker has ended."""
    monkeypatch.delattr(os, "pidfd_open")
    pool = opened(2)
    pids = pool.worker_pids
    with stopped_server(), caplog.at_level("WARNING", logger="vecenv"):
        began = time.monotonic()
        pool.close(0)
        assert time.monotonic() - began < 20
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"vecenv: worker {i} (env {i}) (process {pid}) was killed and has not ended; it is left to the system"
        for i, pid in enumerate(pids)
    ]
    wait_until(lambda: not any(map(psutil.pid_exists, pids)))


def test_worker_without_its_own_session_is_killed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill of its session does not find the worker then."""
    monkeypatch.setattr(os, "setsid", lambda: threading.Event().wait())
    pool = ProcessPool([toys.CountEnv], PoolOptions(context="fork"))
    errors: list[str] = []

    def start() -> None:
        try:
            pool.start()
        except ClosedError as error:
            errors.append(str(error))

    starter = threading.Thread(target=start)
    starter.start()
    wait_until(lambda: bool(pool.worker_pids))
    (pid,) = pool.worker_pids
    pool.close()
    starter.join()
    assert len(errors) == 1 and not psutil.pid_exists(pid)


class Fails(toys.CountEnv):
    """Raises in its constructor, hangs in its step, or ends its process in close."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self.moment = moment
        if moment == "construct":
            raise ValueError("not today")

    def step(self, action: Any) -> Any:
        if self.moment == "step":
            threading.Event().wait()
        return super().step(action)

    def close(self) -> None:
        if self.moment == "close":
            os._exit(3)


@pytest.mark.extended
def test_failed_start_does_not_wait_for_workers() -> None:
    pool = ProcessPool(
        [toys.CountEnv, functools.partial(Fails, "construct")], PoolOptions(num_workers=2, limits=Limits(close=60.0))
    )
    began = time.monotonic()
    with pytest.raises(ValueError, match="not today"):
        pool.start()
    assert pool.closed and time.monotonic() - began < 40.0


@pytest.mark.extended
def test_worker_that_dies_in_close_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="vecenv"):
        pool = ProcessPool([functools.partial(Fails, "close")], PoolOptions(limits=Limits(close=60.0)))
        pool.start()
        began = time.monotonic()
        pool.close()
    assert time.monotonic() - began < 40.0
    (said,) = caplog.messages
    assert said == "vecenv: worker 0 (env 0) died during close of env 0: exit code 3", (
        "no empty line where there is no stack"
    )


@pytest.mark.extended
def test_calls_abandoned_with_the_pool_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="vecenv"):
        pool = ProcessPool([functools.partial(Fails, "step")], PoolOptions())
        pool.start()
        pool.reset()
        pool.recv()
        pool.send(np.zeros(1, np.int64))
        pool.close(0.2)
    assert caplog.messages == []


# ---- deaths that a forked child of the env would hide ----------------------------------------


class ForksAndDies(toys.CountEnv):
    """Fork a child that has all descriptors of the worker, then kill the worker, in the constructor or in a step."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self.moment = moment
        self.reach("construct")

    def step(self, action: Any) -> Any:
        self.reach("step")
        return super().step(action)

    def reach(self, moment: str) -> None:
        if moment == self.moment:
            if os.fork() == 0:
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("context", ["forkserver", "fork"])
@pytest.mark.parametrize("moment", ["construct", "step"])
def test_worker_death_is_noticed_although_its_forked_child_lives(moment: str, context: str) -> None:
    options = PoolOptions(num_workers=1, context=context)
    pool = ProcessPool([functools.partial(ForksAndDies, moment)], options)
    try:
        with pytest.raises(WorkerDiedError, match=f"during {moment} of env 0.*killed by SIGKILL"):
            pool.start()
            pool.reset()
            pool.recv()
            began = time.monotonic()
            pool.step(np.zeros(1, np.int64))
    finally:
        pool.close()
    assert moment == "construct" or time.monotonic() - began < 0.5 * worker._END_SECONDS


# ---- starts that are refused ----------------------------------------------------------------


DAEMON = """
import multiprocessing, os
from vecenv import ConfigError, VectorEnv
from vecenv.envs import toys

def descriptors():
    return len(os.listdir("/proc/self/fd"))

def try_to_start():
    VectorEnv([toys.CountEnv] * 2, backend="serial").close()
    before = descriptors()
    for _ in range(3):
        try:
            VectorEnv([toys.CountEnv] * 2, num_workers=2)
        except ConfigError as error:
            print(error)
    print("left:", descriptors() - before)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=try_to_start, name="loader", daemon=True)
    process.start()
    process.join()
"""


@pytest.mark.extended
def test_daemonic_process_gets_an_error_with_advice(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(DAEMON)
    done = run_python(str(script))
    assert done.stderr == ""
    *said, left = done.stdout.splitlines()
    assert (left, len(said)) == ("left: 0", 3)
    assert "loader is a daemonic process" in said[0] and "backend='serial'" in said[0]


PATCHED = """
import select, socket, sys

class Socket(socket.socket):
    "As that of a monkey patch, as far as can be seen from outside."

Socket.__module__ = sys.argv[1]
socket.socket = Socket
del select.epoll

from vecenv import ConfigError, VectorEnv
from vecenv.envs import toys

with VectorEnv([toys.CountEnv] * 2, backend="serial") as envs:
    envs.reset(seed=0)
    print(envs.step([0, 0])[0].shape)
try:
    VectorEnv([toys.CountEnv] * 2)
except ConfigError as error:
    print(error)
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        ("gevent._socket3", "gevent.monkey.patch_all(socket=False, select=False)"),
        ("eventlet.greenio.base", "eventlet.monkey_patch(socket=False, select=False)"),
    ],
)
def test_program_with_replaced_sockets_gets_an_error_with_advice(tmp_path: Path, module: str, remedy: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(PATCHED)
    done = run_python(str(script), module)
    assert done.stderr == ""
    shape, said = done.stdout.splitlines()
    assert shape.startswith("(2,") and remedy in said


class Enough(BaseException):
    """Not an Exception, which pickling would report as a value that cannot be pickled."""


@pytest.mark.extended
def test_start_interrupted_by_a_handler_leaves_nothing() -> None:
    """The signal comes at many moments of the start; the leak guard checks for leftovers."""

    def leave(*_: object) -> None:
        raise Enough

    opened().close()  # start the fork server and its pipes, which stay
    before = signal.signal(signal.SIGTERM, leave)
    try:
        for number in range(20):
            pool = ProcessPool([toys.CountEnv] * 4, PoolOptions(num_workers=4))
            main = threading.get_ident()
            timer = threading.Timer(number * 0.002, signal.pthread_kill, (main, signal.SIGTERM))
            with pytest.raises(Enough):
                timer.start()
                pool.start()
                timer.join()
            pool.close()
            timer.join()
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- descriptors ----------------------------------------------------------------------------


def test_closed_pool_rings_no_foreign_doorbell() -> None:
    """A second closer can be late: it has found the pool open, but another thread has closed it since."""
    pool = opened()
    number = worker_group_of(pool).wake_event.descriptor.number
    pool.close()
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(20)]
    try:
        assert number in others
        engine_of(pool).interrupt()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(number)
    finally:
        for other in others:
            os.close(other)


@pytest.mark.extended
def test_forked_workers_keep_nothing_of_their_siblings() -> None:
    with opened(2, "fork") as pool:
        pool.restart(0)
        for pid in pool.worker_pids:
            held = [target for target, _ in descriptors.open_descriptors(pid).values()]
            assert "anon_inode:[eventpoll]" not in held
            assert held.count("anon_inode:[pidfd]") <= 1, "its own, of its parent"
        for worker_id in range(2):
            kill(pool, worker_id)
        pool.reset()
        with pytest.raises(WorkerDiedError):
            pool.recv(timeout=30.0)
        for worker_id in range(2):
            pool.restart(worker_id)
        pool.reset()
        assert len(pool.recv(timeout=30.0)) == 2


@pytest.mark.extended
def test_close_from_many_threads_at_once() -> None:
    for _ in range(10):
        pool = opened()
        gate = threading.Barrier(4)
        errors: list[BaseException] = []

        def end(pool: ProcessPool = pool, gate: threading.Barrier = gate, errors: list[Any] = errors) -> None:
            gate.wait()
            try:
                pool.close()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=end) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == [] and pool.closed
