"""Plans: which envs step next, and in which rows of a batch their transitions go.

    FlatPlan        exactly B transitions, one round after the other
    TimeMajorPlan   exactly T transitions of each of N envs; row t * N + env_id
    EpisodePlan     K whole episodes, one round after the other

The `BatchFiller` asks a plan once per round. Ids are int64 arrays.
"""

from __future__ import annotations

import abc

import numpy as np

from ..core.layout.spec import Array

__all__ = ["EpisodePlan", "FlatPlan", "Plan", "TimeMajorPlan"]

_NONE = np.empty(0, np.int64)


class Plan(abc.ABC):
    """Base of plans. `num_rows` is the number of rows placed so far."""

    num_rows = 0

    @abc.abstractmethod
    def choose(self, ready: Array, is_fresh: Array) -> Array | None:
        """Choose among envs whose observations are known those that step now.

        Args:
            ready: ids of these envs.
            is_fresh: bool (N,), envs at the beginning of an episode.

        Returns:
            Indices into `ready`; None for all.
        """

    @abc.abstractmethod
    def choose_resets(self, ended: Array) -> Array:
        """Return those of the envs whose episode has ended that begin the next one in this batch."""

    def place(self, env_ids: Array) -> slice | Array:
        """Return the rows of the next transitions of these envs, which are now under way."""
        start = self.num_rows
        self.num_rows += len(env_ids)
        return slice(start, self.num_rows)

    def end(self, env_ids: Array) -> None:  # noqa: B027  # two of three plans need no record
        """Record that episodes of these envs have ended."""


class FlatPlan(Plan):
    """Exactly `num_steps` transitions.

    If the last round has more envs than rows are left, only some step: those after env `first - 1`, modulo N.

    Attributes:
        first: the env that steps next.
    """

    def __init__(self, num_envs: int, num_steps: int, first: int) -> None:
        self.first = first
        self._num_envs = num_envs
        self._num_steps = num_steps

    def choose(self, ready: Array, is_fresh: Array) -> Array | None:
        left = self._num_steps - self.num_rows
        if len(ready) <= left:
            return None
        if not left:
            return _NONE
        chosen = np.argsort((ready - self.first) % self._num_envs, kind="stable")[:left]
        self.first = int(ready[chosen[-1]] + 1) % self._num_envs
        return np.sort(chosen)

    def choose_resets(self, ended: Array) -> Array:
        return ended if self.num_rows < self._num_steps else _NONE


class TimeMajorPlan(Plan):
    """Exactly `num_rounds` transitions of each env; an env that has them waits for the others."""

    def __init__(self, num_envs: int, num_rounds: int) -> None:
        self._num_envs = num_envs
        self._num_rounds = num_rounds
        self._counts = np.zeros(num_envs, np.int64)  # transitions of each env
        self._num_calls = 0  # calls of `place`; no count is larger
        self._is_uniform = True  # all envs have the same count

    def choose(self, ready: Array, is_fresh: Array) -> Array | None:
        if self._num_calls < self._num_rounds:
            return None
        return np.flatnonzero(self._counts[ready] < self._num_rounds)

    def choose_resets(self, ended: Array) -> Array:
        return ended[self._counts[ended] < self._num_rounds]

    def place(self, env_ids: Array) -> slice | Array:
        self.num_rows += len(env_ids)
        self._num_calls += 1
        if self._is_uniform and len(env_ids) == self._num_envs:
            self._counts += 1
            return slice(self.num_rows - self._num_envs, self.num_rows)
        self._is_uniform = False
        counts = self._counts[env_ids]
        self._counts[env_ids] = counts + 1
        return counts * self._num_envs + env_ids


class EpisodePlan(Plan):
    """The first `num_episodes` episodes that begin, each from its first transition to its last."""

    def __init__(self, num_envs: int, num_episodes: int) -> None:
        self._left = num_episodes  # episodes that have not begun
        self._is_running = np.zeros(num_envs, np.bool_)  # the current episode of the env counts

    def choose(self, ready: Array, is_fresh: Array) -> Array | None:
        is_running = self._is_running[ready]
        if is_running.all():
            return None
        starting = np.flatnonzero(~is_running & is_fresh[ready])[: self._left]
        self._left -= len(starting)
        self._is_running[ready[starting]] = True
        return np.flatnonzero(self._is_running[ready])

    def choose_resets(self, ended: Array) -> Array:
        starting = ended[: self._left]
        self._left -= len(starting)
        self._is_running[starting] = True
        return starting

    def end(self, env_ids: Array) -> None:
        self._is_running[env_ids] = False
