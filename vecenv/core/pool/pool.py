"""Pool: the waist of vecenv, as of an hourglass. All above sends operations and receives batches here.

    pool.start()
    pool.reset(seeds=[...])            every env owes its first observation
    batch = pool.recv()                ... and has delivered it
    pool.send(actions)                 every env owes the result of a step
    batch = pool.recv(min_count=32)    the first 32 to finish, as one contiguous run
    pool.close()

What all pools share, in four parts: `waist` (state, hooks for engines), `sending`, `receiving`, and
here the calls. Where envs live is for `SerialPool` and `ProcessPool`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import StateError
from ..host.snapshots import snapshot_if_due, snapshot_now
from ..layout.messages import Payload, unpack_error
from ..layout.rows import Op
from ..layout.spec import Array
from ..parent.batch import raise_first
from ..system.clock import Deadline, check_timeout, now_ns
from ..system.signals import signals_deferred
from .requests import check_count
from .waiter import ReceivingPool

__all__ = ["Pool"]


class Pool(ReceivingPool):
    """Envs behind one queue of operations and one stream of batches.

    A pool belongs to one thread at a time and to the process that made it. Every env owes at
    most one answer; a reset supersedes a step whose answer is still out.

    Attributes:
        num_envs: how many envs, with ids 0 .. num_envs - 1.
        observation_space, action_space, reward_space: of one env; known after `start`.
        properties: metadata, spec and render_mode of env 0, as far as they pickle.
    """

    def call(
        self,
        function: Callable[[Any], Any],
        env_ids: Sequence[int] | Array | None = None,
        *,
        timeout: float | None = None,
        pure: bool = False,
        name: str | None = None,
    ) -> list[Any]:
        """Run a function of the env where each env lives; return its results in request order.

        Waits for running steps of these envs; their rows stay for the next `recv`.

        Args:
            function: called with the env.
            env_ids: distinct ids; None for all.
            timeout: seconds that the caller is willing to wait.
            pure: it changes nothing in the env; then it is not repeated after a crash.
            name: its effect lasts beyond the episode, and replaces that of the last call of this
                name: then it is repeated even if the episode began later.

        Raises:
            Exception: what the function raised for the lowest env, remote traceback chained; notes
                name the env, and the others that raised.
            WorkerTimeoutError, WorkerDiedError, ConfigError: as `recv`.
        """
        count = self.num_envs if env_ids is None else len(env_ids)
        return self.call_each([function] * count, env_ids, timeout=timeout, pure=pure, name=name)

    def call_each(
        self,
        functions: Sequence[Callable[[Any], Any]],
        env_ids: Sequence[int] | Array | None = None,
        *,
        timeout: float | None = None,
        pure: bool = False,
        name: str | None = None,
    ) -> list[Any]:
        """As `call`, with a function of its own for each env."""
        check_timeout("timeout", timeout)
        mine: dict[int, int] | None = None
        try:
            with signals_deferred():
                self.post(functions, env_ids, pure=pure, name=name)
                mine = self._called
            return self.wait_calls(timeout)
        except BaseException:
            if mine and self._called is mine:  # interrupted between the two: nobody would take the answers
                self.forget_calls()
            raise

    def post(
        self,
        functions: Sequence[Callable[[Any], Any]],
        env_ids: Sequence[int] | Array | None = None,
        *,
        pure: bool = False,
        name: str | None = None,
    ) -> None:
        """Begin calls, one function for each env asked, and return at once; `wait_calls` gives their results.

        Envs in this thread (`SerialPool`) are called when something waits, as they are stepped.
        `pure` and `name` are as for `call`.

        Raises:
            ConfigError: there is no such env, or there are not as many functions as envs asked.
            StateError: earlier calls have not been waited for.
        """
        self._enter("call")
        try:
            self._begin("call")
            if self._called:
                raise StateError("call: earlier calls have not been waited for; call wait_calls first")
            chosen = self._check_ids(env_ids)
            ids = self._ids if chosen is None else chosen
            check_count("call", "functions", functions, len(ids))
            by_id = {id(function): function for function in functions}
            dumped = {key: self._dump_payload(Payload(function=function)) for key, function in by_id.items()}
            payloads = [dumped[id(function)] for function in functions]
            numbers = np.zeros(len(ids), np.int64)
            names = ["" if pure else name] * len(ids)
            try:
                with signals_deferred():
                    first = self._command("call", Op.CALL, ids, numbers, 0, payloads, False, names=names)
                    self._called = dict(zip(ids.tolist(), range(first, first + len(ids))))
            except BaseException:  # interrupted, once it was held no longer: the caller does not know that they began
                self._drop_calls()
                raise
        finally:
            self._busy = False
            self._leave()

    def has_dead_worker(self) -> bool:
        """Return whether a worker has ended and has not been replaced."""
        return self._has_dead()

    def take_snapshots(self) -> None:
        """Have the state of each env kept here, amid its episode, if there is a way.

        For envs whose episodes do not end: a crash is made good from there, and what came before is forgotten. Others
        are looked at when they are reset. Does nothing where workers are not replaced, or as long as the last states
        are young and there is room for what came after them.
        """
        if self._journal is not None:
            self.call(snapshot_now if self._journal.is_half_full() else snapshot_if_due, pure=True)

    def wait_calls(self, timeout: float | None = None) -> list[Any]:
        """Wait for the calls that `post` began; return and raise as `call` does.

        Args:
            timeout: seconds; then the calls are given up and their results dropped.
        """
        check_timeout("timeout", timeout)
        self._enter("call")
        try:
            self._begin("call")
            if not self._called:
                raise StateError("wait_calls: no calls are under way")
            try:
                results = self._collect_calls(len(self._called), timeout)
            finally:
                self._drop_calls()
        finally:
            self._busy = False
            self._leave()
        if self._closed:
            self._explain("call")
        return results

    def forget_calls(self) -> None:
        """Give up the calls that `post` began, if there are any: they are made, and their results dropped."""
        if self._called and not self._closed:
            self._enter("call")
            try:
                self._begin("call")
                self._drop_calls()
            finally:
                self._busy = False
                self._leave()

    def _drop_calls(self) -> None:
        with signals_deferred():
            self._inbox.forget_calls()
            self._called = {}

    def _collect_calls(self, count: int, timeout: float | None) -> list[Any]:
        deadline = Deadline(timeout)
        next_poll = self._next_poll(deadline)
        while True:
            self._work()
            self._inbox.poll()
            self._inbox.emit_warnings()
            if self._inbox.has_all_calls():
                break
            self._check_alive()
            tick = min(next_poll, now_ns() + self._poll_interval_ns(), deadline.at_ns)
            event = self._hub.wait(tick)
            self._handle(event)
            if event.kind == "timeout":
                self._watchdog.notice_gap(event.late_ns, deadline)
                if deadline.is_over():
                    self._raise_patience(count, timeout, "The calls are given up: their results will be dropped")
                next_poll = min(self._judge(), self._next_poll(deadline))
        replies = self._inbox.take_calls()
        for reply in replies:
            if reply.error is not None and not reply.is_unread and self._journal is not None:
                self._journal.forget_call(reply.env_id, reply.step_id)
        errors: dict[int, Exception] = {}
        for reply in replies:
            if reply.error is not None:
                where = {"env_ids": (reply.env_id,), "op": "call", "step_id": reply.step_id}
                errors[reply.env_id] = unpack_error(reply.error, **where)
        if errors:
            raise_first(errors)
        return [reply.value for reply in replies]
