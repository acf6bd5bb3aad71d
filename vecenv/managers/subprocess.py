"""Managers over worker processes: one waits for every env asked, the other for enough of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..core.layout import messages
from ..core.layout.rows import RowFlag
from ..core.parent.batch import Batch
from ..core.pool.pool import Pool
from ..core.pool.process import ProcessPool
from ..core.system.clock import Deadline
from ..envs.base import BaseEnvTimestep
from ..envs.remote import FindAttribute, Render
from ..errors import ConfigError, StateError, WorkerDiedError, WorkerError, WorkerTimeoutError, warn_caller
from ..registry import ENV_MANAGER_REGISTRY
from .base import BaseEnvManager
from .calls import leave_resets, renew_env
from .options import PROCESS_CONFIG
from .reset_scheduler import EnvResets
from .side_values import add_to_info
from .states import EnvState
from .timesteps import TimestepBuffers

__all__ = ["AsyncSubprocessEnvManager", "SyncSubprocessEnvManager"]


class ProcessEnvManager(BaseEnvManager):
    """What the managers over worker processes share."""

    config: ClassVar[dict[str, Any]] = PROCESS_CONFIG
    _retries_steps = False
    _abnormal_is_error = True

    def _pool_class(self) -> type[Pool]:
        return ProcessPool

    def _check_known_while_closed(self, name: str) -> None:
        """Closed comes first here."""

    def _present_errors(self, errors: dict[int, Exception]) -> dict[int, Exception]:
        return errors  # each of the class that its env raised

    def _call_envs(self, function: Callable[[Any], Any], what: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        while True:
            try:
                return super()._call_envs(function, what, env_ids)
            except (WorkerTimeoutError, WorkerDiedError) as error:
                # What may have been called already is not called twice.
                is_renewal, leaves_no_trace = function is renew_env, isinstance(function, FindAttribute | Render)
                if not (is_renewal or leaves_no_trace or function is leave_resets) or not self._outlives(error):
                    self._give_up_worker(error)
                    raise
                if is_renewal:  # made all the same, before the env's next reset
                    return []

    def _check_params(self, env_id: int, params: dict[str, Any]) -> None:
        # Before anything is remembered or dropped; else these envs would be in RESET with no reset under way, and
        # each later reset would fail by the same arguments.
        if not params:
            return
        try:
            messages.dump(params)
        except Exception as error:  # whatever the class of an object raises when it is to be pickled
            raise ConfigError(
                f"reset: env {env_id}: its arguments cannot be sent to a worker: {type(error).__name__}: {error}",
                key="reset_param",
            ) from error

    def _close_after(self, error: BaseException) -> None:
        hung = error.worker_id if isinstance(error, WorkerTimeoutError) else None
        if hung is not None and isinstance(self._pool, ProcessPool):
            with contextlib.suppress(Exception):
                self._pool.kill(hung)  # it will not say goodbye, so there is no use in waiting for it
        super()._close_after(error)

    # ---- workers that hang in a reset -------------------------------------------------------

    def _can_go_on(self, error: WorkerError) -> bool:
        if not isinstance(error, WorkerTimeoutError) or error.op != "reset" or error.worker_id is None:
            return False
        env_id = error.env_ids[0]
        pool = self._open_pool("reset")
        assert isinstance(pool, ProcessPool)
        mates = pool.envs_of(error.worker_id)
        self._use_attempt(env_id, error)
        running = [mate for mate in mates if self._env_states[mate] is EnvState.RUN]
        # An episode that nobody has stepped can be begun again; the others are lost with their worker.
        again = [mate for mate in running if mate in self._unstepped]
        lost = [mate for mate in running if mate not in self._unstepped]
        self._asked.difference_update(again)
        for mate in again:
            self._set_state(mate, EnvState.RESET)
            self._attempts[mate] = self._max_retry
        self._replace_worker(pool, error.worker_id, env_id)
        self._forget(mates)
        owed = [mate for mate in mates if mate in self._attempts]
        for mate in owed:
            self._orders[mate] = self._make_orders(mate)
        self._send_resets(owed)
        if lost:
            self._lose_episodes(lost, error)
        return True

    def _replace_worker(self, pool: ProcessPool, worker_id: int, env_id: int) -> None:
        """Build a worker's envs anew; each time that this fails an attempt of the env that has hung is used up."""
        while True:
            try:
                pool.restart(worker_id)
                return
            except Exception as error:
                self._use_attempt(env_id, error)

    def _use_attempt(self, env_id: int, error: Exception) -> None:
        self._attempts[env_id] = self._attempts.get(env_id, 1) - 1
        if self._attempts[env_id] <= 0:
            self._give_up_reset(env_id, error)
        time.sleep(self._retry_waiting_time)

    def _lose_episodes(self, env_ids: list[int], error: WorkerError) -> None:
        """Give up the episodes of envs whose worker had to be ended; they are in ERROR until they are reset."""
        for env_id in env_ids:
            self._set_state(env_id, EnvState.ERROR)
        warn_caller(
            f"the reset of env {error.env_ids[0]} hung, so worker {error.worker_id} was replaced; envs {env_ids} were "
            "in the midst of episodes there and are in ERROR: reset them. num_workers=num_envs keeps envs apart",
            RuntimeWarning,
        )


