"""Fork servers: processes that have imported modules, and fork other processes in which these modules are loaded.

    parent    a request: the names of modules, and the descriptors of the new process
    server    imports the modules, forks, and writes the pid, and later the exit code, to the first descriptor
    process   reads a `multiprocessing` process object from the second descriptor, and runs it

A program has one main server, which imports only modules of this package. A forked process may become a server, too: it
calls `serve`. A server ends when its parent ends, or when the parent drops its last reference to the `ForkServer`.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from ...errors import RemoteTraceback
from .clock import Deadline
from .process_stat import started_at
from .process_tree import kill_tree, mark_of

__all__ = ["ForkServer", "StartFailure", "main_server", "search_path", "serve", "servers"]

# These parts of `multiprocessing` have no published types.
forkserver: Any = importlib.import_module("multiprocessing.forkserver")
mp_process: Any = importlib.import_module("multiprocessing.process")
resource_tracker: Any = importlib.import_module("multiprocessing.resource_tracker")
spawn: Any = importlib.import_module("multiprocessing.spawn")
util: Any = importlib.import_module("multiprocessing.util")

#: A server that cannot be started writes its traceback to its connection.
_PROGRAM = """
import os, sys, traceback
sys.path[:] = {path!r}
try:
    import vecenv.core.processes.preload
    from vecenv.core.system.fork_server import serve
except BaseException:
    os.write({number}, traceback.format_exc().encode())
    sys.exit(1)
serve({number})
"""
#: Longest request in bytes, and most descriptors of one.
_MOST_NBYTES, _MOST_DESCRIPTORS = 1 << 16, 64
_STOP = b"stop"
#: How long a process may take from closing its descriptors to its end, in seconds.
_END_SECONDS = 1.0


class StartFailure(ConnectionError):
    """A process has ended before it ran its function; if it could send a traceback, that is the cause."""

    @classmethod
    def of(cls, cause: RemoteTraceback) -> StartFailure:
        """Return the failure of a process by an exception."""
        lines = cause.text.rpartition("Traceback (most recent call last):")[2].splitlines()
        failure = cls(next((line for line in lines if line and not line.startswith(" ")), "an exception"))
        failure.__cause__ = cause
        return failure

    @staticmethod
    def is_own_end(exitcode: int | None) -> bool:
        """Return whether a process has failed by itself, so that another one would, too; it was not killed."""
        return exitcode not in (None, 0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)


class ForkServer:
    """The parent's end of a fork server.

    Args:
        connection: to the server; it receives requests there once it calls `serve`.
        pid: of the server.

    Attributes:
        exitcode: of a main server that has ended, once `stop` was called; None if it is unknown.
    """

    def __init__(self, connection: Connection, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.exitcode: int | None = None
        servers.add(self)
        weakref.finalize(self, _stop, connection).atexit = False  # at its end, the program has not dropped the server

    @property
    def is_stopped(self) -> bool:
        """Whether this process can request nothing from the server any more."""
        return self.connection.closed

    def request(self, modules: Iterable[str], descriptors: Sequence[int]) -> None:
        """Request a process. The server writes its pid, or the negative errno of the fork, to the first descriptor.

        Args:
            modules: the server imports them before the fork.
            descriptors: for the pid and the exit code; for the process object; of the resource tracker; and those that
                the process object contains.

        Raises:
            ConnectionError: the server has ended.
        """
        if self.is_stopped:
            raise ConnectionError("the fork server was stopped")
        with socket.socket(fileno=os.dup(self.connection.fileno())) as requests:
            socket.send_fds(requests, [" ".join(["import", *sorted(modules)]).encode()], descriptors)

    def read_failure(self) -> StartFailure | None:
        """Return the exception for which a main server has ended before it served; None if it has sent none."""
        with contextlib.suppress(OSError):
            if self is _main and not self.is_stopped and self.connection.poll(0):
                text = os.read(self.connection.fileno(), _MOST_NBYTES)
                return StartFailure.of(RemoteTraceback(text.decode(errors="replace"))) if text else None
        return None

    def stop(self, kill: bool = False) -> None:
        """Let the server end, or kill it; the processes that it has forked keep running. May be repeated."""
        if self.is_stopped:
            return
        if kill:
            with contextlib.suppress(ProcessLookupError):  # another part of the program has waited for it
                os.kill(self.pid, signal.SIGKILL)
        _stop(self.connection)
        if self is _main:
            with contextlib.suppress(ChildProcessError):  # another part of the program waits for all children
                self.exitcode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _stop(connection: Connection) -> None:
    if not connection.closed:
        with contextlib.suppress(OSError):  # it has ended
            os.write(connection.fileno(), _STOP)
        connection.close()


#: The servers of this process.
servers: weakref.WeakSet[ForkServer] = weakref.WeakSet()
_main: ForkServer | None = None
_lock = threading.Lock()  # held while the main server is started


def main_server() -> ForkServer:
    """Return the main server; start it unless it runs."""
    global _main
    with _lock:
        if _main is None or _main.is_stopped:
            ours, theirs = multiprocessing.Pipe()
            with theirs:
                program = _PROGRAM.format(path=search_path(), number=theirs.fileno())
                command = [*spawn.get_command_line()[:-2], program]
                _main = ForkServer(ours, util.spawnv_passfds(spawn.get_executable(), command, [theirs.fileno()]))
        return _main


def search_path() -> list[str]:
    """Return sys.path for another process; imports ignore entries that are not strings."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return [entry or mp_process.ORIGINAL_DIR or "" for entry in path]


