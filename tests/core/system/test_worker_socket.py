"""The parent's end of a control socket never blocks, even if the worker is stopped or dead."""

from __future__ import annotations

import fcntl
import functools
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces

from tests.faults.traces import kill, play, recovering_pool, stopped, wait_until
from vecenv.core.options import Limits
from vecenv.core.processes.worker import Worker
from vecenv.core.system.clock import Deadline
from vecenv.core.system.descriptor import Descriptor
from vecenv.core.system.worker_socket import ControlSocket, poll_briefly
from vecenv.envs import toys
from vecenv.errors import WorkerTimeoutError

MESSAGE = os.urandom(3_000_000)  # a socket holds some 200 KB
GENEROUS_TIMEOUT = 30.0  # seconds, for waits that end at once unless they never end

Ends = tuple[ControlSocket, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Return the parent's end and the worker's end."""
    ours, theirs = multiprocessing.Pipe()
    with theirs:
        control = ControlSocket(ours)
        yield control, theirs
        control.close()


def pump(control: ControlSocket) -> None:
    deadline = Deadline(GENEROUS_TIMEOUT)
    while control.has_unsent():
        poll_briefly([control], deadline)
        control.pump()
        assert not deadline.is_over()


# ---- to the worker --------------------------------------------------------------------------


def test_unread_message_waits_at_the_sender(ends: Ends) -> None:
    control, theirs = ends
    control.send_frame(MESSAGE)
    assert control.has_unsent()
    assert not control.pump()  # the socket is full
    assert poll_briefly([control], Deadline(0.0)) == set()


def test_default_socket_timeout_is_ignored(ends: Ends) -> None:
    control, _ = ends
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(GENEROUS_TIMEOUT)
    try:
        began = time.monotonic()
        control.send_frame(MESSAGE)
        assert control.has_unsent()
        assert time.monotonic() - began < GENEROUS_TIMEOUT
    finally:
        socket.setdefaulttimeout(before)


def test_messages_and_descriptors_arrive_in_order(ends: Ends) -> None:
    control, theirs = ends
    found: list[Any] = []

    def read() -> None:
        found.append(theirs.recv_bytes())
        for _ in range(2):
            with os.fdopen(reduction.recv_handle(theirs), "rb") as file:
                found.append(file.read())
        found.append(theirs.recv_bytes())

    pipes = [tuple(map(Descriptor, os.pipe())) for _ in range(2)]
    for number, (_, write_end) in enumerate(pipes):
        os.write(write_end.number, bytes([number]))
        write_end.close()
    control.send_frame(MESSAGE, [read_end for read_end, _ in pipes])
    control.send_frame(b"")
    reader = threading.Thread(target=read)
    reader.start()
    pump(control)
    reader.join()
    for read_end, _ in pipes:
        read_end.close()
    assert found == [MESSAGE, b"\0", b"\1", b""]


def test_messages_for_a_dead_worker_are_dropped(ends: Ends) -> None:
    control, theirs = ends
    control.send_frame(MESSAGE)
    for _ in range(2):
        theirs.send_bytes(b"word")
    assert control.take_frame() == b"word"
    theirs.close()
    control.pump()
    assert not control.has_unsent()
    control.send_frame(MESSAGE)
    assert not control.has_unsent()
    control.close()
    assert control.take_frame() is None
    control.queue_bytes(MESSAGE)
    assert not control.pump()
    assert not control.has_unsent()


def test_send_to_a_dead_worker_raises_no_sigpipe() -> None:
    program = """
import multiprocessing, signal
from vecenv.core.system.descriptor import Descriptor
from vecenv.core.system.worker_socket import ControlSocket
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
ours, theirs = multiprocessing.Pipe()
theirs.close()
ControlSocket(ours).send_frame(b"anybody?", [Descriptor(0)])
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_descriptor_that_cannot_be_sent_is_an_error(ends: Ends) -> None:
    control, _ = ends
    with pytest.raises(OSError, match="Bad file descriptor"):
        control.send_frame(b"", [Descriptor()])


# ---- from the worker ------------------------------------------------------------------------


def raw(theirs: Connection) -> socket.socket:
    return socket.socket(fileno=os.dup(theirs.fileno()))


@pytest.mark.parametrize("message", [b"", b"word", MESSAGE], ids=len)
def test_frame_is_taken_once_complete(ends: Ends, message: bytes) -> None:
    control, theirs = ends
    frame = struct.pack("!i", len(message)) + message
    taken = None
    with raw(theirs) as writer:
        for part in (frame[:3], frame[3:4], frame[4 : len(frame) // 2], frame[len(frame) // 2 : -1], frame[-1:]):
            if not part or taken is not None:
                continue
            assert control.take_frame() is None
            rest = memoryview(part)
            while rest:
                rest = rest[writer.send(rest[:100_000]) :]
                assert not rest or control.take_frame() is None
            taken = control.take_frame()
    assert taken == message
    assert not control.is_readable()
    assert not control.is_at_eof()


def test_long_frame_has_a_longer_header(ends: Ends) -> None:
    """The header announces more than 2 GiB; fewer bytes than that may follow."""
    control, theirs = ends
    with raw(theirs) as writer:
        for part in (struct.pack("!i", -1), struct.pack("!Q", 4)[:5], struct.pack("!Q", 4)[5:] + b"wor"):
            writer.send(part)
            assert control.take_frame() is None
        writer.send(b"d")
    assert control.take_frame() == b"word"


def test_frames_that_came_together_are_taken_one_by_one(ends: Ends) -> None:
    control, theirs = ends
    for original in (b"one", b"two"):
        theirs.send_bytes(original)
    assert control.is_readable()
    assert control.take_frame() == b"one"
    assert control.is_readable()  # although the socket is empty
    assert poll_briefly([control], Deadline(None)) == {control}
    theirs.close()
    assert control.take_frame() == b"two"
    assert not control.is_at_eof()  # the socket has not been polled yet
    assert control.take_frame() is None
    assert control.is_at_eof()


def test_incomplete_frame_of_a_dead_worker_is_dropped(ends: Ends) -> None:
    control, theirs = ends
    with raw(theirs) as writer:
        writer.send(struct.pack("!i", 10) + b"half")
    theirs.close()
    assert control.take_frame() is None
    assert control.take_frame() is None
    assert control.is_at_eof()
    assert poll_briefly([control], Deadline(0.0)) == set()  # it has no more messages


def test_wait_ends_with_a_message_end_of_stream_or_room(ends: Ends) -> None:
    control, theirs = ends
    read_end, write_end = map(Descriptor, os.pipe())
    with closing(read_end):
        assert poll_briefly([control, read_end], Deadline(0.0)) == set()
        write_end.close()
        assert poll_briefly([control, read_end], Deadline(None)) == {read_end}
    theirs.send_bytes(b"word")
    assert poll_briefly([control], Deadline(None)) == {control}
    control.take_frame()
    control.queue_bytes(b"room")
    assert poll_briefly([control], Deadline(None)) == {control}


# ---- workers that are stopped ---------------------------------------------------------------


class Heavy(toys.CountEnv):
    """Takes large actions, and has bounds that need many bytes in a message."""

    def __init__(self, ballast: bytes = b"") -> None:
        super().__init__(100)
        self.action_space = spaces.Box(np.zeros(100_000, np.float32), np.linspace(1, 2, 100_000, dtype=np.float32))

    def step(self, action: Any) -> Any:
        return super().step(0)


def heavy() -> Callable[[], Any]:
    return functools.partial(Heavy, MESSAGE)


@contextmanager
def stops(method: str) -> Iterator[list[int]]:
    """Stop the next worker before `send_boot` or `send_attach` sends; yield a list that will contain its pid."""
    pids: list[int] = []
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        send = getattr(Worker, method)

        def send_stopped(worker: Worker, *args: Any) -> None:
            patch.undo()
            pids.append(worker.pid)
            stack.enter_context(stopped([worker.pid]))
            send(worker, *args)

        patch.setattr(Worker, method, send_stopped)
        yield pids


@pytest.mark.extended
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_worker_stopped_before_its_boot_message_is_late(context: str, implementation: str) -> None:
    pool = recovering_pool([heavy()] * 2, context=context, limits=Limits(construct=0.5))
    late = r"worker 0 \(env 0\) did not finish construct of its envs within 0.5 s; it is alive"
    with stops("send_boot"), pytest.raises(WorkerTimeoutError, match=late):
        pool.start()
    pool.close()


@pytest.mark.extended
def test_successor_stopped_before_its_boot_message_is_replaced(implementation: str) -> None:
    """The attach message contains all commands of its env: here 12 MB."""
    with recovering_pool([heavy()] * 2, limits=Limits(construct=4.0)) as pool:
        play(pool, 30)
        with stops("send_attach") as pids:
            kill(pool, 0)
            pool.send(np.zeros((2, 100_000), np.float32))
            batch = pool.recv(timeout=GENEROUS_TIMEOUT)
        assert batch.lengths.tolist() == [31, 31]
        assert batch.infos()[0]["recovered"] == "replayed"
        assert pids and pids[0] not in pool.worker_pids


@pytest.mark.extended
def test_worker_stopped_within_its_report_is_late(implementation: str) -> None:
    """Its spaces need more bytes than the socket holds."""
    pool = recovering_pool([heavy()] * 2, limits=Limits(construct=4.0), num_workers=1)
    original = Worker.has_message
    seen: list[int] = []

    def has_message(worker: Worker) -> bool:
        if not seen and not worker.control.has_unsent():
            wait_until(lambda: num_unread(worker.control) > 100_000)
            os.kill(worker.pid, signal.SIGSTOP)
            wait_until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
            seen.append(worker.pid)
        return original(worker)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "has_message", has_message)
        with pytest.raises(WorkerTimeoutError, match="did not finish .* within 4.0 s; it is alive"):
            pool.start()
    assert seen
    pool.close()


def num_unread(control: ControlSocket) -> int:
    """Return the number of unread bytes in this end of a socket."""
    count = struct.Struct("i")
    return int(count.unpack(fcntl.ioctl(control.fileno(), termios.FIONREAD, bytes(count.size)))[0])
