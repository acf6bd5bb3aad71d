"""Capture the standard output and error of a worker while it builds its envs.

    worker   OutputCapture   descriptors 1 and 2 lead to two pipes until `end`
    parent   OutputPipes     reads these pipes; it reads the rest when the worker has ended, so a crash loses nothing

Processes that an env starts meanwhile keep the pipes as their output. `OutputPipes.relay` passes their text on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
import threading
from collections.abc import Sequence

__all__ = ["OutputCapture", "OutputPipes", "silence", "write_output"]

#: Descriptors of standard output and standard error.
STREAMS = (1, 2)
_READ_NBYTES = 1 << 16
#: How long the end of a relay may take, in seconds.
_END_SECONDS = 1.0
#: Modes of C's `setvbuf`.
_FULL_BUFFERING, _LINE_BUFFERING = 0, 1


class OutputCapture:
    """The worker's end: descriptors 1 and 2 of this process lead to the pipes until `end`.

    Python and C buffer their standard output by lines meanwhile, so that the pipes have all lines before a crash.

    Args:
        pipes: a write end for each of `STREAMS`; they are closed.
    """

    def __init__(self, pipes: Sequence[int]) -> None:
        _flush_python()
        self._stdout = _c_stdout()
        if self._stdout is not None:  # a forked worker has a copy of its parent's buffer, which is the parent's text
            with contextlib.suppress(AttributeError):  # not in every C library
                ctypes.CDLL(None).__fpurge(self._stdout)
            ctypes.CDLL(None).setvbuf(self._stdout, None, _LINE_BUFFERING, 0)
        self._was_line_buffered = _set_line_buffering(True)
        self._saved = [os.dup(stream) for stream in STREAMS]
        for stream, pipe in zip(STREAMS, pipes):
            os.dup2(pipe, stream)
            os.close(pipe)

    def end(self) -> None:
        """Put the original descriptors back."""
        _flush_python()
        if self._stdout is not None:
            ctypes.CDLL(None).fflush(self._stdout)
        for stream, saved in zip(STREAMS, self._saved):
            os.dup2(saved, stream)
            os.close(saved)
        _set_line_buffering(self._was_line_buffered)
        if self._stdout is not None and not os.isatty(1):
            ctypes.CDLL(None).setvbuf(self._stdout, None, _FULL_BUFFERING, 0)


def silence() -> None:
    """Connect descriptors 1 and 2 of this process to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in STREAMS:
        os.dup2(null, stream)
    os.close(null)


def _flush_python() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):  # the program has replaced or closed it
            stream.flush()


def _set_line_buffering(value: bool) -> bool:
    """Set whether Python's standard output is flushed after every line; return the former value."""
    stream = sys.stdout
    before = getattr(stream, "line_buffering", None)
    if before is None or not hasattr(stream, "reconfigure"):  # the program has replaced it
        return value
    stream.reconfigure(line_buffering=value)
    return bool(before)


def _c_stdout() -> ctypes.c_void_p | None:
    try:
        return ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stdout")
    except ValueError:  # a C library that names it differently
        return None


class OutputPipes:
    """The parent's end of the two pipes of one worker."""

    def __init__(self) -> None:
        self._readers: dict[int, int] = {}  # read end -> stream
        self.write_ends: list[int] = []
        self._received: list[tuple[int, bytes]] = []
        self._relay: threading.Thread | None = None
        self._stop_fd = -1
        try:
            for stream in STREAMS:
                reader, writer = os.pipe()
                self._readers[reader] = stream
                self.write_ends.append(writer)
                os.set_blocking(reader, False)
        except OSError:
            self.close()
            raise

    def descriptors(self) -> list[int]:
        """Return the open descriptors, which a forked worker must close."""
        return [*self._readers, *self.write_ends]

    def readers(self) -> list[int]:
        """Return the read ends that are open and not read by a relay."""
        return list(self._readers)

    def close_write_ends(self) -> None:
        """Close the write ends of this process, once the worker has received its own."""
        while self.write_ends:
            os.close(self.write_ends.pop())

    def drain(self) -> None:
        """Read all text that has arrived; a pipe without writers is closed. Does not block."""
        self._received += _read_all(self._readers)

    def take(self) -> list[tuple[int, bytes]]:
        """Return the text that was read since the last call, as (stream, bytes) in the order of reading."""
        received, self._received = self._received, []
        return received

    def relay(self, *, is_silent: bool) -> None:
        """Pass on what other processes write into the pipes from now on, in a thread, until they have ended.

        These are processes that an env started in its constructor. Without a reader, the full pipe would block them.

        Args:
            is_silent: drop the text.
        """
        if self._readers:
            self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC)
            readers, self._readers = self._readers, {}
            self._relay = threading.Thread(
                target=_relay, args=(readers, self._stop_fd, is_silent), name="vecenv output", daemon=True
            )
            self._relay.start()

    def close(self) -> None:
        """Read the rest, and close all descriptors; `take` still returns that rest. May be repeated."""
        if self._relay is not None:
            os.eventfd_write(self._stop_fd, 1)
            self._relay.join(_END_SECONDS)
            self._relay = None
        self._received += _read_all(self._readers)
        self.close_write_ends()
        _close_all(self._readers)


def _read_all(readers: dict[int, int]) -> list[tuple[int, bytes]]:
    """Read all text that has arrived, as (stream, bytes); close and remove pipes without writers."""
    found = []
    for reader, stream in list(readers.items()):
        while True:
            try:
                data = os.read(reader, _READ_NBYTES)
            except BlockingIOError:
                break
            if not data:
                del readers[reader]
                os.close(reader)
                break
            found.append((stream, data))
    return found


def _close_all(readers: dict[int, int]) -> None:
    while readers:
        os.close(readers.popitem()[0])


def _relay(readers: dict[int, int], stop_fd: int, is_silent: bool) -> None:
    """Run the thread of `OutputPipes.relay`, which closes its descriptors at its end."""
    poll = select.poll()
    poll.register(stop_fd, select.POLLIN)
    for reader in readers:
        poll.register(reader, select.POLLIN)
    is_stopped = False
    while readers and not is_stopped:
        is_stopped = any(descriptor == stop_fd for descriptor, _ in poll.poll())
        before = set(readers)
        for stream, data in _read_all(readers):
            if not is_silent:
                write_output(stream, data)
        for closed in before - set(readers):
            poll.unregister(closed)
    _close_all(readers)
    os.close(stop_fd)


def write_output(stream: int, data: bytes) -> None:
    """Write all bytes to descriptor 1 or 2 of this process, after the text that Python has buffered for it."""
    _flush_python()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(stream, rest) :]
        except BlockingIOError:  # the program has made it non-blocking, and its reader is slow
            select.select([], [stream], [])
        except OSError:  # closed, or without a reader: there is no place where the text could be shown
            return
