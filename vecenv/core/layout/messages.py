"""Pickle rare messages between the parent and a worker, and carry exceptions from a worker to the caller.

A message is one pickle (protocol 5). A message up belongs to a step_id: infos without columns, observations without
fixed layout, exceptions, results of calls. A message down belongs to a command: options of a reset, actions without
fixed layout, calls. The bytes travel in the rings of native/shm/byte_ring.h, or without C over the control socket.

    up      step_id, env_id (int64 each) | pickle of a Reply
    down    pickle of a Payload

The two numbers before a reply identify its command and env even if the pickle cannot be read here. They count also if
they differ from those in the pickle: a shard replaces the env id by that of the pool that it belongs to (`renumber`).

A pool within one process passes messages as objects. There `copy_payload` and `copy_reply` are used instead of `dump`
and `dump_reply`. Their copies are those that the pickles would give, so an env and its caller share nothing there
either, except values that cannot be pickled.
"""

from __future__ import annotations

import linecache
import os
import re
import struct
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import numpy as np

from ...errors import EnvError, RemoteTraceback, WorkerError, add_notes, locate
from ...values.pickling import copy_by_pickle, dump_by_value, dump_message
from ...values.pickling import load as load_pickle
from .commands import Changes, GivenState
from .flags import Op

__all__ = [
    "Outcome",
    "Payload",
    "RemoteTraceback",
    "Reply",
    "copy_reply",
    "copy_payload",
    "copy_value",
    "describe_place",
    "dump",
    "dump_reply",
    "load",
    "load_reply",
    "lost_reply",
    "note_place",
    "numbers_of",
    "pack_error",
    "renumber",
    "unpack_error",
]

#: Header of a reply: step_id and env_id.
_HEAD = struct.Struct("<qq")
_NONE: dict[str, Any] = {}
#: Note of exceptions that a debugger and `input` raise without a terminal.
_NO_TERMINAL = (
    "a worker has no terminal for input() and debuggers: "
    "set backend='serial', or the environment variable VECENV_DEBUG=1"
)
#: Folders of vecenv, and of the parts of the engine that call envs.
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")
_OWN = __name__.partition(".")[0] + "."
_ENGINE = tuple(os.path.join(_PACKAGE, "core", room, "") for room in ("host", "processes", "fallback"))
#: A line of a traceback that names a frame; within an exception group, bars stand before it.
_FRAME = re.compile(r'(?P<indent>[ |]*)  File "(?P<file>.+)", line (?P<number>\d+), in ')
#: Classes whose values never change, and need no copies.
_CONSTANTS = frozenset(
    (
        *(type(None), bool, int, float, complex, str, bytes),
        *(kind for kind in np.sctypeDict.values() if not issubclass(kind, np.void | np.object_)),
    )
)


@dataclass
class Reply:
    """One message up: all parts of the reply to command `step_id` of an env that have no column.

    Attributes:
        info, final_info: the values of the info that did not travel in cells.
        objects, final_objects: values of the observation without a column, by their index in the spec.
        error: an exception, as `pack_error` describes it.
        request: the operation that raised it ('step', 'reset', 'autoreset' or 'call') and its arguments as text.
        worker_id: the worker that sent an exception; set on this side.
        value: result of a call.
        snapshot: (state, is_complete, is_mid_episode, holds_calls) of the env, taken before this call or before the
            reset that this command makes; see `commands.RestorePoint`.
        outcome: how the env was restored after the death of its worker.
        warnings: (key, text) pairs, to be shown once per key.
        effect: the fields of a `CallEffect`; None if it is unknown.
        is_rebuilt: whether a call was answered by an env that was built again, and whose episode is lost.
        is_unread: whether the `error` was made on this side because the reply could not be unpickled.
    """

    step_id: int
    env_id: int
    info: dict[str, Any] | None = None
    final_info: dict[str, Any] | None = None
    objects: list[Any] | None = None
    final_objects: list[Any] | None = None
    error: tuple[bytes | None, str, str, str] | None = None
    request: tuple[str, str] | None = None
    worker_id: int | None = None
    value: Any = None
    snapshot: tuple[bytes, bool, bool, bool] | None = None
    outcome: Outcome | None = None
    warnings: list[tuple[str, str]] = field(default_factory=list)
    effect: tuple[str, Changes | None, bool, bool] | None = None
    is_rebuilt: bool = False
    is_unread: bool = False


