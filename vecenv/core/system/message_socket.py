"""Short messages in JSON, with descriptors, between an env server and the programs of its user.

The socket is of the type SOCK_SEQPACKET: one packet is one message. The length of a packet is read before the packet
itself, and the contents are no code, so a program that sends anything else does no harm.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from array import array
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from ...errors import VecenvError
from .clock import Deadline
from .descriptor import Descriptor
from .signals import signals_deferred

__all__ = ["BadMessage", "MessageSocket"]

#: Longest message.
MOST_NBYTES = 1 << 16
#: Most descriptors of one message.
_MOST_DESCRIPTORS = 4
_ANCILLARY_NBYTES = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array("i").itemsize) if hasattr(socket, "CMSG_SPACE") else 0
#: pid, uid and gid of the process at the other end.
_CREDENTIALS = struct.Struct("=iII")


class BadMessage(VecenvError):
    """A packet is too long, or no JSON object."""


class MessageSocket:
    """One end of a connection.

    Args:
        end: the connected socket; this object closes it.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end

    @classmethod
    def connect(cls, path: str) -> MessageSocket:
        """Connect to the server at a path; raises OSError if there is none."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            end.connect(path)
        except BaseException:
            end.close()
            raise
        return cls(end)

    def fileno(self) -> int:
        """Return the descriptor; -1 if it is closed."""
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Close this end; may be repeated."""
        self._socket.close()

    def end(self) -> None:
        """End the connection, even if forked processes have copies of this end; may be repeated."""
        with contextlib.suppress(OSError):  # it is closed, or was never connected
            self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def peer(self) -> tuple[int, int]:
        """Return (pid, uid) of the process that has connected, as the kernel knows them."""
        pid, uid, _ = _CREDENTIALS.unpack(
            self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        return pid, uid

    def send(self, message: Mapping[str, Any], descriptors: Sequence[Descriptor] = ()) -> None:
        """Send one message. Does not block.

        Raises:
            OSError: the other end is closed, or does not read.
        """
        rights = array("i", [descriptor.number for descriptor in descriptors])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        self._socket.sendmsg([json.dumps(message).encode()], ancillary, socket.MSG_NOSIGNAL)

    def receive(self) -> tuple[dict[str, Any], list[Descriptor]]:
        """Return the next message and its descriptors, which belong to the caller. Does not block.

        Raises:
            BlockingIOError: there is none now.
            EOFError: the other end is closed.
            BadMessage: it is no message.
        """
        with signals_deferred():
            length = self._socket.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
            if length > MOST_NBYTES:
                self._socket.recv(1)  # the packet is dropped as a whole
                raise BadMessage(f"a message of {length} bytes; the longest one has {MOST_NBYTES}")
            data, ancillary, _, _ = self._socket.recvmsg(max(1, length), _ANCILLARY_NBYTES, socket.MSG_CMSG_CLOEXEC)
            descriptors = [Descriptor(number) for kind in ancillary for number in _numbers_of(*kind)]
        if not data:
            raise EOFError
        try:
            message = json.loads(data)
            if not isinstance(message, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            for descriptor in descriptors:
                descriptor.close()
            raise BadMessage(f"a message that is no JSON object: {data[:40]!r}") from error
        return message, descriptors

    def await_message(self, deadline: Deadline) -> bool:
        """Wait until a message can be received, or the other end is closed; return False at the deadline."""
        return bool(wait([self.fileno()], deadline.seconds_left()))


def _numbers_of(level: int, kind: int, data: bytes) -> list[int]:
    found = array("i")
    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
        found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)
