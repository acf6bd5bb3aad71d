"""LocalCarrier: shards as child processes on this machine, each behind a socket; for tests, and without a cluster.

driver -> shard    one frame with the settings of the process and the boot, then one per request and its shared values
shard -> driver    the frames of `Shard`
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import select
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from ...errors import describe_exit
from ..options import DEFAULT_START_METHOD
from ..processes.worker import START_ERRORS, start_error
from ..system.clock import Deadline, now_ns
from ..system.descriptor import Descriptor, WakeEvent
from ..system.log_records import clear_handlers
from ..system.process_title import set_title
from ..system.process_tree import kill_tree
from ..system.signals import signals_deferred
from ..system.start_process import kill_process, modules_of, open_end, standard_descriptors, start_process
from ..system.worker_socket import ControlSocket
from .carrier import CarrierEvent, Lost, Replied, ShardPlace
from .shard import Shard

__all__ = ["LocalCarrier"]

#: How long processes may take to end by themselves, and then after a kill.
_END_SECONDS = 5.0
#: Longest sleep of one poll in milliseconds; system calls take them as int32.
_LONGEST_POLL_MS = 1_000_000


class _Settings(NamedTuple):
    """The first message to the process of a shard."""

    environ: dict[str, str]
    cwd: str
    path: list[str]
    boot: bytes


@dataclass
class _Child:
    """The process of one shard."""

    process: Any
    control: ControlSocket
    pidfd: Descriptor

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def release(self) -> int | None:
        """Reap a process that has ended, and close its descriptors; return its exit code."""
        self.process.join()
        exitcode: int | None = self.process.exitcode
        self.control.close()
        self.pidfd.close()
        self.process.close()
        return exitcode


class LocalCarrier:
    """Starts shards as child processes; see `Carrier` for the calls.

    Args:
        context: start method of the processes: 'forkserver', 'spawn' or 'fork'.
    """

    def __init__(self, context: str = DEFAULT_START_METHOD) -> None:
        self._context = context
        self._owner_pid = os.getpid()
        self._children: dict[int, _Child] = {}
        self._ending: list[_Child] = []  # killed processes
        self._pids: dict[int, int] = {}  # pid of each shard's newest process
        self._events: deque[CarrierEvent] = deque()
        self._wake_event = WakeEvent()

    # ---- shards ----------------------------------------------------------------------------

    def start(self, shard: int, boot: bytes) -> None:
        """Start the process of a shard."""
        settings = _Settings(dict(os.environ), os.getcwd(), list(sys.path), boot)
        with signals_deferred():
            try:
                self._children[shard] = self._start(shard)
            except START_ERRORS as error:
                raise start_error(f"shard {shard}", error) from error.__cause__ or error
            self._pids[shard] = self._children[shard].pid
        self._children[shard].control.send_frame(pickle.dumps(settings, protocol=5))

    def _start(self, shard: int) -> _Child:
        with standard_descriptors():
            ours, theirs = multiprocessing.Pipe()
            inherited = (ours, *self._descriptors()) if self._context == "fork" else ()
            name = f"vecenv shard {shard}"
            try:
                args = (theirs, inherited, name)
                process = start_process(self._context, _shard_main, args, name, modules_of(_shard_main))
                pidfd = open_end(process)
                try:
                    return _Child(process, ControlSocket(ours), pidfd)
                except OSError:
                    pidfd.close()
                    raise
            finally:  # a process that is not kept ends at once
                ours.close()
                theirs.close()

    def _descriptors(self) -> tuple[Any, ...]:
        """Return the owners of descriptors that a forked shard must close."""
        children = [*self._children.values(), *self._ending]
        return (*self._wake_event.descriptors(), *(end for child in children for end in (child.control, child.pidfd)))

    def share(self, data: bytes) -> bytes:
        """Return the value itself: it travels with each request."""
        return data

    def ask(self, shard: int, seq: int, request: bytes, most_nbytes: int, shared: Sequence[Any] = ()) -> None:
        """Write a request into the socket of a shard; without effect if its process has ended."""
        if shard in self._children:
            self._children[shard].control.send_frame(pickle.dumps((request, shared), protocol=5))

    def wait(self, deadline_ns: int, count: int = 1) -> list[CarrierEvent]:
        """Return the events that have happened, or wait for some."""
        while not self._events:
            left_ns = deadline_ns - now_ns()
            woken = self._poll(min(_LONGEST_POLL_MS, max(0, math.ceil(left_ns / 1e6))))
            if woken or left_ns <= 0:
                break
        with signals_deferred():
            events = list(self._events)
            self._events.clear()
        return events

    def _poll(self, timeout_ms: int) -> bool:
        """Wait for sockets and the ends of processes, and take their events; return whether `interrupt` was called."""
        poll = select.poll()
        poll.register(self._wake_event.descriptor, select.POLLIN)
        for child in self._children.values():
            if not child.control.is_at_eof():
                poll.register(child.control.fileno(), child.control.poll_events())
            poll.register(child.pidfd, select.POLLIN)
        for child in self._ending:
            poll.register(child.pidfd, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(timeout_ms)}
        with signals_deferred():
            for shard, child in list(self._children.items()):
                if child.control.fileno() in ready:
                    child.control.pump()
                self._take_frames(shard, child)
                if child.pidfd.number in ready:
                    del self._children[shard]
                    self._take_frames(shard, child)  # the last ones may have come since
                    exitcode = child.release()
                    self._events.append(Lost(shard, describe_exit(exitcode), exitcode=exitcode))
            for child in [child for child in self._ending if child.pidfd.number in ready]:
                self._ending.remove(child)
                child.release()
        if self._wake_event.descriptor.number in ready:
            self._wake_event.descriptor.take_wakes()
            return True
        return False

    def _take_frames(self, shard: int, child: _Child) -> None:
        while (frame := child.control.take_frame()) is not None:
            self._events.append(Replied(shard, frame))

    def kill(self, shard: int) -> None:
        """Kill the process of a shard; its workers end with it."""
        with signals_deferred():
            child = self._children.pop(shard, None)
            self._events = deque(event for event in self._events if event.shard != shard)
            if child is not None:
                self._ending.append(child)
                _kill(child)

    def waiting_for(self, shard: int) -> str:
        """Return '': a process is placed at once."""
        return ""

    def place_of(self, shard: int) -> ShardPlace | None:
        """Return the process of a shard."""
        child = self._children.get(shard)
        return None if child is None else ShardPlace(child.pid)

    def describe(self, shard: int) -> str:
        """Return the newest process of a shard."""
        return f"process {self._pids[shard]}" if shard in self._pids else "no process"

    def pid_of(self, shard: int) -> int:
        """Return the process id of the newest process of a shard."""
        return self._pids[shard]

    # ---- end -------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Wake up `wait`."""
        self._wake_event.wake()

    def close(self) -> None:
        """End all processes: those that do not end when their socket is closed are killed."""
        if self._owner_pid != os.getpid() or self._wake_event.descriptor.closed:
            return
        children = [*self._children.values(), *self._ending]
        self._children.clear()
        self._ending.clear()
        try:
            for child in children:
                child.control.shut_down_write()
            self._await_ends(children)
        finally:
            with signals_deferred():
                for child in children:
                    _kill(child)
                    child.release()
                self._events.clear()
                self._wake_event.close()

    def _await_ends(self, children: list[_Child]) -> None:
        """Wait a few seconds at most until these processes have ended; drop the frames that they still write."""
        deadline = Deadline(_END_SECONDS)
        running = {child.pidfd.number: child for child in children}
        while running and not deadline.is_over():
            poll = select.poll()
            for pidfd, child in running.items():
                poll.register(pidfd, select.POLLIN)
                if not child.control.is_at_eof():
                    poll.register(child.control.fileno(), select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(math.ceil(1e3 * (deadline.seconds_left() or 0.0)))}
            for pidfd, child in list(running.items()):
                while child.control.take_frame() is not None:
                    pass
                if pidfd in ready:
                    del running[pidfd]

    end_if_unclosed = close


def _kill(child: _Child) -> None:
    if child.process.is_alive():
        kill_tree(child.pid)
        with contextlib.suppress(ProcessLookupError):  # it has ended a moment ago
            kill_process(child.process, child.pidfd)


# ---- the process of a shard -----------------------------------------------------------------


def _shard_main(connection: Connection, inherited: Sequence[Any], name: str) -> None:
    """Execute the requests that come over a connection, until the driver closes it or ends."""
    for owner in inherited:
        owner.close()
    set_title(name, name.removeprefix("vecenv "))
    shard = None
    try:
        settings: _Settings = pickle.loads(connection.recv_bytes())
        os.environ.clear()
        os.environ.update(settings.environ)
        os.chdir(settings.cwd)
        sys.path[:] = settings.path
        clear_handlers()
        shard = Shard.in_own_process(settings.boot)
        connection.send_bytes(shard.open())
        while True:
            connection.send_bytes(shard.execute(*pickle.loads(connection.recv_bytes())))
    except (EOFError, ConnectionError):  # the driver has ended, or closed the pool
        pass
    finally:
        if shard is not None:
            shard.close()
