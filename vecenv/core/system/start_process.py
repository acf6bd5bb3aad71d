"""Start processes by every start method, without importing the caller's `__main__`.

`multiprocessing` sends the path of the main script to spawned children, and they run it again under another name. So a
script without a main guard would start workers inside its workers. Workers of vecenv receive everything by value, so
this part of the preparation is left out.

The fork servers are separate from the program's: the modules that a fork server has loaded are fixed when it starts,
and the program may use the default one for another purpose. A program with one kind of env has one fork server. If
workers need more modules than the last server has, another server is started.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import connection, forkserver, reduction, resource_tracker, spawn
from multiprocessing import process as mp_process
from multiprocessing.connection import wait
from multiprocessing.context import set_spawning_popen
from multiprocessing.forkserver import ForkServer
from typing import Any

from ...errors import ConfigError

__all__ = [
    "ForkServerTimeout",
    "ForkedServer",
    "close_alive_end",
    "live_devices",
    "make_process",
    "modules_of",
    "standard_descriptors",
]

# The standard Popen classes are extended below; their internal parts have no published types.
popen_forkserver: Any = importlib.import_module("multiprocessing.popen_forkserver")
popen_spawn: Any = importlib.import_module("multiprocessing.popen_spawn_posix")
util: Any = importlib.import_module("multiprocessing.util")

_PRELOAD = "vecenv.core.processes.preload"
#: How long a fork server may take to reply, in seconds. A new one first imports all modules of its preload. A
#: server that takes longer was stopped, or hangs in an import. Ctrl-C has no effect during this time.
_REPLY_SECONDS = 30.0
#: Errors of requesting a process from a server that was killed, by this process or another one. The last one
#: occurs if another part of the program has already waited for the server.
_SERVER_DIED_ERRORS = (ConnectionError, EOFError, ChildProcessError)
#: Further servers that are asked for a process after one was killed.
_MOST_RETRIES = 3
#: Start of the command line of a fork server.
_SERVER = "from multiprocessing.forkserver import main;"
_MAIN_KEYS = ("init_main_from_path", "init_main_from_name")

read_signed: Callable[[int], int] = getattr(forkserver, "read_signed")  # noqa: B009
_standard_preparation, _standard_start = spawn.get_preparation_data, util.spawnv_passfds
#: The fork servers of this process, each with the modules it has loaded beside the engine's. Each has all modules
#: of those before it, and more.
_servers: list[tuple[frozenset[str], ForkServer]] = []
_start_lock = threading.Lock()  # one thread starts at a time, so that a dead server is cleaned up only once


class ForkServerTimeout(ConnectionError):
    """A fork server did not reply in time, and has been killed."""


def _fork_server(modules: frozenset[str]) -> ForkServer:
    """Return a fork server that has these modules loaded; it starts with the first worker that is requested."""
    for loaded, server in _servers:
        if modules <= loaded:
            return server
    if _servers:
        modules |= _servers[-1][0]
    server = ForkServer()
    server.set_forkserver_preload([_PRELOAD, *sorted(modules)])
    _servers.append((modules, server))
    return server


class ForkedServer(ForkServer):
    """A fork server that another fork server has forked.

    Attributes:
        is_stopped: whether it starts no more processes. It ends together with the last one that it has started.
    """

    _forkserver_address: str | None
    _forkserver_alive_fd: int | None
    _forkserver_pid: int | None
    _num_holders = 0
    _is_retired = False

    def hold(self) -> None:
        """Keep it for the successors of a pool's workers, until `release` is called as often."""
        self._num_holders += 1

    def release(self) -> None:
        """Undo `hold`."""
        self._num_holders -= 1
        self._stop_if_unused()

    def retire(self) -> None:
        """Stop it as soon as it is not held."""
        self._is_retired = True
        self._stop_if_unused()

    def _stop_if_unused(self) -> None:
        if self._is_retired and not self._num_holders:
            self.stop()

    @property
    def is_stopped(self) -> bool:
        return self._forkserver_alive_fd is None

    def listen(self) -> tuple[socket.socket, connection.Connection]:
        """Open the socket for requests and the pipe that keeps the server alive; return both ends of the server."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            address: str = getattr(connection, "arbitrary_address")("AF_UNIX")  # noqa: B009
            listener.bind(address)
            os.chmod(address, 0o600)
            listener.listen()
            alive_r, self._forkserver_alive_fd = os.pipe()
        except BaseException:
            listener.close()
            raise
        self._forkserver_address = address
        return listener, connection.Connection(alive_r, writable=False)

    def note_pid(self, pid: int) -> None:
        """Record the process that serves."""
        self._forkserver_pid = pid

    def ensure_running(self) -> None:
        """Raise ConnectionError if the server was stopped; it is not started again."""
        resource_tracker.ensure_running()
        if self.is_stopped:
            raise ConnectionError("the fork server was stopped")

    def stop(self) -> None:
        """Request no more processes from it; may be repeated."""
        if self._forkserver_address is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._forkserver_address)
            self._forkserver_address = None
        self.forget()

    def forget(self) -> None:
        """Close the descriptor of this process."""
        close_alive_end(self)

    _stop = stop  # the name of `ForkServer`


def close_alive_end(server: Any) -> None:
    """Close this process's end of the pipe that keeps a fork server alive, if it is open, and forget its number."""
    number, server._forkserver_alive_fd = server._forkserver_alive_fd, None
    if number is not None:
        os.close(number)


