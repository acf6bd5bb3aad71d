"""A process of its own for each mode of `benchmarks.peers`, so that no library changes another's settings.

    parent --- task ----> process: imports the library, builds its envs
           <-- version --
           --- seconds -> runs one window
           <-- Window ---

Some libraries choose a start method for the whole process, pin threads, or need another interpreter. Some leave
processes or threads that spin. So the processes of a mode are stopped (SIGSTOP) while others are measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import psutil

from benchmarks.peer_modes import PEERS, Peer, Task
from vecenv.errors import ConfigError, describe_exit
from vecenv.measurement import report
from vecenv.measurement.machine import cpu_seconds
from vecenv.measurement.measure import Mode, Window

__all__ = ["PeerProcess", "open_peers", "serve"]

#: Seconds that a library has to build its envs, to answer after a window, and to end.
_BUILD_SECONDS, _REPLY_SECONDS, _END_SECONDS = 300.0, 60.0, 20.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_PR_SET_PDEATHSIG = 1
_ROOT = Path(__file__).parents[1]


class PeerProcess(Mode):
    """A mode that runs in a process of its own, which is stopped between two windows.

    Args:
        peer: the way to step.
        task: the envs.
        python: the interpreter.

    Attributes:
        version: name and version of the library.

    Raises:
        ConfigError: the library could not be imported, or could not build the envs.
    """

    def __init__(self, peer: Peer, task: Task, python: str = sys.executable) -> None:
        super().__init__(peer.name)
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs:
            self._process = subprocess.Popen(
                [python, "-W", "ignore", "-c", f"from benchmarks.peer_process import serve; serve({theirs.fileno()})"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": str(_ROOT)},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        try:
            self._connection.send((PEERS.index(peer), cloudpickle.dumps(task)))
            self.implementation, self.version = self._receive(_BUILD_SECONDS)
            self._stop()
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float) -> Window:
        """Continue the processes, run one window, and stop them."""
        self._signal(signal.SIGCONT)
        self._connection.send(seconds)
        window = Window(*self._receive(seconds + _REPLY_SECONDS))
        self._stop()
        return window

    def close(self) -> None:
        """End the processes; those that do not end are killed."""
        self._signal(signal.SIGCONT)
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _stop(self) -> None:
        """Stop the processes; return when the first of them has stopped, or has ended."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(self._process.pid, number)

    def _receive(self, timeout: float) -> Any:
        if not self._connection.poll(timeout):
            raise ConfigError(f"{self.name}: no answer within {timeout:.0f} s")
        try:
            reply = self._connection.recv()
        except (EOFError, ConnectionError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            raise ConfigError(f"{self.name}: the process died: {describe_exit(self._process.returncode)}") from None
        if isinstance(reply, str):
            raise ConfigError(f"{self.name}: {reply}")
        return reply


def open_peers(peers: Iterable[tuple[Peer, str]], task: Task, stack: contextlib.ExitStack) -> list[PeerProcess]:
    """Start the peers that have the envs of the task, and print the reasons of those that cannot build them.

    Args:
        peers: each with its interpreter.
        task: the envs.
        stack: closes the peers.
    """
    modes = []
    for peer, python in peers:
        if not peer.is_for(task):
            continue
        try:
            mode = PeerProcess(peer, task, python)
        except ConfigError as error:
            report.print_text(f"left out: {error}")
            continue
        stack.callback(mode.close)
        modes.append(mode)
    return modes


def serve(descriptor: int) -> None:
    """Be the process: build the mode that comes through the socket `descriptor`, then run windows on command."""
    # The parent may be killed while this process is stopped: it continues then, and finds the socket closed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    with contextlib.suppress(EOFError, ConnectionError), Connection(descriptor) as connection:
        mode: Mode | None = None
        try:
            index, task = connection.recv()
            mode = PEERS[index].build(cloudpickle.loads(task))
            connection.send((mode.implementation, _version_of(PEERS[index].module)))
            while True:
                seconds = connection.recv()
                before = _tree_cpu_seconds()
                window = mode.run(seconds)
                connection.send(tuple(window._replace(cpu_seconds=_tree_cpu_seconds() - before)))
        except (EOFError, ConnectionError):
            raise
        except BaseException as error:  # a foreign library may raise any class
            connection.send(f"{type(error).__name__}: {error}".partition("\n")[0])
        finally:
            os.killpg(0, signal.SIGCONT)  # processes of the mode may be stopped still
            if mode is not None:
                mode.close()


def _version_of(module: str) -> str:
    for distribution in importlib.metadata.packages_distributions().get(module, ()):
        return f"{distribution} {importlib.metadata.version(distribution)}"
    return module


def _tree_cpu_seconds() -> float:
    """Return the CPU time of this process and all that it has started."""
    children = psutil.Process().children(recursive=True)
    return time.process_time() + sum(cpu_seconds(child.pid) for child in children)