@dataclass
class Outcome:
    """The result of restoring one env after the failure of its worker.

    Attributes:
        kind: 'replayed'; 'unproven': restored from a state that may be incomplete, or with changed code, but all
            replies agreed;
            'truncated': not restored, the episode ends here; 'restarted': not restored, but the episode had already
            ended;
            'fresh': there were no commands to repeat; 'exception': the env has raised, and only its episode ends;
            'calling': the call `step_id` is about to be repeated; 0: it has returned.
        num_steps: number of commands repeated.
        seconds: how long restoring took.
        reason: text that explains 'truncated', 'restarted', 'exception', or 'unproven' if code has changed or calls are
            missing; for 'calling', the name of the function.
        step_id: of the call that is repeated.
    """

    kind: str
    num_steps: int = 0
    seconds: float = 0.0
    reason: str = ""
    step_id: int = 0


@dataclass
class Payload:
    """One message down: the payload of a command.

    A reset has `kwargs`, or a `state` that is put into the env in its place. A step has an `action`, and a call a
    function of the env. The `name` of a call is that of its lasting effect, as for `Pool.call`; '' if it has no effect.
    """

    kwargs: dict[str, Any] = field(default_factory=dict)
    action: Any = None
    function: Callable[[Any], Any] | None = None
    name: str | None = None
    state: GivenState | None = None

    @property
    def called(self) -> Any:
        """The part that takes the env, if the message is that of a lasting call: its function, or a given state."""
        return self.function or self.state

    def given(self, op: int) -> Any:
        """Return the part that belongs to this operation."""
        if op == Op.RESET:
            return self.kwargs if self.state is None else self.state
        return self.function if op == Op.CALL else self.action


def dump(message: Any, known: Mapping[str, Any] = _NONE) -> bytes:
    """Pickle a message with protocol 5; the objects of `__main__` in `known` by name, see `pickling.dump_message`."""
    return dump_message(message, known)


def load(data: bytes | bytearray | Payload) -> Any:
    """Undo `dump`, or take the result of `copy_payload`, where each env that is called gets its own function."""
    if not isinstance(data, Payload):
        return load_pickle(data)
    return data if data.function is None else replace(data, function=copy_value(data.function))


def copy_payload(payload: Payload) -> Payload:
    """Copy a message down for envs in this process."""
    kwargs, action, function = map(copy_value, (payload.kwargs, payload.action, payload.function))
    return Payload(kwargs, action, function, payload.name, payload.state)


def copy_reply(reply: Reply) -> Reply:
    """Copy a message up from an env in this process."""
    return replace(
        reply,
        info=copy_value(reply.info),
        final_info=copy_value(reply.final_info),
        objects=copy_value(reply.objects),
        final_objects=copy_value(reply.final_objects),
        value=copy_value(reply.value),
    )


def copy_value(value: Any) -> Any:
    """Return a copy of a value, as another process would get it; see `copy_by_pickle`.

    If the value cannot be pickled, the parts of its dicts, lists and tuples that cannot are shared, and the others
    copied.
    """
    try:
        return _copy_nested(value, _refuse, {})  # ten times as fast as pickling it
    except _NotPlainError:
        pass
    try:
        return copy_by_pickle(value)
    except Exception:  # a class may raise any exception, for example for a lock
        return _copy_nested(value, _copy_or_share, {})


class _NotPlainError(Exception):
    """A value contains objects beside dicts, lists, tuples, numbers, text and arrays of numbers."""


def _refuse(value: Any) -> Any:
    raise _NotPlainError


def _copy_or_share(value: Any) -> Any:
    """Return a copy of an object, or the object itself if it cannot be pickled."""
    try:
        return copy_by_pickle(value)
    except Exception:
        if not type(value).__module__.startswith(_OWN) or not is_dataclass(type(value)):
            return value
        return replace(value, **_copy_nested(vars(value), _copy_or_share, {}))  # a call with arguments of the caller


def _copy_nested(value: Any, copy_object: Callable[[Any], Any], copies: dict[int, Any]) -> Any:
    """Copy dicts, lists, tuples and arrays.

    Args:
        value: may contain itself.
        copy_object: called with each other object.
        copies: copies made so far, by the id of the original.
    """
    kind = type(value)
    if kind in _CONSTANTS:
        return value
    if id(value) in copies:
        return copies[id(value)]
    copied: Any
    if kind is dict:
        copied = copies[id(value)] = {}
        for key, part in value.items():
            copied[_copy_nested(key, copy_object, copies)] = _copy_nested(part, copy_object, copies)
    elif kind is list:
        copied = copies[id(value)] = []
        copied.extend(_copy_nested(part, copy_object, copies) for part in value)
    elif kind is tuple:
        copied = copies[id(value)] = tuple(_copy_nested(part, copy_object, copies) for part in value)
    elif isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple, such as a graph
        copied = copies[id(value)] = value._make(_copy_nested(part, copy_object, copies) for part in value)
    elif kind is np.ndarray and not value.dtype.hasobject and value.flags.writeable:
        copied = copies[id(value)] = value.copy("A")  # a pickle keeps the memory order, too
    else:
        copied = copies[id(value)] = copy_object(value)
    return copied


