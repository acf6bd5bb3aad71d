"""Kills a worker when its parent ends, without C.

It works like `native/shm/parent_watch.c`, except that the signal handler is a Python one and runs in the main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from dataclasses import dataclass
from typing import ClassVar

from ..system.process_tree import kill_tree

__all__ = ["MAYBE_STOPPED_NS", "check_parent", "watch_parent"]

_PR_SET_PDEATHSIG = 1
_END_MS = 200  # time from the parent-death signal until the parent's pidfd is readable

MAYBE_STOPPED_NS = 100_000
"""If a call took longer, the process may have been stopped during it, and the parent may have ended."""


@dataclass
class _Watch:
    process: int  # this process; its children inherit the handler, but have another parent
    parent: int
    pidfd: int
    connection: int  # the other end is closed if the parent executes another program
    mark: str  # of the processes that this one has started
    forker: int  # the parent, or its fork server
    never_raises: ClassVar[bool] = True  # for `signals_deferred`

    def __call__(self, *_: object) -> None:
        """Handle SIGCONT, the parent-death signal."""
        if os.getpid() == self.process:
            self.end_with_parent(_END_MS if self.is_orphan() else 0)

    def is_orphan(self) -> bool:
        """Return whether the process that forked this one has ended. If it was the parent, kill this process group."""
        if os.getppid() == self.forker or os.getpid() != self.process:
            return False
        if self.forker == self.parent:
            self.kill_all()
        return True

    def end_with_parent(self, timeout_ms: int | None) -> None:
        """Wait until the parent ends, then kill this process group; after `timeout_ms` return. None: no time limit."""
        import select

        poll = select.poll()
        if self.pidfd >= 0:
            poll.register(self.pidfd, select.POLLIN)
        if timeout_ms is None or self.pidfd < 0:
            poll.register(self.connection, 0)  # POLLHUP is always reported
        if poll.poll(timeout_ms):
            self.kill_all()

    def kill_all(self) -> None:
        """Kill the processes with the mark, then this process group."""
        kill_tree(0, self.mark)
        os.killpg(0, signal.SIGKILL)


_watch: _Watch | None = None


def watch_parent(pid: int, pidfd: int, connection: int, mark: str) -> None:
    """Start a thread that kills this process group when the parent exits or closes its end of `connection`.

    Call it in the main thread: it also installs a handler of SIGCONT, the parent-death signal.

    Args:
        pid, pidfd: the parent; without pidfds -1, and its end is that of the connection.
        connection: descriptor of this process's end of a connection to the parent.
        mark: processes with this mark are killed, too; '' for none.
    """
    global _watch
    watch = _watch = _Watch(os.getpid(), pid, pidfd, connection, mark, os.getppid())
    signal.signal(signal.SIGCONT, watch)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT))
    # Signals belong to the env's thread, so the watcher's thread blocks all of them.
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        threading.Thread(target=watch.end_with_parent, args=(None,), daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_parent() -> None:
    """Kill this process group now if the watched parent has ended.

    Call it after a long operation: a process that was stopped may continue, and stop itself again, before its watcher's
    thread runs.
    """
    if _watch is not None and _watch.is_orphan():
        _watch.end_with_parent(_END_MS)
        _watch.forker = os.getppid()  # the fork server alone has ended; do not wait again
