"""SparePool: a pool whose rows are served by more envs than there are rows, so that no row waits for a slow reset.

    last step of the env of row 2 -> its reset begins -> it joins the end of the row's queue of spare envs
                                     the first env of that queue, which is reset already, serves row 2 from now on

The front ends see a pool of `num_envs` envs: env ids are rows. The engine hosts `num_envs + num_spare_envs` envs, which
make no autoresets; all resets are sent from here. Env N + j is a spare of row j % N, where N is the number of rows.

If the number of spare envs is a multiple of N, each row has spare envs of its own. Their queue depends on that row
only. Else all rows share one queue. Envs join it in the order in which episodes end; episodes that end in one batch are
ordered by row. That order must not depend on timing, so each receive then waits for all rows that owe an answer.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ...errors import StateError
from ..layout.rows import Autoreset, Form, Op, RowFlag
from ..layout.spec import Array, pick_rows, split_batch
from ..parent.batch import Batch
from ..parent.leases import Leases
from ..system.clock import Deadline, check_timeout
from ..system.signals import signals_deferred
from .engine import Engine
from .pool import Pool
from .requests import check_count
from .spare_rows import JoinedRows, RowStore, join_rows
from .waiter import (
    check_distinct_envs,
    check_no_counts,
    check_whole_count,
    read_env_ids,
    refuse_idle_envs,
    refuse_min_count,
)

__all__ = ["SparePool", "SpareRule"]

# Plain integers: NumPy looks for attributes of an enum's member, and drops the exception of a signal handler there.
_ERROR, _RESET, _AUTORESET = int(RowFlag.ERROR), int(RowFlag.RESET), np.uint32(RowFlag.AUTORESET)
_NO_OP, _STEP_OP, _RESET_OP = int(Op.NONE), int(Op.STEP), int(Op.RESET)


class SpareRule(NamedTuple):
    """How many spare envs a front end has, and the seeds that they get.

    Attributes:
        num_spares: number of spare envs, at least 1.
        derive_seed: derive_seed(seed, k) is the seed of spare env k = 1, 2, ... in the queue of a row with that seed.
        derive_kwargs: the same for keyword arguments of a reset, if they are to reach spare envs.
    """

    num_spares: int
    derive_seed: Callable[[int, int], int]
    derive_kwargs: Callable[[dict[str, Any], int], dict[str, Any]] | None = None


class _Reset(NamedTuple):
    """The arguments of one env's reset. Without `has_seed` its `reset` gets no `seed`."""

    seed: int | None = None
    has_seed: bool = False
    kwargs: dict[str, Any] | None = None


_PLAIN = _Reset()


