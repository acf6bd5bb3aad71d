"""Start worker processes, detect their end, and kill them with all processes that they started.

This module is mechanism only: the caller decides when to restart a worker. First workers and their replacements are
started by the same code.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import multiprocessing.connection
import os
import pickle
import resource
import select
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ...errors import (
    ConfigError,
    RemoteTraceback,
    ShortageError,
    WorkerDiedError,
    WorkerError,
    describe_exit,
    locate,
    place_of,
)
from ...own_log import own_logger
from ..layout import messages
from ..system.clock import Deadline
from ..system.descriptor import Descriptor
from ..system.fork_server import ForkServer, StartFailure, spawn
from ..system.log_records import emit_frame, is_log_frame
from ..system.output_capture import OutputPipes
from ..system.process_stat import started_at
from ..system.process_tree import kill_tree, new_mark
from ..system.signals import signals_deferred
from ..system.stack_dump import PhaseNote, StackFile
from ..system.start_process import (
    START_DESCRIPTORS,
    ForkServerTimeout,
    kill_process,
    open_end,
    standard_descriptors,
    start_process,
)
from ..system.tokens import Tokens
from ..system.worker_socket import ControlSocket
from . import import_server
from .worker_main import Attach, Boot, ExitReport, SetUpFailure, describe_envs, find_endless_import, worker_main

__all__ = [
    "START_ERRORS",
    "Worker",
    "core_limit",
    "death_of",
    "is_shortage",
    "room_for_descriptors",
    "start_error",
    "start_worker",
    "usable_cores",
]

_Error = TypeVar("_Error", bound=WorkerError)

_LOG = own_logger()
#: How long a killed process may take to end, and its parent to learn of it, in seconds. It takes longer only if the
#: system keeps the process, for example while it waits for a dead file server, or if its fork server was stopped.
_END_SECONDS = 5.0
#: Number of descriptors that this process has for a worker whose output is captured.
_WORKER_DESCRIPTORS = 10
#: Errors of a start. EOFError and ConnectionError: fork servers were killed, often for want of memory.
START_ERRORS = (OSError, EOFError, MemoryError)
#: Numbers of system errors that may be over at the next call.
_SHORTAGES = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC)
#: Libraries whose monkey patches break the start of workers -> the function that installs the patches.
_PATCHES = {"gevent": "gevent.monkey.patch_all", "eventlet": "eventlet.monkey_patch"}


@dataclass
class Worker:
    """One worker process, seen from its parent.

    Attributes:
        slots: indices of its slots.
        process: the `multiprocessing` process object.
        control: the parent's end of its control socket.
        pid: process id, also the id of its session and process group.
        pidfd: readable once the process has exited, see `open_end`; closed by `release`.
        stack: file to which it writes its Python stack when it crashes or receives a request.
        output: its standard output and error while it builds its envs; None if they are not captured.
        tokens: one for each env but the first that it has not begun to build; None: it builds all its envs. Closed
            once it has reported.
        is_dead: whether it was found dead and reaped.
        exitcode: how it ended, if it is dead; None if that is unknown.
        last_stack: its Python stack at its death; '' if it could not write one.
        last_notes: the newest note of each of its threads, if it is dead; see `StackFile.notes`.
        exit_report: its last message, once that has arrived.
        start_failure: why this replacement could not be started, in which case `is_dead` is set; '' if it started.
        stray_word: the value in its shared memory for which it was ended here; '' if there was none.
        was_killed: whether `kill` has ended it, and not something else before.
        boot: the description of its envs.
        log_frames: log records that have arrived and were not passed on.
        started: start time, as `started_at` returns it; '' if it had ended before it could be read.
        mark: shows which processes it has started; see `process_tree`.
    """

    worker_id: int
    env_ids: list[int]
    slots: list[int]
    process: Any
    control: ControlSocket
    pid: int
    pidfd: Descriptor
    stack: StackFile
    output: OutputPipes | None = None
    tokens: Tokens | None = None
    is_dead: bool = False
    exitcode: int | None = None
    last_stack: str = ""
    last_notes: list[PhaseNote | None] = field(default_factory=list)
    exit_report: ExitReport | None = None
    start_failure: str = ""
    stray_word: str = ""
    was_killed: bool = False
    boot: Boot | None = field(default=None, repr=False)
    log_frames: list[bytes] = field(default_factory=list, repr=False)
    _frames: deque[bytes] = field(default_factory=deque, init=False, repr=False)
    _watched_by: select.epoll | None = field(default=None, init=False, repr=False)
    started: str = field(init=False)
    mark: str = field(default_factory=new_mark, init=False)

    def __post_init__(self) -> None:
        self.started = started_at(self.pid)

    @property
    def name(self) -> str:
        """Its name in messages, such as 'worker 3 (envs 12-15)'."""
        return f"worker {self.worker_id} ({describe_envs(self.env_ids, self.first_env_id)})"

    @property
    def first_env_id(self) -> int:
        """Number of the pool's env 0 in messages."""
        return 0 if self.boot is None else self.boot.first_env_id

    @property
    def is_leased(self) -> bool:
        """Whether it belongs to an env server, and this process only uses it."""
        return self.boot is not None and self.boot.is_leased

    def drop_env(self, env_id: int) -> None:
        """Note that an env has left this worker, so that a successor does not build it."""
        assert self.boot is not None
        self.env_ids = [one for one in self.env_ids if one != env_id]
        by_thread = [[one for one in share if one != env_id] for share in self.boot.env_ids_by_thread]
        self.boot = replace(self.boot, env_ids=self.env_ids, env_ids_by_thread=by_thread)

    def locate(self, error: _Error, op: str | None, env_id: int | None = None, step_id: int | None = None) -> _Error:
        """Add this worker and its present operation to an error; return the error.

        Args:
            error: the error to change.
            op, step_id: operation and number of the command; None if unknown.
            env_id: the env of the command; None for all envs of the worker.
        """
        env_ids = self.env_ids if env_id is None else [env_id]
        return locate(error, worker_id=self.worker_id, env_ids=env_ids, op=op, step_id=step_id)

    def send_boot(self) -> None:
        """Send the first message to a new worker: the envs to build, and the descriptors that it writes to.

        Raises:
            ShortageError: the system has no descriptor left.
        """
        assert self.boot is not None
        self.boot.captures_output = self.output is not None
        self.boot.has_tokens = self.tokens is not None
        self.boot.mark = self.mark
        descriptors = [self.stack.fd, *(self.output.write_ends if self.output else ())]
        descriptors += [self.tokens.descriptor] if self.tokens else ()
        self.boot.num_shared = len(self.boot.shared.descriptors)
        self._send(pickle.dumps(self.boot), [*descriptors, *self.boot.shared.descriptors])
        self._close_sent()

    def send_attach(self, attach: Attach, descriptors: Sequence[Descriptor]) -> None:
        """Send the plan of the arena, and the descriptors that the worker maps it from."""
        self._send(messages.dump(attach), descriptors)  # keys of a Dict space may be of a class of the caller's script

    def _send(self, message: bytes, descriptors: Sequence[Descriptor]) -> None:
        with self._start_errors():
            self.control.send_frame(message, descriptors)

    def has_message(self) -> bool:
        """Continue sending pending data; return whether a complete message has arrived or none will come.

        Does not block.
        """
        with self._start_errors():
            self.control.pump()
        self._close_sent()
        self.read_frames()
        return bool(self._frames) or self.control.is_at_eof()

    def read_frames(self) -> None:
        """Take the frames that have arrived, and put log records aside. Does not block.

        Without C, `SocketHub` does that while commands are executed.
        """
        with signals_deferred():
            while (frame := self.control.take_frame()) is not None:
                (self.log_frames if is_log_frame(frame) else self._frames).append(frame)

    def emit_log_records(self) -> None:
        """Pass the log records that were read to the loggers of this process."""
        while self.log_frames:
            emit_frame(self.log_frames.pop(0), self.name)

    def descriptors(self) -> list[Any]:
        """Return the owners of the parent's descriptors of this worker, which forked workers must close."""
        found: list[Any] = [self.control, self.pidfd, self.stack]
        found += self.output.descriptors() if self.output is not None else ()
        return found if self.tokens is None else [*found, self.tokens]

    def num_left(self) -> int:
        """Return how many of its envs it has not begun to build, according to its notes."""
        notes = [note for note in self.notes() if note is not None]
        return max(0, len(self.env_ids) - sum(note.num_done + (note.phase == "construct") for note in notes))

    def take_last_env(self) -> int | None:
        """Take the last one of its envs from a worker that builds envs; None if it has begun to build them all."""
        return self.remove_env() if self.tokens is not None and self.tokens.take() else None

    def remove_env(self) -> int:
        """Remove the last one of its envs, which it will not build, from those of a worker with one thread."""
        env_id = self.env_ids[-1]
        self.drop_env(env_id)
        return env_id

    def give_back_env(self, env_id: int) -> None:
        """Give an env back that was taken last. It may be too late to build it; see `BuildReport.num_envs`."""
        assert self.boot is not None and self.tokens is not None
        self.boot.env_ids_by_thread[0].append(env_id)
        self.env_ids.append(env_id)
        self.tokens.give_back()

    def output_ends(self) -> list[Descriptor]:
        """Return the descriptors from which its output can be read now."""
        return [] if self.output is None else self.output.readers()

    def _close_sent(self) -> None:
        """Close the write ends of its output, once it has received its own; else its end would not be noticed."""
        if self.output is not None and not self.control.has_unsent():
            self.output.close_write_ends()

    @contextlib.contextmanager
    def _start_errors(self) -> Iterator[None]:
        # an exception of a signal handler, such as an alarm's TimeoutError, must not be converted
        with signals_deferred():
            try:
                yield
            except (OSError, MemoryError) as error:
                raise start_error(f"worker {self.worker_id}", error) from error

    def next_message(self) -> Any:
        """Return the worker's next message.

        Raises:
            EOFError: the worker ended before it sent a complete message.
            ConfigError, ShortageError: it could not import its function, or was not set up.
            WorkerError: the message cannot be unpickled here.
        """
        self.read_frames()
        if not self._frames:
            raise EOFError
        frame = self._frames.popleft()
        try:
            message = messages.load(frame)
        except Exception as error:  # the class of a space is missing here, for example
            text = f"{self.name} has sent a message that cannot be read here: {error!r}"
            raise locate(WorkerError(text), worker_id=self.worker_id) from error
        failure: Exception | None = None
        if isinstance(message, RemoteTraceback):
            failure = StartFailure.of(message)
        elif isinstance(message, SetUpFailure):
            failure = messages.unpack_error(message.error)
        if failure is not None:
            raise start_error(f"worker {self.worker_id}", failure) from failure.__cause__
        return message

    def reap(self, deadline: Deadline) -> bool:
        """Wait for the process to end, and release the parent's descriptors; return False at the deadline."""
        if self.is_dead:
            return True
        # `is_alive` reaps. `join` waits on a pipe that processes forked by a forked worker keep open.
        if self.process.is_alive():
            self.process.join(deadline.seconds_left())
        if self.process.is_alive() and not self._has_ended():
            return False
        self._mark_dead()
        return True

    def _mark_dead(self) -> None:
        with signals_deferred():
            self.is_dead = True
            self.exitcode = self.process.exitcode
            try:
                self.release()
            finally:  # after the release, because finding the processes needs a free descriptor
                self._kill_tree()  # otherwise the processes that its envs started would outlive it

    def _has_ended(self) -> bool:
        """Return whether the process has ended, even if it seems to run because other code has waited for it."""
        return not self.pidfd.closed and bool(any_ready([self.pidfd], 0.0))

    def note_failure(self, why: str) -> None:
        """Record why this replacement could not be started."""
        self.start_failure = why

    def note_stray(self, word: str) -> None:
        """Record the value in its shared memory for which it is about to be ended."""
        self.stray_word = word

    def reap_or_kill(self) -> None:
        """Reap a process that seems to have ended; kill it if it has not."""
        if not self.reap(Deadline(_END_SECONDS)):
            self.kill()

    def kill(self, deadline: Deadline | None = None) -> None:
        """Kill the process and everything in its session at once, then reap it.

        If the system does not end the process before the deadline (None: 5 s), the process is left to the system. It
        has been killed, so it does nothing more.
        """
        if self.is_dead:
            return
        self.was_killed = not self._has_ended()
        self._kill_tree()
        self._send_kill()
        if not self.reap(deadline or Deadline(_END_SECONDS)):
            _LOG.warning("%s (process %d) was killed and has not ended; it is left to the system", self.name, self.pid)
            self._mark_dead()

    def give_back(self) -> None:
        """Leave a leased worker to its server, which kills it only if it does not return."""
        if not self.is_dead:
            self._mark_dead()

    def _send_kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill_process(self.process, self.pidfd)

    def _kill_tree(self) -> None:
        """Kill the processes that the worker has started; no session, if its pid now belongs to another process.

        Those of a leased worker belong to its server, which kills them when the worker has died.
        """
        if self.is_leased:
            return
        is_own = self.started and started_at(self.pid) in ("", self.started)
        kill_tree(self.pid if is_own else 0, self.mark, self.started or "0")

    def release(self) -> None:
        """Close the parent's descriptors of this worker, after its last stack was read."""
        self.last_stack = self.last_stack or self.stack.read()
        self.last_notes = self.last_notes or self.stack.notes()
        self.stack.close()
        if self.tokens is not None:
            self.tokens.close()
        if self.output is not None:
            self.output.close()
        if self._watched_by is not None and not self._watched_by.closed:
            # A process that the program has forked may hold the pidfd open. The set would then report this number for
            # ever, also when it belongs to the next worker.
            self._watched_by.unregister(self.pidfd)
        self.pidfd.close()
        self.read_frames()
        self.control.close()
        if (
            self.exitcode is None and self.is_dead and not self.is_leased
        ):  # its exit status is lost, but `close` needs one
            self.process._popen.returncode = -1
        self.process.close()

    def watch_in(self, epoll: select.epoll) -> None:
        """Have an epoll set report the end of the process, until `release`."""
        epoll.register(self.pidfd, select.EPOLLIN)
        self._watched_by = epoll

    def notes(self) -> list[PhaseNote | None]:
        """Return the newest note of each of its threads, by thread; the last ones before its death if it is dead."""
        return self.last_notes or self.stack.notes()

    def envs_at_work(self, phase: str) -> list[int]:
        """Return the envs whose `phase` ('construct' or 'close') has begun last in each thread."""
        return sorted(note.env_id for note in self.notes() if note is not None and note.phase == phase)

    def has_run(self) -> bool:
        """Return whether its process has reached its main function."""
        return any(note is not None for note in self.notes())

    def at_work(self, phase: str) -> str:
        """Return these envs for a message."""
        env_ids = self.envs_at_work(phase)
        return f"{phase} of {describe_envs(env_ids, self.first_env_id)}" if env_ids else f"{phase} of its envs"

    def take_exit_report(self) -> None:
        """Store the worker's exit report if it has arrived. Does not block."""
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            self.read_frames()
            while self.exit_report is None and self._frames:
                message = messages.load(self._frames.popleft())
                self.exit_report = message if isinstance(message, ExitReport) else None


