"""Requests to a shard: numbered lists of operations; and the attachment of replies, with everything that has no column.

A request with nothing but steps is not pickled:

header     int64: seq, ack, least; float64: wait_seconds; int64: count, first, form
ids        the step_ids and env_ids of the steps, int64 (count,) each; only if `first` is 0, else all envs of the shard
           are stepped, and `first` is the first step_id
leaves     the actions, `count` rows of each leaf
ops        if `count` is 0: the operations, pickled; nothing if there are none

Env ids and step_ids are those of the driver's pool, in both directions. The pool of a shard has the env ids 0, 1, ...;
`Shard` translates them.
"""

from __future__ import annotations

import itertools
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...statistics import EnvTimes, WorkerTimes
from ..advice.sizing import Setting
from ..layout.commands import Commands, RestorePoint
from ..layout.messages import Outcome
from ..layout.spec import Array, Leaf
from ..options import Limits, PoolOptions
from ..recovery.resume import Resume
from ..system.log_records import LogLevels
from ..system.module_files import ModuleFiles
from ..system.module_paths import Source
from .frames import Buffer
from .shard_counters import CountersCopy

__all__ = [
    "AddInfoKey",
    "Attachment",
    "Cancel",
    "Close",
    "ForgetTask",
    "Op",
    "PackedError",
    "ReadTimes",
    "Request",
    "RunTask",
    "SetLimits",
    "ShardBoot",
    "ShardReport",
    "Steps",
    "TaskReply",
    "pack_request",
    "unpack_request",
]

_HEADER = struct.Struct("<3qd3q")

#: An exception for another process, from `messages.pack_error`.
PackedError = tuple[bytes | None, str, str, str]


class Steps(NamedTuple):
    """Steps of envs; see `Pool.send_leaves`. A request has at most one per env, and the record of a task any number.

    Attributes:
        step_ids: their numbers, increasing: a range; in a request to some envs, int64 (n,).
        env_ids: int64 (n,), None for all envs of the shard; in a record, for all of them again and again.
    """

    step_ids: range | Array
    env_ids: Array | None
    leaves: tuple[Array, ...]
    form: int


class Cancel(NamedTuple):
    """Cancel the outstanding command of an env."""

    env_id: int


class SetLimits(NamedTuple):
    """Use these time limits of operations from now on."""

    limits: Limits


class AddInfoKey(NamedTuple):
    """Give an info key the next cell; all shards get the same keys in the same order."""

    name: str


class Close(NamedTuple):
    """Close the pool; `timeout` is that of `Pool.close`. The attachment has the exception of an env's `close`."""

    timeout: float | None


class ReadTimes(NamedTuple):
    """Return the times of the envs and workers in the attachment, as `Pool.statistics` has them.

    Attributes:
        number: of this question; the attachment has it, too.
    """

    number: int


class RunTask(NamedTuple):
    """Run a task, which commands the envs by itself; the attachment of a later reply has a `TaskReply`.

    Attributes:
        task_id: number of the task.
        factory: pickled; called with a `RecordedPool`, it makes the task. Used if the shard has no task of this number;
            None if it has one.
        argument: pickled argument of the task.
        is_shared: whether the next shared value of the request is the second argument of the task; else None is.
        first: least step_id of its commands; `ShardHub` sets it.
    """

    task_id: int
    factory: bytes | None
    argument: bytes
    is_shared: bool
    first: int = 0


class ForgetTask(NamedTuple):
    """Drop a task, which will not be run again."""

    task_id: int


Op = Steps | Commands | Cancel | SetLimits | AddInfoKey | ReadTimes | Close | RunTask | ForgetTask


class TaskReply(NamedTuple):
    """The end of a task.

    Attributes:
        value: the result; None if it has raised.
        error: the exception that it has raised, or None.
        executed: its commands, in their order.
        next_step_id: step_id after that of the last one.
        records: the newest record of each env, (n,); None if the shard keeps none.
        obs: the newest observation of each env, one array (n, *S) per leaf; () if the task has not said.
    """

    value: Any
    error: PackedError | None
    executed: list[Steps | Commands]
    next_step_id: int
    records: Array | None
    obs: tuple[Array, ...]


class Request(NamedTuple):
    """A request of the driver to one shard.

    Attributes:
        seq: its number; the requests to a shard count up from 1.
        ack: the driver has the replies to all requests up to this number.
        ops: operations, in their order.
        least: number of rows with which the shard answers; 0: it answers as soon as all calls under way are answered.
        wait_seconds: seconds after which it answers in any case, also without any row.
    """

    seq: int
    ack: int
    ops: Sequence[Op]
    least: int
    wait_seconds: float


def pack_request(request: Request) -> bytes:
    """Return the bytes of a request."""
    seq, ack, ops, least, wait_seconds = request
    if len(ops) == 1 and isinstance(ops[0], Steps):
        step_ids, env_ids, leaves, form = ops[0]
        first = step_ids[0] if env_ids is None else 0
        parts: list[Any] = [_HEADER.pack(seq, ack, least, wait_seconds, len(step_ids), first, form)]
        if env_ids is not None:
            parts += step_ids, env_ids
        parts += leaves
        return b"".join(parts)
    return _HEADER.pack(seq, ack, least, wait_seconds, 0, 0, 0) + (pickle.dumps(ops, protocol=5) if ops else b"")


