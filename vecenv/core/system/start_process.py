"""Start processes by every start method, without importing the caller's `__main__`.

`multiprocessing` sends the path of the main script to spawned children, and they run it again under another name. So a
script without a main guard would start workers inside its workers. Workers of vecenv receive everything by value, so
this part of the preparation is left out.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from typing import Any

from ...errors import ConfigError, RemoteTraceback, describe_exit
from .blas_threads import cap_environment
from .descriptor import Descriptor
from .fork_server import (
    ForkServer,
    StartFailure,
    forkserver,
    main_server,
    mp_process,
    resource_tracker,
    search_path,
    spawn,
    util,
)

__all__ = [
    "START_DESCRIPTORS",
    "ForkServerTimeout",
    "disown",
    "kill_process",
    "live_devices",
    "modules_of",
    "open_end",
    "standard_descriptors",
    "start_process",
]

# The standard Popen classes are extended below; their internal parts have no published types.
mp_context: Any = importlib.import_module("multiprocessing.context")
popen_forkserver: Any = importlib.import_module("multiprocessing.popen_forkserver")
popen_spawn: Any = importlib.import_module("multiprocessing.popen_spawn_posix")

#: How long a fork server may take to reply, in seconds. A new one first imports all modules of its preload. A
#: server that takes longer was stopped, or hangs in an import. Ctrl-C has no effect during this time.
_REPLY_SECONDS = 30.0
#: Number of descriptors that the start of one process may need, including the start of its fork server.
START_DESCRIPTORS = 10
#: Errors of requesting a process from a server that was killed, by this process or another one.
_SERVER_DIED_ERRORS = (ConnectionError, EOFError)
#: Further servers that are asked for a process after one was killed.
_MOST_RETRIES = 3


class ForkServerTimeout(ConnectionError):
    """A fork server did not reply in time, and has been killed."""


class _Popen:
    """Starts a process that receives its process object through a pipe, whose other end shows the end of its parent."""

    def _launch(self, process_obj: Any) -> None:
        self._fds: list[int] = []
        data = self._pickle(process_obj)
        read, kept = os.pipe()
        self.sentinel, status = os.pipe()
        self.finalizer = util.Finalize(self, util.close_fds, (kept, self.sentinel))
        try:
            try:
                self._start(process_obj, status, read, resource_tracker.getfd())
            finally:
                util.close_fds(read, status)
            if not wait([self.sentinel], _REPLY_SECONDS):
                raise ForkServerTimeout(f"its fork server did not answer within {_REPLY_SECONDS:g} s")
            self.pid = forkserver.read_signed(self.sentinel)
            if self.pid < 0:
                raise OSError(-self.pid, os.strerror(-self.pid))
        except BaseException:
            self.finalizer()
            raise
        with contextlib.suppress(BrokenPipeError), open(kept, "wb", closefd=False) as file:  # it has ended already
            file.write(data)

    def _pickle(self, process_obj: Any) -> bytes:
        preparation = {"sys_path": search_path(), "sys_argv": sys.argv, "orig_dir": mp_process.ORIGINAL_DIR}
        buffer = io.BytesIO()
        mp_context.set_spawning_popen(self)
        try:
            reduction.dump(preparation, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            mp_context.set_spawning_popen(None)
        return buffer.getvalue()

    def _start(self, process_obj: Any, status: int, data: int, tracker: int) -> None:
        """Start the process with these descriptors and those in `_fds`; its pid is written to `status`."""
        raise NotImplementedError


class _SpawnPopen(_Popen, popen_spawn.Popen):  # type: ignore[misc]
    def _start(self, process_obj: Any, status: int, data: int, tracker: int) -> None:
        command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=data)
        pid = util.spawnv_passfds(spawn.get_executable(), command, [status, data, tracker, *self._fds])
        forkserver.write_signed(status, pid)


class _ForkServerPopen(_Popen, popen_forkserver.Popen):  # type: ignore[misc]
    def _launch(self, process_obj: Any) -> None:
        """Start the process; each time that the server was killed, by a new one."""
        server, process_obj.server = process_obj.server, None
        for number in range(_MOST_RETRIES + 1):
            self._server = server or main_server()
            try:
                super()._launch(process_obj)
                break
            except _SERVER_DIED_ERRORS as error:
                server = None
                has_timed_out = isinstance(error, ForkServerTimeout)
                failure = self._server.read_failure()
                self._server.stop(kill=has_timed_out)
                if failure is None and StartFailure.is_own_end(self._server.exitcode):
                    failure = StartFailure(f"its fork server has ended: {describe_exit(self._server.exitcode)}")
                if failure is not None:
                    raise failure from failure.__cause__
                if number == _MOST_RETRIES or (number and has_timed_out):
                    raise
            finally:
                del self._server

    def _start(self, process_obj: Any, status: int, data: int, tracker: int) -> None:
        self._server.request(process_obj.modules, [status, data, tracker, *self._fds])


class _ForkServerProcess(mp_process.BaseProcess):  # type: ignore[misc]
    _start_method = "forkserver"
    _Popen = _ForkServerPopen
    modules: frozenset[str] = frozenset()
    server: ForkServer | None = None


class _SpawnProcess(mp_process.BaseProcess):  # type: ignore[misc]
    _start_method = "spawn"
    _Popen = _SpawnPopen


def open_end(process: Any) -> Descriptor:
    """Return a descriptor that becomes readable when a process that was started has ended; the caller closes it.

    It is a pidfd. Where the system refuses it, it is the end of a pipe, whose other end the process, or its fork
    server, keeps open; processes that it forks may keep it open, too.
    """
    pidfd = Descriptor.of_process(process.pid)
    return Descriptor(os.dup(process.sentinel)) if pidfd.closed else pidfd


def kill_process(process: Any, end: Descriptor) -> None:
    """Kill a process; `end` is the result of `open_end`. Raises ProcessLookupError if it has ended."""
    try:
        signal.pidfd_send_signal(end.number, signal.SIGKILL)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):  # it is no pidfd, or the call is refused
        process.kill()


def disown(process: Any) -> None:
    """Close the descriptors of a process that was started; this process does not wait for it at its own end."""
    mp_process._children.discard(process)
    process._popen.close()


@contextlib.contextmanager
def standard_descriptors() -> Iterator[None]:
    """Keep descriptors 0 to 2 open during the context; closed ones are opened on the null device.

    A program may have closed them, as daemons do. Otherwise the pool's own files would get these numbers. An env or a C
    library that writes to standard output or error would then write into the pool's sockets and batches. Processes that
    are started during the context keep the null device.
    """
    opened: list[int] = []
    try:
        for standard in range(3):
            try:
                os.fstat(standard)
            except OSError:
                opened.append(os.open(os.devnull, os.O_RDWR))  # the lowest free number, which is this one
                os.set_inheritable(opened[-1], True)
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)


def modules_of(*values: Any) -> frozenset[str]:
    """Return the modules that a fork server should have for workers that unpickle these objects.

    These are modules of this package. Others are left out: they may start threads or open files when they are imported.
    """
    found = {getattr(value, "__module__", None) or "" for value in values}
    return frozenset(name for name in found if name.partition(".")[0] == __name__.partition(".")[0])


def start_process(
    context: str,
    target: Callable[..., None],
    args: tuple[Any, ...],
    name: str,
    modules: frozenset[str] = frozenset(),
    server: ForkServer | None = None,
) -> Any:
    """Start a process that leads a session of its own, so that Ctrl-C in the terminal does not reach it.

    SIGINT and SIGTERM have their default actions there.

    Args:
        context: 'forkserver', 'spawn' or 'fork'.
        target, args: the function to call, and its arguments. If it cannot be imported there, and the first argument
            is a connection, the process sends a pickled `RemoteTraceback` over that.
        name: name of the process.
        modules: modules that its fork server imports first.
        server: the fork server to start it, if that is alive; None: the main server.

    Returns:
        The `multiprocessing` process object.

    Raises:
        ConfigError: a fork with CUDA or a backend of JAX initialised; or no interpreter of Python is known.
        StartFailure: a fork server could not import its modules.
        OSError: the system has no process or descriptor left.
        EOFError: fork servers have died again and again.
    """
    _check_interpreter()
    if context == "fork":
        _check_fork()
    else:
        resource_tracker.ensure_running()  # otherwise it would start in `process.start`, and unblock signals there
    _check_descriptors()
    kinds = {"spawn": _SpawnProcess, "forkserver": _ForkServerProcess, "fork": mp_context.ForkProcess}
    process = kinds[context](target=_lead_session, args=(pickle.dumps(target), *args), name=name)
    process.of_pool = True  # marks the pool's processes, so that a forked child can tell them from the program's own
    if context == "forkserver":
        process.modules, process.server = modules, server
    # A Ctrl-C between fork and setsid would reach the child too.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def _lead_session(target: bytes, *args: Any) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    if "numpy" not in sys.modules:  # as in a fork server: its BLAS must not start threads when it is imported
        cap_environment(1, os.environ)
    try:
        function = pickle.loads(target)
    except Exception as error:  # a package that it imports is broken, for example
        if not args or not isinstance(args[0], Connection):
            raise
        text = "".join(traceback.format_exception(error))
        args[0].send_bytes(pickle.dumps(RemoteTraceback(text)))
        return
    function(*args)


def _check_interpreter() -> None:
    """Raise ConfigError if there is no program that runs Python: processes and `multiprocessing` need it."""
    executable = os.fsdecode(spawn.get_executable() or b"")
    is_program = os.access(executable, os.X_OK, effective_ids=os.access in os.supports_effective_ids)
    if not is_program or os.path.isdir(executable):
        what = f"{executable!r} cannot be executed" if executable else "the path of Python is not known here"
        raise ConfigError(
            f"{what}, and workers are started by it. Set sys.executable before the first import of multiprocessing, "
            "or call multiprocessing.set_executable(path)"
        )


def _check_descriptors() -> None:
    """Raise OSError if too few descriptors are left to start a process.

    If `multiprocessing` runs out of them during a start, it leaves pipes open.
    """
    spare: list[int] = []
    try:
        while len(spare) < START_DESCRIPTORS:
            spare += os.pipe()
    finally:
        util.close_fds(*spare)


def live_devices() -> list[str]:
    """Return the libraries that have state in this process which no forked child can use: 'CUDA', 'JAX'."""
    found = []
    torch = sys.modules.get("torch")
    if hasattr(torch, "cuda") and torch.cuda.is_initialized():  # type: ignore[union-attr]
        found.append("CUDA")
    # Nothing is imported here: only a computation makes a backend. The function is not public; a release without it
    # is treated as one without a backend.
    bridge = sys.modules.get("jax._src.xla_bridge")
    if getattr(bridge, "backends_are_initialized", lambda: False)():
        found.append("JAX")
    return found


def _check_fork() -> None:
    """Raise ConfigError if a library has state in this process that no forked child can use."""
    found = live_devices()
    if "CUDA" in found:
        raise ConfigError("context='fork' cannot be used once CUDA is initialised; use 'forkserver'", key="context")
    if "JAX" in found:
        raise ConfigError(
            "context='fork' cannot be used once JAX has computed something: the threads of its backend are missing in "
            "a forked worker, and its first computation there would wait for them forever; use 'forkserver'",
            key="context",
        )
