"""Stacks: what a worker was doing when it crashed or hung, as its Python stack.

`faulthandler` writes it in C, into a file in memory that the parent made and keeps: on SIGSEGV
and its like by itself, and when the parent asks with a signal, even if the worker holds the
interpreter's lock in a loop of C. A stopped process writes nothing; then its state is told.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from typing import NamedTuple

from .clock import Deadline, now_ns

__all__ = ["PhaseNote", "StackFile", "enable_stack_dumps", "note_phase"]

#: The parent asks with this signal; simulators have no use for the last real-time signals.
_DUMP_SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR1
#: How long the parent waits for the answer, and for how long it sleeps in between.
_REPLY_SECONDS, _POLL_SECONDS = 0.005, 0.0005
#: The same for a process that is waiting for a core: it writes as soon as it has one.
_QUEUE_SECONDS = 0.1
_MOST_NBYTES = 1 << 16
#: Lines of a file that are no stack begin with this.
_MARK = "# vecenv "
_dump_fd = -1
#: Where the frames of the engine begin in a stack; those below are of no use to anybody.
_OUR_FRAMES = f'File "{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}'
_STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "D": "in an uninterruptible system call",
    "Z": "dead and not reaped",
}


class PhaseNote(NamedTuple):
    """What a worker was last known to begin outside of the commands that its slots show."""

    phase: str
    env_id: int
    began_ns: int


def enable_stack_dumps(fd: int) -> None:
    """Worker: write stacks to this file from now on."""
    global _dump_fd
    _dump_fd = fd
    faulthandler.enable(file=fd, all_threads=True)
    if hasattr(faulthandler, "register"):
        faulthandler.register(_DUMP_SIGNAL, file=fd, all_threads=True, chain=False)


def note_phase(phase: str, env_id: int) -> None:
    """Worker: say that `phase` ('construct' or 'close') of an env begins now."""
    if _dump_fd >= 0:
        os.write(_dump_fd, f"{_MARK}{phase} {env_id} {now_ns()}\n".encode())


class StackFile:
    """Parent: the file of one worker."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else -1

    def close(self) -> None:
        """Close the descriptor; may be repeated."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def read(self) -> str:
        """Return what has been written, '' for nothing."""
        if self.fd < 0:
            return ""
        return _readable(os.pread(self.fd, _MOST_NBYTES, 0))

    def last_note(self) -> PhaseNote | None:
        """Return what the worker began last; None: nothing yet, or the file is closed."""
        if self.fd < 0:
            return None
        written = os.pread(self.fd, _MOST_NBYTES, 0).decode(errors="replace")
        lines = [line for line in written.splitlines() if line.startswith(_MARK)]
        if not lines:
            return None
        phase, env_id, began_ns = lines[-1].removeprefix(_MARK).split()
        return PhaseNote(phase, int(env_id), int(began_ns))

    def request(self, pid: int) -> str:
        """Return the present stack of a process, or why it has none.

        Waits at most 5 ms; 100 ms where more processes want to run than there are cores. The
        process is alive or has ended a moment ago, so that the pid is nobody else's yet.
        """
        state = _state_of(pid)
        if state in _STATES:
            return f"no stack: the process is {_STATES[state]}"
        if self.fd < 0:
            return ""
        before = os.fstat(self.fd).st_size
        try:
            os.kill(pid, _DUMP_SIGNAL)
        except ProcessLookupError:  # it has just ended, and its fork server has reaped it
            return ""
        reply_deadline, core_deadline = Deadline(_REPLY_SECONDS), Deadline(_QUEUE_SECONDS)
        size = before
        while not reply_deadline.is_over() or (_state_of(pid) == "R" and not core_deadline.is_over()):
            time.sleep(_POLL_SECONDS)
            now = os.fstat(self.fd).st_size
            if now == size and now > before:  # it has grown, and come to rest
                break
            size = now
        return _readable(os.pread(self.fd, _MOST_NBYTES, before))


def _readable(written: bytes) -> str:
    """Return a stack as text, without the frames of the engine that called the env."""
    lines = []
    is_ours = False
    for line in written.decode(errors="replace").strip().splitlines():
        if not line.startswith("  "):
            is_ours = False
        is_ours = is_ours or _OUR_FRAMES in line
        if not is_ours and not line.startswith(("Extension modules:", _MARK)):
            lines.append(line)
    return "\n".join(lines).strip()


def _state_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