def dump_reply(reply: Reply) -> bytes:
    """Pickle a message up, with its header of step_id and env_id.

    Raises:
        TypeError: a value cannot be pickled; the error names its path, such as `info/solver/lock`.
    """
    try:
        data = dump(reply)
    except Exception as error:  # a class may raise any exception here
        parts = {"info": reply.info, "final_info": reply.final_info, "result of the call": reply.value}
        found = [path for name, value in parts.items() if (path := _find_unpicklable(name, value, set()))]
        path = found[0] if found else "obs"
        raise TypeError(f"{path}: this value cannot be sent to another process: {error}") from error
    return _HEAD.pack(reply.step_id, reply.env_id) + data


def _find_unpicklable(path: str, value: Any, seen: set[int]) -> str | None:
    """Return the path of the first value that cannot be pickled, or None.

    Args:
        path: of `value`.
        value: nested dicts, lists and tuples.
        seen: ids of the containers around `value`, which may contain itself.
    """
    try:
        dump(value)
        return None
    except Exception:
        parts = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple | list) else ()
        )
    if id(value) in seen:
        return None
    for key, part in parts:
        found = _find_unpicklable(f"{path}/{key}", part, {*seen, id(value)})
        if found is not None:
            return found
    return path


def load_reply(data: bytes | bytearray | Reply) -> Reply:
    """Undo `dump_reply`; return a reply that was not pickled unchanged.

    If the pickle cannot be read in this process, the returned reply has `error` and `is_unread` set.
    """
    if isinstance(data, Reply):
        return data
    step_id, env_id = _HEAD.unpack_from(data)
    try:
        reply: Reply = load_pickle(data, _HEAD.size)
    except Exception as error:  # its class may be missing here
        why = f"cannot be unpickled in this process: {type(error).__name__}: {error}"
        return _unread_reply(step_id, env_id, why, error)
    reply.step_id, reply.env_id = step_id, env_id
    return reply


def lost_reply(step_id: int, env_id: int) -> Reply:
    """Return a reply with `error` and `is_unread` set, instead of one that was overwritten in shared memory."""
    return _unread_reply(step_id, env_id, "was overwritten in shared memory, by this env or another one")


def _unread_reply(step_id: int, env_id: int, why: str, cause: Exception | None = None) -> Reply:
    failure = EnvError(f"the answer of env {env_id} to command {step_id} {why}")
    failure.__cause__ = cause
    locate(failure, env_ids=(env_id,), step_id=step_id)
    return Reply(step_id, env_id, error=pack_error(failure), is_unread=True)


def numbers_of(data: bytes) -> tuple[int, int]:
    """Return step_id and env_id of a pickled reply, without unpickling it."""
    step_id, env_id = _HEAD.unpack_from(data)
    return step_id, env_id


def renumber(data: bytes, step_id: int, env_id: int) -> bytes:
    """Return a pickled reply with another step_id and env_id."""
    return _HEAD.pack(step_id, env_id) + data[_HEAD.size :]


def pack_error(error: BaseException) -> tuple[bytes | None, str, str, str]:
    """Describe an exception for another process: (pickle or None, class name, text, traceback).

    The pickle is tested here, so that rebuilding the exception in the other process cannot fail unexpectedly.
    """
    text = _format(error)
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    try:
        message = str(error)
    except Exception as other:  # printing it fails, and would fail in the parent too
        return None, name, f"(its text cannot be had: {type(other).__name__})", text
    return _pickled(error, message), name, message, text


def _format(error: BaseException) -> str:
    """Return the traceback of an exception and its causes as text, without the frames of the engine around an env."""
    whole = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
    links = [whole]
    while links:
        link = links.pop()
        del link.stack[: _count_own_frames(link.stack)]
        links += [part for part in (link.__cause__, link.__context__) if part is not None]
        links += getattr(link, "exceptions", None) or []  # the parts of a group
    return "".join(whole.format())


def _count_own_frames(frames: Sequence[traceback.FrameSummary]) -> int:
    """Return the number of frames before the code of an env. An exception of vecenv itself keeps some of its frames."""
    around = max((i for i, frame in enumerate(frames, 1) if frame.filename.startswith(_ENGINE)), default=0)
    for i in range(around, len(frames)):
        if not frames[i].filename.startswith(_PACKAGE):
            return i
    return around if around < len(frames) else 0


