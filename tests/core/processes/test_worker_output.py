"""The output of workers that build envs: banners are shown once, and the text before a crash is shown."""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.traces import wait_until
from tests.inside import worker_group_of
from vecenv.core.options import RECOVERING, Limits, PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.core.processes import worker, worker_output
from vecenv.envs.toys import ToyEnv
from vecenv.errors import ConfigError, WorkerDiedError, WorkerTimeoutError

Capture = pytest.CaptureFixture[str]


class PrintingEnv(ToyEnv):
    """Calls a function in its constructor."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__()
        self.kept = act()


def make(act: Callable[[], Any], count: int = 1, **options: Any) -> ProcessPool:
    pool = ProcessPool([functools.partial(PrintingEnv, act)] * count, PoolOptions(num_workers=count, **options))
    pool.start()
    return pool


def print_banner() -> None:
    """Write to both streams, from Python and from C, as libraries do."""
    print("Welcome to the simulator", file=sys.__stdout__, flush=True)  # pytest replaces `sys.stdout`
    os.write(2, b"WARNING: an old model\n\n")
    ctypes.CDLL(None).printf(b"C version 1.2\n")
    os.write(2, b"no end of line")


@pytest.mark.extended
def test_banners_of_many_workers_are_shown_once(capfd: Capture, start_method: str) -> None:
    with make(print_banner, 4, context=start_method):
        out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["C version 1.2 [4 times]", "Welcome to the simulator [4 times]"]
    assert err == "WARNING: an old model [4 times]\n\nno end of line [4 times]\n"


@pytest.mark.extended
def test_worker_output_all_shows_every_line(capfd: Capture) -> None:
    with make(lambda: os.write(2, b"banner\n"), 3, worker_output="all", context="spawn"):
        assert capfd.readouterr().err == "banner\n" * 3


@pytest.mark.extended
def test_worker_output_none_shows_no_line(capfd: Capture) -> None:
    with make(print_banner, 2, worker_output="none", context="spawn") as pool:
        pool.call(lambda env: os.write(2, b"later\n") and print("later", flush=True))
    assert capfd.readouterr() == ("", "")


@pytest.mark.extended
def test_worker_output_is_shown_as_written_after_the_start(capfd: Capture) -> None:
    with make(lambda: None, 2, context="spawn") as pool:
        pool.call(lambda env: os.write(2, b"later\n"))
        assert capfd.readouterr().err == "later\n" * 2


def test_worker_output_with_an_unknown_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="worker_output: expected one of"):
        make(print_banner, worker_output="some")


def targets() -> list[str]:
    return [os.readlink(f"/proc/self/fd/{stream}") for stream in (1, 2)]


@pytest.mark.extended
def test_original_descriptors_are_put_back_after_construct(start_method: str) -> None:
    with make(lambda: (targets(), sys.stdout.line_buffering), context=start_method, worker_output="all") as pool:
        before = pool.call(lambda env: env.kept)[0]
    with make(targets, context=start_method) as pool:
        assert all(target.startswith("pipe:") for target in pool.call(lambda env: env.kept)[0])
        assert pool.call(lambda env: (targets(), sys.stdout.line_buffering)) == [before]
        assert all(worker.output.descriptors() == [] for worker in worker_group_of(pool).workers)


# ---- starts that fail ---------------------------------------------------------------------------


def crash() -> None:
    print("reading the scene", file=sys.__stdout__, flush=True)
    ctypes.CDLL(None).printf(b"C has opened the device\n")
    os.write(2, b"last words")
    os.kill(os.getpid(), signal.SIGSEGV)


def fail() -> None:
    print("reading the scene")
    raise KeyError("scene")


@pytest.mark.parametrize("worker_output", ["once", "none"])
def test_output_before_a_crash_in_a_constructor_is_shown(capfd: Capture, worker_output: str, start_method: str) -> None:
    with pytest.raises(WorkerDiedError, match="died during construct.*SIGSEGV") as caught:
        make(crash, worker_output=worker_output, context=start_method)
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["C has opened the device", "reading the scene"]
    assert err == "last words\n"
    assert "in crash" in str(caught.value)  # the stack of `faulthandler` goes into its own file


@pytest.mark.extended
@pytest.mark.parametrize("worker_output", ["once", "none"])
def test_output_before_an_exception_in_a_constructor_is_shown(capfd: Capture, worker_output: str) -> None:
    with pytest.raises(KeyError, match="scene"):
        make(fail, 2, worker_output=worker_output)
    assert capfd.readouterr().out.startswith("reading the scene")


@pytest.mark.extended
def test_output_before_a_hang_in_a_constructor_is_shown(capfd: Capture) -> None:
    def hang() -> None:
        print("connecting")
        time.sleep(60)

    with pytest.raises(WorkerTimeoutError):
        make(hang, worker_output="none", limits=Limits(construct=1.5))
    assert capfd.readouterr().out == "connecting\n"


@pytest.mark.extended
def test_banner_of_a_replaced_worker_is_not_shown_again(capfd: Capture, tmp_path: Path) -> None:
    def announce() -> None:
        print("banner")
        if (tmp_path / "again").exists():
            print("only now")

    with make(announce, 2, failures=RECOVERING) as pool:
        assert capfd.readouterr().out == "banner [2 times]\n"
        (tmp_path / "again").touch()
        pool.reset(seeds=[1, 2])
        pool.recv()
        os.kill(pool.worker_pids[0], signal.SIGKILL)
        pool.send([0, 0])
        pool.recv()
        assert capfd.readouterr().out == "only now\n"


# ---- much output --------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("is_equal", [True, False])
def test_worker_that_writes_megabytes_in_construct_starts(capfd: Capture, is_equal: bool) -> None:
    def write() -> None:
        for number in range(30_000):
            print("0" * 90 if is_equal else f"{os.getpid()} {number:080}")

    with make(write, 2):
        lines = capfd.readouterr().out.splitlines()
    assert len(lines) == (1 if is_equal else 60_000)
    assert not is_equal or lines[0].endswith("[60000 times]")


@pytest.mark.extended
def test_lines_of_a_long_start_are_shown_before_its_end(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_output, "_SHOW_SECONDS", 0.0)

    def write() -> None:
        for _ in range(3):
            print("loading")
            time.sleep(0.3)

    with make(write):
        out, err = capfd.readouterr()
    assert out == "loading\n"
    assert err == "vecenv: workers wrote such lines 2 more times\n"


# ---- processes that envs start ------------------------------------------------------------------

CHILD = """
import pathlib, sys, time
print("child starts", flush=True)
sys.stdin.read()
for number in range(5000): print(f"child {number:050}")
sys.stdout.flush()
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


@pytest.mark.extended
@pytest.mark.parametrize("worker_output", ["once", "none"])
def test_process_that_a_constructor_started_can_write_later(capfd: Capture, tmp_path: Path, worker_output: str) -> None:
    """Its text is more than a pipe holds."""
    done = tmp_path / "done"

    def start_child() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", CHILD, str(done)], stdin=subprocess.PIPE)

    with make(start_child, worker_output=worker_output) as pool:
        pool.call(lambda env: env.kept.stdin.close())
        wait_until(done.exists)
    out, _ = capfd.readouterr()
    assert len(out.splitlines()) == (5001 if worker_output == "once" else 0)


# ---- descriptors --------------------------------------------------------------------------------


@pytest.mark.extended
def test_capture_uses_no_descriptors_after_the_start() -> None:
    counts = []
    for mode in ("all", "once", "all", "once"):
        with make(print_banner, 3, worker_output=mode):
            counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[2] == counts[3]


@pytest.mark.extended
def test_output_is_not_captured_if_too_few_descriptors_are_left(
    capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_WORKER_DESCRIPTORS", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    with make(lambda: os.write(2, b"banner\n"), 4, context="spawn"):
        assert capfd.readouterr().err == "banner\n" * 4