def death_of(worker: Worker, op: str, env_id: int | None = None, step_id: int | None = None) -> WorkerDiedError:
    """Reap a worker that has ended, and return the error for that.

    Args:
        op: its operation: construct, step, reset, call or idling.
        env_id: the env concerned; None: all of the worker.
        step_id: number of the command; None: there was none.
    """
    worker.reap_or_kill()
    worker.emit_log_records()
    what = worker.at_work(op)
    if env_id is not None:
        what = f"{op} of env {worker.first_env_id + env_id} (command {step_id})"
    if op == "idling":
        what = "idling"
    stack = f"\n{worker.last_stack}" if worker.last_stack else ""
    how = "killed by its pool" if worker.was_killed else describe_exit(worker.exitcode)
    if worker.stray_word:
        how = f"it was ended, because an env has overwritten memory that it shares: {worker.stray_word}"
    message = f"{worker.name} died during {what}: {how}{stack}"
    if worker.start_failure:
        message = f"{worker.name} is gone, for it could not be started again: {worker.start_failure}"
    error = worker.locate(WorkerDiedError(message, exitcode=worker.exitcode), op, env_id, step_id)
    at_work = worker.envs_at_work(op) if op == "construct" else []
    return locate(error, **{**place_of(error), "env_ids": at_work}) if at_work else error