def _with_source(text: str) -> str:
    """Add the source lines that a traceback lacks and this process has: of notebooks, `exec` and standard input."""
    lines = text.split("\n")
    result = []
    for line, following in zip(lines, [*lines[1:], ""]):
        result.append(line)
        found = _FRAME.match(line)
        if found is not None and not following.startswith(f"{found['indent']}    "):
            source = linecache.getline(found["file"], int(found["number"])).strip()
            result += [f"{found['indent']}    {source}"] if source else []
    return "\n".join(result)


def _pickled(error: BaseException, message: str) -> bytes | None:
    """Return a pickle that gives an exception of the same class, if possible with the same text; None if none does."""
    other_text: bytes | None = None
    for source in (error, _ByArgs(error)):
        try:
            data = dump_by_value(source)
            rebuilt = load_pickle(data)
            if type(rebuilt).__qualname__ != type(error).__qualname__:
                continue
            if str(rebuilt) == message:
                return data
        except Exception:  # pickling may raise anything for a foreign class
            continue
        other_text = other_text or data  # the text may contain the address of an object
    return other_text


class _ByArgs:
    """Pickles as an exception that is rebuilt without its own constructor: from its class, arguments and attributes.

    Pickle itself calls the constructor with `args`, which are only the message if the constructor takes more.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        cls = type(self._error)
        builtin: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
        _, args, *state = builtin.__reduce__(self._error)
        given: dict[str, Any] = state[0] if state else {}
        attributes = {name: value for name, value in given.items() if _find_unpicklable(name, value, set()) is None}
        if len(attributes) < len(given):
            note = f"its attributes {sorted(given.keys() - attributes.keys())} could not be sent from its process"
            attributes["__notes__"] = [*attributes.get("__notes__", ()), note]
        return _rebuild, (builtin, cls, args, attributes)


def _rebuild(builtin: Any, cls: type, args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    error = builtin.__new__(cls, *args)
    builtin.__init__(error, *args)
    error.__setstate__(attributes)
    return error


def unpack_error(packed: tuple[bytes | None, str, str, str], *, first_env_id: int = 0, **where: Any) -> Exception:
    """Rebuild an exception from `pack_error`, with the remote traceback as its cause.

    Args:
        packed: the result of `pack_error`.
        first_env_id: number of env 0 in the text.
        where: 'worker_id', 'env_ids', 'op' and 'step_id' of the command, for the text and fields of an `EnvError` and
            for `errors.place_of`.

    Returns:
        The original exception; an `EnvError` if it cannot be rebuilt or is not an `Exception`.
    """
    data, name, message, text = packed
    error: BaseException | None = None
    if data is not None:
        try:
            error = load_pickle(data)
        except Exception:  # its module is missing on this side
            error = None
    if not isinstance(error, Exception):
        place = "".join(f" of env {first_env_id + env_id}" for env_id in where.get("env_ids", ()))
        what = f"{where.get('op', 'call')}{place} raised {name}: {message}"
        error = locate(EnvError(what, exception_type=name), **where)
    elif (
        where and isinstance(error, WorkerError) and error.worker_id is None
    ):  # made by the worker, or for an unread reply
        locate(error, **{**where, "op": error.op or where.get("op")})
    # Not by assignment, which classes such as frozen dataclasses refuse.
    BaseException.__setattr__(error, "__cause__", RemoteTraceback(_with_source(text), where))
    if isinstance(error, (BdbQuit, EOFError)) and where.get("worker_id") is not None:
        add_notes(error, [_NO_TERMINAL])
    return error


def describe_place(place: Mapping[str, Any], details: str = "") -> str:
    """Return the note that says where an exception was raised; `place` has the arguments of `errors.locate`.

    >>> describe_place({"worker_id": 1, "env_ids": (3,), "op": "step"}, "step 17 of its episode, seed 42, action 0")
    'raised by step of env 3 in worker 1: step 17 of its episode, seed 42, action 0'
    """
    op = "the constructor" if place["op"] == "construct" else place["op"]
    envs = ", ".join(map(str, place["env_ids"]))
    worker = "" if place.get("worker_id") is None else f" in worker {place['worker_id']}"
    return f"raised by {op} of env {envs}{worker}{details and f': {details}'}"


def note_place(error: Exception, place: Mapping[str, Any], first_env_id: int) -> None:
    """Add a note that names the operation and the envs, numbered from `first_env_id`, that raised an exception."""
    env_ids = [first_env_id + env_id for env_id in place["env_ids"]]
    add_notes(error, [describe_place({**place, "env_ids": env_ids})])
