"""Pass log records of workers to the loggers of their parent.

    worker   LogSender      handler of the root logger: one record -> one frame of the control socket
    shard    LogCollector   handler of the root logger: one record -> one frame, which the next reply takes along
    parent   LogLevels      the levels of its loggers, which workers use from their start
             emit_frame     a frame -> the logger of the same name

A worker never waits for its parent: a record for which there is no room is dropped and counted.
"""

from __future__ import annotations

import array
import fcntl
import logging
import os
import pickle
import socket
import termios
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ...own_log import own_logger
from .clock import now_ns

__all__ = ["LogCollector", "LogLevels", "LogSender", "clear_handlers", "emit_frame", "is_log_frame"]

_LOG = own_logger()
#: Start of the lines of vecenv itself; see `own_log`.
_OWN_MARK = "vecenv: "
#: Start of the frames that contain log records; other frames are pickles.
_MARK = b"vecenv log "
#: Most records that a worker, or a shard, sends within a second.
_MOST_PER_SECOND = 100
_NS = 1_000_000_000
#: A Unix socket takes a frame below 16 KiB as a whole or not at all. Texts of longer ones are shortened.
_MOST_NBYTES = 15_000
_SHORTENED = 3000
#: Records are dropped while the parent has not read that many bytes (as the system counts them), so that other messages
#: still find room.
_MOST_UNREAD = 1 << 16
#: Most records that a shard keeps for the next reply.
_MOST_KEPT = 300
#: Types of the attributes of a record that travel.
_PLAIN_TYPES = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class LogLevels:
    """Levels of the loggers of a process.

    Attributes:
        levels: by name, those that are set; '' is the root logger.
        disabled: the argument of `logging.disable`.
    """

    levels: dict[str, int]
    disabled: int

    @classmethod
    def now(cls) -> LogLevels:
        """Return the present levels of this process."""
        loggers: dict[str, logging.Logger] = {"": logging.root, **_named_loggers()}
        levels = {name: logger.level for name, logger in loggers.items() if logger.level != logging.NOTSET or not name}
        return cls(levels, logging.root.manager.disable)

    def apply(self) -> None:
        """Set these levels in this process."""
        for name, level in self.levels.items():
            logging.getLogger(name or None).setLevel(level)
        logging.disable(self.disabled)

    def restore(self) -> None:
        """Set these levels in this process, and remove all others that were set since."""
        for name in LogLevels.now().levels.keys() - self.levels:
            logging.getLogger(name).setLevel(logging.NOTSET)
        self.apply()


def _named_loggers() -> dict[str, logging.Logger]:
    known = list(logging.root.manager.loggerDict.items())
    return {name: logger for name, logger in known if isinstance(logger, logging.Logger)}


def clear_handlers() -> None:
    """Remove the handlers that a forked process has inherited; they would handle each record a second time."""
    for logger in _named_loggers().values():
        logger.handlers.clear()
        logger.propagate = True
    logging.root.handlers.clear()


class _BoundedHandler(logging.Handler):
    """Makes frames of log records, up to a number per second; counts those that are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._window_end_ns = 0
        self._num_left = 0  # records that may still be sent in this second
        self._num_dropped = 0

    def install(self, levels: LogLevels) -> None:
        """Handle the records of all loggers of this process, beside the handlers that it has."""
        logging.root.addHandler(self)
        levels.apply()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; drop it if there were too many in this second, or the socket is full. Does not block."""
        now = now_ns()
        if now >= self._window_end_ns:
            self._window_end_ns, self._num_left = now + _NS, _MOST_PER_SECOND
        if self._num_left == 0:
            self._num_dropped += 1
            return
        self._num_left -= 1
        try:
            attributes = _attributes_of(record)
        except Exception:  # the text of the caller cannot be formatted
            self.handleError(record)
            return
        self._send(attributes)

    def report_dropped(self) -> None:
        """Send the number of records that were dropped since the last one that was sent."""
        if self._num_dropped:
            self._send(None)

    def _send(self, attributes: dict[str, Any] | None) -> None:
        frame = _MARK + pickle.dumps((attributes, self._num_dropped), protocol=5)
        if len(frame) > _MOST_NBYTES and attributes is not None:
            short = {key: value[:_SHORTENED] if isinstance(value, str) else value for key, value in attributes.items()}
            frame = _MARK + pickle.dumps((short, self._num_dropped), protocol=5)
        if self._put(frame):
            self._num_dropped = 0
        else:
            self._num_dropped += attributes is not None

    def _put(self, frame: bytes) -> bool:
        """Send a frame if there is room for it at once; return whether it was sent."""
        raise NotImplementedError


