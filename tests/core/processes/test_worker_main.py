"""The state of a worker before it builds envs: its signals, its working directory, and the parent that it ends with."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.core.processes import worker_main
from vecenv.core.processes.worker_main import Boot, started_at
from vecenv.envs import toys

HANDLED = signal.SIGINT, signal.SIGTERM


def opened(context: str) -> ProcessPool:
    pool = ProcessPool([toys.CountEnv], PoolOptions(context=context))
    pool.start()
    return pool


@pytest.fixture
def handlers() -> Iterator[None]:
    """Install handlers in the program; the worker must not have them."""
    before = {signum: signal.signal(signum, lambda *_: None) for signum in HANDLED}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def signals_of(env: Any) -> tuple[list[bool], list[int]]:
    defaults = [signal.getsignal(signum) is signal.SIG_DFL for signum in HANDLED]
    return defaults, sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))


@pytest.mark.usefixtures("handlers")
def test_worker_leaves_signals_to_the_system(start_method: str) -> None:
    """It must not have the handlers of the program or of its fork server."""
    with opened(start_method) as pool:
        assert pool.call(signals_of) == [([True, True], [])]


def wait_for_a_signal(env: Any) -> int | None:
    """Block a signal, send it to this process and fetch it, as programs do that handle signals later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        found = signal.sigtimedwait({signal.SIGUSR1}, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return None if found is None else found.si_signo


@pytest.mark.extended
@pytest.mark.usefixtures("implementation")
def test_env_may_block_a_signal_and_wait_for_it() -> None:
    """The watcher thread must not take the signal: without C, the worker once died of it."""
    with opened("forkserver") as pool:
        assert pool.call(wait_for_a_signal) == [signal.SIGUSR1]


def surroundings(env: Any) -> tuple[str | None, str]:
    return os.environ.get("VECENV_TEST_VARIABLE"), os.getcwd()


@pytest.mark.extended
@pytest.mark.usefixtures("own_server")
def test_worker_gets_the_callers_current_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It does not get the environment from the time when the fork server started."""
    monkeypatch.setenv("VECENV_TEST_VARIABLE", "set")
    with opened("forkserver") as pool:
        assert pool.call(surroundings) == [("set", os.getcwd())]
    monkeypatch.delenv("VECENV_TEST_VARIABLE")
    monkeypatch.chdir(tmp_path)
    with opened("forkserver") as pool:
        assert pool.call(surroundings) == [(None, str(tmp_path))]


@pytest.mark.extended
@pytest.mark.usefixtures("own_server")  # its standard error is checked
def test_removed_working_directory_does_not_stop_successors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with opened("forkserver") as pool:
        monkeypatch.chdir(tmp_path)
        folder.rmdir()
        pool.restart(0)
        pool.reset()
        assert len(pool.recv()) == 1
    assert capfd.readouterr().err == f"vecenv: a worker found no folder {folder}\n"


@pytest.mark.parametrize("whose", ["its parent's", "a stranger's", "nobody's"])
def test_worker_ends_in_another_pid_namespace(whose: str, implementation: str) -> None:
    parent = os.getpid()
    started = started_at(parent) if whose == "its parent's" else "0"
    if whose == "nobody's":
        with subprocess.Popen([sys.executable, "-c", ""]) as gone:
            parent = gone.pid
    ours, theirs = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()  # its process group ends with it
            none: dict[str, Any] = dict(
                env_fns=b"", worker_init=b"", adapt=b"", registrations=b"", environ={}, cwd=None, path=[]
            )
            who: dict[str, Any] = dict(num_threads=1, parent_pid=parent, parent_started=started)
            worker_main._watch_parent(Boot(0, [0], [[0]], **none, **who, implementation=implementation), theirs)
            os._exit(0)
        finally:
            os._exit(1)
    expected = 0 if whose == "its parent's" else -signal.SIGKILL
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == expected
    ours.close()
    theirs.close()


def end_of_a_paused_child(env: Any) -> int:
    """Stop and continue a child of this process, as a simulator may be paused; return its exit status."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the worker's watcher is a thread too
        pid = os.fork()
    if pid == 0:
        os.read(read_end, 1)
        os._exit(3)
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    os.kill(pid, signal.SIGCONT)
    os.waitpid(pid, os.WCONTINUED)
    os.write(write_end, b"x")
    os.close(write_end)
    os.close(read_end)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.usefixtures("implementation")
def test_process_forked_by_an_env_may_be_stopped_and_continued(start_method: str) -> None:
    """The child inherits the handler with which a continued worker checks for its parent."""
    with opened(start_method) as pool:
        assert pool.call(end_of_a_paused_child) == [3]