def _reset_in_child() -> None:
    """In a forked child: forget the parent's processes and servers, so that servers still end with the parent."""
    global _start_lock
    children = getattr(mp_process, "_children")  # noqa: B009
    for process in [one for one in children if hasattr(one, "of_pool")]:
        children.discard(process)  # otherwise the child's exit would wait for it and fail
    _start_lock = threading.Lock()
    for _, server in _servers:
        close_alive_end(server)
    _servers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


def _preparation(name: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = _standard_preparation(name)
    except (FileNotFoundError, AttributeError):
        # The working directory was removed; or the debugger pdb runs, which leaves `__main__` without a
        # `__spec__`. Workers receive the rest of the data in another way.
        data = {"name": name, "authkey": mp_process.current_process().authkey, "sys_path": list(sys.path)}
    for key in _MAIN_KEYS:
        data.pop(key, None)
    # A server receives the entries on its command line; imports ignore entries that are not strings.
    data["sys_path"] = [entry for entry in data["sys_path"] if isinstance(entry, str)]
    if data.get("start_method") not in multiprocessing.get_all_start_methods():  # such as loky's start method
        data.pop("start_method", None)
    return data


@contextlib.contextmanager
def _our_preparation() -> Iterator[None]:
    """Use `_preparation` for processes that this thread starts, but not for other threads; one thread at a time."""
    thread = threading.get_ident()

    def prepare(name: str) -> dict[str, Any]:
        return _preparation(name) if threading.get_ident() == thread else _standard_preparation(name)

    def start(path: Any, args: list[Any], descriptors: list[int]) -> int:
        if threading.get_ident() == thread and str(args[-1]).startswith(_SERVER):
            # A fork server receives sys.path but does not apply it. If the program has changed its sys.path, the server
            # would load modules of another installation, or find none.
            args = [*args[:-1], f"import sys; sys.path[:] = {_preparation('server')['sys_path']!r}; {args[-1]}"]
        return int(_standard_start(path, args, descriptors))

    spawn.get_preparation_data, util.spawnv_passfds = prepare, start
    try:
        yield
    finally:
        spawn.get_preparation_data, util.spawnv_passfds = _standard_preparation, _standard_start


@contextlib.contextmanager
def _start_method_left_open() -> Iterator[None]:
    """Keep the program's start method unset if it is unset; `multiprocessing` fixes it when it starts a process."""
    is_open = multiprocessing.get_start_method(allow_none=True) is None
    try:
        yield
    finally:
        # leave a method that another thread of the program has set meanwhile
        if is_open and multiprocessing.get_start_method(allow_none=True) == multiprocessing.get_all_start_methods()[0]:
            multiprocessing.set_start_method(None, force=True)


class _ForkServerPopen(popen_forkserver.Popen):  # type: ignore[misc]
    """The standard Popen, with one of vecenv's fork servers and without the main script."""

    def _launch(self, process_obj: Any) -> None:
        with _start_lock, _start_method_left_open():
            data = _pickle_for(self, process_obj)
            writer = self._fork_by_any(process_obj)
        with open(writer, "wb") as file:
            file.write(data)

    def _fork_by_any(self, process_obj: Any) -> int:
        """Request a forked process as `_fork` does; each time that the server was killed, ask a new one."""
        server = process_obj.server or _fork_server(process_obj.modules)
        for number in range(_MOST_RETRIES):
            try:
                return self._fork(server)
            except _SERVER_DIED_ERRORS as error:
                if number and isinstance(error, ForkServerTimeout):
                    raise
                server = _fork_server(process_obj.modules)
        return self._fork(server)

    def _fork(self, server: ForkServer) -> int:
        """Request a forked process, which waits for its data; return the descriptor to write that data to."""
        try:
            with _our_preparation():  # for the server itself, if it is not running yet
                self.sentinel, writer = server.connect_to_new_process(self._fds)
            try:
                kept = os.dup(writer)  # the child watches this end to detect the death of its parent
            except OSError:
                util.close_fds(writer, self.sentinel)
                raise
            self.finalizer = util.Finalize(self, util.close_fds, (kept, self.sentinel))
            try:
                if not wait([self.sentinel], _REPLY_SECONDS):
                    _kill(server)
                    raise ForkServerTimeout(f"its fork server did not answer within {_REPLY_SECONDS:g} s")
                self.pid = read_signed(self.sentinel)
            except BaseException:  # mostly because the server is dead
                os.close(writer)
                self.finalizer()
                raise
        except _SERVER_DIED_ERRORS:
            _servers[:] = [known for known in _servers if known[1] is not server]
            with contextlib.suppress(ChildProcessError):  # another part of the program waits for all children
                getattr(server, "_stop")()  # noqa: B009  # closes its descriptors here, and takes its exit status
            raise
        return int(writer)


def _kill(server: ForkServer) -> None:
    """Kill a server that does not reply; it would not process a request to stop."""
    pid = getattr(server, "_forkserver_pid")  # noqa: B009
    with contextlib.suppress(ProcessLookupError):  # another part of the program has waited for it
        os.kill(pid, signal.SIGKILL)


class _SpawnPopen(popen_spawn.Popen):  # type: ignore[misc]
    """The standard Popen without the main script."""

    def _launch(self, process_obj: Any) -> None:
        with _start_lock, _start_method_left_open(), _our_preparation():
            super()._launch(process_obj)


def _pickle_for(popen: Any, process_obj: Any) -> bytes:
    buffer = io.BytesIO()
    set_spawning_popen(popen)
    try:
        reduction.dump(_preparation(process_obj._name), buffer)
        reduction.dump(process_obj, buffer)
    finally:
        set_spawning_popen(None)
    return buffer.getvalue()


class _ForkServerProcess(mp_process.BaseProcess):
    _start_method = "forkserver"
    modules: frozenset[str] = frozenset()
    server: ForkServer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "server": None}  # the new process does not need it

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _ForkServerPopen(process_obj)


