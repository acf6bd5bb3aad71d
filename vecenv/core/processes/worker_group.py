"""The processes, descriptors and memory of one ProcessPool, and their end.

They are separate from the pool so that a finalizer can refer to them: they are released even if the pool is not closed.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import Any

from ...errors import describe_exit
from ...own_log import own_logger
from ..parent.hub import Hub
from ..system.clock import Deadline
from ..system.descriptor import WakeEvent
from ..system.fork_server import ForkServer
from ..system.monitor_files import MonitorFile
from ..system.segment import Segment
from ..system.shared_objects import SharedObjects
from ..system.signals import signals_deferred
from ..system.worker_socket import poll_briefly
from .leased_workers import LeasedWorkers
from .worker import Worker, end_deadline

__all__ = ["WorkerGroup"]

_LOG = own_logger()


class WorkerGroup:
    """The workers of one pool, and the descriptors and memory that are released with them.

    It is separate from the pool, so that a finalizer can refer to it.

    Args:
        close_seconds: seconds that workers have to close their envs; None for no limit.

    Attributes:
        workers: in the order of worker_id; a replacement takes the position of the old worker.
        segment, counters: shared memory of the arena and of its counters; None before they are created.
        server: the import server that its workers are forked from; None: they import all modules themselves.
        lease: the workers that an env server lends; None: this process starts its workers.
        shared: the objects of `multiprocessing` that workers and their successors share with this process.
        monitor_file: announces the pool to `vecenv top`; None: there is none.
        epoll: with C, watches the pidfds of the workers and `wake_event`; otherwise `SocketHub` does.
        wake_event: wakes the parent; None before the hub is made.
    """

    def __init__(self, close_seconds: float | None = 5.0) -> None:
        self.owner_pid = os.getpid()
        self.workers: list[Worker] = []
        self.hub: Hub | None = None
        self.segment: Segment | None = None
        self.counters: Segment | None = None
        self.server: ForkServer | None = None
        self.lease: LeasedWorkers | None = None
        self.shared: list[SharedObjects] = []
        self.monitor_file: MonitorFile | None = None
        self.wake_event: WakeEvent | None = None
        self.epoll: select.epoll | None = None
        self.close_seconds = close_seconds
        self.has_ended = False

    def put(self, worker: Worker) -> None:
        """Add a worker; it replaces an earlier one with the same worker_id."""
        self.workers[worker.worker_id : worker.worker_id + 1] = [worker]

    def descriptors(self) -> list[Any]:
        """Return the owners of all descriptors here, which a forked worker must close."""
        found: list[Any] = []
        for worker in self.workers:
            found += worker.descriptors()
        found += [descriptor for shared in self.shared for descriptor in shared.descriptors]
        found += [segment.fd for segment in (self.segment, self.counters) if segment is not None]
        found += self.wake_event.descriptors() if self.wake_event is not None else ()
        found += self.lease.descriptors() if self.lease is not None else ()
        return found if self.epoll is None else [*found, self.epoll]

    def share_objects(self, context: str) -> SharedObjects:
        """Return the collector of objects that a worker of this start method shares with this process."""
        self.shared.append(SharedObjects(context))
        return self.shared[-1]

    def create_segment(self, nbytes: int) -> Segment:
        """Create the shared memory of the arena.

        Raises:
            ConfigError: there is too little shared memory; see `Segment.create`.
        """
        self.segment = Segment.create(nbytes)
        return self.segment

    def create_counters(self, nbytes: int) -> Segment:
        """Create the shared memory of the counters; raises as `create_segment` does."""
        self.counters = Segment.create(nbytes)
        return self.counters

    def keep_monitor_file(self, file: MonitorFile) -> None:
        """Set the file that is removed when the group ends."""
        self.monitor_file = file

    def keep_server(self, server: ForkServer | None) -> None:
        """Set the import server, if there is one; it is kept until the group ends."""
        self.server = server

    def keep_lease(self, lease: LeasedWorkers) -> None:
        """Set the leased workers, which go back to their server when the group ends."""
        self.lease = lease

    def create_wake_event(self) -> WakeEvent:
        """Create `wake_event`, and return it."""
        self.wake_event = WakeEvent()
        return self.wake_event

    def watch_all(self) -> select.epoll:
        """Create `epoll`, which reports the ends of workers and wakes by them or by `wake`; return it."""
        assert self.wake_event is not None
        self.epoll = select.epoll()
        self.epoll.register(self.wake_event.descriptor, select.EPOLLIN | select.EPOLLET)
        for worker in self.workers:
            self.watch(worker)
        return self.epoll

    def watch(self, worker: Worker) -> None:
        """Have `epoll`, if there is one, report the end of this worker, until it is released."""
        if self.epoll is not None:
            worker.watch_in(self.epoll)

    def serve(self, hub: Hub) -> None:
        """Set the hub that the workers serve; from now on `end` lets them finish."""
        self.hub = hub

    def set_close_seconds(self, seconds: float | None) -> None:
        """Change how long workers have to close their envs; None is no limit."""
        self.close_seconds = seconds

    def end(self, timeout: float | None = None) -> None:
        """Stop all workers, kill those that do not end in time, and close all descriptors.

        May be repeated. Does nothing in a forked child.

        Args:
            timeout: new value of `close_seconds`; None leaves that as it is.
        """
        if self.has_ended or os.getpid() != self.owner_pid:
            return
        if timeout is not None:
            self.close_seconds = timeout
        deadline = Deadline(self.close_seconds)
        try:
            if self.hub is not None:
                self.hub.stop()
            else:  # still starting: do not wait
                deadline = Deadline(0.0)
            for worker in self.workers:
                with contextlib.suppress(OSError):
                    self._end_one(worker, deadline)
        finally:
            with signals_deferred():
                deadline = end_deadline()
                for worker in self.workers:
                    if self.lease is not None and self.hub is None:  # its envs are warm, and no step runs
                        worker.give_back()
                    else:
                        worker.kill(deadline)
                self._release()
                self.has_ended = True
            for worker in self.workers:
                worker.emit_log_records()

    def _end_one(self, worker: Worker, deadline: Deadline) -> None:
        if worker.is_dead:
            return
        while worker.exit_report is None and not deadline.is_over():
            ready = poll_briefly([worker.control, worker.pidfd], deadline)
            worker.take_exit_report()  # without C, late rows may come before it
            if worker.pidfd in ready:
                break
        is_reaped = worker.reap(deadline)
        if not any(note is not None and note.phase == "close" for note in worker.notes()):
            return  # it did not begin to close its envs: its operation was abandoned with the pool
        stack = "" if is_reaped else worker.stack.request(worker.pid)
        if not is_reaped and not worker.reap(Deadline(0.0)):  # otherwise it has ended since
            if self.close_seconds == 0:  # the caller does not want to wait
                return
            what = f"finish {worker.at_work('close')}" if worker.exit_report is None else "end when its envs had closed"
            stack = f"\n{stack}" if stack else ""
            _LOG.warning("%s did not %s within %g s; it is killed%s", worker.name, what, self.close_seconds, stack)
        elif worker.exit_report is None and worker.exitcode:
            how = describe_exit(worker.exitcode)
            stack = f"\n{worker.last_stack}" if worker.last_stack else ""
            _LOG.warning("%s died during %s: %s%s", worker.name, worker.at_work("close"), how, stack)

    def wake(self) -> None:
        """Wake the pool's wait, from another thread or a signal handler; does nothing once the pool has ended."""
        if self.wake_event is not None:
            self.wake_event.wake()

    def _release(self) -> None:
        if self.epoll is not None:
            self.epoll.close()
        if self.wake_event is not None:
            self.wake_event.close()
        if self.lease is not None:
            self.lease.close()
        for shared in self.shared:
            shared.close()
        if self.monitor_file is not None:
            self.monitor_file.remove()
        for segment in (self.segment, self.counters):
            if segment is not None:
                segment.fd.close()
        self.server = None
        self.hub = self.segment = self.counters = None  # the mapping is released with the caller's last view
