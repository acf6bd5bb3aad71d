"""Reset scheduler: begins episodes, for the caller or because one ended, and repeats resets that fail.

reset_param, seeds -> ResetRequest -> Pool.reset -> env.reset -> first observation: the env is in RUN
                                          ^                  -> exception: the env is in ERROR, or
                                          +------------------   another attempt
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ..core.layout import messages
from ..core.layout.flags import Op, RowFlag
from ..core.layout.spec import Spec
from ..core.parent.batch import Batch
from ..core.pool.process import ProcessPool
from ..envs.video import make_token
from ..errors import (
    ConfigError,
    EnvError,
    SpaceError,
    WorkerError,
    locate,
    place_of,
    warn_caller,
)
from ..values.nested import copy_arrays
from .env_driver import ResetRequest
from .episode_counts import EpisodeCounts
from .last_obs import LastObservations
from .manager_pool import ManagerPool
from .seeds import ResetSeeds
from .states import EnvState
from .timesteps import HAS_INFO, REBUILT, split_rows

__all__ = ["ResetScheduler"]

#: Attributes that `save` returns, beside the seeds.
_SAVED = (
    *("attempts", "unstepped", "rebuilt", "_params", "_requests", "_requested"),
    *("_replay_paths", "_replay_tokens", "_recording"),
)


class ResetScheduler:
    """Knows which resets are requested, under way, and to be tried again.

    Attributes:
        seeds: the seeds of the envs.
        attempts: number of attempts left, by env_id, of each reset under way.
        rebuilt: ids of envs that are new; their next reset needs a complete request.
        unstepped: ids of envs that have been reset and not stepped since. The manager removes those it steps.
    """

    def __init__(self, counts: EpisodeCounts, manager_pool: ManagerPool, last_obs: LastObservations) -> None:
        self._counts = counts
        self._manager_pool = manager_pool
        self._last_obs = last_obs
        self.seeds = ResetSeeds(len(counts.all_ids))
        self._replay_paths: list[str] | None = None
        self.open()

    def open(self) -> None:
        """Begin with new envs; seeds that wait for a reset, and folders for videos, stay."""
        self.attempts: dict[int, int] = {}
        self.unstepped: set[int] = set()
        self.rebuilt: set[int] = set()
        self._params: dict[int, dict[str, Any]] = {}  # keyword arguments of resets
        self._requests: dict[int, ResetRequest] = {}
        self._requested: set[int] = set()  # envs that the caller resets; other resets are automatic
        self._replay_tokens: dict[int, str] = {}
        self._recording: set[int] = set()
        self.seeds.open()
        self.on_rebuilt(self._counts.all_ids)

    def save(self) -> dict[str, Any]:
        """Return the resets under way, and the seeds, parameters and folders of later ones, as `load` takes them."""
        return {**{name: getattr(self, name) for name in _SAVED}, "seeds": self.seeds.save()}

    def load(self, saved: dict[str, Any]) -> None:
        """Continue with the result of `save`."""
        self.seeds.load(saved["seeds"])
        for name in _SAVED:
            setattr(self, name, saved[name])

    def record_to(self, folders: list[str]) -> None:
        """Record videos from each env's next reset on, each env to its folder."""
        self._replay_paths = folders

    # ---- resets of the caller --------------------------------------------------------------

    def read(self, reset_param: Any) -> list[int]:
        """Check the argument of `BaseEnvManager.reset`, keep its parameters, and return the ids of the envs to reset.

        Raises:
            ConfigError: the argument is wrong; nothing has changed.
        """
        ids = self._counts.all_ids if reset_param is None else self._read_param(reset_param)
        return [env_id for env_id in ids if self._may_reset(env_id)]

    def begin_requested(self, ids: Sequence[int]) -> list[int]:
        """Begin resets for the caller; return the envs that are being reset already, as an env has one at a time."""
        # A KeyboardInterrupt may come before a reset is sent, or after it has been answered.
        for env_id in [one for one in self.attempts if not self.is_sent(one)]:
            del self.attempts[env_id]
        new = [env_id for env_id in ids if env_id not in self.attempts]
        under_way = [env_id for env_id in ids if env_id in self.attempts]
        self._requested.update(new)
        self._requests.update((env_id, self._make_request(env_id)) for env_id in new)
        if new:
            self._begin(new)
        return under_way

    def _read_param(self, reset_param: Any) -> list[int]:
        if not isinstance(reset_param, Mapping):
            raise ConfigError(f"reset: expected a dict of env ids, got {type(reset_param).__name__}")
        for env_id, params in reset_param.items():
            if env_id not in self._counts.states:
                raise ConfigError(f"reset: no env {env_id!r}; env ids are 0..{len(self._counts.all_ids) - 1}")
            if params is not None and not isinstance(params, Mapping):
                raise ConfigError(f"reset: env {env_id}: expected a dict or None, got {type(params).__name__}")
        given = {int(env_id): dict(params or {}) for env_id, params in reset_param.items()}
        if self._manager_pool.has_workers:
            for env_id, params in given.items():
                _check_params(env_id, params)
        self._params.update(given)
        return list(given)

    def _may_reset(self, env_id: int) -> bool:
        if env_id in self._recording and self._counts.states[env_id] is EnvState.RUN:
            warn_caller(f"env {env_id} is recording an episode that has not ended; it is not reset")
            return False
        return True

    def _make_request(self, env_id: int) -> ResetRequest:
        """Return a complete request."""
        is_rebuilt = env_id in self.rebuilt
        left = None
        if self._manager_pool.may_autoreset:
            # An env that is DONE and is reset by the caller has one more episode.
            left = max(self._counts.episodes_left(env_id), 1) if self._manager_pool.is_autoreset else 1
        is_requested = env_id in self._requested
        seed = self.seeds.seed_for_reset(env_id, is_requested=is_requested, is_rebuilt=is_rebuilt)
        num_spares = self._manager_pool.num_spares_per_env
        return ResetRequest(
            params=self._params.get(env_id, {}),
            seed=seed,
            episodes_left=left,
            replay_path=None if self._replay_paths is None else self._replay_paths[env_id],
            replay_token=self._replay_tokens[env_id],
            is_complete=is_rebuilt,
            episode=self.seeds.next_episode(env_id, seed) if num_spares else None,
            stride=1 + num_spares,
            seeds_generators=is_requested and env_id in self.seeds.waiting,
        )

    # ---- automatic resets ------------------------------------------------------------------

    def begin_next(self, ids: Sequence[int]) -> None:
        """Begin the next episodes of envs whose episodes have ended."""
        self._requested.difference_update(ids)
        for env_id in ids:
            # An env with autoresets takes a reset without a request for an autoreset.
            if self._manager_pool.may_autoreset or env_id in self.rebuilt:
                self._requests[env_id] = self._make_request(env_id)
        self._begin(ids)

    def on_autoreset(self, env_id: int) -> None:
        """The worker has begun the env's next episode in the row that ended one."""
        self.seeds.count_episode(env_id)
        self.unstepped.add(env_id)

    def on_rebuilt(self, env_ids: Sequence[int]) -> None:
        """These envs are new: their next request must be complete."""
        self.rebuilt.update(env_ids)
        self._recording.difference_update(env_ids)
        self._replay_tokens.update((env_id, make_token()) for env_id in env_ids)

    # ---- resets under way ------------------------------------------------------------------

    def _begin(self, ids: Sequence[int]) -> None:
        for env_id in ids:
            self._counts.set_state(env_id, EnvState.RESET)
            self.attempts[env_id] = self._manager_pool.cfg["max_retry"]
        self.send(ids)

    def send(self, ids: Sequence[int]) -> None:
        """Send the resets of these envs, which are under way."""
        requests = [self._requests.get(env_id) for env_id in ids]
        kwargs = [None if request is None else {"request": request} for request in requests]
        self._manager_pool.require_pool("reset").reset(ids, kwargs=kwargs, ordered=False)

    def on_rows(self, batch: Batch, spec: Spec) -> dict[int, Exception]:
        """Store the first observations of a batch; return the exceptions of resets that failed, by env_id."""
        obs = split_rows(spec.root, copy_arrays(batch.obs), len(batch))
        errors = batch.errors()
        failed: dict[int, Exception] = {}
        is_reset = (batch.row_flags & RowFlag.RESET != 0).tolist()
        infos = batch.infos() if batch.flags & HAS_INFO else None
        for row, env_id in enumerate(batch.env_ids.tolist()):
            if not is_reset[row]:
                continue  # A KeyboardInterrupt separated a step from its caller.
            if env_id in errors:
                failed[env_id] = errors[env_id]
            elif infos is not None and infos[row].get("recovered") in REBUILT and env_id not in self.rebuilt:
                # Its worker died before this reset: the env is new, and lacks earlier requests.
                self.on_rebuilt([env_id])
                self._requests[env_id] = self._make_request(env_id)
                self.send([env_id])
            else:
                self._finish(env_id, obs[row])
        return dict(sorted(failed.items()))

    def _finish(self, env_id: int, obs: Any) -> None:
        """End a reset that was answered: the env is in RUN."""
        request = self._requests.pop(env_id, None)
        self.attempts.pop(env_id, None)
        self._requested.discard(env_id)
        self.rebuilt.discard(env_id)
        self.seeds.count_episode(env_id)
        self.unstepped.add(env_id)
        if request is not None:
            self.seeds.on_used(env_id, request.seed)
            if request.replay_path is not None:
                self._recording.add(env_id)
        self._last_obs.put_one(env_id, obs)
        self._counts.set_state(env_id, EnvState.RUN)

    # ---- failed attempts -------------------------------------------------------------------

    def use_attempt(self, env_id: int, error: Exception) -> None:
        """Count an attempt of the env's reset, which failed with this error; call `fail` if none is left."""
        self.attempts[env_id] = self.attempts.get(env_id, 1) - 1
        if self.attempts[env_id] <= 0:
            self.fail(env_id, error)

    def wait(self) -> None:
        """Sleep before another attempt."""
        time.sleep(self._manager_pool.cfg["retry_waiting_time"])

    def is_sent(self, env_id: int) -> bool:
        """Return whether the env owes the answer to a reset."""
        return self._manager_pool.require_pool("reset").owes(env_id) == Op.RESET

    def fail(self, env_id: int, error: Exception) -> NoReturn:
        """Raise EnvError because a reset failed in its last attempt; the manager must be closed."""
        self._counts.set_state(env_id, EnvState.ERROR)
        max_retry = self._manager_pool.cfg["max_retry"]
        times = f"in {max_retry} attempts" if max_retry > 1 else "in its only attempt (max_retry=1)"
        is_layout = isinstance(error, SpaceError) and (error.path or "").startswith("obs")
        remedy = "; shared_memory=False takes observations that differ from their space" if is_layout else ""
        failure = EnvError(
            f"env {env_id} could not be reset {times}; the manager is closed. "
            f"Last: {type(error).__name__}: {error}{remedy}",
            exception_type=type(error).__qualname__,
        )
        locate(failure, **{**place_of(error), "env_ids": (env_id,), "op": "reset"})
        raise failure from error

    def fail_on_autoreset_error(self, errors: Mapping[int, Exception]) -> None:
        """Call `fail` if one of these errors of steps, by env_id, is of an autoreset in the worker."""
        for env_id, error in sorted(errors.items()):
            if isinstance(error, EnvError) and error.op == "reset":
                self.fail(env_id, error)

    def replace_hung_worker(self, error: WorkerError) -> list[int]:
        """Replace the worker that an error of a reset names, and try that reset again with a new env.

        The other envs of the worker are restored as after its death. If the pool does not recover its workers, they
        are new, too, and those whose episode has had no step begin another one.

        Returns:
            The other envs of the worker whose episodes are abandoned; they are in ERROR.
        """
        env_id, worker_id = error.env_ids[0], error.worker_id
        pool = self._manager_pool.require_pool("reset")
        assert isinstance(pool, ProcessPool) and worker_id is not None
        recovers = pool.options.failures.recovers
        env_ids = [env_id] if recovers else pool.envs_of(worker_id)
        self.use_attempt(env_id, error)
        self.wait()
        running = [one for one in env_ids if self._counts.states[one] is EnvState.RUN]
        repeated = [one for one in running if one in self.unstepped]
        abandoned = [one for one in running if one not in self.unstepped]
        self._requested.difference_update(repeated)
        for one in repeated:
            self._counts.set_state(one, EnvState.RESET)
            self.attempts[one] = self._manager_pool.cfg["max_retry"]
        self._restart(pool, worker_id, env_id, env_ids if recovers else None)
        self.on_rebuilt(env_ids)
        under_way = [one for one in env_ids if one in self.attempts]
        for one in under_way:
            self._requests[one] = self._make_request(one)
        self.send(under_way)
        for one in abandoned:
            self._counts.set_state(one, EnvState.ERROR)
        return abandoned

    def _restart(self, pool: ProcessPool, worker_id: int, env_id: int, new_envs: Sequence[int] | None) -> None:
        """Replace a worker; each failure uses an attempt of the env's reset."""
        while True:
            try:
                pool.restart(worker_id, new_envs)
                return
            except Exception as error:
                self.use_attempt(env_id, error)
                self.wait()


def _check_params(env_id: int, params: dict[str, Any]) -> None:
    """Raise ConfigError for parameters that cannot be pickled, before anything has changed.

    Else the env would stay in RESET, and each later reset would fail because of the same parameters.
    """
    if not params:
        return
    try:
        messages.dump(params)
    except Exception as error:  # Objects have pickling code of their own, which may raise anything.
        raise ConfigError(
            f"reset: env {env_id}: its arguments cannot be sent to a worker: {type(error).__name__}: {error}",
            key="reset_param",
        ) from error
