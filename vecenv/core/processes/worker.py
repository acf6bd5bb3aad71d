"""Supervise: starts worker processes, hears their deaths, ends them with all they started.

Mechanism only: when to restart a worker is for those above to say. One path starts the
first workers and their replacements.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import multiprocessing.connection
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ...errors import ConfigError, WorkerError, locate
from ..layout import messages
from ..system.clock import Deadline, now_ns
from ..system.signals import signals_deferred
from ..system.stack_dump import PhaseNote, StackFile
from ..system.start_process import ForkServerTimeout, make_process, standard_descriptors
from ..system.worker_socket import ControlSocket
from .worker_main import Attach, Boot, ExitReport, find_endless_import, started_at, worker_main

__all__ = ["Worker", "kill_tree", "start_worker", "usable_cores"]

_Error = TypeVar("_Error", bound=WorkerError)

_LOG = logging.getLogger("vecenv")
#: How long the end of a process that has been killed, and news of it, may take. It takes longer only where the system
#: does not let go of it, as of one that waits for a dead file server, or where its fork server has been stopped.
_END_SECONDS = 5.0
#: Descriptors that the start of one process may take at once, that of its fork server included.
_START_DESCRIPTORS = 10
#: What a fork server meets that has no place for its socket. A name that is too long has no number: Python refuses it.
_NO_FOLDER_ERRNOS = (None, errno.ENOENT, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.ENAMETOOLONG)
#: Libraries whose monkey patches the start of workers does not work with -> what puts them in.
_PATCHES = {"gevent": "gevent.monkey.patch_all", "eventlet": "eventlet.monkey_patch"}
_SOCKET_FOLDER_HINT = (
    "the fork server's socket needs a folder for temporary files that can be written and whose name is short (some 70 "
    "characters at most); set TMPDIR to such a folder, or use context='spawn'"
)


@dataclass
class Worker:
    """One worker process as its parent sees it.

    Attributes:
        pid: process id, also of its session and process group.
        started: when it started, as `started_at` says; '': it had ended before anybody looked.
        pidfd: readable once the process has exited; -1 where the system has none.
        slots: indices of its slots.
        stack: where it writes its Python stack when it crashes or is asked to.
        is_dead: it has been found dead and reaped; then `exitcode` says how it ended, and
            `last_stack` what it was doing, if it could write that, and `last_note` which env
            it was constructing or closing.
        start_failure: why it could not be started in the place of another one, which it is dead for; '': it was.
    """

    worker_id: int
    env_ids: list[int]
    slots: list[int]
    process: Any
    control: ControlSocket
    pid: int
    pidfd: int
    stack: StackFile
    is_dead: bool = False
    exitcode: int | None = None
    last_stack: str = ""
    last_note: PhaseNote | None = None
    exit_report: ExitReport | None = None
    start_failure: str = ""
    boot: Boot | None = field(default=None, repr=False)
    started: str = field(init=False)

    def __post_init__(self) -> None:
        self.started = started_at(self.pid)

    @property
    def name(self) -> str:
        """How messages name it: worker 3 (envs 12-15)."""
        ids = self.env_ids
        if len(ids) == 1:
            return f"worker {self.worker_id} (env {ids[0]})"
        if ids == list(range(ids[0], ids[-1] + 1)):
            return f"worker {self.worker_id} (envs {ids[0]}-{ids[-1]})"
        return f"worker {self.worker_id} (envs {', '.join(map(str, ids))})"

    def locate(self, error: _Error, op: str | None, env_id: int | None = None, step_id: int | None = None) -> _Error:
        """Attach this worker to an error, and what was under way; return the error.

        Args:
            env_id: the env concerned; None: all envs of the worker.
        """
        env_ids = self.env_ids if env_id is None else [env_id]
        return locate(error, worker_id=self.worker_id, env_ids=env_ids, op=op, step_id=step_id)

    def send_boot(self) -> None:
        """Tell a new worker its first word: what it is to build, and where it writes its stack.

        Raises:
            ConfigError: the system has no descriptor left.
        """
        assert self.boot is not None
        self.boot.has_stack_file = self.stack.fd >= 0
        self._send(pickle.dumps(self.boot), [self.stack.fd] if self.boot.has_stack_file else [])

    def send_attach(self, attach: Attach, descriptors: Sequence[int]) -> None:
        """Tell the plan, and pass on the descriptors it is mapped from."""
        self._send(messages.dump(attach), descriptors)  # keys of a Dict may be of a class of the caller's script

    def _send(self, message: bytes, descriptors: Sequence[int]) -> None:
        with self._start_errors():
            self.control.send_frame(message, descriptors)

    def has_message(self) -> bool:
        """Go on telling it what it had no room for; tell whether it has sent a whole word, or never will."""
        with self._start_errors():
            self.control.pump()
        return self.control.has_frame() or self.control.is_at_eof()

    @contextlib.contextmanager
    def _start_errors(self) -> Iterator[None]:
        with signals_deferred():  # what a handler raises, an alarm's TimeoutError, is none of these errors
            try:
                yield
            except OSError as error:
                raise _start_error(self.worker_id, error) from error

    def next_message(self) -> Any:
        """Return what the worker has sent, or, as it has ended, was to send.

        Raises:
            EOFError: it died before it could send that.
            WorkerError: it cannot be read here.
        """
        frame = self.control.take_frame()
        if frame is None:
            raise EOFError
        try:
            return pickle.loads(frame)
        except Exception as error:  # a space of a class that is not to be had here, say
            text = f"{self.name} has sent what cannot be read here: {error!r}"
            raise locate(WorkerError(text), worker_id=self.worker_id) from error

    def reap(self, deadline: Deadline) -> bool:
        """Wait for the process to end and release what the parent holds; False at the deadline."""
        if self.is_dead:
            return True
        if self.process.is_alive():  # which reaps; `join` hears a pipe that what a forked worker has forked holds open
            self.process.join(deadline.seconds_left())
        if self.process.is_alive() and not self._was_reaped_elsewhere():
            return False
        self._mark_dead()
        return True

    def _mark_dead(self) -> None:
        with signals_deferred():
            self.is_dead = True
            self.exitcode = self.process.exitcode
            try:
                self.release()
            finally:  # behind it: looking for them takes a descriptor
                self._kill_tree()  # what its envs started outlives it otherwise

    def _was_reaped_elsewhere(self) -> bool:
        """Tell whether the process has ended although it seems to run: someone else has waited for it."""
        return self.pidfd >= 0 and bool(any_ready([self.pidfd], 0.0))

    def note_failure(self, why: str) -> None:
        """Note why this worker could not be started in the place of another one."""
        self.start_failure = why

    def reap_or_kill(self) -> None:
        """Reap a process that has ended, as far as one can know; one that has not after all is killed."""
        if not self.reap(Deadline(_END_SECONDS)):
            self.kill()

    def kill(self, deadline: Deadline | None = None) -> None:
        """End the process and everything in its session at once, then reap it.

        A process that the system does not let go of until the deadline (None: some seconds) is left to it: it has
        been killed, so it does nothing any more.
        """
        if self.is_dead:
            return
        self._kill_tree()
        self._send_kill()
        if not self.reap(deadline or Deadline(_END_SECONDS)):
            _LOG.warning("%s (process %d) was killed and has not ended; it is left to the system", self.name, self.pid)
            self._mark_dead()

    def _send_kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(signal, "pidfd_send_signal") and hasattr(os, "pidfd_open"):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            else:
                self.process.kill()

    def _kill_tree(self) -> None:
        """Kill what the process has started; not if its id is another one's by now, which it has been free for."""
        if self.started and started_at(self.pid) in ("", self.started):
            kill_tree(self.pid)

    def release(self) -> None:
        """Close the parent's descriptors of this worker."""
        self.last_stack = self.last_stack or self.stack.read()
        self.last_note = self.last_note or self.stack.last_note()
        self.stack.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        self.control.close()
        if self.exitcode is None and self.is_dead:  # lost: nobody will ever learn how it ended
            self.process._popen.returncode = -1
        self.process.close()

    def at_work(self, phase: str) -> tuple[str, float]:
        """Say which env's `phase` it is at, in words for a message, and since how many seconds."""
        found = self.last_note or self.stack.last_note()
        if found is None or found.phase != phase:
            return f"{phase} of its envs", 0.0
        return f"{phase} of env {found.env_id}", (now_ns() - found.began_ns) / 1e9

    def take_exit_report(self) -> None:
        """Take the worker's last word if it is there."""
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            while self.exit_report is None and (frame := self.control.take_frame()) is not None:
                message = pickle.loads(frame)
                self.exit_report = message if isinstance(message, ExitReport) else None


