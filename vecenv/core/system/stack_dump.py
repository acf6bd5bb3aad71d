"""Get the Python stack of a worker that crashed or hangs, and the env that it is building or closing.

    byte 0        32             ...            32 * num_threads
    | note        | note         | ...          | stacks as text, one after the other ...
      of thread 0   of thread 1

Both are in a memory file that the parent created and keeps. `faulthandler` writes the stack, in C, on SIGSEGV and
similar signals, and whenever the parent sends a signal, even if the worker holds the GIL in a loop in C. A stopped
process cannot write; the parent then reports its process state instead. Each thread overwrites its own note, so the
notes have the same size for any number of envs.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import struct
import time
from typing import NamedTuple

from .clock import Deadline, now_ns
from .descriptor import Descriptor
from .process_stat import state_of

__all__ = [
    "PhaseNote",
    "StackFile",
    "disable_stack_dumps",
    "enable_stack_dumps",
    "note_phase",
    "note_pause",
    "signal_name",
]

#: Signal by which the parent requests a stack; simulators do not use the last real-time signals.
_DUMP_SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR1
#: Signals that end a process unless they are handled, on which `faulthandler` writes the stack.
_FATAL_NAMES = ("SIGSEGV", "SIGFPE", "SIGABRT", "SIGILL", "SIGBUS")
_FATAL_SIGNALS = [getattr(signal, name) for name in _FATAL_NAMES if hasattr(signal, name)]
#: How long the parent waits for the stack, and how long it sleeps between two checks.
_REPLY_SECONDS, _POLL_SECONDS = 0.005, 0.0005
#: How long the parent waits if the process is runnable but has no core: it writes as soon as it gets one.
_QUEUE_SECONDS = 0.1
#: Longest part of the stacks that is read: the newest.
_MOST_NBYTES = 1 << 16
#: A note: index of the phase, env_id, time in nanoseconds, number of envs that are done.
_NOTE = struct.Struct("=4q")
#: Phases by their index; a thread without a note has 0.
_PHASES = ("", "pause", "construct", "measure", "close")
#: In a worker: the number that `faulthandler` writes to, until the process ends.
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
    """The phase that a thread of a worker has begun outside of commands; the state of its slot shows commands.

    Attributes:
        phase: 'construct' or 'close' of an env; 'pause': the thread has none to build or close at present.
        env_id: the env; -1 in a pause.
        began_ns: when the phase began, on the monotonic clock, in nanoseconds.
        num_done: number of envs for which the thread has done this before.
    """

    phase: str
    env_id: int
    began_ns: int
    num_done: int


def enable_stack_dumps(fd: int) -> None:
    """Worker: write stacks to this file descriptor from now on.

    Handlers of fatal signals that a forked worker inherits are removed: pygame's makes SIGABRT of a SIGSEGV.
    """
    global _dump_fd
    _dump_fd = fd
    faulthandler.disable()
    for number in _FATAL_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(file=fd, all_threads=True)
    if hasattr(faulthandler, "register"):
        faulthandler.register(_DUMP_SIGNAL, file=fd, all_threads=True, chain=False)


def disable_stack_dumps() -> None:
    """Worker: write stacks and notes to no file any more."""
    global _dump_fd
    _dump_fd = -1
    faulthandler.disable()
    if hasattr(faulthandler, "unregister"):
        faulthandler.unregister(_DUMP_SIGNAL)


def note_phase(phase: str, env_id: int, *, thread: int = 0, num_done: int = 0) -> None:
    """Worker: write a note that `phase` ('construct', 'measure' or 'close') of an env begins now in a thread.

    Args:
        phase, env_id: the phase that begins.
        thread: number of the thread among those of the worker; its last note is overwritten.
        num_done: number of envs for which the thread has done this before.
    """
    if _dump_fd >= 0:
        os.pwrite(_dump_fd, _NOTE.pack(_PHASES.index(phase), env_id, now_ns(), num_done), thread * _NOTE.size)


def note_pause(*, thread: int = 0, num_done: int = 0) -> None:
    """Worker: write a note that the phases of a thread are over, after this number of envs."""
    note_phase("pause", -1, thread=thread, num_done=num_done)


def signal_name() -> str:
    """Return the name of the signal by which a stack is requested, such as 'SIGRTMAX-2'."""
    rtmax = getattr(signal, "SIGRTMAX", None)
    return signal.Signals(_DUMP_SIGNAL).name if rtmax is None else f"SIGRTMAX-{rtmax - _DUMP_SIGNAL}"


class StackFile:
    """The parent's end of the stack file of one worker.

    Args:
        name: of the memory file, for tools that list descriptors.
        num_threads: number of threads of the worker that write notes.

    Attributes:
        fd: the memory file.
    """

    def __init__(self, name: str, num_threads: int = 1) -> None:
        self._notes_nbytes = num_threads * _NOTE.size
        self.fd = Descriptor.of_memory(name)
        os.ftruncate(self.fd.number, self._notes_nbytes)
        # the worker shares the position, and so writes there
        os.lseek(self.fd.number, self._notes_nbytes, os.SEEK_SET)

    @classmethod
    def attached(cls, fd: Descriptor) -> StackFile:
        """Return the file of a worker of another process, to request stacks; `close` closes the descriptor.

        Args:
            fd: a descriptor of that file, for reading.
        """
        found = cls.__new__(cls)
        found._notes_nbytes, found.fd = 0, fd
        return found

    def close(self) -> None:
        """Close the descriptor; may be repeated."""
        self.fd.close()

    def read(self) -> str:
        """Return the stacks written so far as text, the newest 64 KiB of them; '' if there are none."""
        if self.fd.closed:
            return ""
        size = os.fstat(self.fd.number).st_size
        return _readable(os.pread(self.fd.number, _MOST_NBYTES, max(self._notes_nbytes, size - _MOST_NBYTES)))

    def notes(self) -> list[PhaseNote | None]:
        """Return the newest note of each thread, by thread; None for one that has begun no phase.

        Without a file, or when it is closed, the list is empty.
        """
        if self.fd.closed:
            return []
        found, again = b"", os.pread(self.fd.number, self._notes_nbytes, 0)
        while found != again:  # otherwise a thread may have written while it was read
            found, again = again, os.pread(self.fd.number, self._notes_nbytes, 0)
        return [PhaseNote(_PHASES[phase], *rest) if phase else None for phase, *rest in _NOTE.iter_unpack(found)]

    def request(self, pid: int) -> str:
        """Return the present stack of a process, or the reason why it has none.

        Waits at most 5 ms, or 100 ms if more processes want to run than there are cores. The process must be alive or
        have ended just now, so that its pid is not in use by another process.
        """
        state = state_of(pid)
        if state in _STATES:
            return f"no stack: the process is {_STATES[state]}"
        if self.fd.closed:
            return ""
        before = os.fstat(self.fd.number).st_size
        try:
            os.kill(pid, _DUMP_SIGNAL)
        except ProcessLookupError:  # it has just ended, and its fork server has reaped it
            return ""
        reply_deadline, core_deadline = Deadline(_REPLY_SECONDS), Deadline(_QUEUE_SECONDS)
        size = before
        while not reply_deadline.is_over() or (state_of(pid) == "R" and not core_deadline.is_over()):
            time.sleep(_POLL_SECONDS)
            now = os.fstat(self.fd.number).st_size
            if now == size and now > before:  # it has grown since the request, and then stopped growing
                break
            size = now
        return _readable(os.pread(self.fd.number, _MOST_NBYTES, before))


def _readable(written: bytes) -> str:
    """Return a stack as text, without the frames of the engine that called the env."""
    lines = []
    is_ours = False
    for line in written.decode(errors="replace").strip().splitlines():
        if not line.startswith("  "):
            is_ours = False
        is_ours = is_ours or _OUR_FRAMES in line
        if not is_ours and not line.startswith("Extension modules:"):
            lines.append(line)
    return "\n".join(lines).strip()
