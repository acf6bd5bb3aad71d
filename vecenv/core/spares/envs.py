"""SpareEnvs: rows that are served by more envs than there are rows, so that no row waits for a slow reset.

    last step of the env of row 2 -> its reset begins -> it joins the end of the row's queue of spare envs
                                     the first env of that queue, which is reset already, serves row 2 from now on

The front ends see a pool of `num_envs` envs: env ids are rows. The engine hosts `num_envs + num_spare_envs` envs, which
make no autoresets; all resets are sent from here. Between `Pool` and the requests and answers of these envs stand:

    SpareEnvs       translates requests and receives of rows
    SpareQueues     which env serves which row, and which spare env is next
    SpareResets     the seeds of spare envs
    EnvResets       resets under way, and first observations that have arrived
    RowAnswers      the answers that rows owe; `rows` puts a row together from those of two envs

If the number of spare envs is a multiple of N, the number of rows, each row has spare envs of its own. Their queue
depends on that row only. With 0 spare envs, an env that has ended is the only one in the queue of its row, and so
serves it again. With other numbers, all rows share one queue. Envs join it in the order in which episodes end; episodes
that end in one batch are ordered by row. That order must not depend on timing, so each receive then waits for all rows
that owe an answer.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import ClosedError, StateError
from ..host.saving import SavedEnv
from ..layout.bounds import Bounds
from ..layout.commands import GivenState
from ..layout.flags import Autoreset, Form, Op
from ..layout.info_cells import Column
from ..layout.messages import Reply
from ..layout.spec import Array, split_batch
from ..operations.engine import OpenedEnvs
from ..operations.requests import ActionLeaves, Requests, ResetNeededError, check_count, refuse_busy_env
from ..operations.waiter import (
    Waiter,
    check_distinct_envs,
    check_whole_count,
    env_id_array,
    refuse_idle_envs,
    refuse_min_count,
)
from ..parent.batch import Batch
from ..system.clock import Deadline, check_timeout
from ..system.signals import signals_deferred
from .answers import RowAnswers
from .queues import SpareQueues
from .resets import PLAIN, EnvResets, Reset, SpareResets

__all__ = ["SavedSpares", "SpareEnvs"]


class SavedSpares(NamedTuple):
    """The state of `SpareEnvs`, from which those of another pool continue; the states of the envs are not in it.

    Attributes:
        parts: the attributes `SAVED` of queues, answers and resets, by name.
        infos: the table of info cells, which the kept rows use.
    """

    parts: tuple[dict[str, Any], ...]
    infos: list[Column]


class SpareEnvs:
    """The requests and receives of one open pool with spare envs; env ids are rows, in arguments and results.

    It has the calls of `Requests` and `Waiter` that name rows, with the contract of the methods of `Pool`. The batches
    own their memory. Rows come in the order of their requests. The column `episode` counts the episodes of the env that
    serves the row.

    A reset without a seed and arguments, of a row whose episode has ended, delivers the first observation of the next
    spare env. Every other reset of a row resets the env that serves the row. With a seed, or with arguments for which
    the rule derives others, it also resets the row's own spare envs, or all shared ones if it resets all rows; their
    seeds are derived from that of the row. If it resets all rows, env i serves row i again. So the episodes of a row
    are a function of its seed.

    Args:
        spares: the spare envs and their seeds.
        mode: how the rows begin their next episodes; the autoreset mode of the engine is DISABLED.
        envs: all envs, spare ones last.
        requests, waiter: of all envs.
        checks_bounds: refuse actions outside their space.

    Attributes:
        num_batches: how many batches of rows were delivered.
    """

    def __init__(
        self,
        spares: SpareResets,
        mode: Autoreset,
        envs: OpenedEnvs,
        requests: Requests,
        waiter: Waiter,
        *,
        checks_bounds: bool,
    ) -> None:
        self._spares = spares
        queues = self._queues = spares.queues
        self._requests, self._waiter = requests, waiter
        self._num_rows, self._num_envs = len(queues.env_of), len(queues.row_of)
        self._all_rows = np.arange(self._num_rows)
        self.num_batches = 0
        self._num_called = 0  # rows of the calls under way
        self._space, self._spec = envs.spaces.action_space, envs.spaces.action
        self._bounds = Bounds(self._space) if checks_bounds else None
        self._num_outstanding, self._add_info_key = envs.hub.outstanding, envs.hub.add_info_key
        self._answers = RowAnswers(self._num_rows, mode, envs.spaces, waiter.inbox.infos)
        self._resets = EnvResets(requests, self._num_envs, envs.spaces)
        self._is_same_step = mode == Autoreset.SAME_STEP

    # ---- steps -----------------------------------------------------------------------------

    def send(self, actions: Any, env_ids: Sequence[int] | Array | None, ordered: bool, form: Form) -> None:
        """Step rows; see `Pool.send`. The actions of rows that begin an episode are checked and not used."""
        rows = self._check_request(Op.STEP, env_ids, ordered)
        with signals_deferred():
            self._send_actions(actions, rows, form)
            self._note_request(Op.STEP, rows)

    def _send_actions(self, actions: Any, rows: Array, form: Form) -> None:
        begins = self._answers.begins(rows)
        if self._bounds is None and not begins.any():
            self._requests.send(actions, self._queues.env_of[rows], False, form)
            return
        kept, count = np.flatnonzero(~begins), len(rows)
        if self._spec.num_objects:
            self._send_some(split_batch(self._space, actions, count), rows, kept)
            return
        is_rounded = self._spec.would_round(actions, count)
        leaves = self._spec.flatten_batch(actions, count)
        if self._bounds is not None:
            self._bounds.check_columns(leaves, rows)
        if is_rounded:
            self._send_objects(split_batch(self._space, actions, count), rows, kept)
        elif len(kept):
            some = ActionLeaves(leaf.take(kept, 0) for leaf in leaves)
            self._requests.send(some, self._queues.env_of[rows[kept]], False, form)

    def send_objects(self, actions: Sequence[Any], env_ids: Sequence[int] | Array, ordered: bool) -> None:
        rows = self._check_request(Op.STEP, env_ids, ordered)
        check_count("send", "actions", actions, len(rows))
        with signals_deferred():
            self._send_some(actions, rows, np.flatnonzero(~self._answers.begins(rows)))
            self._note_request(Op.STEP, rows)

    def _send_some(self, actions: Sequence[Any], rows: Array, kept: Array) -> None:
        """Check the actions of all rows, and send those with the indices `kept`."""
        if self._bounds is not None:
            self._bounds.check_objects(actions, rows)
        self._send_objects(actions, rows, kept)

    def _send_objects(self, actions: Sequence[Any], rows: Array, kept: Array) -> None:
        if len(kept):
            envs = self._queues.env_of[rows[kept]]
            self._requests.send_objects([actions[i] for i in kept.tolist()], envs, False)

    def _note_request(self, op: Op, rows: Array) -> None:
        """Note that rows owe an answer; reset again the envs whose reset raised, as the next autoreset would."""
        for row in self._answers.note_request(op, rows):
            self._reset_env(int(self._queues.env_of[row]), PLAIN)

    def _check_request(self, op: Op, env_ids: Sequence[int] | Array | None, ordered: bool) -> Array:
        """Return the rows of a request, int64 (n,), if they may get one."""
        rows = self._read_rows("send" if op == Op.STEP else "reset", env_ids)
        self._answers.check(op, rows, ordered)
        return rows

    def _read_rows(self, what: str, env_ids: Sequence[int] | Array | None) -> Array:
        """Return rows as int64 (n,); None is all rows."""
        if env_ids is None:
            return self._all_rows
        rows = env_id_array(env_ids)
        check_distinct_envs(what, rows.tolist(), self._num_rows)
        return rows

    # ---- answers ---------------------------------------------------------------------------

    def recv(
        self,
        min_count: int | None = None,
        max_count: int | None = None,
        exact: bool = False,
        timeout: float | None = None,
    ) -> Batch:
        """Wait until at least `min_count` rows have an answer; see `Pool.recv`.

        Raises:
            StateError: all rows share spare envs, and fewer rows are awaited than owe an answer.
        """
        check_whole_count("min_count", min_count)
        check_whole_count("max_count", max_count)
        check_timeout("timeout", timeout)
        owed = self.outstanding()
        least = owed if min_count is None else int(min_count)
        if not 1 <= least <= owed:
            refuse_min_count(least, owed)
        self._check_order(least)
        most = owed if max_count is None else max(least, int(max_count))
        most = least if exact else min(most, owed)
        deadline = Deadline(timeout)
        while (missing := least - len(ready := self._find_ready())) > 0:
            self._receive(missing, deadline)
        return self._deliver(np.array(ready[:most]))

    def recv_envs(self, env_ids: Sequence[int] | Array, timeout: float | None, *_: None) -> Batch:
        rows = self._read_rows("recv", env_ids)
        check_timeout("timeout", timeout)
        idle = [row for row in rows.tolist() if self.owes(row) == Op.NONE]
        if idle:
            refuse_idle_envs(idle)
        self._check_order(len(rows))
        deadline = Deadline(timeout)
        while not set(rows.tolist()) <= set(self._find_ready()):
            self._receive(1, deadline)
        return self._deliver(rows)

    def _check_order(self, count: int) -> None:
        """Raise StateError if a receive of `count` rows would let timing decide which spare env takes over."""
        owed = self.outstanding()
        if count < owed and not self._queues.are_own:
            raise StateError(
                f"recv: {self._num_envs - self._num_rows} spare envs serve {self._num_rows} envs in the order in which "
                "episodes end. That order would depend on timing if a receive did not wait for all envs that owe an "
                f"answer, {owed} now. Use num_spare_envs={self._num_rows} or a multiple of it"
            )

    def _find_ready(self) -> list[int]:
        return self._answers.find_ready(self._resets.has_first[self._queues.env_of])

    def _deliver(self, rows: Array) -> Batch:
        with signals_deferred():
            self.num_batches += 1
            return self._answers.take(rows, self._queues.env_of[rows], self._resets)

    def _receive(self, missing: int, deadline: Deadline) -> None:
        """Store answers of the engine, at most `missing` awaited ones; give rows whose episodes have ended new envs."""
        try:
            count = min(missing, self._num_outstanding())
            batch = self._waiter.recv(count, None, False, deadline.seconds_left())
            with signals_deferred():
                self._store(batch)
                self._swap_if_due()
        except ClosedError:
            raise
        except BaseException:
            with signals_deferred():
                self._replace_lost_answers()
                self._swap_if_due()  # the lost answers may have been those that others waited for
            raise

    def _store(self, batch: Batch) -> None:
        """Copy the rows of a batch of the engine."""
        envs = batch.env_ids.copy()
        others, postponed = self._resets.keep_first_obs(envs, batch)
        for env_id, reset in postponed:
            self._reset_env(env_id, reset)
        if len(others):
            self._answers.put(self._queues.row_of[envs[others]], batch, others)

    def _swap_if_due(self) -> None:
        """Give the rows whose episodes have ended new envs, unless the order of a shared queue is not known yet."""
        answers = self._answers
        if answers.ended and (self._queues.are_own or not (answers.owed[answers.is_waiting()] == int(Op.STEP)).any()):
            self._swap(np.unique(answers.ended))

    def _swap(self, rows: Array) -> None:
        """Reset the envs of these rows, ascending, and give the rows to the first envs of their queues."""
        self._resets.send_ahead([(env_id, PLAIN) for env_id in self._queues.env_of[rows].tolist()])
        self._queues.swap(rows)
        self._answers.note_fresh(rows)

    def _replace_lost_answers(self) -> None:
        """Begin new episodes where an exception, such as Ctrl-C, has come between an answer's receipt and its storage.

        Rows whose answers were lost owe none.
        """
        is_idle = np.array([self._requests.owes(env_id) == Op.NONE for env_id in range(self._num_envs)])
        rows = np.flatnonzero(self._answers.is_waiting() & is_idle[self._queues.env_of])
        for env_id, reset in self._resets.take_lost(is_idle):
            self._reset_env(env_id, reset)
        rows = rows[~self._resets.is_ahead[self._queues.env_of[rows]]]
        if len(rows):
            self._answers.forget(rows)
            self._swap(rows)

    # ---- resets ----------------------------------------------------------------------------

    def reset(
        self,
        env_ids: Sequence[int] | Array | None,
        seeds: Sequence[int | None] | None,
        kwargs: Sequence[dict[str, Any] | None] | None,
        ordered: bool,
        seeds_per_env: int,
    ) -> None:
        """Reset rows; see `Pool.reset` and the class."""
        rows = self._check_request(Op.RESET, env_ids, ordered)
        check_count("reset", "seeds", seeds, len(rows))
        check_count("reset", "kwargs", kwargs, len(rows))
        resets = []
        for i in range(len(rows)):
            seed = None if seeds is None else seeds[i]
            number = None if seed is None else operator.index(seed)
            resets.append(Reset(number, seeds is not None, None if kwargs is None else kwargs[i]))
        is_served = self._answers.can_begin(rows) & np.array([reset.is_plain for reset in resets])
        begun = {int(rows[i]): resets[i] for i in np.flatnonzero(~is_served).tolist()}
        with signals_deferred():
            if begun:
                self._reset_rows(begun)
            self._answers.forget(rows)
            served = rows[is_served & ~self._answers.is_fresh[rows]]
            if len(served):
                self._swap(np.sort(served))
            self._note_request(Op.RESET, rows)

    def set_states(self, states: Sequence[GivenState], env_ids: Sequence[int] | Array, ordered: bool) -> None:
        """Put states into the envs of rows; see `Pool.set_states`. Spare envs stay as they are.

        Where another env has taken over a row whose episode is over, that env is the next spare one again, with the
        episode that it has begun. The row gets the env back that has ended.
        """
        rows = self._check_request(Op.RESET, env_ids, ordered)
        check_count("set_states", "states", states, len(rows))
        resets = {row: Reset(state=state) for row, state in zip(rows.tolist(), states)}
        with signals_deferred():
            self._queues.swap_back(np.sort(rows[self._answers.is_fresh[rows]]))
            self._reset_rows(resets)
            self._answers.forget(rows)
            self._note_request(Op.RESET, rows)

    def _reset_rows(self, resets: dict[int, Reset]) -> None:
        """Reset the envs of rows, and the spare envs that their resets concern."""
        begins = self._spares.reach_all_envs(resets)  # a run does not depend on earlier ones then
        env_of = self._all_rows if begins else self._queues.env_of
        by_env = {int(env_of[row]): reset for row, reset in resets.items()}
        is_ahead = self._resets.is_ahead
        self._resets.send([(env_id, reset) for env_id, reset in by_env.items() if not is_ahead[env_id]])
        # No argument is wrong, or nothing was sent.
        if begins:
            self._queues.begin()
        for env_id, reset in by_env.items():
            if is_ahead[env_id]:
                self._resets.postponed[env_id] = reset
            self._resets.has_first[env_id] = False
        self._answers.note_reset(resets)
        self._resets.send_ahead(self._spares.follow(resets, self._resets.was_reset))

    def _reset_env(self, env_id: int, reset: Reset) -> None:
        """Reset an env that owes nothing: for its row, if that waits for this reset, else ahead."""
        row = int(self._queues.row_of[env_id])
        if row < 0 or self._answers.is_fresh[row]:
            self._resets.send_ahead([(env_id, reset)])
        else:
            self._resets.send([(env_id, reset)])

    def cancel(self, env_ids: Sequence[int] | Array | None) -> None:
        """Cancel the outstanding operations of rows; see `Pool.cancel`. Resets that were sent ahead still run."""
        rows = self._read_rows("cancel", env_ids)
        for row in rows[self._answers.is_waiting()[rows]].tolist():
            env_id = int(self._queues.env_of[row])
            if self._resets.postponed.pop(env_id, None) is not None:  # it was not sent
                self._answers.note_fresh(np.array([row]))
            else:
                self._requests.cancel([env_id])
        self._answers.forget(rows)

    def outstanding(self) -> int:
        return len(self._answers.order)

    def owes(self, env_id: int) -> Op:
        return Op(int(self._answers.owed[env_id]))

    # ---- states of single envs -----------------------------------------------------------------

    def check_idle(self, what: str, env_ids: Sequence[int] | Array, *, is_reset: bool) -> None:
        for row in map(int, env_ids):
            if self.owes(row) != Op.NONE:
                refuse_busy_env(what, row, self.owes(row))
            if is_reset and not self._resets.was_reset[self._queues.env_of[row]]:
                raise ResetNeededError(f"{what}: env {row} was never reset; call reset first")

    def envs_of(self, env_ids: Sequence[int] | Array) -> list[int]:
        """Return the envs that serve rows."""
        envs: list[int] = self._queues.env_of[np.asarray(env_ids, np.int64)].tolist()
        return envs

    def replace_begun(self, row: int, state: SavedEnv, obs: list[Array]) -> tuple[SavedEnv, list[Array]]:
        """Return the state and the last observation of a row, given those of the env that serves it.

        An env that has begun an episode ahead has taken over a row whose episode is over. The row then has the end of
        the old episode, with the generators of this env.

        Raises:
            StateError: the episode of the row was lost.
        """
        if not self._answers.is_fresh[row]:
            return state, obs
        if self._is_same_step:
            raise StateError(f"get_states: env {row}: its episode was lost by an exception; step or reset it first")
        return self._answers.end_of(row, state)

    # ---- saving ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Receive and keep the answers to all commands that envs have been sent."""
        while count := self._num_outstanding():
            self._receive(count, Deadline(None))

    def save(self) -> SavedSpares:
        """Return a copy of the state, which can be pickled if the infos can."""
        parts = tuple({name: vars(part)[name] for name in part.SAVED} for part in self._parts())
        return copy.deepcopy(SavedSpares(parts, self._waiter.inbox.infos.columns))

    def load(self, saved: SavedSpares) -> None:
        """Continue where `save` was called; called once, before any request."""
        self._waiter.inbox.infos.load(saved.infos, self._add_info_key)
        for part, state in zip(self._parts(), saved.parts):
            vars(part).update(state)

    def _parts(self) -> tuple[SpareQueues, RowAnswers, EnvResets]:
        return self._queues, self._answers, self._resets

    # ---- calls -----------------------------------------------------------------------------

    def submit_calls(
        self,
        functions: Sequence[Callable[[Any], Any]],
        env_ids: Sequence[int] | Array | None,
        pure: bool,
        name: str | None,
    ) -> None:
        """Begin calls of the envs that serve rows; see `Pool.submit_calls`.

        Without `env_ids`, spare envs are called too, unless the function is `pure`: env N + j with the function of row
        j % N. With `env_ids`, so are the own spare envs of these rows; shared ones serve all rows. A call waits for a
        reset of its env that is under way. Only the results of rows are returned.
        """
        rows = self._read_rows("call", env_ids)
        check_count("call", "functions", functions, len(rows))
        envs, asked = self._queues.env_of[rows].tolist(), list(functions)
        if not pure and (env_ids is None or self._queues.are_own):
            function_of = dict(zip(rows.tolist(), functions))
            for env_id in np.flatnonzero(self._queues.row_of < 0).tolist():
                row = env_id % self._num_rows
                if row in function_of:
                    envs.append(env_id)
                    asked.append(function_of[row])
        self._requests.submit_calls(asked, envs, pure, name)
        self._num_called = len(rows)

    def results_of(self, replies: Sequence[Reply]) -> list[Any]:
        """Return the results of rows; see `Requests.results_of`."""
        return self._requests.results_of(replies)[: self._num_called]