class LogSender(_BoundedHandler):
    """The worker's end: sends log records over the control socket.

    Args:
        control: the worker's end of the socket; it must stay open.

    Attributes:
        notify: called after a record was sent, because the parent reads the socket only on request.
        socket_lock: held while another message is written, which a record must not cut in two.
    """

    def __init__(self, control: Connection) -> None:
        super().__init__()
        self.notify: Callable[[], None] = _notify_nobody
        self.socket_lock = threading.Lock()
        self._socket = socket.socket(fileno=os.dup(control.fileno()))

    def end(self) -> None:
        """Send no records any more, and close the descriptor of this object."""
        logging.root.removeHandler(self)
        self._socket.close()

    def _put(self, frame: bytes) -> bool:
        if not self._write(len(frame).to_bytes(4, "big") + frame):
            return False
        self.notify()
        return True

    def _write(self, data: bytes) -> bool:
        """Write a frame if the socket has room for it at once; return whether it was written."""
        if len(data) > _MOST_NBYTES or not self.socket_lock.acquire(blocking=False):
            return False
        try:
            unread = array.array("i", [0])
            fcntl.ioctl(self._socket, termios.TIOCOUTQ, unread)
            if unread[0] > _MOST_UNREAD:
                return False
            self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            return True
        except OSError:  # full, or the parent has gone, which ends this worker
            return False
        finally:
            self.socket_lock.release()


class LogCollector(_BoundedHandler):
    """The end of a shard: keeps the log records of its process and its workers until a reply takes them along."""

    def __init__(self) -> None:
        super().__init__()
        self._frames: list[bytes] = []

    def _put(self, frame: bytes) -> bool:
        if len(self._frames) >= _MOST_KEPT:
            return False
        self._frames.append(frame)
        return True

    def take(self) -> list[bytes]:
        """Return the frames of the records since the last call; see `emit_frame`."""
        self.acquire()  # another thread may write a record
        try:
            self.report_dropped()
            frames, self._frames = self._frames, []
        finally:
            self.release()
        return frames


def _notify_nobody() -> None:
    """Do nothing: the parent reads the socket by itself."""


def _attributes_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the attributes of a record that another process can use, with its text and traceback formatted."""
    found = {key: value for key, value in vars(record).items() if type(value) in _PLAIN_TYPES}
    if record.exc_info and not record.exc_text:
        found["exc_text"] = logging.Formatter().formatException(record.exc_info)
    return {**found, "msg": record.getMessage(), "args": None, "exc_info": None}


# ---- the parent's end -----------------------------------------------------------------------------


def is_log_frame(frame: bytes) -> bool:
    """Return whether a frame of a worker's socket contains a log record."""
    return frame.startswith(_MARK)


def emit_frame(frame: bytes, worker: str, *, names_worker: bool = False) -> None:
    """Pass the record of a frame to the logger of its name in this process.

    Args:
        frame: a frame for which `is_log_frame` is true.
        worker: name of the worker, for the line about dropped records.
        names_worker: whether the text of the record shall begin with that name.
    """
    attributes, num_dropped = pickle.loads(memoryview(frame)[len(_MARK) :])
    if num_dropped:
        _LOG.warning("%s: %d log records were dropped, for there were too many at once", worker, num_dropped)
    if attributes is not None:
        logger = logging.getLogger(attributes["name"])
        if logger.isEnabledFor(attributes["levelno"]):
            if names_worker:
                mark = _OWN_MARK if attributes["msg"].startswith(_OWN_MARK) else ""
                attributes["msg"] = f"{mark}{worker}: {attributes['msg'].removeprefix(mark)}"
            logger.handle(logging.makeLogRecord(attributes))