class SparePool(Pool):
    """A pool with spare envs; see `Pool` for the calls. Env ids are rows, in results and arguments.

    The batches of `recv` own their memory. Rows come in the order of their requests. The column `episode` counts the
    episodes of the env that serves the row.

    A reset without a seed and arguments, of a row whose episode has ended, delivers the first observation of the next
    spare env. Every other reset of a row resets the env that serves the row. With a seed, or with arguments for which
    the rule derives others, it also resets the row's own spare envs, or all shared ones if it resets all rows; their
    seeds are derived from that of the row. If it resets all rows, env i serves row i again. So the episodes of a row
    are a function of its seed.

    Args:
        engine: hosts all envs, spare ones last; its autoreset mode is DISABLED.
        rule: of the spare envs.
        mode: how the rows begin their next episodes.

    Attributes:
        num_spare_envs: number of spare envs.
        has_own_spares: whether each row has spare envs of its own.
    """

    def __init__(self, engine: Engine, rule: SpareRule, mode: Autoreset) -> None:
        super().__init__(engine)
        num_spares = rule.num_spares
        num_rows = self.num_envs = engine.num_envs - num_spares
        self.num_spare_envs = num_spares
        self.env_fns = engine.env_fns[:num_rows]
        self.has_own_spares = num_spares % num_rows == 0
        self._is_same_step = mode == Autoreset.SAME_STEP
        self._swaps_at_end = mode != Autoreset.DISABLED
        self._derive_seed, self._derive_kwargs = rule.derive_seed, rule.derive_kwargs
        self._all_rows = np.arange(num_rows)
        self._num_called = 0  # rows of the calls under way
        # By row.
        self._owed = np.zeros(num_rows, np.uint8)  # the `Op` whose answer the caller waits for
        self._has_last = np.zeros(num_rows, np.bool_)  # the answer of its env has arrived and was not delivered
        self._is_fresh = np.zeros(num_rows, np.bool_)  # its env begins an episode that the caller has not seen
        self._is_over = np.zeros(num_rows, np.bool_)  # its episode has ended, and no other env has taken over
        self._has_failed = np.zeros(num_rows, np.bool_)  # the reset of its env raised
        self._order: list[int] = []  # the rows that owe an answer, in the order of requests
        self._ended: list[int] = []  # the rows that are to get another env
        # By env.
        self._has_first = np.zeros(engine.num_envs, np.bool_)  # its first observation has arrived
        self._is_ahead = np.zeros(engine.num_envs, np.bool_)  # a reset that was sent ahead is under way
        self._was_reset = np.zeros(engine.num_envs, np.bool_)
        self._next_resets: dict[int, _Reset] = {}  # to be sent when the reset under way is answered
        self._last, self._first = RowStore(num_rows), RowStore(engine.num_envs)
        self._assign_rows()

    def _assign_rows(self) -> None:
        """Let env i serve row i, and all others be spare."""
        num_rows, num_envs = self.num_envs, self.num_envs + self.num_spare_envs
        self._env_of = np.arange(num_rows)
        self._row_of = np.concatenate([self._all_rows, np.full(self.num_spare_envs, -1)])
        spares = range(num_rows, num_envs)
        shared: deque[int] = deque(spares)
        own = [deque(spares[row::num_rows]) for row in range(num_rows)]
        self._queues = own if self.has_own_spares else [shared] * num_rows

    def _seed_of(self, first: int, env_id: int, seeds_per_env: int) -> int:
        position, row = divmod(env_id, self.num_envs)
        seed = first + row
        return self._derive_seed(seed, position) if position else seed

    @property
    def envs(self) -> list[Any]:
        """The env that serves each row, as `SerialPool.envs`; only if the envs live in this process.

        Raises:
            AttributeError: the envs live in worker processes.
        """
        expose = getattr(self._engine, "expose", None)
        if expose is None:
            raise AttributeError("the envs live in worker processes")
        envs = expose()
        return [envs[env_id] for env_id in self._env_of.tolist()] if envs else []

    # ---- steps -----------------------------------------------------------------------------

    def send(
        self,
        actions: Any,
        env_ids: Sequence[int] | Array | None = None,
        *,
        ordered: bool = True,
        form: Form = Form.NATIVE,
    ) -> None:
        """Step rows; see `Pool.send`. The actions of rows that begin an episode are checked and not used."""
        rows = self._check_request("send", env_ids, ordered)
        with signals_deferred():
            self._send_actions(actions, rows, form)
            self._note_request(rows, _STEP_OP)

    def _send_actions(self, actions: Any, rows: Array, form: Form) -> None:
        begins = self._is_fresh[rows] | self._has_failed[rows]
        if not begins.any():
            super().send(actions, self._env_of[rows], ordered=False, form=form)
        elif self.action_spec.num_objects:
            self._send_some(split_batch(self.action_space, actions, len(rows)), rows, begins)
        else:
            leaves = iter(self.action_spec.flatten_batch(actions, len(rows)))
            nested = self.action_spec.batch(lambda leaf: next(leaves), lambda node: None)
            kept = np.flatnonzero(~begins)
            if len(kept):
                some = pick_rows(self.action_spec.root, nested, kept)
                super().send(some, self._env_of[rows[kept]], ordered=False, form=form)

    def send_objects(self, actions: Sequence[Any], env_ids: Sequence[int] | Array, *, ordered: bool = True) -> None:
        """Step rows with any objects as actions; see `Pool.send_objects`."""
        rows = self._check_request("send", env_ids, ordered)
        check_count("send", "actions", actions, len(rows))
        with signals_deferred():
            self._send_some(actions, rows, self._is_fresh[rows] | self._has_failed[rows])
            self._note_request(rows, _STEP_OP)

    def _send_some(self, actions: Sequence[Any], rows: Array, begins: Array) -> None:
        kept = np.flatnonzero(~begins)
        if len(kept):
            super().send_objects([actions[i] for i in kept.tolist()], self._env_of[rows[kept]], ordered=False)

    def step(self, actions: Any) -> Batch:
        """Step all rows and wait for them; see `Pool.step`."""
        self.send(actions)
        return self.recv()

    def _note_request(self, rows: Array, op: int) -> None:
        """Note that rows owe an answer; reset again the envs whose reset raised."""
        self._owed[rows] = op
        self._order += rows.tolist()
        failed = rows[self._has_failed[rows]]
        if len(failed):  # as an autoreset that failed is repeated by the next step
            self._has_failed[failed] = False
            for row in failed.tolist():
                self._reset_env(int(self._env_of[row]), _PLAIN)

    def _check_request(self, what: str, env_ids: Sequence[int] | Array | None, ordered: bool) -> Array:
        """Return the rows of a request, int64 (n,), if they may get one."""
        self._lifecycle.check_open(what)
        rows = self._check_rows(what, env_ids)
        if self._order:
            busy = self._owed[rows] != _NO_OP if what == "send" else self._owed[rows] == _RESET_OP
            if busy.any():
                row = int(rows[busy][0])
                remedy = "receive it first" if what == "reset" else "receive it first, or reset the env"
                owed = Op(int(self._owed[row])).name.lower()
                raise StateError(f"{what}: env {row} still owes the answer to a {owed}; {remedy}")
            if ordered and not set(self._order) <= set(rows.tolist()):
                raise StateError(
                    f"{what}: {len(self._order)} envs still owe answers, and an ordered request must have the pool to "
                    "itself; receive them first, or send with ordered=False"
                )
        return rows

    def _check_rows(self, what: str, env_ids: Sequence[int] | Array | None) -> Array:
        """Return rows as int64 (n,); None is all rows."""
        if env_ids is None:
            return self._all_rows
        rows = read_env_ids(env_ids)
        check_distinct_envs(what, rows.tolist(), self.num_envs)
        return rows

    # ---- answers ---------------------------------------------------------------------------

    def recv(
        self,
        min_count: int | None = None,
        max_count: int | None = None,
        *,
        exact: bool = False,
        timeout: float | None = None,
        env_ids: Sequence[int] | Array | None = None,
    ) -> Batch:
        """Wait until at least `min_count` rows have an answer; see `Pool.recv`.

        Raises:
            StateError: all rows share spare envs, and fewer rows are awaited than owe an answer.
        """
        self._lifecycle.check_open("recv")
        if env_ids is not None:
            check_no_counts(min_count, max_count, exact)
            return self._recv_rows(self._check_rows("recv", env_ids), timeout)
        check_whole_count("min_count", min_count)
        check_whole_count("max_count", max_count)
        check_timeout("timeout", timeout)
        owed = len(self._order)
        least = owed if min_count is None else int(min_count)
        if not 1 <= least <= owed:
            refuse_min_count(least, owed)
        self._check_order(least)
        most = owed if max_count is None else max(least, int(max_count))
        most = least if exact else min(most, owed)
        deadline = Deadline(timeout)
        while (missing := least - len(ready := self._find_ready())) > 0:
            self._receive(missing, deadline)
        with signals_deferred():
            return self._deliver(np.array(ready[:most]))

    def _recv_rows(self, rows: Array, timeout: float | None) -> Batch:
        """Wait for the answers of these rows; return them in this order."""
        check_timeout("timeout", timeout)
        idle = rows[self._owed[rows] == _NO_OP].tolist()
        if idle:
            refuse_idle_envs(idle)
        self._check_order(len(rows))
        deadline = Deadline(timeout)
        while not set(rows.tolist()) <= set(self._find_ready()):
            self._receive(1, deadline)
        with signals_deferred():
            return self._deliver(rows)

    def _check_order(self, count: int) -> None:
        """Raise StateError if a receive of `count` rows would let timing decide which spare env takes over."""
        owed = len(self._order)
        if count < owed and not self.has_own_spares:
            raise StateError(
                f"recv: {self.num_spare_envs} spare envs serve {self.num_envs} envs in the order in which episodes "
                "end. That order would depend on timing if a receive did not wait for all envs that owe an answer, "
                f"{owed} now. Use num_spare_envs={self.num_envs} or a multiple of it"
            )

    def _find_ready(self) -> list[int]:
        """Return the rows whose answer is complete, in the order of requests."""
        can_begin = self._is_fresh & self._has_first[self._env_of]
        is_ready = can_begin | (self._has_last & ~self._is_fresh if self._is_same_step else self._has_last)
        return [row for row in self._order if is_ready[row]]

    def _receive(self, missing: int, deadline: Deadline) -> None:
        """Store answers of the engine, at most `missing` awaited ones; give rows whose episodes have ended new envs."""
        try:
            batch = super().recv(min(missing, super().outstanding()), timeout=deadline.seconds_left())
            with signals_deferred():
                self._store(batch)
                self._swap_if_due()
        except BaseException:
            with signals_deferred():
                self._replace_lost_answers()
                self._swap_if_due()  # the lost answers may have been those that others waited for
            raise

    def _swap_if_due(self) -> None:
        """Give the rows whose episodes have ended new envs, unless the order of a shared queue is not known yet."""
        if self._ended and (self.has_own_spares or not self._is_any_stepping()):
            self._swap(np.unique(self._ended))

    def _replace_lost_answers(self) -> None:
        """Begin new episodes where an exception, such as Ctrl-C, has come between an answer's receipt and its storage.

        Rows whose answers were lost owe none.
        """
        is_idle = np.array([super(SparePool, self).owes(env_id) == _NO_OP for env_id in range(len(self._row_of))])
        lost_resets = np.flatnonzero(self._is_ahead & is_idle).tolist()
        self._is_ahead[lost_resets] = False
        rows = np.flatnonzero((self._owed != _NO_OP) & ~self._has_last & ~self._is_fresh & is_idle[self._env_of])
        for env_id in lost_resets:
            self._reset_env(env_id, self._next_resets.pop(env_id, _PLAIN))
        rows = rows[~self._is_ahead[self._env_of[rows]]]
        if len(rows):
            self._forget_answers(rows)
            self._swap(rows)

    def _is_any_stepping(self) -> bool:
        return bool(((self._owed == _STEP_OP) & ~self._has_last & ~self._is_fresh).any())

    def _store(self, batch: Batch) -> None:
        """Copy the rows of a batch of the engine, and note the episodes that have ended."""
        envs, flags = batch.env_ids.copy(), batch.row_flags
        num_leaves = len(self.obs_spec.leaves)
        is_ahead = self._is_ahead[envs]
        index = np.arange(len(envs))
        if is_ahead.any():
            ahead = envs[is_ahead]
            self._is_ahead[ahead] = False
            repeated = [env_id for env_id in ahead.tolist() if env_id in self._next_resets]
            kept = is_ahead & ~np.isin(envs, repeated)
            if kept.any():
                self._first.put(envs[kept], batch, index[kept], num_leaves)
                self._has_first[envs[kept]] = True
            for env_id in repeated:
                self._reset_env(env_id, self._next_resets.pop(env_id))
            envs, flags, index = envs[~is_ahead], flags[~is_ahead], index[~is_ahead]
            if not len(envs):
                return
        rows = self._row_of[envs]
        self._last.put(rows, batch, index, num_leaves)
        self._has_last[rows] = True
        dones = (batch.terminated | batch.truncated)[index]
        if batch.flags & _RESET or dones.any():
            has_error = (flags & _ERROR) != 0
            is_reset = (flags & _RESET) != 0
            self._has_failed[rows[is_reset & has_error]] = True
            ended = rows[dones & ~has_error & ~is_reset]
            self._is_over[ended] = True
            if self._swaps_at_end:
                self._ended += ended.tolist()

    def _deliver(self, rows: Array) -> Batch:
        """Return the answers of these rows as a batch."""
        envs, owes_step = self._env_of[rows], self._owed[rows] == _STEP_OP
        begins = ~self._has_last[rows]
        ends = ~begins & self._is_fresh[rows] if self._is_same_step else np.zeros(len(rows), np.bool_)
        joined, replies = join_rows(self._last, self._first, rows, envs, begins, ends)
        flags = joined.column("flags")
        started = (flags & _RESET) != 0
        if started.any():
            is_autoreset = started & owes_step
            flags[is_autoreset] &= ~np.uint32(_RESET)
            flags[is_autoreset & ((flags & _ERROR) == 0)] |= _AUTORESET
            joined.column("seed")[begins & ~owes_step] = -1  # the seed of a spare env is not that of the row
        taken = begins | ends
        if taken.any():
            self._has_first[envs[taken]] = False
            self._is_fresh[rows[taken]] = False
            self._has_failed[rows[taken]] = (flags[taken] & _ERROR) != 0
        self._has_last[rows] = False
        self._owed[rows] = _NO_OP
        delivered = set(rows.tolist())
        self._order = [row for row in self._order if row not in delivered]
        return self._make_batch(joined, replies)

    def _make_batch(self, joined: JoinedRows, replies: dict[int, Any]) -> Batch:
        flags = int(np.bitwise_or.reduce(joined.column("flags")))
        return Batch(joined, flags, self.obs_spec, self._waiter.inbox.infos, replies)

    # ---- resets ----------------------------------------------------------------------------

    def reset(
        self,
        env_ids: Sequence[int] | Array | None = None,
        *,
        seeds: Sequence[int | None] | None = None,
        kwargs: Sequence[dict[str, Any] | None] | None = None,
        ordered: bool = True,
        seeds_per_env: int = 1,
    ) -> None:
        """Reset rows; see `Pool.reset` and the class."""
        rows = self._check_request("reset", env_ids, ordered)
        check_count("reset", "seeds", seeds, len(rows))
        check_count("reset", "kwargs", kwargs, len(rows))
        resets = []
        for i in range(len(rows)):
            seed = None if seeds is None else seeds[i]
            number = None if seed is None else operator.index(seed)
            resets.append(_Reset(number, seeds is not None, None if kwargs is None else kwargs[i]))
        can_begin = (self._is_fresh | self._is_over)[rows] & ~self._has_failed[rows]
        is_served = can_begin & np.array([reset.seed is None and not _arguments_of(reset) for reset in resets])
        begun = {int(rows[i]): resets[i] for i in np.flatnonzero(~is_served).tolist()}
        with signals_deferred():
            if begun:
                self._reset_rows(begun)
            self._forget_answers(rows)
            served = rows[is_served & ~self._is_fresh[rows]]
            if len(served):
                self._swap(np.sort(served))
            self._note_request(rows, _RESET_OP)

    def _reset_rows(self, resets: dict[int, _Reset]) -> None:
        """Reset the envs of rows, and the spare envs that their resets concern."""
        before = self._env_of, self._row_of, self._queues
        if len(resets) == self.num_envs and all(self._derive(reset, 1) for reset in resets.values()):
            self._assign_rows()  # all envs are reset: a run does not depend on earlier ones
        now = {row: reset for row, reset in resets.items() if not self._is_ahead[self._env_of[row]]}
        try:
            self._send_resets([(int(self._env_of[row]), reset) for row, reset in now.items()])
        except BaseException:  # an argument is wrong: nothing was sent
            self._env_of, self._row_of, self._queues = before
            raise
        for row, reset in resets.items():
            env_id = int(self._env_of[row])
            if row not in now:
                self._next_resets[env_id] = reset
            self._has_first[env_id] = self._is_fresh[row] = self._is_over[row] = self._has_failed[row] = False
        self._send_ahead(self._resets_of_spares(resets))

    def _resets_of_spares(self, resets: dict[int, _Reset]) -> list[tuple[int, _Reset]]:
        """Return the resets of spare envs that follow from those of rows."""
        queues = self._queues if self.has_own_spares else self._queues[:1]
        found = []
        for row, queue in enumerate(queues):
            for position, env_id in enumerate(queue):
                number, owner = (position, row) if self.has_own_spares else divmod(position, self.num_envs)
                reset = None
                if self.has_own_spares or len(resets) == self.num_envs:
                    reset = self._derive(resets.get(owner), number + 1)
                if reset is not None or (not self._was_reset[env_id] and (not self.has_own_spares or owner in resets)):
                    found.append((env_id, reset or _PLAIN))
        return found

    def _derive(self, reset: _Reset | None, number: int) -> _Reset | None:
        """Return the reset of a spare env that follows from that of a row; None: it is not reset."""
        if reset is None:
            return None
        arguments = _arguments_of(reset)
        if self._derive_kwargs is not None and arguments:
            return _Reset(None, False, self._derive_kwargs(arguments, number))
        return None if reset.seed is None else _Reset(self._derive_seed(reset.seed, number), True)

    def _swap(self, rows: Array) -> None:
        """Reset the envs of these rows, ascending, and give the rows to the first envs of their queues."""
        ended = self._env_of[rows].tolist()
        self._send_ahead([(env_id, _PLAIN) for env_id in ended])
        for row, env_id in zip(rows.tolist(), ended):
            self._row_of[env_id] = -1
            self._queues[row].append(env_id)
        for row in rows.tolist():
            env_id = self._queues[row].popleft()
            self._env_of[row], self._row_of[env_id] = env_id, row
        self._is_fresh[rows] = True
        self._is_over[rows] = False
        self._drop_ended(rows)

    def _send_ahead(self, resets: list[tuple[int, _Reset]]) -> None:
        """Reset envs whose first observations are kept; after the reset that is under way, if there is one."""
        now = [(env_id, reset) for env_id, reset in resets if not self._is_ahead[env_id]]
        self._next_resets.update((env_id, reset) for env_id, reset in resets if self._is_ahead[env_id])
        envs = [env_id for env_id, _ in resets]
        self._send_resets(now)
        self._is_ahead[[env_id for env_id, _ in now]] = True
        self._has_first[envs] = False

    def _reset_env(self, env_id: int, reset: _Reset) -> None:
        """Reset an env that owes nothing: for its row, if that waits for this reset, else ahead."""
        row = int(self._row_of[env_id])
        if row < 0 or self._is_fresh[row]:
            self._send_ahead([(env_id, reset)])
        else:
            self._send_resets([(env_id, reset)])

    def _send_resets(self, resets: list[tuple[int, _Reset]]) -> None:
        """Send resets, those of equal form in one request."""
        for has_seed in (False, True):
            some = [(env_id, reset) for env_id, reset in resets if reset.has_seed == has_seed]
            if some:
                envs = [env_id for env_id, _ in some]
                seeds = [reset.seed for _, reset in some] if has_seed else None
                has_kwargs = any(reset.kwargs is not None for _, reset in some)
                kwargs = [reset.kwargs for _, reset in some] if has_kwargs else None
                super().reset(envs, seeds=seeds, kwargs=kwargs, ordered=False)
                self._was_reset[envs] = True

    def cancel(self, env_ids: Sequence[int] | Array | None = None) -> None:
        """Cancel the outstanding operations of rows; see `Pool.cancel`. Resets that were sent ahead still run."""
        self._lifecycle.check_open("cancel")
        rows = self._check_rows("cancel", env_ids)
        under_way = rows[(self._owed[rows] != _NO_OP) & ~self._has_last[rows] & ~self._is_fresh[rows]]
        for row in under_way.tolist():
            env_id = int(self._env_of[row])
            if env_id in self._next_resets:  # it was not sent
                del self._next_resets[env_id]
                self._is_fresh[row] = True
            else:
                super().cancel([env_id])
        self._forget_answers(rows)

    def _forget_answers(self, rows: Array) -> None:
        """Drop the answers that rows owe, or that were not delivered."""
        self._has_last[rows] = False
        self._owed[rows] = _NO_OP
        dropped = set(rows.tolist())
        self._order = [row for row in self._order if row not in dropped]
        self._drop_ended(rows)

    def _drop_ended(self, rows: Array) -> None:
        dropped = set(rows.tolist())
        self._ended = [row for row in self._ended if row not in dropped]

    def outstanding(self) -> int:
        """Return how many rows owe an answer; 0 if the pool is not open."""
        return len(self._order) if self._lifecycle.is_open else 0

    def owes(self, env_id: int) -> Op:
        """Return the operation that a row owes the answer to; NONE if the pool is not open."""
        return Op(int(self._owed[env_id])) if self._lifecycle.is_open else Op.NONE

    # ---- calls -----------------------------------------------------------------------------

    def submit_calls(
        self,
        functions: Sequence[Callable[[Any], Any]],
        env_ids: Sequence[int] | Array | None = None,
        *,
        pure: bool = False,
        name: str | None = None,
    ) -> None:
        """Begin calls of the envs that serve rows; see `Pool.submit_calls`.

        Without `env_ids`, spare envs are called too, unless the function is `pure`: env N + j with the function of row
        j % N. With `env_ids` and a `name`, which means a lasting effect, so are the own spare envs of these rows. A
        call waits for a reset of its env that is under way. Only the results of rows are returned.
        """
        rows = self._check_rows("call", env_ids)
        check_count("call", "functions", functions, len(rows))
        envs, asked = self._env_of[rows].tolist(), list(functions)
        row_of_spare = {env_id: env_id % self.num_envs for env_id in np.flatnonzero(self._row_of < 0).tolist()}
        if not pure and (env_ids is None or (name is not None and self.has_own_spares)):
            function_of = dict(zip(rows.tolist(), functions))
            for env_id, row in row_of_spare.items():
                if row in function_of:
                    envs.append(env_id)
                    asked.append(function_of[row])
        super().submit_calls(asked, envs, pure=pure, name=name)
        self._num_called = len(rows)

    def collect_calls(self, timeout: float | None = None) -> list[Any]:
        """Wait for the calls of `submit_calls`; return the results of rows."""
        return super().collect_calls(timeout)[: self._num_called]

    # ---- workers and memory ----------------------------------------------------------------

    def restart(self, worker_id: int) -> NoReturn:
        """Raise StateError: answers of spare envs would be lost."""
        raise StateError("restart: a pool with spare envs replaces its workers itself")

    def lend(self, make_views: Callable[[Batch], Any]) -> Leases[Any] | None:
        """Return None: batches own their memory."""
        return None


def _arguments_of(reset: _Reset) -> dict[str, Any]:
    """Return the keyword arguments of a reset, without `options=None`."""
    return {name: value for name, value in (reset.kwargs or {}).items() if name != "options" or value is not None}
