"""Results: turns one batch of the pool into the arrays and infos that a step of VectorEnv returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import concatenate, create_empty_array

from ..core.layout.flags import RowFlag
from ..core.layout.rows import RowRange
from ..core.layout.spec import Array, Leaf
from ..core.parent.batch import Batch
from ..core.pool.pool import Pool
from ..errors import ClosedError, StateError
from .infos import InfoReader, add_statistics, spread_infos
from .nested import merge, own, row_of, view

__all__ = ["ConcatenatedResults", "Results", "Step", "concatenate_rows"]

Step = tuple[Any, Array, Array, Array, dict[str, Any]]
#: Observations, rewards, terminations, truncations, env ids, and (returns, lengths, seconds) of a batch's episodes.
_Views = tuple[Any, Array, Array, Array, Array, tuple[Array, ...]]

_EXTRA_FLAGS = RowFlag.INFO | RowFlag.MESSAGE | RowFlag.FINAL | RowFlag.ERROR
#: Columns of the results of every step.
_COLUMNS = ("reward", "terminated", "truncated", "env_id")
#: Largest number of row ranges whose views are cached; a ring has fewer blocks.
_MAX_VIEWS = 64
_CLOSED = "a signal handler has closed the vector env during this call"


class Results:
    """Turns batches into the results of `step`, and keeps the last observations.

    Args:
        space: the observation space of env 0.
        copy: whether results belong to the caller (True) or are views of the ring (False).
        tracks_ends: whether to keep `ended`.
        has_statistics: whether to add statistics of ended episodes to the infos.

    Attributes:
        ended: bool (N,), True where an env's episode is over; None if ends are not tracked.
    """

    def __init__(
        self, pool: Pool, reader: InfoReader, space: Space[Any], copy: bool, tracks_ends: bool, has_statistics: bool
    ) -> None:
        self._infos = reader
        self._space = space
        self._copy = copy
        self.has_statistics = has_statistics
        reward_shape = pool.spaces.reward_shape
        self._returns = _EpisodeReturns(pool.num_envs, reward_shape) if has_statistics and reward_shape else None
        self._root = pool.obs_spec.root
        self._is_plain = isinstance(self._root, Leaf)
        self._has_objects = pool.obs_spec.num_objects > 0
        self._num_envs = pool.num_envs
        # To slice a block's columns costs as much as to copy them, so the views are cached per block.
        self._views: dict[Any, _Views] = {}
        self._leases = pool.lend(functools.partial(_make_views, has_statistics)) if copy else None
        self._copy_timer = pool.copy_timer
        self._last: Batch | _Merged | None = None
        self._last_ids: Array | None = None  # env ids of the batch that was delivered last, a view of the ring
        self.ended = np.zeros(pool.num_envs, np.bool_) if tracks_ends else None

    def deliver(self, batch: Batch) -> Step:
        """Return (obs, rewards, terminations, truncations, infos) of a batch of all envs, ordered by env_id.

        Of exceptions of several envs, that of the lowest env is raised.
        """
        flags = batch.flags & _EXTRA_FLAGS
        if flags & RowFlag.ERROR:
            self._raise_env_errors(batch, self._copy_known_obs(batch), self.deliver)
        self._last = batch
        views = self._views.get(batch.rows)
        if views is None:
            views = self._cached_views(batch)
        obs, rewards, terminations, truncations, env_ids, episode_counters = views
        self._last_ids = env_ids
        if self.ended is not None:
            self.ended[env_ids] = terminations | truncations
        infos = self._infos.read(batch) if flags else {}
        if self.has_statistics:
            if self._returns is not None:
                episode_counters = (self._returns.add(batch), *episode_counters[1:])
            add_statistics(infos, episode_counters, terminations | truncations)
        if not self._copy:
            return obs, rewards, terminations, truncations, infos
        lent = None if self._leases is None else self._leases.take(batch.rows)
        if lent is not None:
            cut = _rows_of(batch)
            obs, rewards, terminations, truncations, *_ = lent
            return view(self._root, obs, cut), rewards[cut], terminations[cut], truncations[cut], infos
        if self._copy_timer is None:
            obs = obs.copy() if self._is_plain else own(self._root, obs)
        else:
            obs = self._copy_timer.run(len(batch), own, self._root, obs)
        return obs, rewards.copy(), terminations.copy(), truncations.copy(), infos

    _deliver = deliver  # A subclass calls this for the unchanged results.

    @property
    def observations(self) -> Any:
        """A copy of the last observations of all envs; None if they are not known."""
        return self.copy_last_obs() if self.has_last_obs() else None

    def deliver_marked(self, batch: Batch) -> Step:
        """Deliver with `infos["autoreset"]`, bool (B,): rows that are no transitions."""
        if batch.flags & RowFlag.ERROR:
            self._raise_env_errors(batch, self._copy_known_obs(batch), self.deliver_marked)
        result = self.deliver(batch)
        result[4]["autoreset"] = batch.is_autoreset
        return result

    def _raise_env_errors(
        self, batch: Batch, last: _Merged | None, deliver: Callable[[Batch], Any], *, is_whole: bool = False
    ) -> None:
        """Keep the observations of the envs that did not raise, then raise the exception of the lowest env.

        Args:
            last: the observations of all envs before this batch, changed in place; None: they are not known.
            deliver: returns the results of a batch, for `error.rows`.
            is_whole: whether these results have a row for each env.
        """
        good = batch.take(np.flatnonzero((batch.row_flags & RowFlag.ERROR) == 0))
        if last is not None:
            last.obs = merge(self._root, last.obs, good.obs, good.env_ids)
            last.unknown -= set(good.env_ids.tolist())
        ended = None if self.ended is None else self.ended.copy()
        try:
            batch.raise_errors(deliver, num_rows=self._num_envs if is_whole else 0)
        finally:
            self._last = last
            if self.ended is not None and ended is not None:
                ended[good.env_ids] = good.terminated | good.truncated
                self.ended[:] = ended

    def own_obs(self, batch: Batch) -> Any:
        """Return observations of a batch that belong to the caller: lent if a lease is free, else copied."""
        lent = None if self._leases is None else self._leases.take(batch.rows)
        if lent is not None:
            return view(self._root, lent[0], _rows_of(batch))
        if self._copy_timer is None:
            return own(self._root, batch.obs)
        return self._copy_timer.run(len(batch), own, self._root, batch.obs)

    def deliver_some(self, batch: Batch, marks_autoreset: bool) -> Step:
        """Return the results of a batch of any rows, with `infos["env_id"]`, int64 (B,), and maybe "autoreset"."""
        if batch.flags & RowFlag.ERROR:
            deliver = functools.partial(self.deliver_some, marks_autoreset=marks_autoreset)
            self._raise_env_errors(batch, None, deliver)
        result = self.deliver_marked(batch) if marks_autoreset else self.deliver(batch)
        self._last = None  # the rows of this batch are not those of all envs in order
        ids = self._last_ids
        if ids is None:
            raise ClosedError(_CLOSED)
        result[4]["env_id"] = ids.copy() if self._copy else ids
        return result

    def forget_last(self, has_ended: Array, returns: Array | float) -> None:
        """Forget the last observations: the envs were stepped elsewhere, in their shards.

        `has_ended`: bool (N,), ended episodes. `returns`: rewards of the current ones, float64 (N, *K), or NaN.
        """
        self._last = None
        if self._returns is not None:
            self._returns.set(returns)
        if self.ended is not None:
            self.ended[:] = has_ended

    def save(self) -> dict[str, Any]:
        """Return the values that the next results depend on, as `load` takes them."""
        last = self._last
        unknown = last.unknown if isinstance(last, _Merged) else frozenset()
        return {
            "last": None if last is None else (own(self._root, last.obs), unknown),
            "ended": self.ended,
            "returns": None if self._returns is None else self._returns.sums,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue with the values that `save` has returned."""
        self._last = None if saved["last"] is None else _Merged(*saved["last"])
        if self.ended is not None and saved["ended"] is not None:
            self.ended[:] = saved["ended"]
        if self._returns is not None:
            self._returns.set(np.nan if saved["returns"] is None else saved["returns"])

    def release_views(self) -> None:
        """Drop all views of the ring. No other method may be called after this."""
        self._views.clear()
        self._leases = None
        self._last = self._last_ids = None

    def _cached_views(self, batch: Batch) -> _Views:
        rows, views = batch.rows, _make_views(self.has_statistics, batch)
        is_whole_block = type(rows) is RowRange and rows.count == self._num_envs
        if is_whole_block and not self._has_objects and len(self._views) < _MAX_VIEWS:
            self._views[rows] = views
        return views

    def check_not_ended(self, what: str, env_ids: Any) -> None:
        """Raise StateError if an episode of these envs is over. Does nothing unless ends are tracked."""
        if self.ended is None or not self.ended.any():
            return
        asked = np.arange(self._num_envs) if env_ids is None else np.ravel(env_ids)
        if asked.dtype.kind not in "iu":
            return  # the pool raises a better error for these
        over = [env_id for env_id in asked.tolist() if 0 <= env_id < self._num_envs and self.ended[env_id]]
        if over:
            raise StateError(
                f"{what}: the episodes of envs {over} are over and autoreset_mode is DISABLED; first reset them with "
                "options={'reset_mask': terminations | truncations}"
            )

    # ---- resets of some envs ----------------------------------------------------------------

    def has_last_obs(self, env_ids: Array | None = None) -> bool:
        """Return whether the last observation of every env is known; those of `env_ids` are not required."""
        if isinstance(self._last, _Merged) and self._last.unknown:
            return env_ids is not None and self._last.unknown <= set(env_ids.tolist())
        return self._last is not None

    def copy_last_obs(self) -> Any:
        """Return a copy of the last observations of all envs. Requires `has_last_obs()`."""
        last = self._last
        if last is None:
            raise ClosedError(_CLOSED)
        return own(self._root, last.obs)

    def _copy_known_obs(self, batch: Batch) -> _Merged:
        """Return a copy of the last observations, for `_raise_env_errors` to update from a batch of all envs."""
        last = self._last
        if last is None or (isinstance(last, Batch) and not last.is_valid()):
            return _Merged(own(self._root, batch.obs), frozenset(range(self._num_envs)))
        return _Merged(own(self._root, last.obs), last.unknown if isinstance(last, _Merged) else frozenset())

    def deliver_into(self, last: Any, batch: Batch, env_ids: Array) -> tuple[Any, dict[str, Any]]:
        """Return (obs, infos) of all envs: the rows of the batch, and the last observations of the other envs.

        Args:
            last: the result of `copy_last_obs` from before the batch was received; changed in place.
            batch: one row per env of `env_ids`, int64 (B,), in this order.
        """
        if batch.flags & RowFlag.ERROR:
            unknown = self._last.unknown if isinstance(self._last, _Merged) else frozenset()
            merged = _Merged(own(self._root, last), unknown)
            deliver = functools.partial(self.deliver_into, last, env_ids=env_ids)
            self._raise_env_errors(batch, merged, deliver, is_whole=True)
        obs, _, _, _, infos = self._deliver(batch)
        obs = merge(self._root, last, obs, env_ids)
        self._last = _Merged(obs)
        return own(self._root, obs) if self._copy else obs, spread_infos(infos, env_ids, self._num_envs)

    def deliver_states(self, last: Any, batch: Batch, env_ids: Array, returns: list[Array]) -> Any:
        """Return the observations (B, *S) of envs into which states were put.

        Args:
            last: the last observations of all envs from before, changed in place; None: they are not known.
            batch: one row per env of `env_ids`, int64 (B,), in this order.
            returns: the sum of rewards of each state, float64 (*K).
        """
        if batch.flags & RowFlag.ERROR:
            known = None if last is None else _Merged(last)
            deliver = functools.partial(self.deliver_states, None, env_ids=env_ids, returns=returns)
            self._raise_env_errors(batch, known, deliver)
        obs = self._deliver(batch)[0]
        self._last = None if last is None else _Merged(merge(self._root, last, obs, env_ids))
        if self._returns is not None:
            self._returns.sums[env_ids] = returns
        return own(self._root, obs) if self._copy else obs

    @property
    def returns(self) -> Array | None:
        """The sum of rewards of each env's episode, float64 (N, *K); None if the envs add them up."""
        return None if self._returns is None else self._returns.sums


