"""Modules that the fork server imports first, so that every worker finds them loaded.

The variables that limit threads must be set before NumPy is loaded. So this module sets them when it is imported, and
`import vecenv` itself loads nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import signal
import socket
import struct

from ..system.blas_threads import cap_environment

cap_environment(1)
if hasattr(signal, "pthread_sigmask"):  # the server starts with the first worker, while its parent blocks signals
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

import cloudpickle  # noqa: E402, F401
import gymnasium  # noqa: E402, F401
import numpy  # noqa: E402, F401

from ..host import shortcut  # noqa: E402
from . import worker_main  # noqa: E402, F401

shortcut.known_steps()  # it reads sources, which takes 4 ms: once here instead of in every worker

#: How long a process may take from closing its descriptors to its end, in seconds.
_END_SECONDS = 1.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
#: Path of the socket of a fork server of `multiprocessing`; other sockets do not belong to one.
_LISTENER = re.compile(r".*/pymp-[^/]+/listener-[^/]+")


def _my_listener() -> tuple[str, int] | None:
    """Return the path of the socket on which this process receives requests for workers, and the pid of its owner."""
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
                owner = listener.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                path, pid = listener.getsockname(), _CREDENTIALS.unpack(owner)[0]
                if pid != os.getpid() and _LISTENER.fullmatch(os.fsdecode(path)):
                    return path, pid
    return None


def _clear_up(path: str, owner: int) -> None:
    """Clean up after a killed parent: end its workers, and remove the socket and its folder if that is empty."""
    with contextlib.suppress(OSError):
        if os.getppid() == owner:  # the parent has dropped this server, mostly because it is about to end
            end = os.pidfd_open(owner)
            select.select([end], [], [], _END_SECONDS)
            os.close(end)
        if os.getppid() != owner:
            _end_workers()
            os.unlink(path)
            os.rmdir(os.path.dirname(path))


def _end_workers() -> None:
    """Kill the workers that missed the end of their parent, because they are stopped or stop themselves again."""
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(ProcessLookupError):
            leads_group = os.getpgid(child.pid) == child.pid  # then the group contains the processes of its envs
            (os.killpg if leads_group else os.kill)(child.pid, signal.SIGKILL)


if hasattr(socket, "SO_PEERCRED"):
    _found = _my_listener()
    if _found is not None:  # otherwise this module was imported outside a fork server
        atexit.register(_clear_up, *_found)
