"""Receiving: the one wait for rows, mail, deaths and deadlines, and the batch that comes of it."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from ...errors import ClosedError, ConfigError, StateError, WorkerTimeoutError
from ..layout.messages import Reply
from ..layout.rows import Form, Op, RowFlag, Rows
from ..layout.spec import Array
from ..parent.batch import Batch
from ..parent.hub import Event, NativeHub, Refusal
from ..parent.leases import Leases
from ..parent.watchdog import POLL_NS
from ..system.clock import NEVER_NS, Deadline, check_timeout, now_ns
from ..system.signals import signals_deferred
from .lifecycle import this_process
from .requests import SendingPool

__all__ = ["ReceivingPool"]

#: Longest sleep of a wait while parts of a payload are still to be written.
_PAYLOAD_POLL_NS = 1_000_000
#: What `recv` is usually given.
_COUNTS, _TIMES = (int, type(None)), (float, int, type(None))
_Views = TypeVar("_Views")
_NO_REPLIES: dict[int, Reply] = {}


class ReceivingPool(SendingPool):
    """The half of a pool that waits; see `pool.Pool`."""

    def cancel(self, env_ids: Sequence[int] | Array | None = None) -> None:
        """Forget what envs owe: steps and resets that have not begun are not made, answers that come late are dropped.

        The state of these envs is unknown: reset them.

        Raises:
            ConfigError: there is no such env; nothing was forgotten.
        """
        self._enter("cancel")
        try:
            self._begin("cancel")
            chosen = self._check_ids(env_ids)
            ids = (self._ids if chosen is None else chosen).tolist()
            for env_id in ids:
                if not 0 <= env_id < self.num_envs:
                    self._refuse("cancel", Refusal("bad_env", env_id))
            with signals_deferred():
                for env_id in ids:
                    self._give_up(env_id, *self._hub.owed(env_id))
        finally:
            self._busy = False
            self._leave()

    def _give_up(self, env_id: int, op: int, step_id: int) -> None:
        """Cancel what an env owes; nobody knows whether it will be made."""
        if op == Op.NONE:
            return
        self._inbox.forget(step_id)
        self._hub.cancel(env_id)
        if op == Op.RESET and self._asked_seeds.get(env_id) is not None:
            self._lost_seeds[env_id] = self._asked_seeds[env_id]
        if self._journal is not None:
            self._journal.note_cancelled(env_id, step_id)

    def outstanding(self) -> int:
        """Return how many envs owe an answer."""
        return self._hub.outstanding() if self._open_in is this_process[0] else 0

    def owes(self, env_id: int) -> Op:
        """Return what an env owes an answer to: STEP, RESET or NONE."""
        return Op(self._hub.owed(env_id)[0]) if self._open_in is this_process[0] else Op.NONE

    def recv(
        self,
        min_count: int | None = None,
        max_count: int | None = None,
        *,
        exact: bool = False,
        timeout: float | None = None,
    ) -> Batch:
        """Wait until at least `min_count` envs have answered, then return all that have.

        Args:
            min_count: between 1 and the number of envs that owe an answer; None for all.
            max_count: leave what is beyond for the next call.
            exact: return exactly min_count rows.
            timeout: seconds that the caller is willing to wait; answers already here are kept.

        Returns:
            A batch of views, valid until `depth - 1` later batches have been received.

        Raises:
            WorkerTimeoutError: the caller's timeout, or an env over its limit.
            WorkerDiedError: a worker that owes an answer has exited.
            StateError: fewer envs than min_count owe an answer.
            ConfigError: an argument is no number.
        """
        if self._busy or not self._lock.acquire(False):
            self._explain("recv")
        try:
            self._busy = True
            if self._open_in is not this_process[0]:
                self._explain("recv")
            owed = self._hub.outstanding()
            if type(min_count) not in _COUNTS or type(timeout) not in _TIMES or timeout != timeout:
                _check_wait(min_count, timeout)
            if type(max_count) not in _COUNTS:
                _check_count("max_count", max_count)
            least = owed if min_count is None else min_count
            if not 1 <= least <= owed:
                limits = f"min_count {least} is not in 1..{owed}, the number of envs that owe an answer"
                raise StateError(f"recv: {limits if owed else 'no env owes an answer; send actions or reset first'}")
            most = self.num_envs if max_count is None else min(max(least, max_count), self.num_envs)
            batch = self._take_rows(least, least if exact else most, timeout)
        finally:
            self._busy = False
            if self._must_close:
                self._leave()
            else:
                self._lock.release()
        if self._closed:
            self._explain("recv")
        return batch

    def lend(self, make_views: Callable[[Batch], _Views]) -> Leases[_Views] | None:
        """Return what gives batches away instead of copies of them; once per pool.

        Args:
            make_views: makes views of a batch that fills a block; called once per block. It is kept as long as the
                pool.

        Returns:
            None: the pool has no blocks for that. `options.leases` asks for some; there are none for small
            observations, for objects, in debug mode, and without C.

        Raises:
            StateError: the pool is not started, or lends already.
        """
        if self._open_in is not this_process[0]:
            self._explain("lend")
        if self._leases is not None:
            raise StateError("lend: the pool lends already")
        hub, spec, infos = self._hub, self.obs_spec, self._infos
        if not isinstance(hub, NativeHub) or not self._plan.leases:
            return None

        def look_at(rows: Rows) -> _Views:
            return make_views(Batch(rows, 0, spec, infos, _NO_REPLIES))

        self._leases = leases = Leases(hub, self._plan, self._memory, look_at)
        return leases

    def step(self, actions: Any) -> Batch:
        """Step all envs and wait for them: `send` and `recv` in one, as loops in lockstep want it.

        Args and errors are those of the two; nothing else may be outstanding.

        Returns:
            All rows, in the order of env_ids.
        """
        if self._busy or not self._lock.acquire(False):
            self._explain("step")
        try:
            self._busy = True
            if self._open_in is not this_process[0]:
                self._explain("step")
            self._ask_steps(actions, None, True, Form.NATIVE)
            batch = self._take_rows(self.num_envs, self.num_envs, None)
        finally:
            self._busy = False
            if self._must_close:
                self._leave()
            else:
                self._lock.release()
        if self._closed:
            self._explain("step")
        return batch

    def _take_rows(self, least: int, most: int, timeout: float | None) -> Batch:
        """As `recv`, inside the guard."""
        if self._works_here:
            self._work()
        if timeout is None and not self._attention:
            got = self._hub.recv(least, most, -self._watchdog.poll_interval_ns)
            if not isinstance(got, Event):
                rows, flags = got
                if flags & RowFlag.MESSAGE or self._is_debug:
                    return self._make_batch(rows, flags)
                return Batch(rows, flags, self.obs_spec, self._infos, _NO_REPLIES)
            self._handle(got)
            if got.kind == "timeout":
                self._watchdog.notice_gap(got.late_ns, Deadline(None))
        return self._make_batch(*self._wait_for_rows(least, most, timeout))

    def _wait_for_rows(self, least: int, most: int, timeout: float | None) -> tuple[Rows, int]:
        deadline = Deadline(timeout)
        self._check_alive()
        next_poll = self._next_poll(deadline)
        while True:
            self._work()
            tick = min(next_poll, now_ns() + self._poll_interval_ns(), deadline.at_ns)
            got = self._hub.recv(least, most, tick)
            if not isinstance(got, Event):
                return got
            self._handle(got)
            if got.kind == "timeout":
                self._watchdog.notice_gap(got.late_ns, deadline)
                if deadline.is_over():
                    self._raise_patience(least, timeout)
                next_poll = min(self._judge(), self._next_poll(deadline))

    def _next_poll(self, deadline: Deadline) -> int:
        """Return when a wait that goes on is to look around.

        How late it does so tells whether this process was stopped: by that a deadline is extended, which therefore is
        not to come first.
        """
        usual = self._watchdog.poll_interval_ns
        return now_ns() + (usual if deadline.at_ns == NEVER_NS else min(usual, POLL_NS))

    def _judge(self) -> int:
        """Look who is over a limit; return when to look again."""
        try:
            return self._watchdog.check()
        except WorkerTimeoutError as error:
            self._overdue(error)
            return now_ns() + self._watchdog.poll_interval_ns

    def _overdue(self, error: WorkerTimeoutError) -> None:
        """Deal with an operation over its limit: raise, or make it good."""
        raise error

    def _poll_interval_ns(self) -> int:
        """Return how long a wait may sleep before it looks around; writes payloads on the way."""
        if self._hub.pump():
            return _PAYLOAD_POLL_NS
        self._attention = self._has_dead()
        return self._watchdog.poll_interval_ns

    def _handle(self, event: Event) -> None:
        """Deal with what ended a wait, deadlines apart."""
        self._stay_if_retired()
        if self._closing:
            raise ClosedError("the pool was closed while it waited")
        self._inbox.poll()
        self._inbox.emit_warnings()
        if event.kind == "descriptor":
            self._hear(event.descriptor)
        elif event.kind == "no_block":
            raise StateError("late writers hold all blocks of the ring; restart the workers that are stopped")

    def _raise_patience(
        self,
        least: int,
        timeout: float | None,
        fate: str = "What has been sent stays outstanding until it is received or the envs are reset",
    ) -> NoReturn:
        raise WorkerTimeoutError(
            f"fewer than {least} answers within {timeout} s; {self._watchdog.describe()}. {fate}", timeout=timeout
        )

    def _make_batch(self, rows: Rows, flags: int) -> Batch:
        replies = _NO_REPLIES
        if flags & RowFlag.MESSAGE:
            replies = self._inbox.take_rows(rows)
            self._inbox.emit_warnings()
            if any(reply.is_unread for reply in replies.values()):
                flags |= RowFlag.ERROR
        batch = Batch(rows, flags, self.obs_spec, self._infos, replies)
        if self._is_debug:
            self._held.append(batch)
            if len(self._held) > self.options.depth - 1:
                expired = self._held.popleft()
                self._hub.save_rows(expired.rows)
                expired.expire()
        return batch


def _check_wait(min_count: Any, timeout: Any) -> None:
    _check_count("min_count", min_count)
    check_timeout("timeout", timeout)


def _check_count(name: str, count: Any) -> None:
    if count is not None and not isinstance(count, numbers.Integral):
        raise ConfigError(f"{name}: expected a whole number or None, got {count!r}", key=name)
