"""Spawning: processes by every start method, none of which imports the caller's `__main__`.

`multiprocessing` sends the path of the main script to spawned children, which run it again
under another name: a script without a main guard then starts workers in its workers. What
our workers need travels by value, so that part of the preparation is left out. The fork
server is one of our own, because its list of preloaded modules is fixed when it starts and
the program may use the common one for something else.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver, reduction, spawn
from multiprocessing import process as mp_process
from multiprocessing.context import set_spawning_popen
from multiprocessing.forkserver import ForkServer
from typing import Any

from ..errors import ConfigError

__all__ = ["START_METHODS", "make_process"]

START_METHODS = ("forkserver", "spawn", "fork")
# The standard Popen classes are extended below; their inner parts have no published types.
popen_forkserver: Any = importlib.import_module("multiprocessing.popen_forkserver")
popen_spawn: Any = importlib.import_module("multiprocessing.popen_spawn_posix")
util: Any = importlib.import_module("multiprocessing.util")

_PRELOAD = ["vecenv.core.preload"]
_MAIN_KEYS = ("init_main_from_path", "init_main_from_name")

read_signed: Callable[[int], int] = getattr(forkserver, "read_signed")  # noqa: B009
_standard_preparation = spawn.get_preparation_data
_server: ForkServer | None = None


def _fork_server() -> ForkServer:
    """Return this process's own fork server, started when the first worker is."""
    global _server
    if _server is None:
        _server = ForkServer()
        _server.set_forkserver_preload(_PRELOAD)
    return _server


def _forget_server() -> None:
    global _server
    _server = None  # a forked child must not use its parent's server


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_server)


def _preparation(name: str) -> dict[str, Any]:
    data: dict[str, Any] = _standard_preparation(name)
    for key in _MAIN_KEYS:
        data.pop(key, None)
    return data


class _ForkServerPopen(popen_forkserver.Popen):  # type: ignore[misc]
    """As the standard one, with our server and without the main script."""

    def _launch(self, process_obj: Any) -> None:
        data = _pickle_for(self, process_obj)
        try:
            self.sentinel, writer = _fork_server().connect_to_new_process(self._fds)
        except (ConnectionError, EOFError):  # it was killed a moment ago: the next one is new
            _forget_server()
            self.sentinel, writer = _fork_server().connect_to_new_process(self._fds)
        # The child watches this end to know that its parent lives.
        alive = os.dup(writer)
        self.finalizer = util.Finalize(self, util.close_fds, (alive, self.sentinel))
        with open(writer, "wb") as file:
            file.write(data)
        self.pid = read_signed(self.sentinel)


class _SpawnPopen(popen_spawn.Popen):  # type: ignore[misc]
    """As the standard one without the main script."""

    def _launch(self, process_obj: Any) -> None:
        spawn.get_preparation_data = _preparation
        try:
            super()._launch(process_obj)
        finally:
            spawn.get_preparation_data = _standard_preparation


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

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _ForkServerPopen(process_obj)


class _SpawnProcess(mp_process.BaseProcess):
    _start_method = "spawn"

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return _SpawnPopen(process_obj)


def make_process(context: str, target: Callable[..., None], args: tuple[Any, ...], name: str) -> Any:
    """Return a process object, not started.

    Raises:
        ConfigError: unknown start method, or a fork with CUDA initialised.
    """
    if context not in START_METHODS:
        raise ConfigError(f"context: expected one of {START_METHODS}, got {context!r}", key="context")
    if context == "fork":
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            raise ConfigError("context='fork' cannot be used once CUDA is initialised; use 'forkserver'", key="context")
        return multiprocessing.get_context("fork").Process(target=target, args=args, name=name)
    kind = _ForkServerProcess if context == "forkserver" else _SpawnProcess
    return kind(target=target, args=args, name=name)
