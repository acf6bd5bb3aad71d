"""The end of a fork server, and the clean-up after a program that was killed."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import struct
import sys
from dataclasses import dataclass

from ..system.descriptor import Descriptor
from ..system.process_stat import started_at
from ..system.process_tree import kill_tree, mark_of
from ..system.start_process import close_alive_end

__all__ = ["ServerEnd", "find_listener", "let_fork_server_end"]

#: How long a process may take from closing its descriptors to its end, in seconds.
_END_SECONDS = 1.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
#: Path of the socket of a fork server of `multiprocessing`; other sockets do not belong to one.
_LISTENER = re.compile(r".*/pymp-[^/]+/listener-[^/]+")


@dataclass
class ServerEnd:
    """The socket on which a fork server receives requests for workers, and the process that owns the server.

    Attributes:
        path: of the socket.
        owner, started: pid and start time of the owner.
    """

    path: str
    owner: int
    started: str

    def clear_up(self) -> None:
        """If the owner was killed, kill the workers, and remove the socket and its folder if that is empty."""
        with contextlib.suppress(OSError):
            if os.path.exists(self.path) and self._has_owner_ended():  # an owner that drops a server removes the path
                _end_workers()
                os.unlink(self.path)
                os.rmdir(os.path.dirname(self.path))

    def _has_owner_ended(self) -> bool:
        """Return whether the owner has ended; wait for that, as it is mostly about to end."""
        try:
            pidfd = Descriptor(os.pidfd_open(self.owner))
        except ProcessLookupError:
            return True
        with contextlib.closing(pidfd):
            return started_at(self.owner) != self.started or bool(select.select([pidfd], [], [], _END_SECONDS)[0])


def find_listener() -> ServerEnd | None:
    """Return the socket and the owner of the fork server that this process is; None if it is none."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptor = os.dup(int(name))
        except OSError:  # the descriptor of the listed folder itself
            continue
        try:
            listener = socket.socket(fileno=descriptor)
        except OSError:  # not a socket
            os.close(descriptor)
            continue
        with listener:
            if listener.family == socket.AF_UNIX and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                credentials = listener.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                path, pid = os.fsdecode(listener.getsockname()), _CREDENTIALS.unpack(credentials)[0]
                if pid != os.getpid() and _LISTENER.fullmatch(path):
                    return ServerEnd(path, pid, started_at(pid))
    return None


def let_fork_server_end() -> None:
    """Close the end of a pipe that keeps the fork server of this process alive, so that it ends with its program.

    The end of the fork server continues a stopped worker (native/shm/parent_watch.c). Processes that an env starts do
    not need that server, although `multiprocessing` passes the pipe on: another fork server is started for them.
    """
    module = sys.modules.get("multiprocessing.forkserver")
    server = getattr(module, "_forkserver", None)
    if server is not None and server._forkserver_pid is None and server._forkserver_alive_fd is not None:
        close_alive_end(server)


def _end_workers() -> None:
    """Kill the workers that missed the end of their parent, because they are stopped or stop themselves again.

    Children without a mark are import servers, which are given time to end their own workers, or workers without envs.
    They are killed with the processes that modules started while they were imported.
    """
    import psutil

    unmarked = []
    for child, mark in [(child, mark_of(child.pid)) for child in psutil.Process().children()]:
        if mark:
            kill_tree(child.pid, mark, started_at(child.pid) or "0")
        else:
            unmarked.append(child)
    leaders = [child.pid for child in unmarked if _leads_its_session(child.pid)]
    for child in psutil.wait_procs(unmarked, timeout=_END_SECONDS)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    for leader in leaders:
        kill_tree(leader)


def _leads_its_session(pid: int) -> bool:
    """Return whether a process is the leader of its session; False if it has ended."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