def end_deadline() -> Deadline:
    """Return until when processes that are killed now should have ended."""
    return Deadline(_END_SECONDS)


def kill_tree(leader: int) -> None:
    """Kill every process of the session and of the process group that `leader` leads."""
    for pid in [pid for pid in _session_members(leader) if pid != os.getpid()]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if leader > 0 and leader != os.getpgrp():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _session_members(session: int) -> list[int]:
    members: list[int] = []
    try:
        names = os.listdir("/proc")
    except OSError:  # no descriptor is left: the process group has most of them
        return members
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat") as stat:
                    # after the name in brackets: state, parent, group, session
                    fields = stat.read().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    members.append(int(name))
    return members


def start_worker(boot: Boot, slots: list[int], context: str, siblings: tuple[int, ...]) -> Worker:
    """Start the process of one worker. Called with handlers of signals held; it is to be briefed next.

    Args:
        boot: what it is to build.
        slots: indices of its slots.
        context: 'fork', 'forkserver' or 'spawn'.
        siblings: descriptors of this process that a forked worker must not keep.

    Raises:
        ConfigError: the system has no process or descriptor left, or no place for the fork server's socket.
    """
    process = stack = ours = theirs = None
    try:
        with standard_descriptors():
            ours, theirs = multiprocessing.Pipe()
            inherited = (ours.fileno(), *siblings) if context == "fork" else ()
            name = f"vecenv worker {boot.worker_id}"
            process = make_process(context, worker_main, (theirs, inherited), name, boot.modules)
            stack = StackFile(name)
            if context != "fork":
                resource_tracker.ensure_running()  # which else starts in there, and takes signals again
            _check_descriptors()
            # A Ctrl-C between fork and setsid would reach the child too, which takes these signals again.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            pid = process.pid or -1
            pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else os.dup(process.sentinel)
            return Worker(
                boot.worker_id, boot.env_ids, slots, process, ControlSocket(ours), pid, pidfd, stack, boot=boot
            )
    except BaseException as error:
        _discard(process, stack, ours)
        if isinstance(error, (OSError, EOFError)):  # a fork server that cannot fork ends
            raise _start_error(boot.worker_id, error, context) from error
        raise
    finally:
        if theirs is not None:
            theirs.close()