def end_deadline() -> Deadline:
    """Return the deadline for the end of processes that are killed now."""
    return Deadline(_END_SECONDS)


def start_worker(
    boot: Boot,
    slots: list[int],
    context: str,
    siblings: Sequence[Any],
    *,
    captures_output: bool = False,
    has_tokens: bool = False,
    server: ForkServer | None = None,
) -> Worker:
    """Start the process of one worker. Signal handlers must be deferred; the caller then sends the `Boot` message.

    Args:
        boot: the envs that it builds.
        slots: indices of its slots.
        context: 'fork', 'forkserver' or 'spawn'.
        siblings: owners of descriptors of this process, which a forked worker closes.
        captures_output: whether its output is captured while it builds its envs.
        has_tokens: whether its envs can be taken from it while it builds them.
        server: the import server to start it; None: the main fork server.

    Raises:
        ShortageError: the system has no process, descriptor or memory left.
        ConfigError: the fork server does not answer, or has failed.
    """
    process = theirs = None
    opened: list[Any] = []
    try:
        with standard_descriptors():
            ours, theirs = multiprocessing.Pipe()
            opened.append(ours)
            name = f"vecenv worker {boot.worker_id}"
            stack = StackFile(name, len(boot.env_ids_by_thread))
            opened.append(stack)
            output = OutputPipes() if captures_output else None
            if output is not None:
                opened.append(output)
            tokens = Tokens.of(len(boot.env_ids) - 1) if has_tokens else None
            if tokens is not None:
                opened.append(tokens)
            mine = (ours, stack, *(output.descriptors() if output else ()), *([tokens] if tokens else ()))
            inherited = (*mine, *siblings) if context == "fork" else ()
            args = (theirs, inherited, boot.shared.inherited)
            process = start_process(context, worker_main, args, name, boot.modules, server)
            pid = process.pid or -1
            pidfd = open_end(process)
            opened.append(pidfd)
            control = ControlSocket(ours)
            return Worker(
                *(boot.worker_id, boot.env_ids, slots, process, control, pid, pidfd, stack, output, tokens), boot=boot
            )
    except BaseException as error:
        _discard(process, opened)
        if isinstance(error, START_ERRORS):
            raise start_error(f"worker {boot.worker_id}", error) from error.__cause__ or error
        raise
    finally:
        if theirs is not None:
            theirs.close()


