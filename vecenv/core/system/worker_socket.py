"""The parent's end of the socket to a worker; it never blocks the parent.

A worker can stop or hang between any two bytes that it reads or writes. So the parent writes only as much as the
socket has room for, and reads only data that has arrived. It sleeps only in `poll_briefly`, which also watches
deadlines and the ends of processes.

    parent -> worker   frames and descriptors; without the C extension also commands
    worker -> parent   frames in the format of `multiprocessing.connection.Connection`: a length, then the bytes
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
from array import array
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection

from .clock import Deadline, now_ns
from .descriptor import Descriptor
from .signals import signals_deferred

__all__ = ["ControlSocket", "poll_briefly"]

#: Header of a frame: its length, or -1 if a longer number with the length follows.
_LENGTH, _LONG_LENGTH = struct.Struct("!i"), struct.Struct("!Q")
_LONGEST = 2**31 - 1
#: Of each write; a plain number, as Python takes 4 us to join the two.
_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
#: Most bytes of one read. The C library maps new memory for each buffer of 128 KiB or more: 20 us instead of 2 us.
_READ_NBYTES = 1 << 16
#: Longest sleep between two checks of a deadline. If a sleep takes twice as long, this process was stopped.
_POLL_SECONDS = 0.1


class ControlSocket:
    """The parent's end of the socket to one worker.

    Args:
        connection: this end of a socket pair; it is closed, and this object has a number of its own, which does not
            block. The other end may block.
    """

    def __init__(self, connection: Connection) -> None:
        with signals_deferred():
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(connection.fileno()))
            connection.close()
        self._socket.settimeout(0)
        self._unsent: deque[memoryview | Descriptor] = deque()  # bytes, and descriptors that are passed
        self._received = bytearray()
        self._is_at_eof = False

    def fileno(self) -> int:
        """Return the descriptor of this end, -1 if it is closed."""
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        """Whether this end is closed, because its worker has been reaped."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Close this end, and drop data that was not yet written or taken."""
        self._socket.close()
        self._unsent.clear()
        self._received.clear()

    def poll_events(self) -> int:
        """Return the poll events to wait for: readable, and writable if data is unsent."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    # ---- to the worker ----------------------------------------------------------------------

    def has_unsent(self) -> bool:
        """Return whether the socket had too little room for all data so far."""
        return bool(self._unsent)

    def send_frame(self, message: bytes, descriptors: Sequence[Descriptor] = ()) -> None:
        """Send a frame and then descriptors. The descriptors must stay open until they have been written.

        Raises:
            OSError: the system refuses to pass a descriptor.
        """
        length = len(message)
        head = _LENGTH.pack(length) if length <= _LONGEST else _LENGTH.pack(-1) + _LONG_LENGTH.pack(length)
        with signals_deferred():
            self._unsent += (memoryview(head), memoryview(message), *descriptors)
            self.pump()

    def queue_bytes(self, data: bytes) -> None:
        """Append raw bytes, which the next `pump` sends without a header."""
        self._unsent.append(memoryview(data))

    def pump(self) -> bool:
        """Write as much as the socket has room for; return whether anything was written.

        If the worker is dead or this end is closed, all unsent data is dropped.
        """
        with signals_deferred():
            written = False
            if self._unsent and self.closed:
                self._unsent.clear()
            while self._unsent and self._write_first():
                written = True
            return written

    def _write_first(self) -> bool:
        first = self._unsent[0]
        try:
            if isinstance(first, Descriptor):
                rights = array("i", [first.number])
                # the byte is their number, which the receiver checks
                self._socket.sendmsg([b"\x01"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], _FLAGS)
                rest = memoryview(b"")
            else:
                rest = first[self._socket.send(first, _FLAGS) :]
        except BlockingIOError:
            return False
        except ConnectionError:  # the worker is dead, which its pidfd reports
            self._unsent.clear()
            return False
        if rest:
            self._unsent[0] = rest
        else:
            self._unsent.popleft()
        return True

    def shut_down_write(self) -> None:
        """Signal the worker that no more data will come; drop unsent data."""
        self._unsent.clear()
        with contextlib.suppress(OSError):  # the worker is dead
            self._socket.shutdown(socket.SHUT_WR)

    # ---- from the worker --------------------------------------------------------------------

    def is_at_eof(self) -> bool:
        """Return whether the worker has closed its end, as it does when it ends; no more data will come."""
        return self._is_at_eof

    def is_readable(self) -> bool:
        """Return whether data has arrived that was not taken yet. Does not block."""
        if self.has_buffered_frame():
            return True
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def take_frame(self) -> bytes | None:
        """Return the next frame, or None if it has not arrived completely. Does not block."""
        with signals_deferred():
            found = self._find()
            if found is None:
                return None
            frame = bytes(self._received[found])
            del self._received[: found.stop]
            return frame

    def has_buffered_frame(self) -> bool:
        """Return whether a complete frame is buffered here, as after an interrupt; a poll does not report it."""
        return self._frame_at() is not None

    def _find(self) -> slice | None:
        """Read until the first frame is complete; return its position in the buffer, or None if data is missing."""
        while (found := self._frame_at()) is None and self._read():
            pass
        return found

    def _read(self) -> bool:
        if self.closed or self._is_at_eof:
            return False
        try:
            data = self._socket.recv(_READ_NBYTES)
        except BlockingIOError:
            return False
        except OSError:  # the worker is dead
            data = b""
        self._received += data
        self._is_at_eof = not data
        return not self._is_at_eof

    def _frame_at(self) -> slice | None:
        """Return the position of the first complete frame in the buffer, without reading; None if there is none."""
        start = _LENGTH.size
        if len(self._received) < start:
            return None
        length = _LENGTH.unpack_from(self._received)[0]
        if length < 0:
            start += _LONG_LENGTH.size
            if len(self._received) < start:
                return None
            length = _LONG_LENGTH.unpack_from(self._received, _LENGTH.size)[0]
        stop = start + length
        return slice(start, stop) if len(self._received) >= stop else None


def poll_briefly(ends: Sequence[ControlSocket | Descriptor], deadline: Deadline) -> set[ControlSocket | Descriptor]:
    """Wait at most 0.1 s until a descriptor is readable or a worker's socket is ready.

    A socket is ready if the worker has sent data, or if there is room for unsent data. If this process was stopped
    during the wait (SIGSTOP, a debugger, a suspended container), the deadline is extended by that time.

    Returns:
        The elements of `ends` that are ready. A socket whose other end is known to be closed is not waited for.
    """
    here: set[ControlSocket | Descriptor] = {
        end for end in ends if isinstance(end, ControlSocket) and end.has_buffered_frame()
    }
    if here:
        return here
    poll = select.poll()
    of_descriptor: dict[int, ControlSocket | Descriptor] = {}
    for end in ends:
        if isinstance(end, Descriptor):
            poll.register(end, select.POLLIN)
            of_descriptor[end.number] = end
        elif not end.is_at_eof():
            poll.register(end.fileno(), end.poll_events())
            of_descriptor[end.fileno()] = end
    left = deadline.seconds_left()
    pause = _POLL_SECONDS if left is None else min(left, _POLL_SECONDS)
    began_ns = now_ns()
    events = poll.poll(math.ceil(pause * 1e3))
    late_ns = now_ns() - began_ns - int(pause * 1e9)
    if late_ns > int(_POLL_SECONDS * 1e9):
        deadline.extend(late_ns)
    return {of_descriptor[descriptor] for descriptor, _ in events}