def unpack_request(data: Buffer, leaves: Sequence[Leaf]) -> Request:
    """Return the request of these bytes; its arrays are read-only views.

    Args:
        data: from `pack_request`.
        leaves: of actions.

    Raises:
        ValueError: steps have another size than their header says.
    """
    seq, ack, least, wait_seconds, count, first, form = _HEADER.unpack_from(data)
    if not count:
        ops = pickle.loads(memoryview(data)[_HEADER.size :]) if len(data) > _HEADER.size else []
        return Request(seq, ack, ops, least, wait_seconds)
    sizes = [0 if first else count * 8] * 2 + [count * leaf.nbytes for leaf in leaves]
    *starts, nbytes = itertools.accumulate(sizes, initial=_HEADER.size)
    if len(data) != nbytes:
        raise ValueError(f"request {seq} has {len(data)} bytes, and {nbytes} by its header")
    step_ids: range | Array = range(first, first + count)
    env_ids = None
    if not first:
        step_ids, env_ids = (np.frombuffer(data, np.int64, count, start) for start in starts[:2])
    actions = [np.ndarray((count, *leaf.shape), leaf.dtype, data, start) for leaf, start in zip(leaves, starts[2:])]
    return Request(seq, ack, [Steps(step_ids, env_ids, tuple(actions), form)], least, wait_seconds)


class Attachment(NamedTuple):
    """The part of a reply that is pickled.

    Attributes:
        messages: replies of envs, as `messages.dump_reply` makes them: messages of rows, and the results of calls.
        restore_points: (env_id, point) of new points from which envs can be restored.
        outcomes: (env_id, outcome) of envs that were restored within the shard.
        counts: the shard's counts of failures if they have changed, else None; see `Pool.statistics`.
        error: an exception that the pool of the shard has raised, or None.
        log_frames: log records of the shard and its workers; see `log_records.emit_frame`.
        times: the answer to `ReadTimes`, which begins with the number of the question, or None.
        counters: a copy of the counters about once a second, else None.
        task: the end of a task, or None.
    """

    messages: list[bytes]
    restore_points: list[tuple[int, RestorePoint]]
    outcomes: list[tuple[int, Outcome]]
    counts: dict[str, Any] | None = None
    error: PackedError | None = None
    log_frames: Sequence[bytes] = ()
    times: tuple[int, EnvTimes, WorkerTimes] | None = None
    counters: CountersCopy | None = None
    task: TaskReply | None = None


@dataclass
class ShardBoot:
    """Everything that a shard needs to open its pool.

    Attributes:
        env_fns: pickled constructors of its envs, {env_id: constructor} in their order.
        worker_init: pickled; see `PoolOptions`, where it is left out.
        adapt, snapshotter: pickled; see `ProcessEngine`.
        registrations: Gymnasium's settings of the driver, from `pickle_registrations`.
        options: of its pool.
        first_env_id: number of its env 0 among all envs, for messages and for the global random generators.
        log_levels: those of the driver.
        info_keys: the info keys that have cells so far.
        sources: files and folders of modules that the search path does not lead to, as `find_sources` returns them.
        files: the files of the modules of the shard's first process; None: this is the first one.
        resume: the state of the envs in its predecessor, or in another pool; None: the envs are new.
        is_one_by_one: whether the unanswered commands of its predecessor run one after the other: the next one is sent
            to its env once the driver has all earlier answers. So the driver knows which command ends a shard.
        num_cpus: CPUs for which the shard chooses its workers; None: `options` say how many workers there are.
        setting: the workers that its predecessor has chosen, or the driver; None: nothing was chosen before.
        sends_counters: whether its counters travel with replies, about once a second.
    """

    env_fns: bytes
    worker_init: bytes
    adapt: bytes
    snapshotter: bytes
    registrations: bytes
    options: PoolOptions
    first_env_id: int
    log_levels: LogLevels
    info_keys: list[str] = field(default_factory=list)
    sources: dict[str, Source] = field(default_factory=dict)
    files: ModuleFiles | None = None
    resume: Resume | None = None
    is_one_by_one: bool = False
    num_cpus: int | None = None
    setting: Setting | None = None
    sends_counters: bool = False


@dataclass
class ShardReport:
    """The first reply of a shard whose pool is open.

    Attributes:
        observation_space, action_space, reward_space, properties, implementation: of its env 0, see `Pool`.
        files: the files of the modules of its workers.
        setting: the workers that it has chosen; None: nothing was chosen.
        choice: the reason, as of `PoolOptions`.
        step_seconds: measured duration of a step; 0 if none was measured.
    """

    observation_space: Any
    action_space: Any
    reward_space: Any
    properties: dict[str, Any]
    implementation: str
    files: ModuleFiles
    log_frames: Sequence[bytes] = ()
    setting: Setting | None = None
    choice: str = ""
    step_seconds: float = 0.0
