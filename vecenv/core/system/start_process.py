"""Spawning: processes by every start method, none of which imports the caller's `__main__`.

`multiprocessing` sends the path of the main script to spawned children, which run it again
under another name: a script without a main guard then starts workers in its workers. What
our workers need travels by value, so that part of the preparation is left out. Fork
servers are our own, because the list of modules that one has loaded is fixed when it starts
and the program may use the common one for something else. A program that uses one kind of
env has one; who needs more modules than the last one has starts another.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, reduction, spawn
from multiprocessing import process as mp_process
from multiprocessing.connection import wait
from multiprocessing.context import set_spawning_popen
from multiprocessing.forkserver import ForkServer
from typing import Any

from ...errors import ConfigError

__all__ = ["ForkServerTimeout", "make_process", "modules_of", "standard_descriptors"]

# The standard Popen classes are extended below; their inner parts have no published types.
popen_forkserver: Any = importlib.import_module("multiprocessing.popen_forkserver")
popen_spawn: Any = importlib.import_module("multiprocessing.popen_spawn_posix")
util: Any = importlib.import_module("multiprocessing.util")

_PRELOAD = "vecenv.core.processes.preload"
#: How long a fork server may take to answer, in seconds; a new one imports all that it is to have loaded. One that
#: takes longer has been stopped, or hangs in an import. Nobody hears a Ctrl-C meanwhile.
_REPLY_SECONDS = 30.0
#: What asking a server for a process raises that was killed, here or by others; the last where someone else has waited
#: for it.
_SERVER_DIED_ERRORS = (ConnectionError, EOFError, ChildProcessError)
#: How the program of a fork server begins.
_SERVER = "from multiprocessing.forkserver import main;"
_MAIN_KEYS = ("init_main_from_path", "init_main_from_name")

read_signed: Callable[[int], int] = getattr(forkserver, "read_signed")  # noqa: B009
_standard_preparation, _standard_start = spawn.get_preparation_data, util.spawnv_passfds
#: The fork servers of this process, and which modules each has loaded beside the engine's: all that those before it
#: have, and more.
_servers: list[tuple[frozenset[str], ForkServer]] = []
_start_lock = threading.Lock()  # one thread starts at a time: what a dead server leaves is cleared up once


class ForkServerTimeout(ConnectionError):
    """A fork server did not answer in time, and has been killed."""


def _fork_server(modules: frozenset[str]) -> ForkServer:
    """Return a fork server that has these modules loaded; it starts with the first worker that is asked of it."""
    for loaded, server in _servers:
        if modules <= loaded:
            return server
    if _servers:
        modules |= _servers[-1][0]
    server = ForkServer()
    server.set_forkserver_preload([_PRELOAD, *sorted(modules)])
    _servers.append((modules, server))
    return server


def _reset_in_child() -> None:
    """In a forked child: leave its parent's processes and servers alone, and let servers end with the parent."""
    global _start_lock
    children = getattr(mp_process, "_children")  # noqa: B009
    for process in [one for one in children if hasattr(one, "of_pool")]:
        children.discard(process)  # else the child's exit waits for it, and fails
    _start_lock = threading.Lock()
    for _, server in _servers:
        alive = getattr(server, "_forkserver_alive_fd")  # noqa: B009
        if alive is not None:
            os.close(alive)
    _servers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


