"""Get the Python stack of a worker that crashed or hangs.

`faulthandler` writes the stack, in C, into a memory file that the parent created and keeps. It writes on SIGSEGV and
similar signals, and whenever the parent sends a signal, even if the worker holds the GIL in a loop in C. A stopped
process cannot write; the parent then reports its process state instead.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from typing import NamedTuple

from .clock import Deadline, now_ns

__all__ = ["PhaseNote", "StackFile", "enable_stack_dumps", "note_phase"]

#: Signal by which the parent requests a stack; simulators do not use the last real-time signals.
_DUMP_SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR1
#: How long the parent waits for the stack, and how long it sleeps between two checks.
_REPLY_SECONDS, _POLL_SECONDS = 0.005, 0.0005
#: How long the parent waits if the process is runnable but has no core: it writes as soon as it gets one.
_QUEUE_SECONDS = 0.1
_MOST_NBYTES = 1 << 16
#: Prefix of the lines of a stack file that are notes of phases.
_MARK = "# vecenv "
_dump_fd = -1
#: Start of the frames of the engine in a stack. These frames and those below are cut off.
_OUR_FRAMES = f'File "{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}'
_STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "D": "in an uninterruptible system call",
    "Z": "dead and not reaped",
}


class PhaseNote(NamedTuple):
    """The last phase that a worker began outside of commands; the state of its slots shows commands.

    `began_ns` is the time on the monotonic clock, in nanoseconds.
    """

    phase: str
    env_id: int
    began_ns: int


def enable_stack_dumps(fd: int) -> None:
    """Worker: write stacks to this file descriptor from now on."""
    global _dump_fd
    _dump_fd = fd
    faulthandler.enable(file=fd, all_threads=True)
    if hasattr(faulthandler, "register"):
        faulthandler.register(_DUMP_SIGNAL, file=fd, all_threads=True, chain=False)


def note_phase(phase: str, env_id: int) -> None:
    """Worker: write a note that `phase` ('construct' or 'close') of an env begins now."""
    if _dump_fd >= 0:
        os.write(_dump_fd, f"{_MARK}{phase} {env_id} {now_ns()}\n".encode())


class StackFile:
    """The parent's end of the stack file of one worker."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else -1

    def close(self) -> None:
        """Close the descriptor; may be repeated."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def read(self) -> str:
        """Return everything written so far as text, '' if nothing was."""
        if self.fd < 0:
            return ""
        return _readable(os.pread(self.fd, _MOST_NBYTES, 0))

    def last_note(self) -> PhaseNote | None:
        """Return the last phase that the worker began; None if it began none or the file is closed."""
        if self.fd < 0:
            return None
        written = os.pread(self.fd, _MOST_NBYTES, 0).decode(errors="replace")
        lines = [line for line in written.splitlines() if line.startswith(_MARK)]
        if not lines:
            return None
        phase, env_id, began_ns = lines[-1].removeprefix(_MARK).split()
        return PhaseNote(phase, int(env_id), int(began_ns))

    def request(self, pid: int) -> str:
        """Return the present stack of a process, or the reason why it has none.

        Waits at most 5 ms, or 100 ms if more processes want to run than there are cores. The process must be alive or
        have ended just now, so that its pid is not in use by another process.
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
            if now == size and now > before:  # it has grown since the request, and then stopped growing
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