def _check_descriptors() -> None:
    """Raise OSError unless a process can be started with the descriptors that are left.

    `multiprocessing` leaves pipes open where it finds that amid a start, and its fork server ends with a traceback.
    """
    spare: list[int] = []
    try:
        while len(spare) < _START_DESCRIPTORS:
            spare += os.pipe()
    finally:
        for descriptor in spare:
            os.close(descriptor)


def _start_error(worker_id: int, error: OSError | EOFError, context: str = "") -> ConfigError:
    if isinstance(error, ForkServerTimeout):  # stopped, or hung in an import: nothing has run out
        remedy = "context='spawn' does without one"
    else:
        remedy = _SOCKET_FOLDER_HINT if _has_no_folder(context, error) else _limits()
    return ConfigError(f"worker {worker_id} cannot be started: {error}; {remedy}")


def _has_no_folder(context: str, error: OSError | EOFError) -> bool:
    """Tell whether a fork server found no place for its socket, rather than that something has run out."""
    return context == "forkserver" and isinstance(error, OSError) and error.errno in _NO_FOLDER_ERRNOS


def _discard(process: Any, stack: StackFile | None, control: Connection | None) -> None:
    """Let go of the parts of a worker that came to nothing."""
    if control is not None:
        control.close()
    if stack is not None:
        stack.close()
    if process is not None and process.pid is not None:
        process.kill()
        process.join(_END_SECONDS)


def check_may_start() -> None:
    """Raise ConfigError if this process may have no children, cannot talk to them, or would have them without end."""
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            f"{multiprocessing.current_process().name} is a daemonic process, as those of multiprocessing.Pool and of "
            "torch's DataLoader are, and may not start workers; have the envs in the process itself "
            "(backend='serial', or a manager of type 'base'), or start it with daemon=False"
        )
    for part in (socket.socket, select.select):
        patcher = part.__module__.partition(".")[0]
        if patcher in _PATCHES:
            raise ConfigError(
                f"{patcher} has put its own sockets, or its select, in the place of Python's: they never wait, and "
                f"worker processes end by that. Leave these two alone, {_PATCHES[patcher]}(socket=False, "
                "select=False), or have the envs in the process itself (backend='serial', or a manager of type 'base')"
            )
    module = find_endless_import()
    if module:
        raise ConfigError(
            f"module {module!r} starts workers when it is imported; they import it for their envs, and would start "
            "workers without end. Start them in a function, or under if __name__ == '__main__'"
        )


def _limits() -> str:
    import resource

    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"this process may use {descriptors} descriptors (ulimit -n) and {processes} processes (ulimit -u); "
        "use fewer workers or raise the limit"
    )


def usable_cores() -> int:
    """Count the cores this process may use: its affinity mask, capped by the cgroup's quota."""
    cores = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def preferred_core(worker_id: int, num_workers: int) -> int | None:
    """Return the core that a worker has to itself where there is one worker for each; None elsewhere.

    With fewer workers the system finds a free core for each, and two pools must not both choose the first ones.
    """
    if not sys.platform.startswith("linux") or num_workers < 2:
        return None
    cores = sorted(os.sched_getaffinity(0))
    is_one_each = num_workers == len(cores) == usable_cores() and worker_id < num_workers
    return cores[worker_id] if is_one_each else None


def any_ready(connections: list[Any], timeout: float | None) -> list[Any]:
    """Wait until a connection or descriptor is readable; empty at the timeout."""
    return multiprocessing.connection.wait(connections, timeout)
