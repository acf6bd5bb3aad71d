"""Parcels: what is too long for a socket to take at once, handed over as a file in memory.

A socket has room for some 200 KB. Who writes more to it waits for its reader, who may be stopped or
hang, and no deadline ends that wait. A descriptor always fits.
"""

from __future__ import annotations

import os
import tempfile
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import IO

__all__ = ["receive_parcel", "send_parcel"]


def send_parcel(control: Connection, data: bytes) -> None:
    """Send bytes to a process at the other end of this socket, without waiting for it.

    Raises:
        OSError: it has ended (ConnectionError), or the system has no descriptor or memory left.
    """
    with _open_file() as file:
        file.write(data)
        file.flush()
        reduction.send_handle(control, file.fileno(), 0)


def receive_parcel(control: Connection) -> bytes:
    """Take the next parcel, waiting for it.

    Raises:
        EOFError, ConnectionError: who was to send it has ended.
    """
    with open(reduction.recv_handle(control), "rb") as file:
        file.seek(0)  # it is the sender's place that was handed over
        return file.read()


def _open_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("vecenv parcel", os.MFD_CLOEXEC), "r+b")
    return tempfile.TemporaryFile()
