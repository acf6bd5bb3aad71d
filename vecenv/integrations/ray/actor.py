"""The code that runs on a node: the actor that hosts a shard, and the task that kills the process of an old one."""

from __future__ import annotations

import os
import pickle
import platform
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ... import __version__
from ...core.layout import arena
from ...core.shards.carrier import ShardPlace
from ...core.shards.frames import PIECE_NBYTES, Buffer, FrameKind, join, pack_bare, split, unpack_bare
from ...core.system.process_stat import started_at
from ...errors import add_notes

__all__ = ["Place", "ShardHost", "kill_process", "make_actor_class", "to_pieces", "versions"]

_REMEDY = "ship it by RayOptions(runtime_env=...), or install it there"


class Place(NamedTuple):
    """The process of a shard.

    Attributes:
        process: its pid and its node.
        started: when it started, as of `process_stat.started_at`; '' if vecenv cannot be used there.
        versions: of the libraries there, as far as they are known.
        problem: the reason why vecenv cannot be used there; '' if it can.
    """

    process: ShardPlace
    started: str
    versions: dict[str, str]
    problem: str


def make_actor_class() -> type:
    """Return the class of the actors, which Ray sends by value: actors without vecenv start, too, and report that."""

    class ShardActor:
        """Hosts a shard. Ray calls one method at a time, in the order of the calls of the driver."""

        def __init__(self, make_shard: bytes) -> None:
            self._make_shard = make_shard
            self._host: Any = None

        def locate(self) -> tuple[Any, ...]:
            import importlib
            import os

            import ray

            place = os.getpid(), ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
            found: dict[str, str] = {}
            try:
                found["vecenv"] = str(importlib.import_module("vecenv").__version__)
                actor = importlib.import_module("vecenv.integrations.ray.actor")
                if self._host is None:
                    self._host = actor.ShardHost(self._make_shard)
                return (*place, self._host.started, self._host.versions, "")
            except Exception as error:  # a module or name is missing, or it cannot be imported
                return (*place, "", found, f"{type(error).__name__}: {error}")

        def open(self, *boot: Any) -> Any:
            return self._host.open(*boot)

        def execute(self, num_pieces: int, *request: Any) -> Any:
            return self._host.execute(num_pieces, *request)

    return ShardActor


class ShardHost:
    """The part of an actor that needs vecenv; `make_shard` is pickled and makes the shard from its boot."""

    def __init__(self, make_shard: bytes) -> None:
        self._make_shard: Callable[[bytes], Any] = pickle.loads(make_shard)
        self._shard: Any = None
        self._opened: list[Any] = []
        self.started = started_at(os.getpid())
        self.versions = versions()

    def open(self, *boot: Buffer) -> Any:
        """Build the envs; return the first frame. A second call returns it again."""
        if self._shard is None:
            self._shard = self._make_shard(bytes(join(boot)))
            self._opened = to_pieces(_with_advice(self._shard.open()), 1)
        return self._opened[0]

    def execute(self, num_pieces: int, num_shared: int, *values: Buffer) -> Any:
        """Execute a request, in pieces after the shared values; return the frame, in `num_pieces` pieces."""
        shared, request = values[:num_shared], values[num_shared:]
        pieces = to_pieces(self._shard.execute(bytes(join(request)), shared), num_pieces)
        return pieces[0] if num_pieces == 1 else pieces


def _with_advice(frame: Buffer) -> Buffer:
    """Return a first frame; an exception in it gets a note about the remedy if a module is missing on this node."""
    found = unpack_bare(frame)
    if found.kind != FrameKind.FAILED:
        return frame
    pickled, name, message, text = pickle.loads(found.attachment)
    error = None if pickled is None else pickle.loads(pickled)
    if not isinstance(error, ModuleNotFoundError):
        return frame
    add_notes(error, [f"the module is missing on a node of the cluster: {_REMEDY}"])
    return pack_bare(0, FrameKind.FAILED, pickle.dumps((pickle.dumps(error), name, message, text)))


def to_pieces(data: Buffer, num_pieces: int) -> list[Any]:
    """Split a buffer into values as Ray sends them best: bytes within a message, larger arrays by its store."""
    pieces = split(data, num_pieces)
    return [bytes(piece) if len(piece) <= PIECE_NBYTES else np.frombuffer(piece, np.uint8) for piece in pieces]


def versions() -> dict[str, str]:
    """Return the versions that driver and shards should have in common."""
    return {
        "vecenv": f"{__version__} (ABI {arena.ABI})",
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "NumPy": ".".join(np.__version__.split(".")[:2]),
    }


def kill_process(pid: int, started: str) -> None:
    """Kill the process of this node with that pid, if it started then. A stopped process survives `ray.kill`."""
    if started_at(pid) == started:
        os.kill(pid, signal.SIGKILL)