def start_error(name: str, error: Exception) -> ConfigError:
    """Return the error of a worker or shard that could not be started.

    Args:
        name: of the worker or shard, for the message.
        error: one of `START_ERRORS`, or an exception of its process before it serves.
    """
    message = f"{name} cannot be started: {str(error) or type(error).__name__}"
    if isinstance(error, ForkServerTimeout):  # it was stopped or hangs in an import; no limit was reached
        return ConfigError(f"{message}; context='spawn' does without one")
    if isinstance(error, StartFailure):
        return ConfigError(
            f"{message}. That happened in a new process of {os.fsdecode(spawn.get_executable())}, which has the "
            "environment variables and the sys.path of this program; vecenv and NumPy must be importable there"
        )
    if is_shortage(error) or isinstance(error, (EOFError, ConnectionError)):
        return ShortageError(f"{message}; {_limits()}")
    return ConfigError(message)


def is_shortage(error: Exception) -> bool:
    """Return whether the system had no room, so that another attempt may succeed."""
    if isinstance(error, OSError):
        return error.errno in _SHORTAGES
    has_no_thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    return has_no_thread or isinstance(error, (MemoryError, ShortageError))


def _discard(process: Any, opened: list[Any]) -> None:
    """Release the process, if there is one, and the opened parts of a worker whose start has failed."""
    for part in opened:
        part.close()
    if process is not None and process.pid is not None:
        process.kill()
        process.join(_END_SECONDS)


