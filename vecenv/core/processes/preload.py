"""Preload: imported first in the fork server, so that every worker finds its modules loaded.

The thread variables must be set before NumPy is loaded, which is why this module sets them
at import and `import vecenv` itself loads nothing.
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
if hasattr(signal, "pthread_sigmask"):  # the server starts with the first worker, while its parent takes no signals
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

import cloudpickle  # noqa: E402, F401
import gymnasium  # noqa: E402, F401
import numpy  # noqa: E402, F401

from ..host import shortcut  # noqa: E402
from . import worker_main  # noqa: E402, F401

shortcut.known_steps()  # reads sources: 4 ms, once and not in every worker

#: How long a process may take from closing its descriptors to its end.
_END_SECONDS = 1.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
#: Where `multiprocessing` has a fork server listen; sockets elsewhere are none of ours.
_LISTENER = re.compile(r".*/pymp-[^/]+/listener-[^/]+")


def _my_listener() -> tuple[str, int] | None:
    """Return the path of the socket at which this process is asked for workers, and whose it is (a pid)."""
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptor = os.dup(int(name))
        except OSError:  # it was that of the folder
            continue
        try:
            listener = socket.socket(fileno=descriptor)
        except OSError:  # no socket
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
    """End and remove what a parent that was killed could not: workers, the socket and its folder, if that is empty."""
    with contextlib.suppress(OSError):
        if os.getppid() == owner:  # it has let go of this server, mostly because it is about to end
            end = os.pidfd_open(owner)
            select.select([end], [], [], _END_SECONDS)
            os.close(end)
        if os.getppid() != owner:
            _end_workers()
            os.unlink(path)
            os.rmdir(os.path.dirname(path))


def _end_workers() -> None:
    """Kill the workers that have not heard of their parent's end: stopped ones, or that stop themselves again."""
    import psutil

    for child in psutil.Process().children():
        with contextlib.suppress(ProcessLookupError):
            leads_group = os.getpgid(child.pid) == child.pid  # with what its envs have started
            (os.killpg if leads_group else os.kill)(child.pid, signal.SIGKILL)


if hasattr(socket, "SO_PEERCRED"):
    _found = _my_listener()
    if _found is not None:  # else somebody has only imported this module
        atexit.register(_clear_up, *_found)
