"""ShardWork: the driver's end of a `Collector` with where='shards': requests for rollouts, and batches made of them.

    progress, weights -> RolloutRequest -> shards -> Rollout of each shard -> Columns -> Transitions

The driver knows the state at the start of every rollout that has not arrived: the progress of the envs, and the state
of the policy. The engine restores the envs of a lost shard there, and the request is sent again with all of that.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..core.layout.messages import unpack_error
from ..core.layout.spec import Array, Spec
from ..core.shards.requests import RunTask
from ..core.shards.task_calls import TaskCall
from ..errors import ConfigError, SpaceError, add_notes
from ..vector import VectorEnv
from ..vector.base import ClosedVectorEnvError
from ..vector.shard_tasks import ShardTask, dump_for_shards
from .columns import ROW_NBYTES, Columns
from .interrupts import DelayedInterrupts
from .progress import prepare, progress_of
from .rollouts import Rollout, RolloutRequest, Rollouts
from .transitions import Transitions

__all__ = ["ShardWork"]

#: Bytes of a rollout beside its rows.
_REST_NBYTES = 4096
_NO_ROWS: Array = np.empty(0, np.int64)


class _Weights(NamedTuple):
    """Weights that were set: their version, counted from 1, and the handle of their pickle; 0 and None: none were."""

    version: int = 0
    handle: Any = None


@dataclass
class _Shard:
    """The driver's knowledge of one shard.

    Attributes:
        generation: of the process that was sent the last request; -1 before the first one.
        has_policy: whether that process has the policy.
        sent_version: version of the weights that it was sent.
        knows_progress: whether the progress of the envs there is that of the driver, after the rollouts under way.
        begins: whether the envs are in episodes that the policy has not seen.
        state, state_version: the policy's pickled state after the last rollout that has arrived, or None; and the
            version of its weights then.
        has_delivered: whether a rollout has arrived.
    """

    env_ids: slice
    most_nbytes: int
    generation: int = -1
    has_policy: bool = False
    sent_version: int = 0
    knows_progress: bool = False
    begins: bool = True
    state: bytes | None = None
    state_version: int = 0
    has_delivered: bool = False

    @property
    def num_envs(self) -> int:
        return int(self.env_ids.stop - self.env_ids.start)

    def begin_process(self, generation: int) -> bool:
        """Note that another process is sent the next request; return whether the state of the policy is lost."""
        self.generation = generation
        self.has_policy = self.knows_progress = False
        self.sent_version = 0
        is_renewed = self.has_delivered and self.state is None
        self.begins = self.begins or is_renewed
        return is_renewed

    def note_state(self, rollout: Rollout, version: int) -> None:
        self.state, self.state_version, self.has_delivered = rollout.state, version, True
        self.begins = False


@dataclass(eq=False)
class _UnderWay:
    """A rollout that was requested, and that no batch contains yet; `weights` are those that it is made with.

    Attributes:
        call: of the shard's task.
        is_renewed: whether a new policy without the state of its predecessor makes it.
    """

    shard: _Shard
    weights: _Weights
    call: TaskCall = field(init=False)
    is_renewed: bool = False

    @property
    def rollout(self) -> Rollout | None:
        found: Rollout | None = self.call.value
        return None if found is None or found.columns is None else found


class ShardWork:
    """Collects batches of the envs in shards, for one collector.

    Raises:
        ConfigError: `make_policy` does not pickle, actions have no fixed dtype and shape, or functions of the program
            batch the observations.
    """

    def __init__(
        self, envs: VectorEnv, make_policy: Any, seed: Any, *, sync: bool, overlap: bool, returns_only: bool
    ) -> None:
        self._envs = envs
        self.num_envs = envs.num_envs
        self._progress = progress_of(envs)
        action_space = envs.pool.spaces.action_space
        self._action_spec = Spec(action_space, "actions of the policy")
        if not self._action_spec.is_all_arrays:
            raise ConfigError(f"Collector: actions of {action_space} have no fixed dtype and shape")
        self._has_data = not returns_only
        self._task = ShardTask(envs, "Collector", Rollouts, make_policy, overlap=overlap, returns_only=returns_only)
        self._seed = seed
        self._is_sync = sync
        self._owner = object()  # the policy of the progress: not this object, which refers to the envs
        self._weights = _Weights()
        self._shards: list[_Shard] = []
        self._under_way: list[_UnderWay] = []  # calls in the order of their submission
        self._num_rounds = 0
        self._num_batches = -1  # number of batches of the vector env when the newest rollout was requested

    def set_weights(self, weights: Any) -> int:
        """Use these weights for the rollouts that are requested later; see `Collector.set_weights`."""
        if self._envs.closed:
            raise ClosedVectorEnvError("set_weights: the vector env is closed")
        handle = self._envs.pool.share(dump_for_shards("Collector", "weights", weights))
        self._weights = _Weights(self._weights.version + 1, handle)
        return self._weights.version

    # ---- batches ---------------------------------------------------------------------------

    def collect_steps(self, steps: int, is_time_major: bool) -> Transitions:
        """Return the next batch; see `Collector`."""
        self._num_rounds = steps // self.num_envs
        try:
            self._begin()
            if self._is_sync:
                while waiting := [one.call for one in self._under_way if not one.call.is_done]:
                    self._envs.pool.wait_for_task(waiting)
                done = list(self._under_way)
            else:
                self._envs.pool.wait_for_task([one.call for one in self._under_way])
                arrived = (one for one in self._under_way if one.call.is_done)
                done = [min(arrived, key=lambda one: one.call.done_ns)]
        except BaseException as error:  # rollouts that are under way stay so
            vars(error)["collected"] = self._new_columns(0, False).finish(self._progress, 0)
            raise
        with DelayedInterrupts():
            self._under_way = [one for one in self._under_way if one not in done]
            return self._finish(done, is_time_major)

    def _begin(self) -> None:
        """Request the rollouts of the next batch; reset the envs before, if they were stepped or reset elsewhere."""
        envs, progress = self._envs, self._progress
        if envs.closed:
            raise ClosedVectorEnvError("Collector: the vector env is closed")
        is_own = envs.num_batches == self._num_batches and not envs.num_outstanding and progress.policy is self._owner
        if self._seed is not None or not is_own or not (progress.is_known or self._under_way):
            self._under_way = []
            prepare(envs, progress, "Collector", self._seed)
            self._seed = None
            self._num_batches = envs.num_batches
            self._take_over()
        # Some may have been requested before a Ctrl-C. All rollouts of one batch have the same weights.
        weights = self._under_way[0].weights if self._is_sync and self._under_way else self._weights
        counts = Counter(one.call.shard for one in self._under_way)
        most = 1 if self._is_sync else 2  # one that runs, and one ahead
        for _ in range(most):
            for shard in range(len(self._shards)):
                if counts[shard] < most:
                    self._request(shard, weights)
                    counts[shard] += 1

    def _take_over(self) -> None:
        """Note that the envs are not where the last rollouts have left them."""
        if not self._shards:
            progress, actions = self._progress, self._action_spec.leaves
            columns = *progress.obs, progress.returns
            row_nbytes = ROW_NBYTES + sum(column[:1].nbytes for column in columns)
            row_nbytes += 2 * sum(leaf.nbytes for leaf in actions)
            for info in self._envs.shards():
                first, count = info.env_ids[0], len(info.env_ids)
                most_nbytes = _REST_NBYTES + self._num_rounds * count * row_nbytes
                self._shards.append(_Shard(slice(first, first + count), most_nbytes))
        is_foreign = self._progress.policy is not self._owner
        self._progress.policy = self._owner
        for shard in self._shards:
            shard.knows_progress = False
            shard.begins = shard.begins or is_foreign

    def _request(self, number: int, weights: _Weights) -> None:
        one = _UnderWay(self._shards[number], weights)
        one.call = TaskCall(number, functools.partial(self._make_request, one), one.shard.most_nbytes)
        with DelayedInterrupts():
            self._progress.is_known = False  # It is known again when the rollout has arrived.
            self._under_way.append(one)
            self._envs.pool.submit_task(one.call)

    def _make_request(self, one: _UnderWay, generation: int) -> tuple[RunTask, Any]:
        shard, weights = one.shard, one.weights
        progress = self._progress.part(shard.env_ids)
        is_new = generation != shard.generation
        if is_new:
            for other in self._under_way:
                if other.shard is shard and other.rollout is not None:  # it has arrived, and is in no batch yet
                    shard.note_state(other.rollout, other.weights.version)
                    progress = other.rollout.progress
            one.is_renewed = shard.begin_process(generation) or one.is_renewed
        state = shard.state if is_new else None
        request = RolloutRequest(
            num_rounds=self._num_rounds,
            progress=None if shard.knows_progress else progress,
            begins=shard.begins,
            state=state,
            sets_weights_first=state is not None and shard.state_version == weights.version,
        )
        sets_weights = shard.sent_version != weights.version
        shard.sent_version, shard.knows_progress = weights.version, True
        op = self._task.operation(request, is_new=not shard.has_policy, is_shared=sets_weights)
        return op, weights.handle if sets_weights else None

    # ---- results ---------------------------------------------------------------------------

    def _new_columns(self, num_rows: int, has_bootstrap: bool) -> Columns:
        return Columns(self._progress, self._action_spec, num_rows, has_bootstrap, has_data=self._has_data)

    def _finish(self, done: Sequence[_UnderWay], is_time_major: bool) -> Transitions:
        envs, progress = self._envs, self._progress
        num_columns = sum(one.shard.num_envs for one in done)
        parts = [one.rollout.columns for one in done if one.rollout is not None]
        has_bootstrap = any(part is not None and part.has_bootstrap for part in parts)
        columns = self._new_columns(self._num_rounds * num_columns, has_bootstrap)
        errors: list[Exception] = []
        is_known, first_column = True, 0
        renewed = [_NO_ROWS]
        for one in done:
            shard = one.shard
            if one.is_renewed:
                renewed.append(np.arange(shard.env_ids.start, shard.env_ids.stop))
            if one.call.error is not None:  # before the first step, or the shard is lost
                errors.append(self._task.locate(one.call.error, one.call))
                shard.has_policy = shard.knows_progress = False
                shard.sent_version = 0
                is_known = is_known and not one.call.is_lost
            else:
                rollout: Rollout = one.call.value
                try:
                    self._take(one, rollout, columns, first_column, num_columns)
                except SpaceError as error:
                    errors.append(self._task.locate(error, one.call))
                if rollout.error is not None:
                    errors.append(self._task.locate(unpack_error(rollout.error), one.call))
                is_known = is_known and (rollout.is_known or rollout.columns is None)
            first_column += shard.num_envs
        if not is_known:
            self._under_way = []
        progress.is_known = is_known and not self._under_way
        progress.num_batches = envs.num_batches
        if errors:
            batch = columns.finish(progress, columns.complete_rows(_NO_ROWS))
        else:
            batch = columns.finish(progress, columns.num_rows, num_columns if is_time_major else None)
        envs.results.forget_last(progress.has_ended, progress.returns if progress.is_known else np.nan)
        if errors:
            add_notes(errors[0], [f"another shard raised {type(error).__name__}: {error}" for error in errors[1:]])
            vars(errors[0])["collected"] = batch
            raise errors[0]
        batch.version, batch.renewed_envs = done[0].weights.version, np.concatenate(renewed)
        return batch

    def _take(self, one: _UnderWay, rollout: Rollout, columns: Columns, first_column: int, num_columns: int) -> None:
        """Store a rollout in the batch, and the state of its shard."""
        shard = one.shard
        is_present = one.call.generation == shard.generation  # else a later rollout was requested from a successor
        shard.has_policy = shard.has_policy or is_present
        part = rollout.columns
        if part is None:  # the policy has refused its weights, for example
            shard.sent_version, shard.knows_progress = 0, False
            return
        self._progress.put_part(shard.env_ids, rollout.progress)
        if is_present:
            shard.note_state(rollout, one.weights.version)
        nbytes = part.nbytes + len(rollout.state or b"")
        shard.most_nbytes = _REST_NBYTES + nbytes + nbytes // 8
        columns.put_part(part, first_column, num_columns, shard.env_ids.start)
