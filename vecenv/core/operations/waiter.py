"""Waiter: the one wait of a pool, for rows, messages, deaths of workers and deadlines; and the batch it ends with.

hub.recv -> rows  -> Batch
         -> event -> inbox -> engine.handle -> engine.repair
                  -> timeout: watchdog -> engine.handle -> engine.repair, or the caller's timeout
"""

from __future__ import annotations

import functools
import numbers
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from ...errors import ConfigError, StateError, WorkerTimeoutError, WrongTypeError
from ..layout.flags import Op, RowFlag
from ..layout.messages import Reply
from ..layout.rows import AnyRows, RowRange
from ..layout.spec import Array
from ..options import PoolOptions
from ..parent.batch import Batch, TrackedRows
from ..parent.hub import Event, NativeHub
from ..parent.inbox import Inbox
from ..parent.leases import Leases
from ..parent.watchdog import POLL_NS, Watchdog
from ..system.clock import NEVER_NS, Deadline, check_timeout, now_ns
from .engine import Engine, OpenedEnvs
from .lifecycle import Lifecycle

__all__ = [
    "Waiter",
    "check_distinct_envs",
    "check_no_counts",
    "check_whole_count",
    "env_id_array",
    "refuse_idle_envs",
    "refuse_min_count",
]

#: Longest sleep of a wait while a payload is still to be sent in pieces.
_PAYLOAD_POLL_NS = 1_000_000
#: Number of receives of some rows after which the limits of operations are checked, if that is due.
_MOST_UNCHECKED = 15
#: Largest number of batches that are kept to be returned again.
_MOST_BATCHES = 64
#: Types of the arguments of `recv` that need no further check.
_COUNTS, _TIMES = (int, type(None)), (float, int, type(None))
_Result = TypeVar("_Result")
_Views = TypeVar("_Views")
_NO_REPLIES: dict[int, Reply] = {}
#: The event for the engine when rows come with a notice.
_NOTICE = Event("message", -1)
#: Flags of a batch that comes with more than its columns.
_NEEDS_LOOK = RowFlag.MESSAGE | RowFlag.NOTICE
#: Flags of rows that come with a message, and repeat an observation.
_REPEATS = RowFlag.REPEATS | RowFlag.FINAL_REPEATS


