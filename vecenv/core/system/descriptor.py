"""Descriptor: the owner of one file descriptor of this process.

The system gives a number that was closed to the next file that the process opens, such as a checkpoint of the program.
So each number has one owner, which alone closes it and forgets it at once. A thread that needs the same file for longer
gets a number of its own from `duplicate`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
import threading

from .signals import signals_deferred

__all__ = ["Descriptor", "WakeEvent"]

#: Errors of a system call that the kernel lacks, or that a sandbox forbids, such as the seccomp filter of a container.
_REFUSED = (errno.ENOSYS, errno.EPERM, errno.EACCES)
#: More than the wakes that a pipe contains as a rule; an event counter is read as a whole.
_WAKE_NBYTES = 4096
#: The number that `wake` adds to an event counter.
_ONE = (1).to_bytes(8, sys.byteorder)


class Descriptor:
    """Owns one file descriptor.

    Attributes:
        number: for system calls; -1 when closed, which every system call refuses.
    """

    __slots__ = ("number",)

    def __init__(self, number: int = -1) -> None:
        self.number = number

    @classmethod
    def of_event(cls) -> Descriptor:
        """Return a new event counter (eventfd), whose reads and writes do not block."""
        return cls(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    @classmethod
    def of_pipe(cls) -> tuple[Descriptor, Descriptor]:
        """Return the ends of a new pipe, for reading and for writing; neither blocks."""
        ends = os.pipe()
        for number in ends:
            os.set_blocking(number, False)
        return cls(ends[0]), cls(ends[1])

    @classmethod
    def of_memory(cls, name: str) -> Descriptor:
        """Return a new file in memory, or a temporary file without a name if the system refuses files in memory.

        Args:
            name: of the file in memory, for tools that list descriptors.
        """
        try:
            return cls(os.memfd_create(name, os.MFD_CLOEXEC))
        except AttributeError:  # this Python lacks the call
            pass
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
        with tempfile.TemporaryFile(buffering=0) as file:
            return cls(os.dup(file.fileno()))

    @classmethod
    def of_process(cls, pid: int) -> Descriptor:
        """Return the pidfd of a process, which is readable once it has ended; a closed one if the system refuses it.

        Raises:
            OSError: there is no such process, or no descriptor is left.
        """
        try:
            return cls(os.pidfd_open(pid))
        except AttributeError:  # this Python lacks the call
            return cls()
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            return cls()

    def fileno(self) -> int:
        """Return the number, for `select` and polls; these raise ValueError for a closed one."""
        return self.number

    @property
    def closed(self) -> bool:
        """Whether there is no number any more."""
        return self.number < 0

    def duplicate(self) -> Descriptor:
        """Return the owner of another number of the same file."""
        return Descriptor(os.dup(self.number))

    def take_wakes(self) -> None:
        """Read the wakes of an event counter or a pipe, so that it is not readable any more."""
        os.read(self.number, _WAKE_NBYTES)

    def close(self) -> None:
        """Close the descriptor; may be repeated.

        No lock is taken: a forked child closes its copy, and another thread may have had the lock at the fork.
        """
        with signals_deferred():
            number, self.number = self.number, -1
            if number >= 0:
                os.close(number)


class WakeEvent:
    """An event counter (eventfd) that any thread and any signal handler may write, also while it is closed.

    Where the system has no event counters, it is a pipe.

    Attributes:
        descriptor: becomes readable by `wake`, until it has been read.
    """

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.descriptor = self._writer = Descriptor.of_event()
        else:
            self.descriptor, self._writer = Descriptor.of_pipe()
        self._lock = threading.RLock()  # the system call of `wake` runs without the GIL

    def wake(self) -> None:
        """Make the descriptor readable; does nothing once it is closed."""
        with signals_deferred(), self._lock:
            if not self.descriptor.closed:
                with contextlib.suppress(BlockingIOError):  # a full pipe is readable
                    os.write(self._writer.number, _ONE)

    def descriptors(self) -> list[Descriptor]:
        """Return the descriptors that a forked worker must close."""
        return [self.descriptor, self._writer]

    def close(self) -> None:
        """Close the descriptor, after a `wake` of another thread that has begun; may be repeated."""
        with signals_deferred(), self._lock:
            self._writer.close()
            self.descriptor.close()
