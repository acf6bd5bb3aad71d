"""Capture the standard output and error of a worker while it builds its envs.

    worker   OutputCapture   descriptors 1 and 2 lead to two pipes until `end`
    parent   OutputPipes     reads these pipes, also once the worker has ended, so a crash loses nothing

Processes that an env starts during that time keep the pipes as their output. `OutputPipes.relay` passes on their text.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
import threading
from collections.abc import Iterable, Sequence

from .descriptor import Descriptor, WakeEvent
from .signals import signals_deferred

__all__ = ["OutputCapture", "OutputPipes", "silence", "write_output"]

#: Descriptors of standard output and standard error.
STREAMS = (1, 2)
_READ_NBYTES = 1 << 16
#: Reads of one pipe at a time: no pipe holds more, and a process that writes without end must not hold up the reader.
_MOST_READS = 16
#: How long the end of a relay may take, in seconds.
_END_SECONDS = 1.0
#: Modes of C's `setvbuf`.
_FULL_BUFFERING, _LINE_BUFFERING = 0, 1


class OutputCapture:
    """The worker's end: descriptors 1 and 2 of this process lead to the pipes until `end`.

    Until then, Python and C buffer their standard output by lines, so that the pipes have all lines before a crash.

    Args:
        pipes: a write end for each of `STREAMS`; they are closed.
    """

    def __init__(self, pipes: Sequence[Descriptor]) -> None:
        _flush_python()
        self._stdout = _c_stdout()
        if self._stdout is not None:  # a forked worker has a copy of its parent's buffer, which is the parent's text
            with contextlib.suppress(AttributeError):  # not every C library has it
                ctypes.CDLL(None).__fpurge(self._stdout)
            ctypes.CDLL(None).setvbuf(self._stdout, None, _LINE_BUFFERING, 0)
        self._was_line_buffered = _set_line_buffering(True)
        self._saved = [Descriptor(os.dup(stream)) for stream in STREAMS]
        for stream, pipe in zip(STREAMS, pipes):
            os.dup2(pipe.number, stream)
            pipe.close()

    def end(self) -> None:
        """Put the original descriptors back."""
        _flush_python()
        if self._stdout is not None:
            ctypes.CDLL(None).fflush(self._stdout)
        for stream, saved in zip(STREAMS, self._saved):
            os.dup2(saved.number, stream)
            saved.close()
        _set_line_buffering(self._was_line_buffered)
        if self._stdout is not None and not os.isatty(1):
            ctypes.CDLL(None).setvbuf(self._stdout, None, _FULL_BUFFERING, 0)


def silence(streams: Sequence[int] = STREAMS) -> None:
    """Connect descriptors 1 and 2 of this process, or one of them, to the null device."""
    with contextlib.closing(Descriptor(os.open(os.devnull, os.O_WRONLY))) as null:
        for stream in streams:
            os.dup2(null.number, stream)


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
        self._readers: dict[Descriptor, int] = {}  # read end -> stream
        self.write_ends: list[Descriptor] = []
        self._received: list[tuple[int, bytes]] = []
        self._relay: threading.Thread | None = None
        self._relayed: list[Descriptor] = []  # the descriptors that the thread closes
        self._stop: WakeEvent | None = None
        try:
            for stream in STREAMS:
                reader, writer = map(Descriptor, os.pipe())
                self._readers[reader] = stream
                self.write_ends.append(writer)
                os.set_blocking(reader.number, False)
        except OSError:
            self.close()
            raise

    def descriptors(self) -> list[Descriptor]:
        """Return the descriptors that a forked worker must close, those of the relay included."""
        own = [*self._readers, *self.write_ends, *self._relayed]
        return own if self._stop is None else [*own, *self._stop.descriptors()]

    def readers(self) -> list[Descriptor]:
        """Return the read ends that are open and not read by a relay."""
        return list(self._readers)

    def close_write_ends(self) -> None:
        """Close the write ends of this process, once the worker has received its own."""
        while self.write_ends:
            self.write_ends.pop().close()

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
        if not self._readers:
            return
        with signals_deferred():
            self._stop = WakeEvent()
            stop = self._stop.descriptor.duplicate()  # the thread may end before `close`, or after it
            readers, self._readers = self._readers, {}
            self._relayed = [stop, *readers]
            relay = threading.Thread(target=_relay, args=(readers, stop, is_silent), name="vecenv output", daemon=True)
            try:
                relay.start()
            except RuntimeError:  # the system has no thread left
                _close_all(self._relayed)
                raise
            self._relay = relay

    def close(self) -> None:
        """Read the last text, and close all descriptors; `take` still returns that text. May be repeated.

        A relay that cannot pass its text on within a second closes its own descriptors later.
        """
        if self._stop is not None:
            self._stop.wake()
            if self._relay is not None:
                self._relay.join(_END_SECONDS)
            self._stop.close()
            self._stop = self._relay = None
        self._received += _read_all(self._readers)
        self.close_write_ends()
        _close_all(self._readers)
        self._readers.clear()


def _read_all(readers: dict[Descriptor, int]) -> list[tuple[int, bytes]]:
    """Read the text that has arrived, as (stream, bytes); close and remove pipes without writers."""
    found = []
    for reader, stream in list(readers.items()):
        for _ in range(_MOST_READS):
            try:
                data = os.read(reader.number, _READ_NBYTES)
            except BlockingIOError:
                break
            if not data:
                del readers[reader]
                reader.close()
                break
            found.append((stream, data))
    return found


def _close_all(descriptors: Iterable[Descriptor]) -> None:
    for descriptor in descriptors:
        descriptor.close()


def _relay(readers: dict[Descriptor, int], stop: Descriptor, is_silent: bool) -> None:
    """Run the thread of `OutputPipes.relay`, which owns these descriptors and closes them at its end."""
    try:
        is_stopped = False
        while readers and not is_stopped:
            poll = select.poll()
            for each in (stop, *readers):
                poll.register(each, select.POLLIN)
            is_stopped = any(number == stop.number for number, _ in poll.poll())
            for stream, data in _read_all(readers):
                if not is_silent:
                    write_output(stream, data)
    finally:
        _close_all((stop, *readers))


def write_output(stream: int, data: bytes) -> None:
    """Write all bytes to descriptor 1 or 2 of this process, after the text that Python has buffered for it.

    The text is dropped if the process was started without that descriptor: its number may belong to another file now.
    """
    if {1: sys.__stdout__, 2: sys.__stderr__}[stream] is None:
        return
    _flush_python()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(stream, rest) :]
        except BlockingIOError:  # the program has made it non-blocking, and its reader is slow
            select.select([], [stream], [])
        except OSError:  # it is closed, or has no reader: the text cannot be shown
            return
