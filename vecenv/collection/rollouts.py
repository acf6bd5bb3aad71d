"""Rollouts: the shard's end of a `Collector` with where='shards': a policy, and T steps of the envs for each request.

RolloutRequest, weights -> policy, BatchFiller, TimeMajorPlan, Columns -> Rollout
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.layout.messages import pack_error
from ..core.layout.spec import Array
from ..core.shards.recorded_pool import RecordedPool
from ..core.shards.requests import PackedError
from ..errors import ConfigError, StateError
from ..policies import PolicyCaller
from ..values.pickling import dump_by_value, load_with_main
from ..vector.shard_envs import ShardEnvs
from .batch_filler import BatchFiller
from .columns import Columns
from .interrupts import DelayedInterrupts
from .plans import TimeMajorPlan
from .progress import Progress

__all__ = ["Rollout", "RolloutRequest", "Rollouts"]


@dataclass
class RolloutRequest:
    """A request for one rollout.

    Attributes:
        num_rounds: T, number of transitions of each env.
        progress: of the envs, as of `Progress.part`; None: as the last rollout left it.
        begins: whether the policy has not seen the episodes that the envs are in.
        state: pickled state for the policy, or None.
        sets_weights_first: whether weights are set before the state.
    """

    num_rounds: int
    progress: list[Array] | None
    begins: bool
    state: bytes | None
    sets_weights_first: bool


@dataclass
class Rollout:
    """The result of a request.

    Attributes:
        columns: the transitions; None if no env was stepped.
        progress: of the envs, after them; without meaning if no env was stepped.
        is_known: whether this is their progress: not after an exception of an env.
        state: pickled state of the policy, after them; None if it has no `get_state`.
        error: the exception that has ended the rollout, or None; then some transitions are missing.
    """

    columns: Columns | None
    progress: list[Array]
    is_known: bool
    state: bytes | None
    error: PackedError | None


class Rollouts:
    """Makes the rollouts of one shard.

    Args:
        make_policy: makes the policy; pickled, see `pickling.dump_with_main`.
        pool: of the shard.
        overlap: whether the policy and the envs work at the same time; see `collect`.
        returns_only: whether observations and actions stay in the shard; see `Collector`.
    """

    def __init__(self, make_policy: bytes, pool: RecordedPool, *, overlap: bool, returns_only: bool) -> None:
        self._pool = pool
        self._overlap, self._returns_only = overlap, returns_only
        self._envs = ShardEnvs(pool)
        make: Callable[[], Any] = load_with_main(make_policy)
        ids, shape = pool.first_env_id, pool.reward_shape
        self._policy = PolicyCaller(make(), pool.action_space, "Collector", first_env_id=ids, reward_shape=shape)
        self._progress = Progress(pool.num_envs, pool)

    def __call__(self, request: RolloutRequest, weights: Any) -> Rollout:
        """Make one rollout; an exception of the policy or of an env is part of the result.

        `weights` are pickled, for `set_weights` of the policy; None: they stay.
        """
        columns = error = state = None
        try:
            self._prepare(request, weights)
            columns, error = self._collect(request.num_rounds)
            if self._returns_only:
                columns.drop_data()
            get_state = getattr(self._policy.policy, "get_state", None)
            state = dump_by_value(get_state()) if callable(get_state) else None
        except BaseException as raised:  # also an exit: the collector raises it
            error = error or raised
        progress = self._progress
        self._pool.obs = progress.obs_columns.leaves_of(progress.obs)
        packed = None if error is None else pack_error(error)
        return Rollout(columns, progress.part(slice(None)), progress.is_known, state, packed)

    def _prepare(self, request: RolloutRequest, weights: Any) -> None:
        """Bring the progress and the policy to where the rollout begins."""
        progress = self._progress
        if request.progress is not None:
            progress.put_part(slice(None), request.progress)
            progress.is_known, progress.policy = True, None if request.begins else self._policy.policy
        elif not progress.is_known:
            raise StateError("the rollout before has failed in this shard, so this one was not made")
        try:
            self._set_policy(request, weights)
        except BaseException:
            progress.is_known = False  # Then a rollout that was requested before fails, too.
            raise

    def _set_policy(self, request: RolloutRequest, weights: Any) -> None:
        if request.sets_weights_first:
            self._set_weights(weights)
        if request.state is not None:
            self._policy.policy.set_state(pickle.loads(request.state))
        if not request.sets_weights_first:
            self._set_weights(weights)

    def _set_weights(self, weights: Any) -> None:
        if weights is None:
            return
        policy = self._policy.policy
        if not callable(getattr(policy, "set_weights", None)):
            raise ConfigError(
                f"set_weights: the policy that make_policy returned, a {type(policy).__name__}, has no method "
                "set_weights(weights)",
                key="make_policy",
            )
        policy.set_weights(pickle.loads(weights))

    def _collect(self, num_rounds: int) -> tuple[Columns, BaseException | None]:
        num_envs, progress = self._envs.num_envs, self._progress
        can_bootstrap = self._policy.can_bootstrap and not self._returns_only
        columns = Columns(progress, self._policy.spec, num_rounds * num_envs, can_bootstrap)
        plan = TimeMajorPlan(num_envs, num_rounds)
        filler = BatchFiller(self._envs, self._policy, progress, plan, columns, DelayedInterrupts())
        try:
            filler.run_ordered(overlap=self._overlap)
            if columns.has_bootstrap:
                filler.estimate_last_rows()
        except BaseException as error:
            filler.settle(error)
            if not filler.is_consistent:
                progress.is_known = False
                self._pool.finish()
            columns.env_ids[filler.incomplete_rows] = -1
            return columns, error
        return columns, None