def check_may_start() -> None:
    """Raise ConfigError if this process cannot start workers, or would start them without end."""
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
                f"{patcher} has put its own sockets, or its select, in the place of Python's: they never wait, "
                f"which ends worker processes. Leave these two alone, {_PATCHES[patcher]}(socket=False, "
                "select=False), or have the envs in the process itself (backend='serial', or a manager of type 'base')"
            )
    if import_server.is_importing():  # the module is left to the workers
        raise ConfigError("a module that the envs need starts workers when it is imported")
    module = find_endless_import()
    if module:
        raise ConfigError(
            f"module {module!r} starts workers when it is imported; they import it for their envs, and would start "
            "workers without end. Start them in a function, or under if __name__ == '__main__'"
        )


def _limits() -> str:
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    most = "" if memory == resource.RLIM_INFINITY else f", {memory >> 20} MiB of memory (ulimit -v)"
    return (
        f"this process may use {descriptors} descriptors (ulimit -n){most} and {processes} processes (ulimit -u); "
        "use fewer workers or raise the limit"
    )


def room_for_descriptors() -> int:
    """Return how many more workers can have captured output: each needs two descriptors more than without."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        num_open = len(os.listdir("/dev/fd"))
    except OSError:  # no descriptor is left
        return 0
    return max(0, limit - num_open - START_DESCRIPTORS) // _WORKER_DESCRIPTORS


def usable_cores() -> int:
    """Count the cores that this process may use: its affinity mask, capped by the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def core_limit() -> str:
    """Return the reason why this process may use fewer cores than the machine has, for a text; '' if it may not."""
    if usable_cores() >= (os.cpu_count() or 1):
        return ""
    is_bound = sys.platform.startswith("linux") and len(os.sched_getaffinity(0)) == usable_cores()
    return "the CPU affinity of this process" if is_bound else "cpu.max of the cgroup"


def preferred_core(worker_id: int, num_workers: int) -> int | None:
    """Return a core for one worker alone if there is exactly one worker per core; else None.

    With fewer workers, the system finds a free core for each. Two pools must not both choose the first cores.
    """
    if not sys.platform.startswith("linux") or num_workers < 2:
        return None
    cores = sorted(os.sched_getaffinity(0))
    is_one_each = num_workers == len(cores) == usable_cores() and worker_id < num_workers
    return cores[worker_id] if is_one_each else None


def any_ready(connections: list[Any], timeout: float | None) -> list[Any]:
    """Wait until one of the connections or descriptors is readable; return those, or [] at the timeout in seconds."""
    return multiprocessing.connection.wait(connections, timeout)
