"""ControlSocket: the parent's end of the socket to a worker, which never keeps the parent waiting.

A worker can be stopped, or hang, between any two bytes of what it reads or writes. So the parent writes what the
socket has room for and reads what is there; it sleeps in one place only, which hears of deadlines and of ends.

    parent -> worker   frames and descriptors; without C commands too
    worker -> parent   frames, as `multiprocessing.connection.Connection` makes them: a length, then so many bytes
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
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from .clock import Deadline, now_ns
from .signals import signals_deferred

__all__ = ["ControlSocket", "poll_briefly"]

#: What stands before a frame: its length; -1: it is longer, and a longer number follows.
_LENGTH, _LONG_LENGTH = struct.Struct("!i"), struct.Struct("!Q")
_LONGEST = 2**31 - 1
#: Some more than a socket holds.
_READ_NBYTES = 1 << 18
#: How long waits for workers sleep between two looks at their deadline. One that takes twice as long was stopped.
_POLL_SECONDS = 0.1


class ControlSocket:
    """The parent's end of the socket to one worker.

    Args:
        connection: this end of a pair of sockets; closed with this object. The other end may wait, this one does not.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        os.set_blocking(connection.fileno(), False)
        self._unsent: deque[memoryview | int] = deque()  # bytes, and descriptors
        self._received = bytearray()
        self._is_at_eof = False

    def fileno(self) -> int:
        """Return the descriptor of this end."""
        return self._connection.fileno()

    @property
    def closed(self) -> bool:
        """Whether this end has been closed: its worker has been reaped."""
        return self._connection.closed

    def close(self) -> None:
        """Close this end; what has not been written or taken is dropped."""
        self._connection.close()
        self._unsent.clear()
        self._received.clear()

    def poll_events(self) -> int:
        """Return what a poll is to wait for here: words, and room for what is unsent."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    # ---- to the worker ----------------------------------------------------------------------

    def has_unsent(self) -> bool:
        """Whether the socket had no room for all so far."""
        return bool(self._unsent)

    def send_frame(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a frame, and descriptors behind it; they stay open until they have been written.

        Raises:
            OSError: the system passes no descriptor on.
        """
        length = len(message)
        head = _LENGTH.pack(length) if length <= _LONGEST else _LENGTH.pack(-1) + _LONG_LENGTH.pack(length)
        with signals_deferred():
            self._unsent += (memoryview(head), memoryview(message), *descriptors)
            self.pump()

    def queue_bytes(self, data: bytes) -> None:
        """Have the next `pump` send bytes as they are."""
        self._unsent.append(memoryview(data))

    def pump(self) -> bool:
        """Write what the socket has room for, all of it if nobody will ever read; tell whether that was something."""
        with signals_deferred():
            written = False
            if self._unsent and self.closed:
                self._unsent.clear()
            if self._unsent:
                with self._as_socket() as end:
                    while self._unsent and self._write_first(end):
                        written = True
            return written

    def _write_first(self, end: socket.socket) -> bool:
        first = self._unsent[0]
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        try:
            if isinstance(first, int):
                rights = array("i", [first])
                end.sendmsg([b"\x01"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], flags)  # how many: read there
                rest = memoryview(b"")
            else:
                rest = first[end.send(first, flags) :]
        except BlockingIOError:
            return False
        except ConnectionError:  # the worker is dead; its pidfd tells of that
            self._unsent.clear()
            return False
        if rest:
            self._unsent[0] = rest
        else:
            self._unsent.popleft()
        return True

    def shut_down_write(self) -> None:
        """Tell the worker that nothing more will come; what has not been written is dropped."""
        self._unsent.clear()
        with self._as_socket() as end, contextlib.suppress(OSError):  # the worker is dead
            end.shutdown(socket.SHUT_WR)

    @contextlib.contextmanager
    def _as_socket(self) -> Iterator[socket.socket]:
        """Use the connection as the socket that it is; the descriptor stays the connection's, whoever interrupts."""
        with signals_deferred():
            end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self.fileno())
            try:
                end.settimeout(0)  # whatever `socket.setdefaulttimeout` says
                yield end
            finally:
                end.detach()

    # ---- from the worker --------------------------------------------------------------------

    def is_at_eof(self) -> bool:
        """Whether nothing more will come: the worker has closed its end, which it does when it ends."""
        return self._is_at_eof

    def is_readable(self) -> bool:
        """Whether something has come that has not been taken."""
        if self.has_buffered_frame():
            return True
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def take_frame(self) -> bytes | None:
        """Return the next frame, if the whole of it has come."""
        with signals_deferred():
            found = self._find()
            if found is None:
                return None
            frame = bytes(self._received[found])
            del self._received[: found.stop]
            return frame

    def has_buffered_frame(self) -> bool:
        """Whether the next frame is here already, as after an interrupt between two: no poll tells of that."""
        return self._frame_at() is not None

    def has_frame(self) -> bool:
        """Read what has come, and tell whether `take_frame` would return a frame."""
        with signals_deferred():
            return self._find() is not None

    def _find(self) -> slice | None:
        """Return where the bytes of the first frame stand, if the whole of it has come by now."""
        while (found := self._frame_at()) is None and self._read():
            pass
        return found

    def _read(self) -> bool:
        if self.closed or self._is_at_eof:
            return False
        try:
            data = os.read(self.fileno(), _READ_NBYTES)
        except BlockingIOError:
            return False
        except OSError:  # the worker is dead
            data = b""
        self._received += data
        self._is_at_eof = not data
        return not self._is_at_eof

    def _frame_at(self) -> slice | None:
        """Return the same of what has been read."""
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


def poll_briefly(ends: Sequence[ControlSocket | int], deadline: Deadline) -> set[ControlSocket | int]:
    """Wait until a descriptor is readable, a worker says something or has room for what is unsent, but not for long.

    The deadline is extended if this process was itself stopped meanwhile (SIGSTOP, a debugger, a suspended container).

    Returns:
        Those of `ends` that this is so of. One that turned out to be closed at the other end is not waited for again.
    """
    here: set[ControlSocket | int] = {
        end for end in ends if isinstance(end, ControlSocket) and end.has_buffered_frame()
    }
    if here:
        return here
    poll = select.poll()
    of_descriptor: dict[int, ControlSocket | int] = {}
    for end in ends:
        if isinstance(end, int):
            poll.register(end, select.POLLIN)
            of_descriptor[end] = end
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
