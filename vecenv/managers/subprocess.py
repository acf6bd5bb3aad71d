"""Managers over worker processes: one waits for all envs that it steps, the other one for enough of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..core.layout.flags import RowFlag
from ..core.parent.batch import Batch
from ..core.system.clock import Deadline
from ..envs.base import BaseEnvTimestep
from ..errors import ConfigError, StateError, WorkerError, WorkerTimeoutError
from ..registry import ENV_MANAGER_REGISTRY
from .base import BaseEnvManager
from .manager import env_property
from .options import PROCESS_CONFIG
from .states import EnvState

__all__ = ["AsyncSubprocessEnvManager", "SyncSubprocessEnvManager"]


@ENV_MANAGER_REGISTRY.register("subprocess")
class SyncSubprocessEnvManager(BaseEnvManager):
    """Envs in worker processes, several per worker; a step waits for all envs that it steps.

    `step` differs from `BaseEnvManager.step` in its errors: an exception of an env is raised as it is, not as a
    RuntimeError, and by default the manager is closed (`on_step_error`). TimeoutError: an env took longer than
    `step_timeout`; the manager is closed.

    Example:
        >>> import gymnasium
        >>> manager = SyncSubprocessEnvManager([lambda: gymnasium.make("CartPole-v1")] * 4, {"num_workers": 2})
        >>> manager.launch()
        >>> timesteps = manager.step({env_id: 1 for env_id in manager.ready_obs})
        >>> sorted(timesteps)
        [0, 1, 2, 3]
        >>> manager.close()
    """

    config: ClassVar[dict[str, Any]] = PROCESS_CONFIG
    _backend = "process"


@ENV_MANAGER_REGISTRY.register("async_subprocess")
class AsyncSubprocessEnvManager(BaseEnvManager):
    """Envs in worker processes; a step returns when enough envs have answered.

    An env that has not answered is not in `ready_obs` and cannot be stepped; its timestep comes
    with a later step. An env whose episode has ended is in RESET until its next observation arrives.
    """

    config: ClassVar[dict[str, Any]] = {**PROCESS_CONFIG, "wait_num": 2, "step_wait_timeout": 0.01}
    _backend = "process"
    _is_async = True

    def __init__(self, env_fn: Sequence[Callable[[], Any]], cfg: Mapping[str, Any] | None = None) -> None:
        super().__init__(env_fn, cfg)
        self._wait_num: float = self._cfg["wait_num"]
        self._step_wait_timeout: float | None = self._cfg["step_wait_timeout"]
        self._stepping: set[int] = set()  # ids of envs whose timestep is not complete
        self._received: dict[int, BaseEnvTimestep] = {}  # complete, and not returned yet
        # With reset_inplace: last timesteps that wait for the first observation of the next episode.
        self._incomplete: dict[int, BaseEnvTimestep] = {}

    @property
    def active_env(self) -> list[int]:
        """Ids of the envs whose timesteps have not been returned yet, ascending."""
        return sorted(self._stepping | self._received.keys())

    @property
    def ready_obs_id(self) -> list[int]:
        """Ids of the envs that can be stepped, ascending; the last `step` or read of `ready_obs` has updated them."""
        out = self._counts.not_running | self._stepping | self._received.keys()
        return [env_id for env_id in self._counts.all_ids if env_id not in out]

    @env_property
    def ready_obs(self) -> dict[int, Any]:
        """Newest observation of each env that can be stepped, {env_id: obs}.

        While resets are under way it takes the answers that have arrived; if no env is ready, it waits for a reset.
        {} if no env is ready or being reset.

        Raises:
            Exception: as `step`, if an env fails.
        """
        # A caller that waits for envs may only read this. After a KeyboardInterrupt a reset may not have been sent.
        while self._resets.attempts and (pool := self._manager_pool.pool) and pool.outstanding():
            if not self._receive_next(timeout=0.0):
                break
        while not (ids := self.ready_obs_id) and self._resets.attempts:
            self._receive_next()
        return {env_id: self._last_obs.rows[env_id] for env_id in ids}

    def step(self, actions: Any) -> Any:
        """Step envs and wait for enough answers, of these envs or of envs of earlier calls.

        Enough is `wait_num`, or the number of envs in `actions` if that is less. Then it collects further answers
        until `step_wait_timeout` has passed since the call (None or 0: until all have arrived). It waits longer
        while all timesteps are last ones of their episodes, so that there is an env to step next.

        Args:
            actions: {env_id: action}; {} only collects answers. If no timestep is outstanding, it waits for a
                reset under way.

        Returns:
            {env_id: BaseEnvTimestep}, as `BaseEnvManager.step`, ids ascending. It may lack envs of `actions`, and
            have envs of earlier calls.

        Raises:
            ClosedError: the manager has not been launched, or is closed.
            StateError: an env is not in RUN, or has not answered its last step. Or there are no actions and nothing to
                wait for, and all envs that are not DONE are in ERROR.
            ConfigError: not a dict, or an env does not exist.
            TimeoutError: an env took longer than `step_timeout`; the manager is closed.
            Exception: raised by an env; the manager is closed unless `on_step_error` differs. If it is closed, also
                after an automatic reset that failed in every attempt, the attribute `timesteps` of the exception
                has the timesteps that have arrived, {env_id: timestep}. Otherwise the next call returns them.
        """
        self._manager_pool.require_pool("step")
        if not isinstance(actions, Mapping):
            raise ConfigError(f"step: expected a dict of actions by env id, got {type(actions).__name__}")
        ids = list(actions)
        self._check_running(ids)
        unanswered = [env_id for env_id in ids if env_id in self._stepping or env_id in self._received]
        if unanswered:
            raise StateError(f"step: envs {unanswered} have not answered their last step; they are not in ready_obs")
        if ids:
            self._send(ids, list(actions.values()), ordered=False)
            self._stepping.update(ids)
        if not self._stepping and self._resets.attempts:
            self._receive_next()
        self._collect(len(ids))
        received, self._received = self._received, {}
        if not ids and not received:
            self._check_any_running()
        return {env_id: received[env_id] for env_id in sorted(received)}

    def _collect(self, num_asked: int) -> None:
        goal = min(self._wait_num, max(num_asked, 1))
        limit = self._step_wait_timeout
        deadline = Deadline(limit or None)
        while self._stepping:
            missing = goal - len(self._received)
            timeout = None
            if missing > 0 or not limit:
                min_count = int(min(max(missing, 1), len(self._stepping))) if limit else len(self._stepping)
            elif all(timestep.done for timestep in self._received.values()):
                min_count = 1
            elif deadline.is_over():
                return
            else:
                min_count, timeout = 1, deadline.seconds_left()
            self._receive_next(min_count, timeout)

    # ---- rows ------------------------------------------------------------------------------

    def _receive_next(self, min_count: int = 1, timeout: float | None = None) -> bool:
        """Receive rows and process them; return False if none arrived in time."""
        batch = self._recv(min_count, timeout)
        if batch is not None:
            self._on_rows(batch)
        return batch is not None

    def _receive_resets(self) -> None:
        self._receive_next()

    def _handle(self, error: WorkerError) -> bool:
        if isinstance(error, WorkerTimeoutError) and error.op is None:
            return True  # the timeout of `_collect`
        return super()._handle(error)

    def _on_rows(self, batch: Batch) -> None:
        """Process rows of steps and of resets, in the order of their arrival."""
        if not batch.flags & RowFlag.RESET:
            self._on_steps(batch)
            return
        is_reset = batch.row_flags & RowFlag.RESET != 0
        if is_reset.all():
            self._on_resets(batch)
            return
        steps, resets = batch.take(np.flatnonzero(~is_reset)), batch.take(np.flatnonzero(is_reset))
        try:
            self._on_steps(steps)
        except Exception:
            if not self._counts.closed:
                self._on_resets(resets)  # first observations come only once
            raise
        self._on_resets(resets)

    def _on_steps(self, batch: Batch) -> None:
        ids = batch.env_ids.tolist()
        self._stepping.difference_update(ids)
        errors = batch.errors()
        timesteps = self._make_timesteps(batch, self._buffers_class(ids, self._layout), skip=errors)
        for env_id, timestep in zip(ids, timesteps):
            if env_id in self._resets.attempts and self._reset_inplace:
                self._incomplete[env_id] = timestep
                self._stepping.add(env_id)
            elif env_id not in errors:
                self._received[env_id] = timestep
        if errors:
            self._check_autoresets(errors)
            is_closing = self._cfg["on_step_error"] == "close"  # else the next call returns the timesteps
            self._fail_steps(errors, self._received_timesteps() if is_closing else {})

    def _on_resets(self, batch: Batch) -> None:
        try:
            super()._on_resets(batch)
        finally:
            self._complete_timesteps()

    def _complete_timesteps(self) -> None:
        """Complete the last timesteps whose next episode has begun."""
        for env_id in [one for one in self._incomplete if self._counts.states[one] is EnvState.RUN]:
            timestep = self._incomplete.pop(env_id)
            self._stepping.discard(env_id)
            self._received[env_id] = timestep._replace(obs=self._last_obs.rows[env_id])

    def _received_timesteps(self) -> dict[int, Any]:
        self._complete_timesteps()
        return dict(sorted({**self._incomplete, **self._received}.items()))

    def _begin_next(self, ids: Sequence[int]) -> None:
        self._resets.begin_next(ids)  # a later call receives the first observations

    def _on_abandoned(self, env_ids: list[int], error: WorkerError) -> None:
        super()._on_abandoned(env_ids, error)
        for env_id in self._stepping.intersection(env_ids):  # their answers will not come
            self._stepping.discard(env_id)
            info = self._agent_infos.in_form_of(env_id, {"abnormal": True})
            self._received[env_id] = BaseEnvTimestep(None, None, False, info)

    def _values(self) -> dict[str, Any]:
        steps = {"stepping": self._stepping, "received": self._received, "incomplete": self._incomplete}
        return {**super()._values(), **steps}

    def _load_values(self, saved: dict[str, Any]) -> None:
        self._stepping, self._received = saved["stepping"], saved["received"]
        self._incomplete = saved["incomplete"]
        super()._load_values(saved)

    def _drop_answers(self, ids: Sequence[int]) -> None:
        for env_id in ids:
            self._stepping.discard(env_id)
            self._received.pop(env_id, None)
            self._incomplete.pop(env_id, None)

    def close(self) -> None:
        self._stepping.clear()
        self._received.clear()
        self._incomplete.clear()
        super().close()