class Waiter:
    """Waits for the answers of one open pool. Methods named as methods of `Pool` have their contract.

    Args:
        envs: where answers come from.
        engine: handles workers that have died or hang.
        lifecycle: of the pool; a wait ends when the pool is closed.
        options: of the pool.

    Attributes:
        inbox: messages that have arrived, until their row is delivered or their call is collected.
        watchdog: limits of the operations that run.
        num_batches: how many batches were received.
    """

    def __init__(self, envs: OpenedEnvs, engine: Engine, lifecycle: Lifecycle, options: PoolOptions) -> None:
        self.inbox = Inbox(envs.hub, engine.worker_of, envs.listener)
        failures = options.failures
        self.watchdog = Watchdog(
            envs.hub,
            options.limits,
            engine,
            replaces_overdue=failures.recovers and failures.recover_hangs and not engine.runs_here,
            first_env_id=envs.first_env_id,
        )
        self._hub = envs.hub
        self._plan, self._memory = envs.plan, envs.memory
        self._num_envs = envs.plan.num_envs
        self._spec = envs.spaces.obs
        self._infos = self.inbox.infos
        self._engine = engine
        self._serve = engine.serve if engine.runs_here else None
        self._lifecycle = lifecycle
        self.num_batches = 0
        self._needs_check = False  # a plain receive is not enough: a worker may be dead, or a payload unfinished
        self._num_unchecked = 0  # receives of some rows since the last look at the clock
        self._next_check_ns = 0  # when the limits of operations are checked next, at the earliest
        # Batches of whole blocks by their rows and flags: the next batch with these equals the one before.
        self._plain_batches: dict[tuple[AnyRows, int], Batch] = {}
        self._leases: Leases[Any] | None = None
        self._num_valid = options.depth - 1 if options.debug else 0
        self._valid: deque[Batch] = deque()  # batches that have not expired, in debug mode
        self._warns_of_views = options.warns_of_views
        self._expired: TrackedRows | None = None  # the tracked rows that the last receive let expire

    def request_check(self) -> None:
        """Have the next receive look for dead workers and unfinished payloads before it waits for rows."""
        self._needs_check = True

    # ---- rows ------------------------------------------------------------------------------

    def recv(
        self,
        min_count: int | None = None,
        max_count: int | None = None,
        exact: bool = False,
        timeout: float | None = None,
    ) -> Batch:
        owed = self._hub.outstanding()
        if min_count is None and max_count is None and timeout is None and owed:  # the usual case
            least, most = owed, self._num_envs
        else:
            if type(min_count) not in _COUNTS or type(timeout) not in _TIMES or timeout != timeout:
                check_whole_count("min_count", min_count)
                check_timeout("timeout", timeout)
            if type(max_count) not in _COUNTS:
                check_whole_count("max_count", max_count)
            least = owed if min_count is None else min_count
            if not 1 <= least <= owed:
                refuse_min_count(least, owed)
            most = self._num_envs if max_count is None else min(max(least, max_count), self._num_envs)
            if least < owed:
                self._count_unchecked()
        if exact:
            most = least
        if self._serve is not None:
            self._serve()
        if self._expired is not None:
            self._warn_of_views_in_use(self._expired)
        if timeout is None and not self._needs_check:
            got = self._hub.recv(least, most, -self.watchdog.poll_interval_ns)
            if not isinstance(got, Event):
                rows, flags = got
                if flags & _NEEDS_LOOK or self._num_valid:
                    return self._make_batch(rows, flags)
                self.num_batches += 1
                batch = self._plain_batches.get(got)
                return self._new_batch(rows, flags) if batch is None else batch
            self._handle(got, Deadline(None))
        else:
            self._engine.repair()
        poll = functools.partial(self._hub.recv, least, most)
        return self._make_batch(*self._wait(poll, f"fewer than {least} answers", timeout))

    def recv_envs(self, env_ids: Sequence[int] | Array, timeout: float | None, *_: None) -> Batch:
        ids = env_id_array(env_ids)
        check_timeout("timeout", timeout)
        check_distinct_envs("recv", ids.tolist(), self._num_envs)
        idle = [env_id for env_id in ids.tolist() if self._hub.owed(env_id)[0] == Op.NONE]
        if idle:
            refuse_idle_envs(idle)
        if len(ids) < self._hub.outstanding():
            self._count_unchecked()
        if self._serve is not None:
            self._serve()
        if self._expired is not None:
            self._warn_of_views_in_use(self._expired)
        poll = functools.partial(self._hub.recv_envs, ids)
        if timeout is None and not self._needs_check:
            got = poll(-self.watchdog.poll_interval_ns)
            if not isinstance(got, Event):
                return self._make_batch(*got)
            self._handle(got, Deadline(None))
        else:
            self._engine.repair()
        return self._make_batch(*self._wait(poll, f"not all answers of the envs {ids.tolist()}", timeout))

    def _count_unchecked(self) -> None:
        """Count a receive that may never wait, since only waits check limits; check them after several of these."""
        self._num_unchecked += 1
        if self._num_unchecked > _MOST_UNCHECKED:
            self._check_limits_if_due()

    def _new_batch(self, rows: AnyRows, flags: int) -> Batch:
        """Make a batch without messages; keep it if it is of a whole block."""
        batch = Batch(rows, flags, self._spec, self._infos, _NO_REPLIES)
        is_whole_block = type(rows) is RowRange and rows.count == self._num_envs
        if is_whole_block and len(self._plain_batches) < _MOST_BATCHES:
            self._plain_batches[rows, flags] = batch
        return batch

    def _make_batch(self, rows: AnyRows, flags: int) -> Batch:
        self.num_batches += 1
        replies = _NO_REPLIES
        if flags & RowFlag.NOTICE:
            flags &= ~RowFlag.NOTICE
            self._engine.handle(_NOTICE)
        if flags & RowFlag.MESSAGE:
            replies = self.inbox.take_rows(rows)
            if flags & _REPEATS:
                self._hub.fill_repeated(rows)
            self.inbox.emit_warnings()
            if any(reply.is_unread for reply in replies.values()):
                flags |= RowFlag.ERROR
        if not self._num_valid:
            return Batch(rows, flags, self._spec, self._infos, replies)
        shown = TrackedRows(rows, self._spec) if self._warns_of_views else rows
        batch = Batch(shown, flags, self._spec, self._infos, replies)
        self._valid.append(batch)
        if len(self._valid) > self._num_valid:
            expired = self._valid.popleft()
            self._hub.save_rows(expired.rows)
            expired.expire()
            self._expired = expired.rows if isinstance(expired.rows, TrackedRows) else None
        return batch

    def _warn_of_views_in_use(self, expired: TrackedRows) -> None:
        """Warn once if the caller still refers to observations of a batch that has expired.

        Called at the receive after the one that let the batch expire. Until then the caller had no chance to replace
        its references by those to newer batches.
        """
        self._expired = None
        leaves = expired.leaves_in_use()
        if leaves:
            self.inbox.warn_once(
                "views in use",
                f"{', '.join(leaves)}: arrays of an expired batch are still referenced, and their memory is used for "
                "other rows now. Copy arrays that you keep (array.copy(), tensor.clone()), or use copy=True. "
                "torch.Tensor, torch.from_numpy and torch.as_tensor share the memory of an array",
                RuntimeWarning,
            )

    def lend(self, make_views: Callable[[Batch], _Views]) -> Leases[_Views] | None:
        if self._leases is not None:
            raise StateError("lend: the pool lends already")
        spec, infos = self._spec, self._infos
        if not isinstance(self._hub, NativeHub) or not self._plan.leases:
            return None
        self._leases = leases = Leases(
            self._hub, self._plan, self._memory, lambda rows: make_views(Batch(rows, 0, spec, infos, _NO_REPLIES))
        )
        return leases

    def end(self) -> None:
        """Free the memory that the caller does not use any more; called once all workers have ended."""
        if self._leases is not None:
            self._leases.end()
        self._plain_batches.clear()
        self._valid.clear()
        self._expired = None

    # ---- calls -----------------------------------------------------------------------------

    def wait_for_calls(self, count: int, timeout: float | None) -> list[Reply]:
        """Wait for the answers to all `count` calls under way, and return them in request order.

        Raises:
            WorkerTimeoutError: the timeout, or an env over its limit.
            WorkerDiedError: a worker that is called, or owes a row, has died.
        """
        fate = "The calls are abandoned: their results will be dropped"
        self._wait(self._poll_calls, f"fewer than {count} answers", timeout, fate=fate)
        return self.inbox.take_calls()

    def wait_for_replies(self, timeout: float) -> None:
        """Wait until all calls under way are answered, without collecting the answers; see `wait_for_calls`."""
        self._wait(self._poll_calls, "not all answers", timeout)

    def wait_for_task(self, calls: Sequence[Any]) -> None:
        self._wait(lambda deadline_ns: self._hub.wait_for_task(calls, deadline_ns) or True, "no task has ended", None)

    def _poll_calls(self, deadline_ns: int) -> bool | Event:
        self.inbox.poll()
        self.inbox.emit_warnings()
        if self.inbox.has_all_calls():
            return True
        self._engine.repair()
        return self._hub.wait(deadline_ns)

    # ---- the wait --------------------------------------------------------------------------

    def _wait(
        self,
        poll: Callable[[int], _Result | Event],
        shortfall: str,
        timeout: float | None,
        *,
        fate: str = "Steps and resets that were sent stay outstanding until they are received or the envs are reset",
    ) -> _Result:
        """Wait until `poll` returns a result, and handle all events on the way.

        Args:
            poll: waits until the instant that it is given, in nanoseconds of the monotonic clock, at most; returns a
                result, or the event that has ended the wait.
            shortfall: the answers that have arrived if the timeout ends the wait, for the message.
            timeout: seconds; None: as long as it takes.
            fate: the state of the request after the timeout, for the message.
        """
        deadline = Deadline(timeout)
        next_poll = self._next_poll(deadline)
        while True:
            self._engine.serve()
            got = poll(min(next_poll, now_ns() + self._poll_interval(), deadline.at_ns))
            if not isinstance(got, Event):
                return got
            late_ns = now_ns() - next_poll
            is_due = got.kind == "timeout" or late_ns >= 0  # other events may follow each other without a pause
            if is_due and got.kind != "timeout":
                self.watchdog.notice_gap(late_ns, deadline)
            self._handle(got, deadline)
            if is_due:
                if deadline.is_over():
                    text = f"{shortfall} within {timeout} s; {self.watchdog.describe()}. {fate}"
                    raise WorkerTimeoutError(text, timeout=timeout)
                next_poll = min(self._check_limits(), self._next_poll(deadline))

    def _next_poll(self, deadline: Deadline) -> int:
        """Return when a wait is to wake up without an event.

        It is delayed by more than a moment only if this process was stopped. The deadline is extended by that delay, so
        it must not come first.
        """
        usual = self.watchdog.poll_interval_ns
        return now_ns() + (usual if deadline.at_ns == NEVER_NS else min(usual, POLL_NS))

    def _poll_interval(self) -> int:
        """Return for how many nanoseconds a wait may sleep; continue payloads that are sent in pieces."""
        if self._hub.pump():
            return _PAYLOAD_POLL_NS
        self._needs_check = self._engine.has_dead()
        return self.watchdog.poll_interval_ns

    def _handle(self, event: Event, deadline: Deadline) -> None:
        """Handle an event that has ended a wait; the limits of operations are checked elsewhere."""
        self._lifecycle.check_not_closing()
        self.inbox.poll()
        self.inbox.emit_warnings()
        self._engine.handle(event)
        if event.kind == "no_block":
            raise StateError(
                "recv: all batch buffers are in use by rows that workers have not finished; "
                "restart the stopped workers with pool.restart(worker_id)"
            )
        if event.kind == "timeout":
            self.watchdog.notice_gap(event.late_ns, deadline)
        if event.kind != "message":  # many may come, and none reports a failure
            self._engine.repair()

    def _check_limits(self, *, after_pause: bool = False) -> int:
        """Handle operations that are over their limit; return when to check again."""
        self._next_check_ns = now_ns() + self.watchdog.poll_interval_ns
        try:
            return self.watchdog.check(after_pause=after_pause)
        except WorkerTimeoutError as error:
            self._engine.handle(error)
            self._engine.repair()
            return now_ns() + self.watchdog.poll_interval_ns

    def _check_limits_if_due(self) -> None:
        """Check the limits of operations if no wait has done so for a poll interval."""
        self._num_unchecked = 0
        if now_ns() >= self._next_check_ns and self._serve is None:  # else nothing runs between receives
            self._hub.pump()
            self._handle(Event("timeout", -1), Deadline(None))  # a slot may be waiting for these two
            self._check_limits(after_pause=True)