def _preparation(name: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = _standard_preparation(name)
    except (FileNotFoundError, AttributeError):
        # The working directory was removed; or this is under the debugger pdb, which leaves `__main__` without a
        # `__spec__`. Our workers are told the rest in another way.
        data = {"name": name, "authkey": mp_process.current_process().authkey, "sys_path": list(sys.path)}
    for key in _MAIN_KEYS:
        data.pop(key, None)
    # A server has them on its command line, and imports look at nothing else.
    data["sys_path"] = [entry for entry in data["sys_path"] if isinstance(entry, str)]
    if data.get("start_method") not in multiprocessing.get_all_start_methods():  # as loky's, unknown to ours
        data.pop("start_method", None)
    return data


@contextlib.contextmanager
def _our_preparation() -> Iterator[None]:
    """Prepare what this thread starts as `_preparation` does, not what others start meanwhile; one thread at a time."""
    thread = threading.get_ident()

    def prepare(name: str) -> dict[str, Any]:
        return _preparation(name) if threading.get_ident() == thread else _standard_preparation(name)

    def start(path: Any, args: list[Any], descriptors: list[int]) -> int:
        if threading.get_ident() == thread and str(args[-1]).startswith(_SERVER):
            # It is told where the program finds modules, but does not use it: it had those of another installation
            # loaded, or none, where the program has changed its path.
            args = [*args[:-1], f"import sys; sys.path[:] = {_preparation('server')['sys_path']!r}; {args[-1]}"]
        return int(_standard_start(path, args, descriptors))

    spawn.get_preparation_data, util.spawnv_passfds = prepare, start
    try:
        yield
    finally:
        spawn.get_preparation_data, util.spawnv_passfds = _standard_preparation, _standard_start


@contextlib.contextmanager
def _start_method_left_open() -> Iterator[None]:
    """Leave the program's start method for the program to set: `multiprocessing` settles it as it starts a process."""
    is_open = multiprocessing.get_start_method(allow_none=True) is None
    try:
        yield
    finally:
        # not one that another thread of the program has set meanwhile
        if is_open and multiprocessing.get_start_method(allow_none=True) == multiprocessing.get_all_start_methods()[0]:
            multiprocessing.set_start_method(None, force=True)


class _ForkServerPopen(popen_forkserver.Popen):  # type: ignore[misc]
    """As the standard one, with a server of ours and without the main script."""

    def _launch(self, process_obj: Any) -> None:
        with _start_lock, _start_method_left_open():
            data = _pickle_for(self, process_obj)
            try:
                writer = self._fork(process_obj.modules)
            except _SERVER_DIED_ERRORS:  # it was killed, perhaps a moment ago: the next one is new
                writer = self._fork(process_obj.modules)
        with open(writer, "wb") as file:
            file.write(data)

    def _fork(self, modules: frozenset[str]) -> int:
        """Have a process forked, which waits for what it is to do; return the descriptor that it reads that from."""
        server = _fork_server(modules)
        try:
            with _our_preparation():  # of the server itself, where it is not running yet
                self.sentinel, writer = server.connect_to_new_process(self._fds)
            # The child watches the second end to know that its parent lives.
            self.finalizer = util.Finalize(self, util.close_fds, (os.dup(writer), self.sentinel))
            try:
                if not wait([self.sentinel], _REPLY_SECONDS):
                    _kill(server)
                    raise ForkServerTimeout(f"its fork server did not answer within {_REPLY_SECONDS:g} s")
                self.pid = read_signed(self.sentinel)
            except BaseException:  # above all of a server that is dead
                os.close(writer)
                self.finalizer()
                raise
        except _SERVER_DIED_ERRORS:
            _servers[:] = [known for known in _servers if known[1] is not server]
            with contextlib.suppress(ChildProcessError):  # where someone else waits for all children
                getattr(server, "_stop")()  # noqa: B009  # its descriptors here, and its exit status
            raise
        return int(writer)


def _kill(server: ForkServer) -> None:
    """End a server that does not answer; asked to stop it would not hear of it."""
    pid = getattr(server, "_forkserver_pid")  # noqa: B009
    with contextlib.suppress(ProcessLookupError):  # where someone else has waited for it
        os.kill(pid, signal.SIGKILL)


class _SpawnPopen(popen_spawn.Popen):  # type: ignore[misc]
    """As the standard one without the main script."""

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
    """See that descriptors 0 to 2 are open meanwhile, and so no others of ours: the null device where they are closed.

    A program may have closed them, as daemons do. What the pool then opened would come to stand there, and what
    writes to standard output or error regardless, an env or a library in C, would write into its sockets and
    batches. Processes that are started meanwhile keep the null device.
    """
    opened: list[int] = []
    try:
        for standard in range(3):
            try:
                os.fstat(standard)
            except OSError:
                opened.append(os.open(os.devnull, os.O_RDWR))  # the lowest number that is free: this one
                os.set_inheritable(opened[-1], True)
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)


def modules_of(*values: Any) -> frozenset[str]:
    """Return the modules of this package that unpickling these objects imports; a fork server may have them loaded.

    Modules of others are left alone: who knows what they start or open when they are imported.
    """
    found = {getattr(value, "__module__", None) or "" for value in values}
    return frozenset(name for name in found if name.partition(".")[0] == _PRELOAD.partition(".")[0])


def make_process(
    context: str,
    target: Callable[..., None],
    args: tuple[Any, ...],
    name: str,
    modules: frozenset[str] = frozenset(),
) -> Any:
    """Return a process object, not started.

    Args:
        context: 'forkserver', 'spawn' or 'fork'.
        target, args: what it calls.
        name: of the process.
        modules: what its fork server is to have loaded.

    Raises:
        ConfigError: a fork with CUDA initialised.
    """
    process = _make(context, target, args, name, modules)
    process.of_pool = True  # by this they are told from others' in a forked child
    return process


def _make(context: str, target: Callable[..., None], args: tuple[Any, ...], name: str, modules: frozenset[str]) -> Any:
    if context == "fork":
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            raise ConfigError("context='fork' cannot be used once CUDA is initialised; use 'forkserver'", key="context")
        return multiprocessing.get_context("fork").Process(target=target, args=args, name=name)
    if context == "spawn":
        return _SpawnProcess(target=target, args=args, name=name)
    process = _ForkServerProcess(target=target, args=args, name=name)
    process.modules = modules
    return process