def _reset_in_child() -> None:
    """In a forked child: forget the parent's processes and servers, so that servers still end with the parent."""
    global _main, _lock
    for process in [one for one in mp_process._children if hasattr(one, "of_pool")]:
        mp_process._children.discard(process)  # otherwise the child's exit would wait for it and fail
    for server in servers:
        server.connection.close()
    servers.clear()
    _main, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


# ---- the server ----------------------------------------------------------------------------------


def serve(number: int) -> None:
    """Fork processes on request, until the parent ends or drops this server; if it ends, kill the processes.

    Args:
        number: descriptor of the socket that receives the requests; it is closed.
    """
    statuses: dict[int, int] = {}  # the first descriptor of each request, by pid
    wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # its processes unblock it
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w)
    with socket.socket(fileno=number) as requests:
        while True:
            ready, _, _ = select.select([number, wake_r], [], [])
            if wake_r in ready:
                _report_ends(statuses, wake_r)
            if number not in ready:
                continue
            message, descriptors = _receive(requests)
            if not descriptors:
                break
            for name in message.decode().split()[1:]:
                with contextlib.suppress(ImportError):  # the process raises it again
                    importlib.import_module(name)
            try:
                pid = os.fork()
            except OSError as error:
                pid = -(error.errno or 0)
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, before)
                util.close_fds(number, wake_r, wake_w, descriptors[0], *statuses.values())
                _run(*descriptors[1:])
            _write(descriptors[0], pid)
            if pid > 0:
                statuses[pid] = descriptors.pop(0)
            util.close_fds(*descriptors)
    if message != _STOP:
        _end_processes(statuses, wake_r)


def _receive(requests: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and its descriptors; without descriptors, `_STOP`, or b'' if the parent has ended."""
    try:
        message, descriptors, _, _ = socket.recv_fds(requests, _MOST_NBYTES, _MOST_DESCRIPTORS)
    except ConnectionError:  # the parent has left a message unread
        return b"", []
    return message, descriptors


def _write(status: int, value: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent needs it no more
        forkserver.write_signed(status, value)


def _report_ends(statuses: dict[int, int], wake_r: int) -> None:
    """Write the exit codes of the processes that have ended, and remove them."""
    with contextlib.suppress(BlockingIOError):  # none has ended since the last call
        os.read(wake_r, 1 << 16)
    with contextlib.suppress(ChildProcessError):  # there is none left
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            status = statuses.pop(end[0])
            _write(status, os.waitstatus_to_exitcode(end[1]))
            os.close(status)


def _run(data: int, tracker: int, *inherited: int) -> None:
    """In a forked process: receive its process object and run it, as `multiprocessing.forkserver` does."""
    code = 1
    try:
        resource_tracker._resource_tracker._fd = tracker
        forkserver._forkserver._inherited_fds = inherited
        code = spawn._main(data, os.dup(data))
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)


def _end_processes(statuses: dict[int, int], wake_r: int) -> None:
    """Kill the workers that missed the end of their parent, because they are stopped or stop themselves again.

    Processes without a mark are import servers, which are given time to end their own workers, or workers without envs.
    They are killed with the processes that modules started while they were imported.
    """
    marks = {pid: mark_of(pid) for pid in statuses}
    for pid, mark in marks.items():
        if mark:
            kill_tree(pid, mark, started_at(pid) or "0")
    deadline = Deadline(_END_SECONDS)
    while statuses and not deadline.is_over():
        select.select([wake_r], [], [], deadline.seconds_left())
        _report_ends(statuses, wake_r)
    for pid in statuses:
        os.kill(pid, signal.SIGKILL)
    for pid, mark in marks.items():
        if not mark:
            kill_tree(pid)
