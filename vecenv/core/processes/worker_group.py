"""WorkerGroup: the processes, descriptors and memory of one ProcessPool, and how they end.

Apart from the pool, so that a finalizer can hold it: whatever happens to the pool, this ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable

from ...errors import describe_exit
from ..parent.hub import Hub
from ..system.clock import Deadline
from ..system.segment import Segment
from ..system.signals import signals_deferred
from ..system.worker_socket import poll_briefly
from .worker import Worker, end_deadline

__all__ = ["WorkerGroup"]

#: How long the interpreter's end may wait for a thread that is at work with a pool.
_RETIRE_SECONDS = 5.0
_LOG = logging.getLogger("vecenv")


class WorkerGroup:
    """What must be ended with the pool, apart from it so that a finalizer can hold it."""

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        self.workers: list[Worker] = []
        self.hub: Hub | None = None
        self.segment: Segment | None = None
        self.event_fd = -1
        self.epoll: select.epoll | None = None
        self.close_seconds: float | None = 5.0
        self.has_ended = False
        self._wake_lock = threading.RLock()  # entered again by a handler that rings amid a ring

    def end(self) -> None:
        """Stop all workers, kill those that do not end in time, close all descriptors."""
        if self.has_ended or os.getpid() != self.owner_pid:
            return
        deadline = Deadline(self.close_seconds)
        try:
            if self.hub is not None:
                self.hub.stop()
            else:  # still starting: there is nothing to wait for
                deadline = Deadline(0.0)
            for worker in self.workers:
                with contextlib.suppress(OSError):
                    self._end_one(worker, deadline)
        finally:
            with signals_deferred():
                deadline = end_deadline()
                for worker in self.workers:
                    worker.kill(deadline)
                self._release()
                self.has_ended = True

    def end_if_unclosed(self, find_retire: Callable[[], Callable[[float], None] | None]) -> None:
        """As `end`, for a pool that nobody has closed: it is garbage, or the interpreter ends.

        Args:
            find_retire: gives what keeps other threads from using the pool; None: nobody can.
        """
        try:
            retire = find_retire()
            if retire is not None:
                retire(_RETIRE_SECONDS)
        finally:  # a Ctrl-C above ends only the wait
            self.end()

    def _end_one(self, worker: Worker, deadline: Deadline) -> None:
        if worker.is_dead:
            return
        while worker.exit_report is None and not deadline.is_over():
            ready = poll_briefly([worker.control, worker.pidfd], deadline)
            worker.take_exit_report()  # without C, late rows may come before it
            if worker.pidfd in ready:
                break
        is_reaped = worker.reap(deadline)
        note = worker.last_note or worker.stack.last_note()
        if note is None or note.phase != "close":
            return  # it never came to closing: what it is at was given up with the pool
        stack = "" if is_reaped else worker.stack.request(worker.pid)
        if not is_reaped and not worker.reap(Deadline(0.0)):  # else it has ended meanwhile
            if self.close_seconds == 0:  # nobody wanted to wait
                return
            what = (
                f"finish {worker.at_work('close')[0]}" if worker.exit_report is None else "end when its envs had closed"
            )
            stack = f"\n{stack}" if stack else ""
            _LOG.warning("%s did not %s within %g s; it is killed%s", worker.name, what, self.close_seconds, stack)
        elif worker.exit_report is None and worker.exitcode:
            how = describe_exit(worker.exitcode)
            stack = f"\n{worker.last_stack}" if worker.last_stack else ""
            _LOG.warning("%s died during %s: %s%s", worker.name, worker.at_work("close")[0], how, stack)

    def wake(self) -> None:
        """Wake the pool's wait, from another thread or a signal handler; does nothing once that is over."""
        with self._wake_lock:
            if self.event_fd >= 0:
                os.eventfd_write(self.event_fd, 1)

    def _release(self) -> None:
        if self.epoll is not None:
            self.epoll.close()
        with self._wake_lock:
            event_fd, self.event_fd = self.event_fd, -1
            if event_fd >= 0:
                os.close(event_fd)
        if self.segment is not None:
            self.segment.close_fd()
        self.hub = self.segment = None  # the mapping goes with the caller's last view
