"""Columns: the arrays of a batch that is being filled, and the transitions made of them.

    row          0 ... M - 1                M
    rewards      | transition | ... |       | unused: rows that are no transitions are written here |
    obs          | transition | ... |

The observation after a step is stored once: as `obs` of the next transition of its env, among the final observations,
or as the current observation in the progress. `next_obs` is put together from these parts when it is read.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.layout.spec import Array, Spec
from ..errors import SpaceError
from ..policies import no_objects
from .progress import ObsColumns, Progress
from .transitions import Transitions

__all__ = ["UNUSED_ROW", "Columns"]

#: Index of the row for results that are no transitions: the last one, also after `Columns.grow`.
UNUSED_ROW = -1
#: Bytes of a row beside its observation, action and reward: three flags, env id.
ROW_NBYTES = 11
#: Attributes of `Columns` that stay in its process.
_LOCAL = ("_obs_columns", "_action_spec", "_episodes", "_steps", "_returns")


class Columns:
    """The columns of one batch, with M rows for transitions; `grow` adds some.

    A pickle of them is for `put_part` in another process only.

    Args:
        has_bootstrap: whether there is a column of the policy's estimates.
        has_data: whether there are observations and actions; see `drop_data`.

    Attributes:
        obs: one array (M, *S) per column of observations, see `ObsColumns`.
        actions: one array (M, *S) per leaf.
        rewards: float64 (M + 1, *K); row M is for rows that are no transitions.
        terminated, truncated: bool (M + 1,).
        lost: bool (M + 1,); False until it is set.
        env_ids: int64 (M,); -1 in rows that are not used yet.
        extras: arrays (M, ...) by name; empty before the first answer of the policy.
        bootstrap: float (M, *K); None without estimates.
    """

    def __init__(
        self, progress: Progress, action_spec: Spec, num_rows: int, has_bootstrap: bool, *, has_data: bool = True
    ) -> None:
        self.num_rows = num_rows
        self._has_data = has_data
        self._obs_columns, self._action_spec = progress.obs_columns, action_spec
        self.obs = self._obs_columns.make_empty(num_rows) if has_data else []
        leaves = action_spec.leaves if has_data else []
        self.actions = [np.empty((num_rows, *leaf.shape), leaf.dtype) for leaf in leaves]
        self._reward_shape = progress.reward_shape
        self.rewards = np.empty((num_rows + 1, *progress.reward_shape))
        self.terminated = np.empty(num_rows + 1, np.bool_)
        self.truncated = np.empty(num_rows + 1, np.bool_)
        self.lost = np.zeros(num_rows + 1, np.bool_)
        self.env_ids = np.full(num_rows, -1)
        self.extras: dict[str, Array] = {}
        self.has_bootstrap = has_bootstrap
        self.bootstrap: Array | None = None
        self._has_answer = False
        self._final_rows: list[Array] = []
        self._final_obs: list[Sequence[Array]] = []  # leaves (K, *S) for each item of `_final_rows`
        self._episodes, self._steps = progress.episodes.copy(), progress.steps.copy()
        self._returns = progress.returns.copy()

    def grow(self, num_rows: int) -> None:
        """Make room for at least `num_rows` transitions."""
        size = max(num_rows, 2 * self.num_rows)

        def resized(column: Array, extra: int = 0) -> Array:
            larger = np.empty((size + extra, *column.shape[1:]), column.dtype)
            larger[: self.num_rows] = column[: self.num_rows]
            return larger

        self.obs, self.actions = [resized(leaf) for leaf in self.obs], [resized(leaf) for leaf in self.actions]
        self.rewards, self.env_ids = resized(self.rewards, 1), resized(self.env_ids)
        self.terminated, self.truncated = resized(self.terminated, 1), resized(self.truncated, 1)
        self.lost = resized(self.lost, 1)
        self.extras = {name: resized(column) for name, column in self.extras.items()}
        self.lost[self.num_rows :] = False
        self.env_ids[self.num_rows :] = -1
        self.num_rows = size

    def put_extras(self, rows: slice | Array, extras: dict[str, Array]) -> None:
        """Store the extra columns of a policy's answer; SpaceError if their form is not that of the first answer."""
        if not self._has_answer:
            self._has_answer = True
            for name, column in extras.items():
                self.extras[name] = np.empty((self.num_rows, *column.shape[1:]), column.dtype)
        if not extras and not self.extras:
            return
        if extras.keys() != self.extras.keys():
            expected, got = str(sorted(self.extras)), str(sorted(extras))
            raise SpaceError(f"extras of the policy: expected {expected}, got {got}", expected=expected, got=got)
        for name, column in extras.items():
            into = self.extras[name]
            if column.shape[1:] != into.shape[1:] or not np.can_cast(column.dtype, into.dtype, "same_kind"):
                expected, got = f"{into.dtype} {into.shape[1:]}", f"{column.dtype} {column.shape[1:]}"
                raise SpaceError(
                    f"extras of the policy: {name!r}: expected {expected} per row as before, got {got}",
                    path=name,
                    expected=expected,
                    got=got,
                )
            into[rows] = column

    def put_final_obs(self, rows: Array, obs: Sequence[Array]) -> None:
        """Store the final observations, leaves (K, *S), of transitions that ended their episode."""
        self._final_rows.append(rows)
        self._final_obs.append(obs)

    def put_bootstrap(self, rows: Array, values: Array) -> None:
        if self.bootstrap is None:
            dtype = values.dtype if values.dtype.kind == "f" else np.float64
            self.bootstrap = np.zeros((self.num_rows, *self._reward_shape), dtype)
        self.bootstrap[rows] = values

    def complete_rows(self, under_way: Array) -> Array:
        """Return the indices of rows that are used, without those whose results are under way."""
        used = np.flatnonzero(self.env_ids >= 0)
        return used[~np.isin(used, under_way)]

    def drop_data(self) -> None:
        """Drop observations, actions and extra columns; rewards, flags and env ids stay."""
        self._has_data = self._has_answer = False
        self.obs, self.actions, self.extras = [], [], {}
        self._final_rows, self._final_obs = [], []

    # ---- parts of a batch ------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _LOCAL}

    @property
    def nbytes(self) -> int:
        """The size of these columns in a message, about."""
        leaves = [*self.obs, *self.actions, *self.actions, *self.extras.values(), *itertools.chain(*self._final_obs)]
        return sum(array.nbytes for array in (*leaves, self.rewards)) + len(self.rewards) * ROW_NBYTES

    def put_part(self, part: Columns, first_column: int, num_columns: int, first_env_id: int) -> None:
        """Store the time-major columns of some envs in these, which are time-major, too, and have `num_columns` envs.

        The env 0 of `part` is column `first_column` and has the id `first_env_id`. Its arrays may be used without a
        copy. SpaceError: its extra columns do not fit those of an earlier part.
        """
        count = part.num_rows * num_columns // self.num_rows
        columns = slice(first_column, first_column + count)
        rows = np.arange(self.num_rows).reshape(-1, num_columns)[:, columns].ravel()
        if part._has_answer:
            if count == num_columns:
                self._has_answer, self.extras = True, part.extras
            else:
                self.put_extras(rows, part.extras)
        if count == num_columns:
            self.obs, self.actions = part.obs, part.actions
        else:
            for ours, theirs in zip((*self.obs, *self.actions), (*part.obs, *part.actions)):
                into = ours.reshape(-1, num_columns, *ours.shape[1:])
                into[:, columns] = theirs.reshape(-1, count, *theirs.shape[1:])
        for name in ("rewards", "terminated", "truncated", "lost"):
            ours, theirs = getattr(self, name)[:-1], getattr(part, name)[:-1]
            into = ours.reshape(-1, num_columns, *ours.shape[1:])
            into[:, columns] = theirs.reshape(-1, count, *theirs.shape[1:])
        ids = np.where(part.env_ids < 0, -1, part.env_ids + first_env_id)
        self.env_ids.reshape(-1, num_columns)[:, columns] = ids.reshape(-1, count)
        if part.bootstrap is not None:
            self.put_bootstrap(rows, part.bootstrap)
        for final_rows, leaves in zip(part._final_rows, part._final_obs):
            self.put_final_obs(np.where(final_rows < 0, UNUSED_ROW, rows[final_rows]), leaves)

    # ---- the result ------------------------------------------------------------------------

    def finish(self, progress: Progress, rows: Array | int, num_envs: int | None = None) -> Transitions:
        """Return the transitions, and count them in the progress of the envs, which is that after the batch.

        Args:
            rows: the number of transitions, or the indices of those that are complete.
            num_envs: N, for a time-major result; None for a flat one.
        """
        pick: Any = slice(rows) if isinstance(rows, int) else rows
        env_ids, rewards = self.env_ids[pick], self.rewards[:-1][pick]
        terminated, truncated = self.terminated[:-1][pick], self.truncated[:-1][pick]
        count = len(env_ids)
        by_env = _sort_by_env(env_ids, num_envs)
        episode, step, returns = self._count(progress, by_env, env_ids, rewards, terminated | truncated)
        ends = np.flatnonzero(terminated | truncated)

        shape = (count,) if num_envs is None else (count // num_envs, num_envs)
        obs = [leaf[pick] for leaf in self.obs]
        actions = [leaf[pick].reshape(*shape, *leaf.shape[1:]) for leaf in self.actions]
        current = [leaf.copy() for leaf in progress.obs]
        final_rows = self._final_rows
        if not isinstance(rows, int):
            place = np.full(self.num_rows + 1, -1, np.int64)  # row -> index in the result
            place[rows] = np.arange(count)
            final_rows = [place[some] for some in final_rows]
        finals = list(zip(final_rows, self._final_obs))
        make = functools.partial(_make_next_obs, self._obs_columns, shape, obs, by_env, env_ids, current, finals)
        make_next_obs = make if self._has_data else _no_data
        bootstrap = self.bootstrap
        if self.has_bootstrap and bootstrap is None:
            bootstrap = np.zeros((self.num_rows, *self._reward_shape))
        return Transitions(
            obs=self._obs_columns.nest_arrays(obs, shape) if self._has_data else None,
            actions=self._action_spec.batch(lambda leaf: actions[leaf.index], no_objects) if self._has_data else None,
            rewards=rewards.reshape(*shape, *self._reward_shape),
            terminated=terminated.reshape(shape),
            truncated=truncated.reshape(shape),
            lost=self.lost[:-1][pick].reshape(shape),
            env_id=env_ids.reshape(shape),
            step=step.reshape(shape),
            episode=episode.reshape(shape),
            extras={name: column[pick].reshape(*shape, *column.shape[1:]) for name, column in self.extras.items()},
            bootstrap=(
                None if bootstrap is None or num_envs is None else bootstrap.reshape(*shape, *self._reward_shape)
            ),
            episode_returns=returns[ends],
            episode_lengths=step[ends] + 1,
            _make_next_obs=make_next_obs,
        )

    def _count(self, progress: Progress, by_env: Array, env_ids: Array, rewards: Array, ends: Array) -> Sequence[Array]:
        """Return episode, step and return so far of each row, and update the counts of the progress.

        All are computed at once for the rows sorted by env, where the rows of one episode are consecutive.
        """
        episode, step = np.empty_like(by_env), np.empty_like(by_env)
        returns = np.empty((len(by_env), *self._reward_shape))
        if not len(by_env):
            return episode, step, returns
        sorted_ids, has_end = env_ids[by_env], ends[by_env]
        is_new_env = np.concatenate([[True], sorted_ids[1:] != sorted_ids[:-1]])
        is_start = is_new_env.copy()
        is_start[1:] |= has_end[:-1]
        # There are fewer parts of episodes than rows: these arrays have one value per part.
        starts = np.flatnonzero(is_start)
        lengths = np.diff(starts, append=len(by_env))
        ids, is_first = sorted_ids[starts], is_new_env[starts]  # The first part may have begun in an earlier batch.
        part = np.arange(len(starts))
        episodes = self._episodes[ids] + part - np.maximum.accumulate(np.where(is_first, part, 0))
        steps_before = np.where(is_first, self._steps[ids], 0)
        sums = np.add.reduceat(rewards[by_env], starts)
        sums[is_first] += self._returns[ids[is_first]]

        step[by_env] = np.arange(len(by_env)) + np.repeat(steps_before - starts, lengths)
        episode[by_env] = np.repeat(episodes, lengths)
        returns[by_env] = np.repeat(sums, lengths, 0)  # The return of the whole part is in each of its rows.
        lasts = np.flatnonzero(np.concatenate([is_first[1:], [True]]))
        over = has_end[starts[lasts] + lengths[lasts] - 1]
        ids = ids[lasts]
        progress.episodes[ids] = episodes[lasts] + over
        progress.steps[ids] = np.where(over, 0, steps_before[lasts] + lengths[lasts])
        progress.returns[ids] = sums[lasts]
        progress.returns[ids[over]] = 0.0
        return episode, step, returns


def _no_data() -> None:
    """Return the observations of columns without data."""


def _sort_by_env(env_ids: Array, num_envs: int | None) -> Array:
    """Return the indices of rows sorted by env, in their order for each env; with `num_envs`, rows are time-major."""
    by_env: Array
    if num_envs is not None:
        by_env = np.arange(len(env_ids)).reshape(-1, num_envs).T.ravel()
        return by_env
    is_short = not len(env_ids) or env_ids.max() < 1 << 16  # short integers are sorted in linear time
    by_env = np.argsort(env_ids.astype(np.uint16) if is_short else env_ids, kind="stable")
    return by_env


def _make_next_obs(
    obs_columns: ObsColumns,
    shape: tuple[int, ...],
    obs: Sequence[Array],
    by_env: Array,
    env_ids: Array,
    current: Sequence[Array],
    finals: Sequence[tuple[Array, Sequence[Array]]],
) -> Any:
    """Return the observations after each transition, with the leading shape `shape`.

    Args:
        obs: columns (B, *S), the observations before each transition.
        by_env: int64 (B,), indices of the transitions sorted by env, in their order for each env.
        current: columns (N, *S), the observations after the last transition of each env.
        finals: pairs of the indices of transitions that ended an episode, and the columns of their final observations.
    """
    sorted_ids = env_ids[by_env]
    has_no_next = np.ones(len(by_env), np.bool_)
    has_no_next[:-1] = sorted_ids[1:] != sorted_ids[:-1]
    lasts = by_env[has_no_next]
    next_of = np.empty(len(by_env), np.int64)
    next_of[by_env] = np.roll(by_env, -1)
    found = []
    for number, leaf in enumerate(obs):
        after = leaf.take(next_of, 0)
        after[lasts] = current[number][env_ids[lasts]]
        for rows, leaves in finals:
            after[rows] = leaves[number]
        found.append(after)
    return obs_columns.nest_arrays(found, shape)
