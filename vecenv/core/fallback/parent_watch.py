"""Twin watch: die with the parent, without C.

All as `native/shm/parent_watch.c` does, but that signal handlers run in the env's thread anyway.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from dataclasses import dataclass

__all__ = ["MAYBE_STOPPED_NS", "check_parent", "watch_parent"]

_PR_SET_PDEATHSIG = 1
_END_MS = 200  # from the signal that a parent's end sends to the moment when its pidfd tells of it

MAYBE_STOPPED_NS = 100_000
"""A call that took longer may have been stopped meanwhile, until the parent ended."""


@dataclass
class _Watch:
    process: int  # this one; what it forks inherits the handler, but has another parent
    parent: int
    pidfd: int
    connection: int  # whose other end the parent loses when it becomes another program
    forker: int  # the parent, or its fork server

    def is_orphan(self) -> bool:
        """Whether who forked this process has ended. If that was the parent, this does not return."""
        if os.getppid() == self.forker or os.getpid() != self.process:
            return False
        if self.forker == self.parent:
            os.killpg(0, signal.SIGKILL)
        return True

    def end_with_parent(self, timeout_ms: int | None) -> None:
        """End this process group with the parent, if that ends within so many milliseconds; None: whenever it does."""
        import select

        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        if timeout_ms is None:
            poll.register(self.connection, 0)  # POLLHUP comes unasked
        if poll.poll(timeout_ms):
            os.killpg(0, signal.SIGKILL)


_watch: _Watch | None = None


def watch_parent(pid: int, pidfd: int, connection: int) -> None:
    """Kill this process group once the process `pid` behind `pidfd` has exited, or has no end of `connection` any more.

    A thread does that.
    """
    global _watch
    watch = _watch = _Watch(os.getpid(), pid, pidfd, connection, os.getppid())

    def on_continue(*_: object) -> None:
        if os.getpid() == watch.process:
            watch.end_with_parent(_END_MS if watch.is_orphan() else 0)

    signal.signal(signal.SIGCONT, on_continue)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT))
    # Signals are the env's business: the watcher's thread blocks them all.
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        threading.Thread(target=watch.end_with_parent, args=(None,), daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_parent() -> None:
    """Kill the group now if the watched parent has gone.

    For after what took long: a process that was stopped goes on before its watcher does, and may stop itself again.
    """
    if _watch is not None and _watch.is_orphan():
        _watch.end_with_parent(_END_MS)
        _watch.forker = os.getppid()  # the fork server alone has ended, which is waited for once
