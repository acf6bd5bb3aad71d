"""Mail: what rare messages say, and how exceptions cross from a worker to the caller.

A message is one pickle (protocol 5). Upwards it belongs to a step_id: infos without columns,
observations without layout, exceptions, results of calls. Downwards it belongs to a command:
options of a reset, odd actions, calls. Bytes travel in the rings of
native/shm/byte_ring.h, without C over the control socket.

    up      step_id, env_id (int64 each) | pickle of a Reply
    down    pickle of a Payload

What stands before a reply says whose it is, should its pickle be one that cannot be read here.

In a pool within one process a message is passed as an object: `copy_payload` and `copy_reply` take the place of
`dump` and `dump_reply`, and `load` and `load_reply` return it unchanged.
"""

from __future__ import annotations

import pickle
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle

from ...errors import EnvError, locate
from ...nested import copy_value

__all__ = [
    "Outcome",
    "Payload",
    "RemoteTraceback",
    "Reply",
    "copy_reply",
    "copy_payload",
    "dump",
    "dump_reply",
    "load",
    "load_reply",
    "pack_error",
    "unpack_error",
]

#: What stands before a reply: step_id and env_id.
_HEAD = struct.Struct("<qq")
#: Names of the main script mean something else in a worker.
_MAIN = b"__main__"


@dataclass
class Reply:
    """One message up: everything about step `step_id` of an env that has no column.

    `value` is the result of a call; `warnings` are (key, text) to be shown once per key; `snapshot`
    is (state, whether it is complete, whether amid an episode) of the env before the reset that this step makes, or
    before this call; `outcome` says how an env was brought to where it was before its worker died; `is_unread`: the
    `error` is of this side, which could not make sense of the reply.
    """

    step_id: int
    env_id: int
    info: dict[str, Any] | None = None
    final_info: dict[str, Any] | None = None
    objects: list[Any] | None = None
    final_objects: list[Any] | None = None
    error: tuple[bytes | None, str, str, str] | None = None
    value: Any = None
    snapshot: tuple[bytes, bool, bool] | None = None
    outcome: Outcome | None = None
    warnings: list[tuple[str, str]] = field(default_factory=list)
    is_unread: bool = False


@dataclass
class Outcome:
    """How bringing an env to where it was ended.

    Attributes:
        kind: 'replayed'; 'unproven', from a state that may lack something, though all replies agree;
            'truncated'; 'restarted': the same, but the episode was over; or 'fresh': nothing was to be repeated.
        num_steps: commands repeated.
        reason: why it was truncated or restarted, in words.
    """

    kind: str
    num_steps: int = 0
    seconds: float = 0.0
    reason: str = ""


@dataclass
class Payload:
    """One message down, the payload of a command.

    A reset has `kwargs`, a step an `action`, a call a function of the env.
    """

    kwargs: dict[str, Any] = field(default_factory=dict)
    action: Any = None
    function: Callable[[Any], Any] | None = None


class RemoteTraceback(Exception):
    """The traceback of a worker as text; the cause of the exception that is raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


def dump(message: Any) -> bytes:
    """Pickle a message, or what a worker and its parent tell each other; what is `__main__`'s travels by value."""
    try:
        data = pickle.dumps(message, protocol=5)
        if _MAIN not in data:
            return data
    except Exception:  # lambdas and local classes: the slower pickler knows them
        pass
    by_value: bytes = cloudpickle.dumps(message, protocol=5)
    return by_value


def load(data: bytes | bytearray | Payload) -> Any:
    """Undo `dump`; return a payload that was not pickled as it is."""
    return data if isinstance(data, Payload) else pickle.loads(data)


def copy_payload(payload: Payload) -> Payload:
    """Copy a message down for an env in this process; its function is shared."""
    return replace(payload, kwargs=copy_value(payload.kwargs), action=copy_value(payload.action))


def copy_reply(reply: Reply) -> Reply:
    """Copy a message up from an env in this process; the value that a call returned is shared."""
    return replace(
        reply,
        info=copy_value(reply.info),
        final_info=copy_value(reply.final_info),
        objects=copy_value(reply.objects),
        final_objects=copy_value(reply.final_objects),
    )


def dump_reply(reply: Reply) -> bytes:
    """Pickle a message up."""
    return _HEAD.pack(reply.step_id, reply.env_id) + dump(reply)


def load_reply(data: bytes | bytearray | Reply) -> Reply:
    """Undo `dump_reply`; return a reply that was not pickled as it is.

    If the pickle cannot be read in this process, the reply has an error that says so.
    """
    if isinstance(data, Reply):
        return data
    step_id, env_id = _HEAD.unpack_from(data)
    try:
        reply: Reply = pickle.loads(memoryview(data)[_HEAD.size :])
    except Exception as error:  # of a class that cannot be made again here, say
        what = f"{type(error).__name__}: {error}"
        told = EnvError(f"what env {env_id} answered to command {step_id} cannot be unpickled in this process: {what}")
        told.__cause__ = error
        locate(told, env_ids=(env_id,), step_id=step_id)
        return Reply(step_id, env_id, error=pack_error(told), is_unread=True)
    return reply


def pack_error(error: BaseException) -> tuple[bytes | None, str, str, str]:
    """Describe an exception for another process: (pickle or None, class, text, traceback).

    The pickle is tried out here, so that rebuilding it there cannot fail by surprise.
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    try:
        data: bytes | None = cloudpickle.dumps(error, protocol=5)
        rebuilt = pickle.loads(data or b"")
        if type(rebuilt).__qualname__ != type(error).__qualname__:
            data = None
    except Exception:  # whatever a foreign class does when it is copied: it cannot travel
        data = None
    try:
        message = str(error)
    except Exception as other:  # nor can one that fails when it is to be printed, as everybody there would do
        data, message = None, f"(its text cannot be had: {type(other).__name__})"
    return data, name, message, text


def unpack_error(packed: tuple[bytes | None, str, str, str], **where: Any) -> Exception:
    """Rebuild an exception with the remote traceback as its cause; `EnvError` if it cannot be."""
    data, name, message, text = packed
    error: BaseException | None = None
    if data is not None:
        try:
            error = pickle.loads(data)
        except Exception:  # its module is missing on this side
            error = None
    if not isinstance(error, Exception):
        place = "".join(f" of env {env_id}" for env_id in where.get("env_ids", ()))
        what = f"{where.get('op', 'call')}{place} raised {name}: {message}"
        error = locate(EnvError(what, exception_type=name), **where)
    error.__cause__ = RemoteTraceback(text)
    return error