class _SpawnProcess(mp_process.BaseProcess):
    _start_method = "spawn"

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _SpawnPopen(process_obj)


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
    """Return the modules of this package that are imported to unpickle these objects, for a fork server's preload.

    Modules outside this package are left out: they may start threads or open files when they are imported.
    """
    found = {getattr(value, "__module__", None) or "" for value in values}
    return frozenset(name for name in found if name.partition(".")[0] == _PRELOAD.partition(".")[0])


def make_process(
    context: str,
    target: Callable[..., None],
    args: tuple[Any, ...],
    name: str,
    modules: frozenset[str] = frozenset(),
    server: ForkServer | None = None,
) -> Any:
    """Return a process object that is not started yet.

    Args:
        context: 'forkserver', 'spawn' or 'fork'.
        target, args: the function to call, and its arguments.
        name: name of the process.
        modules: modules that its fork server must have loaded.
        server: the fork server to start it, if that is alive; None: any with these modules.

    Raises:
        ConfigError: a fork with CUDA or a backend of JAX initialised.
    """
    process = _make(context, target, args, name, modules, server)
    process.of_pool = True  # marks the pool's processes, so that a forked child can tell them from the program's own
    return process


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


def _make(
    context: str,
    target: Callable[..., None],
    args: tuple[Any, ...],
    name: str,
    modules: frozenset[str],
    server: ForkServer | None,
) -> Any:
    if context == "fork":
        _check_fork()
        return multiprocessing.get_context("fork").Process(target=target, args=args, name=name)
    if context == "spawn":
        return _SpawnProcess(target=target, args=args, name=name)
    process = _ForkServerProcess(target=target, args=args, name=name)
    process.modules = modules
    process.server = server
    return process
