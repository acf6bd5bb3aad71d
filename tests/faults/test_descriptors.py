"""A pool uses no number of a file that it has closed: such a number may belong to a checkpoint of the program."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.canaries import canaries
from tests.faults.front_ends import FRONT_ENDS, play
from tests.faults.helpers import Helpers
from tests.faults.traces import end
from vecenv import ConfigError, VectorEnv, WorkerDiedError
from vecenv.core.options import PoolOptions
from vecenv.core.pool.process import ProcessPool


@pytest.fixture
def helpers(tmp_path: Path) -> Iterator[Helpers]:
    found = Helpers(tmp_path)
    yield found
    found.end_all()
    found.close()


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_helpers_that_end_at_any_time_cost_neither_a_file_nor_a_recovery(
    name: str, start_method: str, helpers: Helpers
) -> None:
    expected = play(name, helpers.env_fns, context=start_method)
    with canaries():
        assert play(name, helpers.env_fns, helpers.disturb, context=start_method) == expected


@pytest.mark.parametrize("worker_output", ["none", "all"])
def test_output_that_is_dropped_or_not_captured_costs_no_file(worker_output: str, helpers: Helpers) -> None:
    expected = play("VectorEnv", helpers.env_fns, engine={"worker_output": worker_output})
    with canaries():
        assert play("VectorEnv", helpers.env_fns, helpers.disturb, engine={"worker_output": worker_output}) == expected


def test_helpers_cost_no_file_without_c(implementation: str, start_method: str, helpers: Helpers) -> None:
    expected = play("VectorEnv", helpers.env_fns, context=start_method)
    with canaries():
        assert play("VectorEnv", helpers.env_fns, helpers.disturb, context=start_method) == expected


# ---- interrupts ----------------------------------------------------------------------------------


def play_until(helpers: Helpers, context: str, stop_at: int) -> int:
    """Run the whole life of a pool; have a Ctrl-C come at one event of `Canaries`, and close the pool then.

    Args:
        stop_at: number of that event, from 1 on; -1: there is no Ctrl-C.

    Returns:
        The number of events.
    """
    num_events, is_test = 0, False

    def stop() -> None:
        nonlocal num_events
        num_events += not is_test
        if num_events == stop_at and not is_test:
            signal.raise_signal(signal.SIGINT)

    with canaries() as watch:
        envs = None
        watch.on_event = stop
        try:
            envs = VectorEnv(helpers.env_fns, num_workers=2, context=context)
            envs.reset(seed=3)
            for step in range(6):
                is_test = True
                helpers.disturb(envs, step)
                is_test = False
                envs.step([0, 0])
            envs.close()
        except KeyboardInterrupt:
            watch.install()  # the exception has ended it
            if envs is not None:
                envs.close()
    helpers.end_all()
    return num_events


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # before Python has run the `with` of its `open`
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io:pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_between_any_two_descriptors_costs_no_file(start_method: str, helpers: Helpers) -> None:
    num_events = play_until(helpers, start_method, -1)
    most = 10 if start_method == "spawn" else 40  # with spawn, each play takes seconds
    for stop_at in range(1, num_events, 1 + num_events // most):
        play_until(helpers, start_method, stop_at)


# ---- relatives -----------------------------------------------------------------------------------


@pytest.mark.extended
def test_worker_that_was_restarted_lives_although_a_forked_process_keeps_the_pidfd_of_the_first(
    start_method: str, helpers: Helpers
) -> None:
    """The set of watched descriptors reports such a pidfd for ever, unless it is removed before it is closed."""
    with ProcessPool(helpers.env_fns, PoolOptions(num_workers=2, context=start_method)) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        child = os.fork()
        if child == 0:
            while True:
                signal.pause()
        try:
            for number in range(2):
                helpers.kill_worker(number)
            pool.reset()
            with pytest.raises(WorkerDiedError):
                pool.recv()
            for worker_id in range(2):
                pool.restart(worker_id)
            pids = pool.worker_pids
            for _ in range(3):
                pool.reset()
                assert len(pool.recv(timeout=30.0)) == 2
            assert pool.worker_pids == pids
        finally:
            end(child)
            os.waitpid(child, 0)


@pytest.mark.extended
@pytest.mark.parametrize("call", ["pidfd_open", "dup", "pipe", "memfd_create"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_start_without_a_descriptor_leaves_none_open(
    call: str, number: int, start_method: str, helpers: Helpers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leak guard finds leftover descriptors."""
    original, calls, pid = getattr(os, call), itertools.count(), os.getpid()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if os.getpid() == pid and next(calls) == number:  # forked workers inherit this function
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return original(*args, **kwargs)

    with monkeypatch.context() as patch, contextlib.suppress(ConfigError, OSError):
        patch.setattr(os, call, refuse)
        VectorEnv(helpers.env_fns, num_workers=2, context=start_method).close()


_WITHOUT_OUTPUT = """
import sys
files = [open(f"{sys.argv[1]}/{number}", "w+b", buffering=0) for number in range(2)]
assert [file.fileno() for file in files] == [1, 2]
for file in files:
    file.write(b"checkpoint")

import contextlib, os, subprocess, threading
import vecenv
from vecenv.envs.toys import CountEnv

class Talks(CountEnv):
    def __init__(self):
        super().__init__()
        os.write(1, b"constructor")
        subprocess.Popen(["sh", "-c", "read line; echo helper; echo helper >&2"], stdin=subprocess.DEVNULL)

with contextlib.closing(vecenv.VectorEnv([Talks] * 2, num_workers=2, context=sys.argv[2])) as envs:
    envs.reset(seed=0)
    for thread in threading.enumerate():
        if thread.name == "vecenv output":
            thread.join()
for file in files:
    file.seek(0)
    assert file.read() == b"checkpoint"
"""


@pytest.mark.extended
def test_output_of_workers_is_not_written_to_files_of_a_program_without_output(
    start_method: str, tmp_path: Path
) -> None:
    program = [sys.executable, "-c", _WITHOUT_OUTPUT, str(tmp_path), start_method]
    shell = ["sh", "-c", 'exec "$@" </dev/null >&- 2>&-', "sh"]
    assert subprocess.run([*shell, *program], timeout=60, check=False).returncode == 0