class ConcatenatedResults(Results):
    """Results whose observations Gymnasium's `concatenate` batches, for spaces with functions of the caller."""

    def deliver(self, batch: Batch) -> Step:
        obs, *others = self._deliver(batch)
        return concatenate_rows(self._space, obs, len(batch)), *others

    def deliver_into(self, last: Any, batch: Batch, env_ids: Array) -> tuple[Any, dict[str, Any]]:
        obs, infos = super().deliver_into(last, batch, env_ids)
        return concatenate_rows(self._space, obs, self._num_envs), infos

    def deliver_states(self, last: Any, batch: Batch, env_ids: Array, returns: list[Array]) -> Any:
        return concatenate_rows(self._space, super().deliver_states(last, batch, env_ids, returns), len(env_ids))

    @property
    def observations(self) -> Any:
        obs = super().observations
        return None if obs is None else concatenate_rows(self._space, obs, self._num_envs)


class _EpisodeReturns:
    """Adds up the rewards of each env; workers do so only for rewards of one number. K is the shape of one reward."""

    def __init__(self, num_envs: int, reward_shape: tuple[int, ...]) -> None:
        self.sums = np.full((num_envs, *reward_shape), np.nan)  # unknown before the first reset

    def add(self, batch: Batch) -> Array:
        """Add the rewards of a batch; return the sums of its rows' episodes, float64 (B, *K).

        Each delivered batch has to be added exactly once, in the order of delivery.
        """
        env_ids, flags = batch.env_ids, batch.row_flags
        sums: Array = self.sums[env_ids]
        is_first = (flags & (RowFlag.RESET | RowFlag.AUTORESET)) != 0
        sums[is_first] = 0.0
        is_step = ~is_first & ((flags & RowFlag.ERROR) == 0)
        sums[is_step] += batch.rewards[is_step]
        self.sums[env_ids] = sums
        self.sums[env_ids[(flags & RowFlag.FINAL) != 0]] = 0.0  # the same step began the next episode
        return sums

    def set(self, sums: Array | float) -> None:
        """Set the sums of all envs, float64 (N, *K); NaN: they are unknown until the next episode."""
        self.sums[:] = sums


def concatenate_rows(space: Space[Any], obs: Any, count: int) -> Any:
    """Return the batch that Gymnasium's `concatenate` makes of the `count` rows of nested observations."""
    rows = [row_of(space, obs, row) for row in range(count)]
    empty: Any = create_empty_array(space, count)
    return concatenate(space, rows, empty)


def _make_views(has_statistics: bool, batch: Batch) -> _Views:
    rewards, terminated, truncated, env_ids = [column[:] for column in batch.rows.columns_of(_COLUMNS)]
    episode_counters = (batch.returns, batch.lengths, batch.seconds) if has_statistics else ()
    return batch.obs, rewards, terminated, truncated, env_ids, episode_counters


def _rows_of(batch: Batch) -> slice:
    """Return the rows of its block that a lent batch covers."""
    assert isinstance(batch.rows, RowRange)
    return slice(batch.rows.start, batch.rows.stop)


@dataclass
class _Merged:
    """Last observations merged from several batches, in place of a `Batch`; rows of `unknown` envs are undefined."""

    obs: Any
    unknown: frozenset[int] = frozenset()
