"""Shard: the other end of a link, in another process: a pool that executes numbered requests exactly once.

Request -> its operations -> Pool -> worker processes, or envs in this process
Frame   <- rows and messages <- Pool.recv, until there are enough rows, or `wait_seconds` have passed

A task takes the place of the driver for a while: it commands the envs by itself. Until it has ended, replies are empty.
An empty reply is a heartbeat. Where envs run in this process, none is sent while an env hangs: the driver notices that.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import WorkerError, WorkerTimeoutError, locate, place_of
from ...gymnasium_api.registrations import apply_registrations
from ...values.pickling import adopt_main, dump_message
from ..layout import messages
from ..layout.commands import Commands, RestorePoint
from ..layout.flags import Form
from ..layout.messages import Reply
from ..layout.spec import Array
from ..parent.batch import Batch
from ..pool.pool import Pool
from ..system.log_records import LogCollector
from ..system.module_paths import import_from
from .frames import FrameKind, FrameLayout, pack_bare
from .recorded_pool import RecordedPool
from .requests import (
    AddInfoKey,
    Attachment,
    Cancel,
    Close,
    ForgetTask,
    Op,
    PackedError,
    ReadTimes,
    Request,
    RunTask,
    SetLimits,
    ShardBoot,
    ShardReport,
    Steps,
    TaskReply,
    unpack_request,
)
from .shard_counters import CountersCopy, ShardCounters
from .shard_engine import make_shard_engine
from .task_runner import TaskRunner

__all__ = ["Shard"]


class Shard:
    """A pool that executes the requests of a driver.

    Args:
        boot: a pickled `ShardBoot`.
        log: collects the log records of this process, if it belongs to the shard.
    """

    def __init__(self, boot: bytes, log: LogCollector | None = None) -> None:
        self._boot = boot
        self._log = log
        self._opened: Pool | None = None
        self._first_env_id = 0
        self._last = 0  # number of the last request that was executed
        self._replies: dict[int, bytearray] = {}  # replies by number, until they are acknowledged
        self._attached = Attachment([], [], [])  # attachment of the next reply
        self._counts: dict[str, Any] = {}  # the counts that were sent last
        self._counters: ShardCounters | None = None  # None: they are not sent
        self._broken: PackedError | None = None  # the exception of an operation that was not sent to its envs
        self._is_resuming = False  # whether unanswered commands of the predecessor may wait to be sent
        self._one_by_one: deque[Op] = deque()  # operations that run one after the other
        self._deferred: list[Op] = []  # operations that follow
        self._running = 0  # the command that an env of this process was in at the last heartbeat
        self._shared: deque[Any] = deque()  # values that operations refer to which were not applied yet

    @classmethod
    def in_own_process(cls, boot: bytes) -> Shard:
        """Make the shard of a process that has no other purpose. Log records of this process go to the driver."""
        adopt_main()
        return cls(boot, LogCollector())

    def open(self) -> bytearray:
        """Build all envs; return a frame with the `ShardReport`, or with the exception that this has raised."""
        try:
            boot: ShardBoot = pickle.loads(self._boot)
            self._boot = b""
            return pack_bare(0, FrameKind.OPENED, messages.dump(self._open(boot)))
        except Exception as error:  # a constructor may raise it; the driver raises it again
            self.close()
            return pack_bare(0, FrameKind.FAILED, pickle.dumps(self._pack_error(error)))

    def _open(self, boot: ShardBoot) -> ShardReport:
        import_from(boot.sources)
        apply_registrations(boot.registrations)
        boot.options.settings.apply()
        if self._log is not None:
            self._log.install(boot.log_levels)
        self._first_env_id = boot.first_env_id
        if boot.resume is not None:
            queued = boot.resume.queued
            self._is_resuming = len(queued) > 0
            if boot.is_one_by_one:
                self._one_by_one.extend(queued.select([row]) for row in range(len(queued)))
            else:
                self._deferred.append(queued)
            jobs = boot.resume.restore_jobs
            boot.resume.restore_jobs = {env_id - boot.first_env_id: job for env_id, job in jobs.items()}
        self._engine, setting, step_seconds = make_shard_engine(boot, self._attach_report)
        pool = Pool(self._engine)
        pool.start()
        self._recorded = RecordedPool(pool, boot.first_env_id)
        self._tasks = TaskRunner(self._recorded, self._pack_task)
        if boot.sends_counters:
            self._counters = ShardCounters(*pool.counters, is_native=pool.implementation == "native")
        self._opened = pool
        pool.relay_messages(self._attach_message)
        for name in boot.info_keys:
            pool.add_info_key(name)
        self._action_leaves = pool.plan.action.leaves  # also after the pool is closed: a request may come again
        self._has_records = boot.options.failures.recovers
        self._layout = FrameLayout(pool.plan, has_records=self._has_records, first_env_id=boot.first_env_id)
        return ShardReport(
            *(pool.spaces.observation_space, pool.spaces.action_space, pool.spaces.reward_space),
            *(pool.properties, pool.implementation),
            self._engine.files,
            self._take_log_frames(),
            setting,
            self._engine.options.choice,
            step_seconds,
        )

    def close(self) -> None:
        """End all workers at once; may be called repeatedly."""
        if self._opened is not None:
            self._tasks.close()
            self._opened.close(0.0)

    @property
    def is_closed(self) -> bool:
        """Whether the envs were closed, or could not be built."""
        return self._opened is None or self._opened.closed

    @property
    def _pool(self) -> Pool:
        assert self._opened is not None
        return self._opened

    # ---- requests --------------------------------------------------------------------------

    def execute(self, request: bytes, shared: Sequence[Any] = ()) -> bytearray:
        """Execute a request, unless that was done before; return the frame of its reply.

        The reply to a request that comes again is sent again. A request that comes too early is refused.

        Args:
            request: from `pack_request`.
            shared: the values that its operations refer to, in their order.
        """
        asked = unpack_request(request, self._action_leaves)
        for seq in [seq for seq in self._replies if seq <= asked.ack]:
            del self._replies[seq]
        if asked.seq > self._last + 1:
            return pack_bare(asked.seq, FrameKind.REFUSED)
        if asked.seq <= self._last:
            return self._replies.get(asked.seq) or pack_bare(asked.seq, FrameKind.EXECUTED)
        reply = self._replies[asked.seq] = self._perform(asked, shared)
        self._last = asked.seq
        return reply

    def _perform(self, request: Request, shared: Sequence[Any]) -> bytearray:
        batch, error = None, self._broken
        try:
            if error is None:
                self._shared += shared
                self._apply_all(self._due_ops(request.ops) if self._is_resuming else request.ops)
                if self._has_tasks:
                    return self._await_task(request)
                batch = self._collect(request.least, request.wait_seconds)
        except Exception as raised:  # the pool has raised it; the driver raises it again
            error = self._pack_error(raised)
        rows, records = None, None
        if batch is not None:
            rows, records = batch.rows, self._records_of(batch) if self._has_records else None
        attachment = self._take_attachment(error)
        return self._layout.pack(request.seq, rows, records, num_steps=self._num_steps, attachment=attachment)

    def _due_ops(self, ops: Sequence[Op]) -> Sequence[Op]:
        """Return the operations that are due: commands of the predecessor, one by one or all at once, and then others.

        The driver knows by now that the envs are built. If a command ends this process, it is not the constructors.
        """
        pool = self._pool
        closing = [op for op in ops if isinstance(op, Close)]
        if closing:
            return closing
        self._deferred += ops
        if self._replies or pool.outstanding() or self._has_calls():
            return ()
        if self._one_by_one:
            return [self._one_by_one.popleft()]
        self._is_resuming = False
        due, self._deferred = self._deferred, []
        return due

    def _has_calls(self) -> bool:
        """Return whether a call is under way."""
        with _TimeLimit():
            self._pool.wait_for_replies(0.0)
            return False
        return True

    @property
    def _has_tasks(self) -> bool:
        return self._tasks.is_running and not self._pool.closed

    def _await_task(self, request: Request) -> bytearray:
        """Return the frame of a task that has ended, or an empty one if none ends within `wait_seconds`.

        The latter waits for an env of this process that was in the same command at the heartbeat before.
        """
        attachment = self._tasks.take(request.wait_seconds)
        while attachment is None and (running := self._engine.running()):
            before, self._running = self._running, running
            if running != before:
                break
            attachment = self._tasks.take(request.wait_seconds)
        if attachment is None and (counters := self._copy_counters()) is not None:
            attachment = dump_message(Attachment([], [], [], counters=counters), {})
        return pack_bare(request.seq, FrameKind.EXECUTED, attachment or b"", self._num_steps)

    def _copy_counters(self) -> CountersCopy | None:
        """Return the counters if they are sent, and were not sent within the last second."""
        return None if self._counters is None else self._counters.copy_if_due(is_in_task=self._has_tasks)

    def _apply_all(self, ops: Sequence[Op]) -> None:
        for op in ops:
            try:
                self._apply(op)
            except Exception as error:
                if not isinstance(op, Close):
                    self._broken = self._pack_error(error)  # envs owe answers that will never come
                raise

    def _apply(self, op: Op) -> None:
        pool = self._pool
        if isinstance(op, Steps):
            self._send_steps(op)
        elif isinstance(op, Commands):
            op.table["env_id"] -= self._first_env_id
            pool.send_commands(op)
        elif isinstance(op, Cancel):
            pool.cancel([op.env_id - self._first_env_id])
        elif isinstance(op, SetLimits):
            pool.set_limits(op.limits)
        elif isinstance(op, AddInfoKey):
            pool.add_info_key(op.name)
        elif isinstance(op, ReadTimes):
            if not self._has_tasks:  # else their thread makes the next attachment
                found = pool.statistics()
                self._attached = self._attached._replace(times=(op.number, found.envs, found.workers))
        elif isinstance(op, RunTask):
            self._tasks.begin(op, self._shared.popleft() if op.is_shared else None)
        elif isinstance(op, ForgetTask):
            self._tasks.forget(op.task_id)
        else:
            self._tasks.close()
            pool.close(op.timeout)

    def _send_steps(self, op: Steps) -> None:
        """Send each run of consecutive step_ids."""
        numbers, cuts = op.step_ids, []
        if not isinstance(numbers, range):
            cuts = (np.flatnonzero(numbers[1:] - numbers[:-1] != 1) + 1).tolist()
        for start, stop in itertools.pairwise([0, *cuts, len(numbers)]):
            env_ids = None if op.env_ids is None else op.env_ids[start:stop] - self._first_env_id
            leaves = tuple(leaf[start:stop] for leaf in op.leaves)
            self._pool.continue_from(int(numbers[start]))
            self._pool.send_leaves(leaves, env_ids, ordered=False, form=Form(op.form))

    def _collect(self, least: int, wait_seconds: float) -> Batch | None:
        """Wait for the number of rows that the driver wants, or for the results of all calls; return the rows."""
        pool = self._pool
        if pool.closed:
            return None
        owed = pool.outstanding()
        if self._is_resuming:
            least = min(1, owed)
        with _TimeLimit():
            if least and owed:
                return pool.recv(min(least, owed), timeout=wait_seconds)
            if not least:
                pool.wait_for_replies(wait_seconds)
        with _TimeLimit():
            return pool.recv(1, timeout=0.0) if owed else None
        return None

    # ---- replies ---------------------------------------------------------------------------

    @property
    def _num_steps(self) -> int:
        return self._pool.count_steps()

    def _records_of(self, batch: Batch) -> Array:
        """Return the record of each row. The attachment of the same reply has the restore points before these rows."""
        found = self._pool.read_records(batch.env_ids)
        newest = (found["step_id"] == batch.step_ids[:, None]).argmax(1)
        records: Array = found[np.arange(len(batch)), newest]
        return records

    def _pack_task(self, value: Any, error: PackedError | None) -> bytes:
        """Return the attachment of a task that has ended, with everything that the driver must know of its commands."""
        records = None
        if self._has_records:
            found = self._pool.read_records()
            records = found[np.arange(len(found)), found["step_id"].argmax(1)]
        recorded = self._recorded
        reply = TaskReply(value, error, recorded.take_executed(), recorded.next_step_id, records, recorded.obs)
        return self._take_attachment(None, reply)

    def _take_attachment(self, error: PackedError | None, task: TaskReply | None = None) -> bytes:
        """Return the pickled attachment of a reply; b'' if it is empty."""
        attachment, self._attached = self._attached._replace(log_frames=self._take_log_frames()), Attachment([], [], [])
        counts = self._engine.statistics()
        changed = {name: count for name, count in counts.items() if name != "log_nbytes"}
        if changed != self._counts:
            self._counts = changed
            attachment = attachment._replace(counts=counts)
        attachment = attachment._replace(error=error, task=task, counters=self._copy_counters())
        return dump_message(attachment, {}) if any(attachment) else b""

    def _take_log_frames(self) -> list[bytes]:
        return [] if self._log is None else self._log.take()

    def _pack_error(self, error: Exception) -> PackedError:
        """Describe an exception for the driver, whose env ids it gets."""
        if isinstance(error, WorkerError) and error.env_ids:
            env_ids = [self._first_env_id + env_id for env_id in error.env_ids]
            locate(error, **{**place_of(error), "env_ids": env_ids})
        return messages.pack_error(error)

    def _attach_message(self, message: bytes) -> None:
        step_id, env_id = messages.numbers_of(message)
        if not self._has_tasks or not step_id:  # rows of tasks stay here; warnings do not
            self._attached.messages.append(messages.renumber(message, step_id, env_id + self._first_env_id))

    def _attach_report(self, reply: Reply, is_answered: bool) -> None:
        """Send a new restore point, or the result of restoring an env, to the driver; it gets effects with answers."""
        env_id = reply.env_id + self._first_env_id
        if reply.snapshot is not None:
            self._attached.restore_points.append((env_id, RestorePoint(reply.step_id, *reply.snapshot)))
        if reply.outcome is not None:
            self._attached.outcomes.append((env_id, reply.outcome))


class _TimeLimit(contextlib.AbstractContextManager[Any, bool]):
    """Ends a wait whose time is over; an operation of an env that is late raises."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return isinstance(error, WorkerTimeoutError) and error.op is None
