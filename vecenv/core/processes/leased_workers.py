"""Workers that an env server lends to a pool of this process; see `standby` for the worker's side.

LeasedWorkers   the connection to the server: asks for workers, and for a successor of one that has died
LeasedProcess   stands for the `multiprocessing` process of a worker, which is no child of this process
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from ... import __version__
from ...errors import ConfigError, ShortageError, WorkerTimeoutError
from ..layout.native import implementation
from ..system.clock import Deadline
from ..system.descriptor import Descriptor
from ..system.message_socket import BadMessage, MessageSocket
from ..system.process_stat import is_ending
from ..system.signals import signals_deferred
from ..system.stack_dump import StackFile
from ..system.worker_socket import ControlSocket
from .env_modules import find_objects
from .env_stock import LeasedEnv
from .worker import Worker
from .worker_main import Boot

__all__ = ["LeasedWorkers", "build_of_program", "is_leased"]

#: How long the server may take to tell how a worker has ended, in seconds.
_EXIT_SECONDS = 1.0
#: Longest sleep before a check whether the pool is being closed, in seconds.
_POLL_SECONDS = 0.1


def build_of_program() -> dict[str, str]:
    """Return the releases that a client and its server must share, for they exchange pickles and memory."""
    python = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    return {"vecenv": __version__, "Python": python, "engine": implementation()}


def is_leased(env_fns: Any) -> bool:
    """Return whether the first one of these env factories takes a leased env."""
    return isinstance(env_fns, Sequence) and len(env_fns) > 0 and bool(find_objects(env_fns[0], LeasedEnv))


class LeasedProcess:
    """The process of one leased worker, with the methods of a `multiprocessing` process that `Worker` uses.

    Its lease may end before the process does; then `is_alive` is False.

    Args:
        number: of the worker at the server.
        pid, pidfd: of the process.
        control: the socket to the worker, whose other end is closed at the end of the lease.
        exit_code_of: returns how the worker of this number has ended.
    """

    def __init__(
        self,
        number: int,
        pid: int,
        pidfd: Descriptor,
        control: ControlSocket,
        exit_code_of: Callable[[int], int | None],
    ) -> None:
        self.number = number
        self.pid = pid
        self._pidfd = pidfd
        self._exit_code_of = exit_code_of
        self._end = select.epoll()
        self._end.register(pidfd, select.EPOLLIN)
        self._end.register(control, select.EPOLLRDHUP)

    def open_end(self) -> Descriptor:
        """Return a descriptor that becomes readable at the end of the lease or the process; the caller closes it."""
        return Descriptor(os.dup(self._end.fileno()))

    def is_alive(self) -> bool:
        """Return whether the worker serves this process, or will."""
        return not self._end.closed and not self._end.poll(0)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the lease or the process, `timeout` seconds at most."""
        if not self._end.closed:
            self._end.poll(timeout)

    @property
    def exitcode(self) -> int | None:
        """How the process has ended; None: its lease has ended, or the server does not know."""
        if self._pidfd.closed:
            return None
        # a process that ends closes its sockets first
        if not wait([self._pidfd.number], _EXIT_SECONDS if is_ending(self.pid) else 0):
            return None
        return self._exit_code_of(self.number)

    def kill(self) -> None:
        """Kill the process, unless the lease is over; the server replaces it."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(self._pidfd.number, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptors."""
        self._end.close()
        self._pidfd.close()


