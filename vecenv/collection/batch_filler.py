"""BatchFiller: fills one batch, round by round.

    observations of a group of envs -- policy --> actions -- send --> ... -- receive --> rows of the batch

In lockstep, the group is all envs. With overlap there are two fixed groups: the policy computes the actions of one
while the other one steps. By finish order, the envs of each receive are the next group.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from ..core.layout.spec import Array
from ..errors import StateError, add_notes, take_rows
from ..policies import PolicyCaller, no_objects
from ..vector import VectorEnv
from ..vector.shard_envs import ShardEnvs
from .columns import UNUSED_ROW, Columns
from .interrupts import DelayedInterrupts
from .plans import Plan
from .progress import SAME_POLICY, Progress

__all__ = ["BatchFiller"]

_NO_IDS = np.empty(0, np.int64)


class BatchFiller:
    """Fills one batch of `columns` from envs with the known `progress`; `plan` decides which transitions go where.

    Attributes:
        is_consistent: whether the progress is that of the envs, apart from results under way.
    """

    def __init__(
        self,
        envs: VectorEnv | ShardEnvs,
        policy: PolicyCaller,
        progress: Progress,
        plan: Plan,
        columns: Columns,
        interrupts: DelayedInterrupts,
    ) -> None:
        self._envs = envs
        self._policy = policy
        self._progress = progress
        self._plan = plan
        self._columns = columns
        self._interrupts = interrupts
        mode = AutoresetMode(envs.metadata["autoreset_mode"])
        self._is_next_step, self._is_same_step = mode == AutoresetMode.NEXT_STEP, mode == AutoresetMode.SAME_STEP
        self._num_envs = envs.num_envs
        self._all_ids = np.arange(envs.num_envs)
        self._obs_columns = progress.obs_columns
        self._rows = np.full(envs.num_envs, UNUSED_ROW)  # the row for the transition of each env that is under way
        self._all_actions = policy.spec.batch(lambda leaf: progress.actions[leaf.index], no_objects)
        self._is_whole_step = False  # the request under way is a step of all envs, sent when it is received
        self._cut_rows: list[tuple[Array, Array, Sequence[Array]]] = []  # rows, env ids and observations to estimate
        self.is_consistent = True

    @property
    def incomplete_rows(self) -> Array:
        """Rows of the batch whose results have not arrived, int64."""
        rows: Array = self._rows[self._rows != UNUSED_ROW]
        return rows

    def settle(self, error: BaseException) -> None:
        """Receive the results under way after an exception, and leave the progress as it is then."""
        has_raised = not self.is_consistent and self._store_others(error)  # else the policy has raised
        while self.is_consistent:
            try:
                self.finish_requests()
                break
            except Exception as other:
                add_notes(error, [f"waiting for the steps under way raised {type(other).__name__}: {other}"])
                has_raised |= self._store_others(other)
        self.is_consistent = self.is_consistent and not has_raised
        if not self.is_consistent:
            self.keep_obs_under_way()

    def _store_others(self, error: BaseException) -> bool:
        """Store the results of the envs that did not raise an exception of an env; return whether it is one."""
        found = take_rows(error)
        if found is None:
            return False
        obs, rewards, terminated, truncated, infos = found.result
        env_ids: Array = infos.get("env_id", self._all_ids)
        raised = env_ids[~found.mask]
        rows = self._rows[raised]  # their transitions stay incomplete
        self._rows[raised] = UNUSED_ROW
        leaves = self._store(env_ids, obs, rewards, terminated, truncated, infos)
        self._keep_obs(env_ids, leaves, np.arange(len(env_ids)))
        self._rows[raised] = rows
        return True

    def keep_obs_under_way(self) -> None:
        """Copy the observations before incomplete transitions to the progress: they follow complete ones."""
        env_ids = np.flatnonzero(self._rows != UNUSED_ROW)
        for current, column in zip(self._progress.obs, self._columns.obs):
            current[env_ids] = column[self._rows[env_ids]]

    # ---- orders of rounds --------------------------------------------------------------------

    def run_ordered(self, *, overlap: bool) -> None:
        """Fill the batch, in rows that depend on the seed only; with `overlap` in groups of even and of odd envs."""
        if overlap and self._num_envs > 1:
            self._run_groups([self._all_ids[first::2] for first in (0, 1)])
        else:
            self._run_lockstep()

    def _run_lockstep(self) -> None:
        """Fill the batch; each round waits for all envs."""
        self._begin_run()
        sent = self._send(self._all_ids, self._progress.obs, self._all_ids, is_lockstep=True)
        while len(sent):
            if self._is_whole_step:
                leaves = self._store(None, *self._envs.step(self._all_actions))
                sent = self._send(self._all_ids, leaves, self._all_ids, is_lockstep=True)
            else:
                got, leaves = self._receive(len(sent))
                order = np.argsort(got)
                sent = self._send(got[order], leaves, order, is_lockstep=True)

    def _run_groups(self, groups: Sequence[Array]) -> None:
        """Fill the batch; the groups take turns, and each one waits for its own envs."""
        self._begin_run()
        group_of = np.empty(self._num_envs, np.int64)
        for number, group in enumerate(groups):
            group_of[group] = number
        num_owed = np.zeros(len(groups), np.int64)
        under_way: deque[tuple[int, Array]] = deque()

        def send(number: int, candidates: Array) -> None:
            sent = np.sort(self._send(candidates, self._progress.obs, candidates))
            num_owed[number] = len(sent)
            if len(sent):
                under_way.append((number, sent))

        for number, group in enumerate(groups):
            send(number, group)
        while under_way:
            number, group = under_way.popleft()
            while num_owed[number]:
                got = self._receive_into_progress(int(num_owed[number]))
                num_owed -= np.bincount(group_of[got], minlength=len(groups))
            send(number, group)

    def run_by_finish(self, min_count: int) -> None:
        """Fill the batch; each round has the envs that finished, at least `min_count`, or all that still step."""
        self._begin_run()
        self._send(self._all_ids, self._progress.obs, self._all_ids)
        while num_owed := self._envs.num_outstanding:
            got, leaves = self._receive(min(min_count, num_owed))
            order = np.argsort(got)
            self._send(got[order], leaves, order)

    def finish_requests(self) -> None:
        """Wait for the steps and resets under way and store their results; nothing is sent."""
        while num_owed := self._envs.num_outstanding:
            self._receive_into_progress(num_owed)

    def _begin_run(self) -> None:
        progress = self._progress
        if progress.policy is SAME_POLICY:
            progress.policy = self._policy.policy
        if progress.policy != self._policy.policy:  # a new policy has no state for episodes that began without it
            self._policy.begin(np.flatnonzero(~progress.has_ended & ~progress.is_fresh))
            progress.policy = self._policy.policy

    # ---- parts of a round --------------------------------------------------------------------

    def _send(self, env_ids: Array, leaves: Sequence[Array], rows: Array, is_lockstep: bool = False) -> Array:
        """Begin the next step or reset of those of these envs that the plan chooses; return their ids.

        Args:
            leaves: observations, (K, *S).
            rows: int64, the row of each env in `leaves`; the same object as `env_ids` where they are equal.
            is_lockstep: whether no other env owes a result.
        """
        progress, plan = self._progress, self._plan
        resets = _NO_IDS
        ended = progress.has_ended if env_ids is self._all_ids else progress.has_ended[env_ids]
        if np.count_nonzero(ended):
            resets = plan.choose_resets(env_ids[ended])
            is_ready = ~ended
            ready_rows = rows[is_ready]
            env_ids = ready_rows if rows is env_ids else env_ids[is_ready]
            rows = ready_rows
        stepping = _NO_IDS
        try:
            if self._cut_rows:
                self._estimate_cut_episodes()
            chosen = plan.choose(env_ids, progress.is_fresh)
            if chosen is None:
                stepping = env_ids
                if len(stepping):
                    self._act(stepping, leaves, rows)
            else:
                self._keep_obs(env_ids, leaves, rows)
                stepping = env_ids[chosen]
                if len(stepping):
                    self._act(stepping, leaves, rows[chosen])
        except BaseException:  # an exception of the policy, such as Ctrl-C
            self._keep_obs(env_ids, leaves, rows)
            raise
        return self._request(stepping, resets, is_lockstep)

    def _keep_obs(self, env_ids: Array, leaves: Sequence[Array], rows: Array) -> None:
        """Copy observations that are not in the batch to the progress."""
        if leaves is not self._progress.obs:
            for current, leaf in zip(self._progress.obs, leaves):
                current[env_ids] = leaf[rows]

    def _act(self, env_ids: Array, leaves: Sequence[Array], rows: Array) -> None:
        columns, progress = self._columns, self._progress
        where = self._plan.place(env_ids)
        if isinstance(where, slice):
            if where.stop > columns.num_rows:
                columns.grow(where.stop)
            self._rows[env_ids] = np.arange(where.start, where.stop)
            obs = [column[where] for column in columns.obs]
            for view, leaf in zip(obs, leaves):
                if rows is self._all_ids:
                    view[...] = leaf
                else:
                    leaf.take(rows, 0, out=view, mode="clip")  # 'raise' would copy twice
        else:
            self._rows[env_ids] = where
            obs = [leaf.take(rows, 0) for leaf in leaves]
            for column, leaf in zip(columns.obs, obs):
                column[where] = leaf
        with self._policy_call():
            if self._policy.has_begin:
                self._policy.begin(env_ids[progress.is_fresh[env_ids]])
            actions, extras = self._policy.act(self._obs_columns.nest(obs), env_ids)
        columns.put_extras(where, extras)
        for column, last, leaf in zip(columns.actions, progress.actions, actions):
            column[where] = leaf
            last[env_ids] = leaf
        columns.env_ids[where] = env_ids
        progress.is_fresh[env_ids] = False

    @contextlib.contextmanager
    def _policy_call(self) -> Iterator[None]:
        """Let Ctrl-C take effect during a call of the policy, and refuse policies that step or reset the envs."""
        num_batches = self._envs.num_batches
        self._interrupts.allow()
        try:
            yield
        finally:
            self._interrupts.delay()
            self.is_consistent = self._envs.num_batches == num_batches
        if not self.is_consistent:
            raise StateError(
                "collect: the policy has stepped or reset the vector env that transitions are collected from; it needs "
                "a vector env of its own, for example to evaluate"
            )

    def _request(self, stepping: Array, resets: Array, is_lockstep: bool) -> Array:
        self.is_consistent = False
        asked = stepping
        if len(resets):
            asked = np.concatenate([stepping, resets])
            if self._is_next_step:  # a step whose action is ignored resets an env
                stepping = asked
            else:
                self._envs.async_reset(resets)
            self._progress.is_fresh[resets] = True
        self._is_whole_step = is_lockstep and len(stepping) == self._num_envs
        if len(stepping) and not self._is_whole_step:
            actions = self._progress.actions
            self._envs.send(self._policy.spec.batch(lambda leaf: actions[leaf.index][stepping], no_objects), stepping)
        self.is_consistent = not self._is_whole_step
        return asked

    def _receive(self, min_count: int) -> tuple[Array, Sequence[Array]]:
        self.is_consistent = False
        obs, rewards, terminated, truncated, infos = self._envs.recv(min_count)
        env_ids = infos["env_id"]
        return env_ids, self._store(env_ids, obs, rewards, terminated, truncated, infos)

    def _receive_into_progress(self, min_count: int) -> Array:
        env_ids, leaves = self._receive(min_count)
        self._keep_obs(env_ids, leaves, np.arange(len(env_ids)))
        return env_ids

    def _store(
        self, env_ids: Array | None, obs: Any, rewards: Array, terminated: Array, truncated: Array, infos: Any
    ) -> Sequence[Array]:
        """Store results of these envs (None: of all, in order); return the leaves of the observations."""
        columns, has_ended = self._columns, self._progress.has_ended
        leaves = self._obs_columns.flatten(obs, len(rewards))
        rows = self._rows if env_ids is None else self._rows[env_ids]
        columns.rewards[rows] = rewards  # rows that are no transitions have the index of the unused one
        columns.terminated[rows] = terminated
        columns.truncated[rows] = truncated
        done = terminated | truncated
        where = slice(None) if env_ids is None else env_ids
        if not self._is_same_step:
            has_ended[where] = done
        (ends,) = done.nonzero()
        if len(ends):
            ids = ends if env_ids is None else env_ids[ends]
            if self._is_same_step:
                final_obs = infos["final_obs" if "final_obs" in infos else "final_observation"]  # infos='legacy'
                final = self._obs_columns.stack(final_obs, ends)
                self._progress.is_fresh[ids] = True
            else:
                final = [leaf[ends] for leaf in leaves]
            columns.put_final_obs(rows[ends], final)
            end_infos = infos["final_info"] if self._is_same_step else infos
            if len(lost := _lost_rows(end_infos, ends)):
                columns.lost[rows[lost]] = True
            self._plan.end(ids)
            if columns.has_bootstrap:
                cut = np.flatnonzero(truncated[ends] & ~terminated[ends])
                if len(cut):
                    self._cut_rows.append((rows[ends[cut]], ids[cut], [leaf[cut] for leaf in final]))
        self._rows[where] = UNUSED_ROW
        self.is_consistent = True
        return leaves

    # ---- estimates of the policy -------------------------------------------------------------

    def _estimate_cut_episodes(self) -> None:
        """Store the policy's estimates after transitions that ended an episode without a terminal state."""
        with self._policy_call():
            while self._cut_rows:
                rows, env_ids, leaves = self._cut_rows[0]
                values = self._policy.bootstrap(self._obs_columns.nest(leaves), env_ids)
                self._columns.put_bootstrap(rows, values)
                del self._cut_rows[0]

    def estimate_last_rows(self) -> None:
        """Store the policy's estimates after the last transition of each env, for a time-major batch."""
        columns, last = self._columns, slice(self._columns.num_rows - self._num_envs, self._columns.num_rows)
        env_ids = np.flatnonzero(~(columns.terminated[last] | columns.truncated[last]))
        if len(env_ids):
            self._cut_rows.append((last.start + env_ids, env_ids, [leaf[env_ids] for leaf in self._progress.obs]))
            self._estimate_cut_episodes()


def _lost_rows(infos: Any, ends: Array) -> list[int]:
    """Return those of the rows `ends` whose episode could not be restored, by the infos of these ends."""
    if isinstance(infos, np.ndarray):  # infos='legacy' in SAME_STEP mode: a dict for each end
        marks: Any = {row: (infos[row] or {}).get("recovered") for row in ends.tolist()}
    elif not isinstance(marks := infos.get("recovered"), np.ndarray):  # else the envs may have a dict of this name
        return []
    return [row for row in ends.tolist() if str(marks[row]) == "truncated"]
