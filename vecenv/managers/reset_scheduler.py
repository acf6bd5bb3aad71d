"""Resets: begins episodes, by force or because one ended, as often as `max_retry` allows.

reset_param, seeds -> Orders -> Pool.reset -> env.reset -> first observation: RUN
                                     ^                  -> exception: ERROR at last
                                     +-- pause, 'renew' --+
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ..core.layout.rows import Op, RowFlag
from ..core.parent.batch import Batch
from ..envs.seeding import episode_seed
from ..errors import ConfigError, EnvError, SpaceError, WorkerDiedError, WorkerTimeoutError, add_notes, warn_caller
from ..nested import copy_arrays
from .calls import leave_resets, renew_env
from .env_driver import Orders
from .launch import EnvLife
from .states import EnvState
from .timesteps import BUILT_ANEW, HAS_INFO, split_rows

__all__ = ["EnvResets"]


class EnvResets(EnvLife):
    """The part of a manager that begins episodes."""

    def reset(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Begin new episodes, whatever the envs are doing, and wait for their first observations.

        Answers of these envs that are still out are dropped. Episode counts stay as they are.

        Args:
            reset_param: {env_id: keyword arguments of that env's reset, None for none}; they are
                remembered for its later resets. None: all envs, with what is remembered.

        Raises:
            ClosedError: not launched.
            ConfigError: not a dict of dicts, or an argument cannot be sent to a worker. Nothing has changed then.
            RuntimeError: an env could not be reset in `max_retry` attempts; the manager is closed.
            Exception: what a step of another env has raised meanwhile; these envs have been reset all the same.
        """
        pool = self._open_pool("reset")
        ids = self._read_reset_param(reset_param)
        ids = [env_id for env_id in ids if self._may_reset(env_id)]
        if not ids:
            return
        for env_id in [one for one in self._attempts if pool.owes(one) != Op.RESET]:
            del self._attempts[env_id]  # an interrupt (Ctrl-C) came before it was sent, or when it had been answered
        under_way = [env_id for env_id in ids if env_id in self._attempts]  # an env answers one at a time
        self._begin_asked([env_id for env_id in ids if env_id not in self._attempts])
        failures = self._outlast_failures(under_way)
        self._begin_asked(under_way)
        failures += self._outlast_failures()
        _raise_failure(failures)

    def _begin_asked(self, ids: Sequence[int]) -> None:
        """Begin resets that the caller asked for."""
        if not ids:
            return
        self._drop_answers(ids)
        self._asked.update(ids)
        for env_id in ids:
            self._orders[env_id] = self._make_orders(env_id)
        self._begin_resets(ids)

    def _read_reset_param(self, reset_param: Any) -> list[int]:
        if reset_param is None:
            return list(self._all_ids)
        if not isinstance(reset_param, Mapping):
            raise ConfigError(f"reset: expected a dict of env ids, got {type(reset_param).__name__}")
        for env_id, params in reset_param.items():
            if env_id not in self._env_states:
                raise ConfigError(f"reset: no env {env_id!r}; env ids are 0..{self.env_num - 1}")
            if params is not None and not isinstance(params, Mapping):
                raise ConfigError(f"reset: env {env_id}: expected a dict or None, got {type(params).__name__}")
        given = {int(env_id): dict(params or {}) for env_id, params in reset_param.items()}
        for env_id, params in given.items():
            self._check_params(env_id, params)
        self._params.update(given)
        return list(given)

    def _check_params(self, env_id: int, params: dict[str, Any]) -> None:
        """Raise ConfigError for keyword arguments of a reset that cannot reach their env."""

    def _may_reset(self, env_id: int) -> bool:
        if env_id in self._recording and self._env_states[env_id] is EnvState.RUN:
            warn_caller(f"env {env_id} is recording an episode that has not ended; it is not reset")
            return False
        return True

    def _make_orders(self, env_id: int) -> Orders:
        """Say all that an env has to know."""
        left = self._episode_num - self._env_episode_count[env_id]
        # Seeds that the caller gave wait for a reset that he asks for, however often another one is tried.
        seed = self._pending_seeds.get(env_id) if env_id in self._asked else None
        if seed is None and env_id in self._lost and env_id in self._seeds_in_use:
            # A sequence that starts at 0 again would repeat episodes; one from a derived seed does not.
            number, dynamic = self._seeds_in_use[env_id]
            seed = episode_seed(number, self._episodes_begun[env_id], dynamic is not False), dynamic
        return Orders(
            params=self._params.get(env_id, {}),
            seed=seed,
            # An env that has had all its episodes and is reset by force has one more.
            episodes_left=max(left, 1) if self._resets_in_row else None,
            replay_path=None if self._replay_paths is None else self._replay_paths[env_id],
            replay_token=self._replay_tokens[env_id],
            first_seed=self._first_seeds.get(env_id),
            is_whole=env_id in self._lost,
        )

    def _reset_ended(self, ids: Sequence[int]) -> None:
        """Begin the next episodes of envs whose last one has ended."""
        self._asked.difference_update(ids)
        for env_id in ids:
            # Where workers reset, an env would take a reset without orders for the worker's own.
            if self._worker_resets or env_id in self._lost:
                self._orders[env_id] = self._make_orders(env_id)
        self._begin_resets(ids)

    def _forget(self, env_ids: Sequence[int]) -> None:
        """Note that these envs were built anew: their next orders are to say everything again."""
        self._lost.update(env_ids)
        self._recording.difference_update(env_ids)
        self._begin_books_of_new(env_ids)
        if self._worker_resets and not self._resets_in_row:
            self._call_envs(leave_resets, "a time limit", env_ids)

    def _begin_resets(self, ids: Sequence[int]) -> None:
        for env_id in ids:
            self._set_state(env_id, EnvState.RESET)
            self._attempts[env_id] = self._max_retry
        self._send_resets(ids)

    def _send_resets(self, ids: Sequence[int]) -> None:
        orders = [self._orders.get(env_id) for env_id in ids]
        kwargs = [None if order is None else {"orders": order} for order in orders]
        self._open_pool("reset").reset(ids, kwargs=kwargs, ordered=False, draw_seeds=False)

    def _await_resets(self) -> None:
        """Wait until no env owes a first observation."""
        _raise_failure(self._outlast_failures())

    def _outlast_failures(self, ids: Iterable[int] | None = None) -> list[Exception]:
        """Wait until these envs, or all, owe no first observation; return what steps of others have raised meanwhile.

        Who asked for these resets is to know when they are done, and hears of that then.
        """
        wanted = None if ids is None else set(ids)
        failures = []
        while self._attempts and (wanted is None or not wanted.isdisjoint(self._attempts)):
            try:
                batch = self._recv(self._num_rows_to_await())
                if batch is not None:
                    self._absorb(batch)
            except Exception as error:
                if self._closed or "timesteps" not in vars(error):  # which failed steps have, see `_fail_steps`
                    raise
                failures.append(error)
        return failures

    def _num_rows_to_await(self) -> int:
        return self._open_pool("reset").outstanding()

    def _drop_answers(self, ids: Sequence[int]) -> None:
        """Forget what these envs still owe."""

    def _absorb(self, batch: Batch) -> None:
        """Take in a batch that has answers to resets."""
        obs = split_rows(self._layout.spec, copy_arrays(batch.obs), len(batch))
        errors = batch.errors()
        failed: dict[int, Exception] = {}
        is_reset = (batch.row_flags & RowFlag.RESET != 0).tolist()
        infos = batch.infos() if batch.flags & HAS_INFO else None
        for row, env_id in enumerate(batch.env_ids.tolist()):
            if not is_reset[row]:
                continue  # of a step that an interrupt (Ctrl-C) has cut off from its caller
            if env_id in errors:
                failed[env_id] = errors[env_id]
            elif infos is not None and infos[row].get("recovered") in BUILT_ANEW and env_id not in self._lost:
                # Its worker died before this reset: it lacks what earlier ones told it.
                self._forget([env_id])
                self._orders[env_id] = self._make_orders(env_id)
                self._send_resets([env_id])
            else:
                self._show_first(env_id, obs[row])
        if failed:
            self._retry_resets(failed)

    def _show_first(self, env_id: int, obs: Any) -> None:
        """A reset has been answered: the env runs."""
        orders = self._orders.pop(env_id, None)
        self._attempts.pop(env_id, None)
        self._asked.discard(env_id)
        self._lost.discard(env_id)
        self._episodes_begun[env_id] += 1
        self._unstepped.add(env_id)
        if orders is not None:
            self._first_seeds.pop(env_id, None)
            if orders.seed is not None:
                self._seeds_in_use[env_id] = orders.seed
                self._episodes_begun[env_id] = 1
                if self._pending_seeds.get(env_id) == orders.seed:
                    del self._pending_seeds[env_id]
            if orders.replay_path is not None:
                self._recording.add(env_id)
        self._shown.put_one(env_id, obs)
        self._set_state(env_id, EnvState.RUN)

    def _retry_resets(self, failed: dict[int, Exception]) -> None:
        """Try again where attempts are left; close and raise where not."""
        for env_id in sorted(failed):
            self._attempts[env_id] = self._attempts.get(env_id, 1) - 1
            if self._attempts[env_id] <= 0:
                self._give_up_reset(env_id, failed[env_id])
        time.sleep(self._retry_waiting_time)
        ids = sorted(failed)
        if self._retry_type == "renew":
            self._renew(ids)
            ids = self._without_reset(ids)
        if ids:
            self._send_resets(ids)

    def _without_reset(self, env_ids: Iterable[int]) -> list[int]:
        """Leave out envs that have been told to reset already, as their worker was replaced in the meantime."""
        pool = self._open_pool("reset")
        return [env_id for env_id in env_ids if pool.owes(env_id) != Op.RESET]

    def _renew(self, env_ids: Sequence[int]) -> None:
        """Build envs anew; one that cannot be built has used an attempt up, and is to be built by its next reset."""
        is_built = True
        for env_id in env_ids:
            if not self._without_reset([env_id]):
                continue
            try:
                self._open_pool("renew").call(renew_env, [env_id])
            except (WorkerTimeoutError, WorkerDiedError) as error:
                # Where it goes on, the call is made all the same before the env's next reset.
                if not self._outlives(error):
                    self._give_up_worker(error)
                    raise
            except Exception as error:
                self._attempts[env_id] = self._attempts.get(env_id, 1) - 1
                if self._attempts[env_id] <= 0:
                    self._give_up_reset(env_id, error)
                is_built = False
        if not is_built:
            time.sleep(self._retry_waiting_time)

    def _waiting_timesteps(self) -> dict[int, Any]:
        """Return {env_id: timestep} of what has come and has not been handed out; there is no next call that could."""
        return {}

    def _give_up_reset(self, env_id: int, error: Exception) -> NoReturn:
        """Close and raise; a step within which this happens adds the timesteps that it has made itself."""
        self._set_state(env_id, EnvState.ERROR)
        waiting = self._waiting_timesteps()
        self._close_after(error)
        times = f"in {self._max_retry} attempts" if self._max_retry > 1 else "in its only attempt (max_retry=1)"
        is_layout = isinstance(error, SpaceError) and (error.path or "").startswith("obs")
        remedy = "; shared_memory=False takes observations that differ from their space" if is_layout else ""
        given_up = EnvError(
            f"env {env_id} could not be reset {times}; the manager is closed. "
            f"Last: {type(error).__name__}: {error}{remedy}",
            exception_type=type(error).__qualname__,
            env_ids=(env_id,),
            op="reset",
        )
        vars(given_up)["timesteps"] = waiting
        raise given_up from error


def _raise_failure(failures: list[Exception]) -> None:
    """Raise the first of these, with a note for each other; do nothing if there is none."""
    if failures:
        first, *rest = failures
        add_notes(first, [f"then a step raised {type(error).__name__}: {error}" for error in rest])
        raise first