class LeasedWorkers:
    """The workers that an env server lends to one pool.

    Args:
        leased: names the envs and the server.
        num_envs: of the pool.
        check_not_closing: as for `Engine.open`.

    Attributes:
        envs_per_worker: how many envs each worker has built.
    """

    def __init__(self, leased: LeasedEnv, num_envs: int, check_not_closing: Callable[[str], None]) -> None:
        self.leased = leased
        self.num_envs = num_envs
        self.envs_per_worker = 1
        self._check_not_closing = check_not_closing
        self._socket: MessageSocket | None = None
        self._granted: list[tuple[dict[str, Any], list[Descriptor]]] = []  # workers without a pool
        self._exit_codes: dict[int, int | None] = {}
        self._why_over = ""  # why the server has ended the lease

    @classmethod
    def of(cls, env_fns: Sequence[Callable[[], Any]], check_not_closing: Callable[[str], None]) -> LeasedWorkers | None:
        """Return the workers for these env factories; None if they build their envs.

        Raises:
            ConfigError: the first env is leased and another one is not, or they come from several leases.
        """
        if not is_leased(env_fns):  # a search in all of them would take long
            return None
        found = [find_objects(env_fn, LeasedEnv) for env_fn in env_fns]
        kinds = {leased for one in found for leased in one}
        if len(kinds) > 1 or not all(found):
            what = "; ".join(sorted(one.as_text() for one in kinds))
            raise ConfigError(
                f"env_fns: all envs of a pool must be of one lease, or none; got {what}"
                f"{'' if all(found) else ', and envs that are not leased'}",
                key="env_fns",
            )
        [leased] = kinds
        return cls(leased, len(env_fns), check_not_closing)

    # ---- the server -------------------------------------------------------------------------

    def open(self) -> None:
        """Ask the server for the workers, and wait until it grants them.

        Raises:
            ConfigError: there is no server, or it refuses.
            WorkerTimeoutError: it did not grant them in time.
        """
        leased = self.leased
        try:
            self._socket = MessageSocket.connect(leased.socket)
        except OSError as error:
            raise ConfigError(
                f"no env server answers at {leased.socket}: {error.strerror}; start one with `vecenv serve`"
            ) from error
        request = {"do": "lease", "env": leased.name, "num_envs": self.num_envs, "client": leased.client}
        self._send({**request, "max_seconds": leased.max_seconds, "build": build_of_program()})
        deadline = Deadline(leased.timeout)
        granted = self._await("granted", deadline)
        self.envs_per_worker = granted["envs_per_worker"]
        for _ in range(granted["granted"]):
            self._await("worker", deadline)

    def _send(self, message: dict[str, Any]) -> None:
        self._read_all()  # the lease may be over
        if self._socket is None or self._socket.closed or self._why_over:
            raise ShortageError(f"the lease of {self.leased.name!r} is over: {self._why_over or 'it was closed'}")
        try:
            self._socket.send(message)
        except OSError as error:
            self._read_all()  # the server may have refused it
            raise ShortageError(f"the env server at {self.leased.socket} has ended") from error

    def _await(self, kind: str, deadline: Deadline) -> dict[str, Any]:
        """Return the next message of this kind; a worker is added to `_granted`.

        Raises:
            ConfigError: the server refuses.
            ShortageError: the server, or the lease, has ended.
            WorkerTimeoutError: there was none at the deadline.
        """
        while True:
            self._check_not_closing("construct")
            found = self._read(Deadline(min(_POLL_SECONDS, deadline.seconds_left() or _POLL_SECONDS)))
            if found is not None and kind in found:
                return found
            if self._why_over:
                raise ShortageError(f"the lease of {self.leased.name!r} is over: {self._why_over}")
            if deadline.is_over():
                raise WorkerTimeoutError(
                    f"the env server has not granted {self.num_envs} envs {self.leased.name!r} to client "
                    f"{self.leased.client!r} within {self.leased.timeout:g} s; `vecenv leases` shows who has them",
                    timeout=self.leased.timeout,
                )

    def _read_all(self) -> None:
        while self._read(Deadline(0.0)) is not None:
            pass

    def _read(self, deadline: Deadline) -> dict[str, Any] | None:
        """Return the next message, which is noted here; None if there is none at the deadline."""
        if self._socket is None or self._socket.closed or not self._socket.await_message(deadline):
            return None
        try:
            with signals_deferred():
                message, descriptors = self._socket.receive()
                if "worker" in message:
                    self._granted.append((message, descriptors))
        except BlockingIOError:
            return None
        except (EOFError, OSError, BadMessage):
            self._why_over = self._why_over or "its server has ended"
            self._socket.close()
            return None
        if "refused" in message:
            raise ConfigError(f"lease of {self.leased.name!r}: {message['refused']}")
        if "over" in message:
            self._why_over = message["over"]
        if "exit" in message:
            self._exit_codes[message["exit"]] = message["code"]
        return message

    def exit_code_of(self, number: int) -> int | None:
        """Return the exit code of a worker that has ended; None if the server does not tell it."""
        deadline = Deadline(_EXIT_SECONDS)
        while number not in self._exit_codes and not deadline.is_over():
            if self._socket is None or self._socket.closed:
                return None
            self._read(deadline)
        return self._exit_codes.get(number)

    # ---- workers ----------------------------------------------------------------------------

    def await_worker(self, limit: float | None) -> None:
        """Wait until `take_worker` has a worker: one of those that were granted first, or a successor.

        Args:
            limit: how long the server may take for a successor, in seconds.

        Raises:
            ShortageError: the lease is over.
            WorkerTimeoutError: the server did not grant a successor in time.
        """
        if not self._granted:
            self._send({"do": "replace"})
            self._await("worker", Deadline(limit))

    def take_worker(self, boot: Boot, slots: list[int]) -> Worker:
        """Return a worker that has not received its `Boot` message. Signal handlers must be deferred.

        Args:
            boot: of the worker.
            slots: indices of its slots.
        """
        message, (end, pidfd) = self._granted.pop(0)
        control = ControlSocket(Connection(end.number))
        process = LeasedProcess(message["worker"], message["pid"], pidfd, control, self.exit_code_of)
        stack = StackFile(f"vecenv worker {boot.worker_id}", len(boot.env_ids_by_thread))
        return Worker(
            *(boot.worker_id, boot.env_ids, slots, process, control, process.pid, process.open_end(), stack), boot=boot
        )

    def descriptors(self) -> list[Any]:
        """Return the owners of descriptors that a forked process must close."""
        return [one for one in (self._socket,) if one is not None]

    def close(self) -> None:
        """End the lease: the server takes back the workers that have not returned."""
        with signals_deferred():
            for _, descriptors in self._granted:
                for descriptor in descriptors:
                    descriptor.close()
            self._granted.clear()
            if self._socket is not None:
                self._socket.end()
