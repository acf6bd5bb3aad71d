"""Stacks of other processes, alive and dead; the tests use real processes in each state."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from vecenv.core.system import stack_dump
from vecenv.core.system.stack_dump import StackFile

PROGRAM = """
import ctypes, os, signal, sys, threading
from vecenv.core.system.stack_dump import enable_stack_dumps
enable_stack_dumps(int(sys.argv[1]))
def busy_loop():
    sys.stdout.write("ready\\n"); sys.stdout.flush()
    while True: pass
def waits_in_c():
    libc = ctypes.PyDLL(None)  # keeps the interpreter's lock
    sys.stdout.write("ready\\n"); sys.stdout.flush()
    while True: libc.pause()
def waits_in_python():
    sys.stdout.write("ready\\n"); sys.stdout.flush()
    threading.Event().wait()
def crashes():
    ctypes.string_at(0)
def aborts():
    os.abort()
globals()[sys.argv[2]]()
"""


class Scene:
    """Processes that write their stacks into files of this test."""

    def __init__(self) -> None:
        self.file = StackFile("a test")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, what: str) -> int:
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.file.fd.number), what],
            pass_fds=[self.file.fd.number],
            stdout=subprocess.PIPE,
            stderr=quiet,
        )
        return self.process.pid

    def wait_until_ready(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    if scene.process is not None:
        scene.process.kill()
        scene.process.communicate()
    scene.file.close()


@pytest.mark.extended
@pytest.mark.usefixtures("patient_stacks")
@pytest.mark.parametrize("what", ["busy_loop", "waits_in_c", "waits_in_python"])
def test_hanging_process_dumps_its_stack_and_lives(what: str, scene: Scene) -> None:
    pid = scene.start(what)
    scene.wait_until_ready()
    for _ in range(3):
        assert f"in {what}" in scene.file.request(pid)
    assert scene.process is not None and scene.process.poll() is None


@pytest.fixture
def crowd() -> Iterator[int]:
    """Keep one core busy with eight processes."""
    core = min(os.sched_getaffinity(0))
    crowd = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        for process in crowd:
            os.sched_setaffinity(process.pid, {core})
        yield core
    finally:
        for process in crowd:
            process.kill()
            process.wait()


@pytest.mark.extended
def test_process_without_a_free_core_is_waited_for(scene: Scene, crowd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most stacks of busy loops were once missing if other processes used the cores, too."""
    monkeypatch.setattr(stack_dump, "_QUEUE_SECONDS", 20.0)
    pid = scene.start("busy_loop")
    scene.wait_until_ready()
    os.sched_setaffinity(pid, {crowd})
    for _ in range(10):
        assert "in busy_loop" in scene.file.request(pid)


@pytest.mark.extended
@pytest.mark.usefixtures("patient_stacks")
def test_stack_returned_is_the_newest(scene: Scene) -> None:
    pid = scene.start("waits_in_python")
    scene.wait_until_ready()
    stacks = [scene.file.request(pid) for _ in range(3)]
    assert [stack.count("in waits_in_python") for stack in stacks] == [1] * 3
    assert scene.file.read().count("in waits_in_python") == 3, "the file has them all"


@pytest.mark.parametrize("num_threads", [1, 3])
def test_newest_note_of_each_thread_is_found_after_any_number(
    num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notes were once lines of a growing file, of which the first 64 KiB were read: the notes of some 900 envs."""
    file = StackFile("notes", num_threads)
    monkeypatch.setattr(stack_dump, "_dump_fd", file.fd.number)
    assert file.notes() == [None] * num_threads
    for env_id in range(5000):
        stack_dump.note_phase("construct", env_id, thread=num_threads - 1, num_done=env_id)
    *others, found = file.notes()
    assert others == [None] * (num_threads - 1)
    assert found is not None and (found.phase, found.env_id, found.num_done) == ("construct", 4999, 4999)
    stack_dump.note_pause(thread=num_threads - 1, num_done=5000)
    found = file.notes()[-1]
    assert found is not None and (found.phase, found.env_id, found.num_done) == ("pause", -1, 5000)
    assert os.fstat(file.fd.number).st_size == 32 * num_threads and file.read() == "", "they are no stack"
    os.write(file.fd.number, b"Fatal Python error")
    assert file.read() == "Fatal Python error" and file.notes()[-1] == found, "they are no note"
    file.close()
    assert file.notes() == []


def test_newest_of_many_stacks_is_read(scene: Scene) -> None:
    os.write(scene.file.fd.number, b"old\n" * 20_000 + b"newest")
    assert scene.file.read().endswith("newest")


def test_engine_frames_are_left_out_of_each_thread(scene: Scene) -> None:
    theirs, ours = '  File "env.py", line 1 in step', f'  File "{stack_dump.__file__}", line 1 in serve'
    below = '  File "threading.py", line 1 in run'
    threads = [["Thread 0x1 (most recent call first):", theirs], ["Thread 0x2 (most recent call first):", theirs]]
    written = "\n".join(line for thread in threads for line in (*thread, ours, below))
    os.write(scene.file.fd.number, written.encode())
    assert scene.file.read().splitlines() == [*threads[0], *threads[1]]


@pytest.mark.parametrize(("what", "says"), [("crashes", "Segmentation fault"), ("aborts", "Aborted")])
def test_crashed_process_leaves_its_stack(what: str, says: str, scene: Scene) -> None:
    scene.start(what)
    assert scene.process is not None
    scene.process.wait(30)
    assert says in scene.file.read() and f"in {what}" in scene.file.read()


def test_stopped_process_is_described(scene: Scene) -> None:
    pid = scene.start("busy_loop")
    scene.wait_until_ready()
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    assert scene.file.request(pid) == "no stack: the process is stopped by a signal"
    assert scene.file.read() == "", "it was not even asked"


def test_dead_process_is_described(scene: Scene) -> None:
    pid = scene.start("aborts")
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert scene.file.request(pid) == "no stack: the process is dead and not reaped"


def test_reaped_process_is_not_signalled(scene: Scene) -> None:
    """A fork server reaps its workers before the parent learns of their ends."""
    pid = scene.start("aborts")
    assert scene.process is not None
    scene.process.wait()
    assert scene.file.request(pid) == ""


def test_process_is_not_signalled_once_its_stack_file_is_closed(scene: Scene) -> None:
    file = StackFile("closed")
    file.close()
    assert file.read() == ""
    pid: Any = scene.start("busy_loop")
    scene.wait_until_ready()
    assert file.request(pid) == ""
    assert scene.process is not None and scene.process.poll() is None, "an unarmed process would have died of it"


def test_stack_file_without_files_in_memory_has_no_name(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with contextlib.closing(StackFile("none", 2)) as file:
        assert os.fstat(file.fd.number).st_nlink == 0 and file.notes() == [None, None]


def test_closing_twice() -> None:
    file = StackFile("twice")
    file.close()
    file.close()
    assert file.fd.closed