def env_id_array(env_ids: Sequence[int] | Array) -> Array:
    """Return env ids as int64 (B,); their range is checked elsewhere.

    Raises:
        ConfigError: they are not a non-empty list of integers.
    """
    ids = np.ascontiguousarray(env_ids)
    if ids.ndim != 1 or not len(ids) or (ids.dtype != np.int64 and ids.dtype.kind not in "iu"):
        raise ConfigError(f"env_ids: expected a non-empty list of integers, got {env_ids!r}")
    return ids if ids.dtype == np.int64 else ids.astype(np.int64)


def check_distinct_envs(what: str, ids: list[int], num_envs: int) -> None:
    """Raise unless these are ids of envs, each once; `what` begins the message.

    Raises:
        ConfigError: there is no such env.
        StateError: an env is named twice.
    """
    wrong = [env_id for env_id in ids if not 0 <= env_id < num_envs]
    if wrong:
        raise ConfigError(f"{what}: env_id {wrong[0]} is not in 0..{num_envs - 1}", key="env_id")
    if len(set(ids)) < len(ids):
        twice = next(env_id for env_id in ids if ids.count(env_id) > 1)
        raise StateError(f"{what}: env {twice} was named twice")


def refuse_idle_envs(ids: list[int]) -> NoReturn:
    """Raise StateError because these envs, whose rows are awaited, owe no answer."""
    raise StateError(f"recv: the envs {ids} owe no answer; send actions to them or reset them first")


def check_no_counts(min_count: Any, max_count: Any, exact: bool) -> None:
    """Raise ConfigError if one of these is given; a receive of particular envs has no counts."""
    if exact or (min_count, max_count) != (None, None):
        raise ConfigError("recv: env_ids excludes min_count, max_count and exact", key="env_ids")


def refuse_min_count(least: int, owed: int) -> NoReturn:
    """Raise StateError because `least` is not from 1 to `owed`, the number of envs that owe an answer."""
    limits = f"min_count {least} is not in 1..{owed}, the number of envs that owe an answer"
    raise StateError(f"recv: {limits if owed else 'no env owes an answer; send actions or reset first'}")


def check_whole_count(name: str, count: Any) -> None:
    """Raise ConfigError, with `name` as its key, unless `count` is a whole number or None."""
    if isinstance(count, bool | np.bool_):
        raise WrongTypeError(
            f"{name}: expected a whole number or None, got {count!r}; unlike EnvPool's, this `recv` has no flags",
            key=name,
        )
    if count is not None and not isinstance(count, numbers.Integral):
        raise ConfigError(f"{name}: expected a whole number or None, got {count!r}", key=name)