@ENV_MANAGER_REGISTRY.register("subprocess")
class SyncSubprocessEnvManager(ProcessEnvManager):
    """Envs in worker processes, several per worker; a step waits for all envs asked.

    Example:
        >>> import gymnasium
        >>> manager = SyncSubprocessEnvManager([lambda: gymnasium.make("CartPole-v1")] * 4, {"num_workers": 2})
        >>> manager.launch()
        >>> timesteps = manager.step({env_id: 1 for env_id in manager.ready_obs})
        >>> sorted(timesteps)
        [0, 1, 2, 3]
        >>> manager.close()
    """


@ENV_MANAGER_REGISTRY.register("async_subprocess")
class AsyncSubprocessEnvManager(ProcessEnvManager):
    """Envs in worker processes; a step returns when enough envs have answered.

    An env that has not answered is not in `ready_obs` and cannot be stepped; its timestep comes
    with a later step. An env whose episode has ended is in RESET until its next observation is
    there.

    With `copy_on_get=False` the observations that a step returns are views until the next call of
    `step`, or the next look at `ready_obs`, which may receive any number of batches; what that shows is
    always good.
    """

    config: ClassVar[dict[str, Any]] = {**PROCESS_CONFIG, "wait_num": 2, "step_wait_timeout": 0.01}
    _is_async = True

    def __init__(self, env_fn: Sequence[Callable[[], Any]], cfg: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_fn, cfg)
        self._wait_num: float = self._cfg["wait_num"]
        self._step_wait_timeout: float | None = self._cfg["step_wait_timeout"]
        self._busy: set[int] = set()  # being stepped
        self._arrived: dict[int, BaseEnvTimestep] = {}  # answered, and not returned yet
        self._held: dict[int, BaseEnvTimestep] = {}  # answered, and to have the next episode's observation

    @property
    def active_env(self) -> list[int]:
        """Ids of the envs whose timesteps are still to come, ascending."""
        return sorted(self._busy | self._arrived.keys())

    @property
    def ready_obs_id(self) -> list[int]:
        """Ids of the envs that can be stepped, ascending, as the last `step` or look at `ready_obs` has left them."""
        out = self._not_running | self._busy | self._arrived.keys()
        return [env_id for env_id in self._all_ids if env_id not in out]

    @property
    def ready_obs(self) -> dict[int, Any]:
        """Newest observation of each env that can be stepped, {env_id: obs}.

        While resets are under way it takes in what has come; if no env is ready it waits for them. {} when there is
        none to wait for.

        Raises:
            Exception: as `step`, of an env that fails meanwhile.
        """
        try:
            # Who waits for envs may only look here. After an interrupt no reset need be under way.
            while self._attempts and self._pool is not None and self._pool.outstanding():
                if not self._absorb_next(timeout=0.0):
                    break
            while not (ids := self.ready_obs_id) and self._attempts:
                self._absorb_next()
        except AttributeError as error:  # of an env's step, or of a constructor
            self._raise_from_property(error)
        return {env_id: self._shown.rows[env_id] for env_id in ids}

    def step(self, actions: Any) -> Any:
        """Step envs and wait for enough answers, of these envs or of earlier ones.

        Enough is `wait_num`, or as many as were asked if that is less. Then it goes on collecting
        for what is left of `step_wait_timeout` (None or 0: until all are in), and longer while
        all that came are last timesteps, so that there is an env to go on with.

        Args:
            actions: {env_id: action}; {} only collects. With no timestep to come it waits for a
                reset under way.

        Returns:
            {env_id: BaseEnvTimestep}, ids ascending; may lack ids asked and have earlier ones.

        Raises:
            ClosedError: not launched.
            StateError: an env is not in RUN, or has not answered yet.
            TimeoutError: an env took longer than `step_timeout`; the manager is closed.
            Exception: what an env raised; the manager is closed unless `on_step_error` says else. Then, and where an
                automatic reset failed in every attempt, the timesteps that have come are in its attribute
                `timesteps`, {env_id: timestep}; else the next call returns them.
        """
        self._open_pool("step")
        if not isinstance(actions, Mapping):
            raise ConfigError(f"step: expected a dict of actions by env id, got {type(actions).__name__}")
        ids = list(actions)
        self._check_ready(ids)
        unanswered = [env_id for env_id in ids if env_id in self._busy or env_id in self._arrived]
        if unanswered:
            raise StateError(f"step: envs {unanswered} have not answered their last step; they are not in ready_obs")
        if ids:
            self._send(ids, list(actions.values()), ordered=False)
            self._busy.update(ids)
        if not self._busy and self._attempts:
            self._absorb_next()  # the only thing to wait for is a reset
        self._collect(len(ids))
        arrived, self._arrived = self._arrived, {}
        return {env_id: arrived[env_id] for env_id in sorted(arrived)}

    def _collect(self, num_asked: int) -> None:
        goal = min(self._wait_num, max(num_asked, 1))
        patience = self._step_wait_timeout
        deadline = Deadline(patience or None)
        while self._busy:
            missing = goal - len(self._arrived)
            timeout = None
            if missing > 0 or not patience:
                least = int(min(max(missing, 1), len(self._busy))) if patience else len(self._busy)
            elif all(timestep.done for timestep in self._arrived.values()):
                least = 1
            elif deadline.is_over():
                return
            else:
                least, timeout = 1, deadline.seconds_left()
            self._absorb_next(least, timeout)

    def _absorb_next(self, least: int = 1, timeout: float | None = None) -> bool:
        """Receive and take in; tell whether something came."""
        batch = self._recv(least, timeout)
        if batch is not None:
            self._absorb(batch)
        return batch is not None

    def _can_go_on(self, error: WorkerError) -> bool:
        if isinstance(error, WorkerTimeoutError) and error.op is None:
            return True  # only the patience of `_collect` is over
        return super()._can_go_on(error)

    def _absorb(self, batch: Batch) -> None:
        """Take in rows of steps and of resets, in the order that they came."""
        if not batch.flags & RowFlag.RESET:
            self._absorb_steps(batch)
            return
        is_reset = batch.row_flags & RowFlag.RESET != 0
        if is_reset.all():
            super()._absorb(batch)
            return
        steps, resets = batch.take(np.flatnonzero(~is_reset)), batch.take(np.flatnonzero(is_reset))
        try:
            self._absorb_steps(steps)
        except Exception:
            if not self._closed:
                super()._absorb(resets)  # first observations, which nobody sends again
            raise
        super()._absorb(resets)

    def _absorb_steps(self, batch: Batch) -> None:
        ids = batch.env_ids.tolist()
        self._busy.difference_update(ids)
        errors = batch.errors()
        timesteps = self._take(ids, batch, self._buffers_class(ids, self._layout), skip=errors)
        for env_id, timestep in zip(ids, timesteps):
            if env_id in self._attempts and self._reset_inplace:
                self._held[env_id] = timestep
                self._busy.add(env_id)
            elif env_id not in errors:
                self._arrived[env_id] = timestep
        if errors:
            self._check_reset_errors(errors)
            is_last = self._cfg["on_step_error"] == "close"  # else the next call returns what has come
            self._fail_steps(errors, self._waiting_timesteps() if is_last else {})

    def _waiting_timesteps(self) -> dict[int, Any]:
        for timestep in self._held.values():  # no episode follows
            add_to_info(timestep.info, "final_obs", timestep.obs)
        return dict(sorted({**self._held, **self._arrived}.items()))

    def _reset_ended(self, ids: Sequence[int]) -> None:
        EnvResets._reset_ended(self, ids)  # answered later: `_absorb`

    def _show_next(self, ids: list[int], buffers: TimestepBuffers, ended: list[int]) -> None:
        """Nothing to show yet where another episode begins: `_show_first`."""
        for row in ended:
            self._show_last(ids[row], buffers, row)

    def _show_first(self, env_id: int, obs: Any) -> None:
        super()._show_first(env_id, obs)
        timestep = self._held.pop(env_id, None)
        if timestep is not None:
            self._busy.discard(env_id)
            add_to_info(timestep.info, "final_obs", timestep.obs)
            self._arrived[env_id] = timestep._replace(obs=obs)

    def _move_obs(self, moved: Mapping[int, Any]) -> None:
        for waiting in (self._arrived, self._held):
            for env_id in moved.keys() & waiting.keys():
                if waiting[env_id].obs is moved[env_id]:
                    waiting[env_id] = waiting[env_id]._replace(obs=self._shown.rows[env_id])

    def _lose_episodes(self, env_ids: list[int], error: WorkerError) -> None:
        super()._lose_episodes(env_ids, error)
        for env_id in self._busy.intersection(env_ids):  # what they owed will not come
            self._busy.discard(env_id)
            info = self._info_instead(env_id, {"abnormal": True})
            self._arrived[env_id] = BaseEnvTimestep(None, None, False, info)

    def _num_rows_to_await(self) -> int:
        return 1

    def _drop_answers(self, ids: Sequence[int]) -> None:
        for env_id in ids:
            self._busy.discard(env_id)
            self._arrived.pop(env_id, None)
            self._held.pop(env_id, None)

    def close(self) -> None:
        """End all envs and workers; may be repeated. `launch` builds new ones.

        Raises:
            Exception: what an env's `close` raised, after everything has ended.
        """
        self._busy.clear()
        self._arrived.clear()
        self._held.clear()
        super().close()
