"""BaseEnvManager: DI-engine's manager over a pool in this process; the state machine of all managers.

    step(actions) -> Pool.send -> envs -> Pool.recv -> timesteps, states, ready observations
                                                       episode over: DONE, NEED_RESET, or reset

Who resets when an episode ends. With default settings the worker does it in the same row (the
observation that ended the episode comes along), which costs no round trip. Where resets have
a time limit or more than one attempt they are commands of their own.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from ..core.layout.rows import RowFlag
from ..core.layout.spec import Array
from ..core.parent.batch import Batch, raise_first
from ..errors import ConfigError, EnvError, StateError, WorkerDiedError, WorkerTimeoutError, add_notes
from ..nested import copy_arrays
from ..registry import ENV_MANAGER_REGISTRY
from .calls import renew_env
from .reset_scheduler import EnvResets
from .side_values import ABNORMAL, AGENTS, abnormal_values, infos_of_agents
from .states import EnvState
from .timesteps import BUILT_ANEW, HAS_INFO, TimestepBuffers, final_rows

__all__ = ["BaseEnvManager"]


@ENV_MANAGER_REGISTRY.register("base")
class BaseEnvManager(EnvResets):
    """Envs in this process, one after another; for debugging and for envs that take no time.

    Example:
        >>> import gymnasium
        >>> with BaseEnvManager([lambda: gymnasium.make("CartPole-v1")] * 2, {"episode_num": 1}) as manager:
        ...     manager.seed(0)
        ...     manager.launch()
        ...     timesteps = manager.step({0: 1, 1: 0})
        ...     sorted(timesteps), timesteps[0].reward, timesteps[0].done
        ([0, 1], array([1.], dtype=float32), False)
    """

    _buffers_class: ClassVar[type[TimestepBuffers]] = TimestepBuffers

    def step(self, actions: Any) -> Any:
        """Step envs and wait for all of them.

        Args:
            actions: {env_id: action}; envs get the very kind of object given.

        Returns:
            {env_id: BaseEnvTimestep} in the order asked. obs as the env gave it, with memory of
            its own; reward float32 (1,) or of the reward space's shape, with shared_memory=False as
            the env gave it; info of a last timestep has `terminated`, `truncated` and
            `TimeLimit.truncated`. An info that the env gave as a list or tuple, one per agent, is
            one here; what a manager adds is in each. The observation of a last timestep is the one
            that ended the episode; `ready_obs` has the next one's first.

        Raises:
            ClosedError: not launched.
            StateError: an env is not in RUN.
            RuntimeError: an env raised in every attempt; it is in ERROR, the others go on. What they answered is
                in the attribute `timesteps` of whatever an env's failed step raises, {env_id: timestep} in the
                order asked; and of what an automatic reset raises that failed in every attempt, and with which the
                manager is closed.
        """
        if self._closed:
            self._open_pool("step")  # says so
        if type(actions) is not dict and not isinstance(actions, Mapping):
            raise ConfigError(f"step: expected a dict of actions by env id, got {type(actions).__name__}")
        ids = list(actions)
        if not ids:
            return {}
        timesteps = self._step_envs(ids, list(actions.values()))
        return dict(zip(ids, timesteps))

    def _check_ready(self, ids: Sequence[int]) -> None:
        if not self._not_running.isdisjoint(ids):
            states = {env_id: self._env_states[env_id].name for env_id in ids if env_id in self._not_running}
            raise StateError(f"step: envs must be in RUN, but these are not: {states}; reset them first")

    def _step_envs(self, ids: list[int], actions: list[Any]) -> list[Any]:
        """Step envs and return what their rows become, in request order."""
        if self._not_running:
            self._check_ready(ids)
        batch, buffers = self._exchange(ids, actions)
        try:
            if batch.flags & RowFlag.ERROR:
                return self._step_with_errors(ids, actions, batch, buffers)
            return self._take(ids, batch, buffers)
        finally:
            self._unreturned.clear()

    def _exchange(self, ids: list[int], actions: list[Any]) -> tuple[Batch, TimestepBuffers]:
        self._send(ids, actions, ordered=True)
        buffers = self._buffers_class(ids, self._layout)  # while the envs step
        batch = self._recv(len(ids))
        assert batch is not None, "only a reset under way is given another chance"
        if not self._copies:
            self._unreturned.append(buffers)
        return batch, buffers

    def _send(self, ids: list[int], actions: list[Any], *, ordered: bool) -> None:
        pool = self._pool or self._open_pool("step")
        is_all = ids == self._all_ids
        if not is_all and not all(map(self._env_states.__contains__, ids)):
            strangers = [env_id for env_id in ids if env_id not in self._env_states]
            raise ConfigError(f"step: no env {strangers[0]!r}; env ids are 0..{self.env_num - 1}")
        packed = self._pack(actions)
        if packed is None:
            pool.send_objects(actions, ids, ordered=ordered)
        else:
            batch, form = packed
            pool.send(batch, None if is_all else ids, ordered=ordered, form=form)
        if not self._copies and self._abnormal_is_error:  # else an abnormal timestep shows the one before again
            self._shown.release(ids)
        if self._unstepped:
            self._unstepped.difference_update(ids)

    # ---- from rows to timesteps ----------------------------------------------------------------

    def _take(self, ids: list[int], batch: Batch, buffers: TimestepBuffers, skip: Collection[int] = ()) -> list[Any]:
        """Turn rows into what the caller gets, and into states and observations to show.

        Args:
            ids: the env of each row.
            buffers: made for these rows.
            skip: envs whose rows mean nothing.

        Raises:
            Exception: as an automatic reset; it has `timesteps`.
        """
        failed = skip
        seen = buffers.fill(batch)
        if batch.flags & RowFlag.MESSAGE:
            skip = self._keep_shown(ids, batch, buffers, skip)
        self._shown.put(ids, buffers.batch, buffers.rows, skip)
        if not batch.flags and self._worker_resets:  # where workers reset, rows that end an episode are flagged
            return buffers.finish()
        ended = (seen.terminated | seen.truncated).nonzero()[0]
        rows = ended.tolist()
        if rows:
            ways = zip(rows, seen.terminated[ended].tolist(), seen.truncated[ended].tolist())
            buffers.end(self._last_observations(buffers, batch, ended, rows), ways)
        if batch.flags & HAS_INFO:
            self._take_abnormal(ids, buffers)
        if rows:
            if self._reset_inplace and self._resets_in_row:
                again = [row for row in rows if ids[row] in self._lost]  # its row has no first observation to show
            else:
                again = rows if self._reset_inplace else []
            try:
                self._end_episodes([ids[row] for row in rows])
            except Exception as error:  # of a reset: what was stepped will not be made again
                for row in again:
                    self._repeat_last(buffers, row)
                self._give_sequences(ids, buffers)
                made = zip(ids, buffers.finish())
                self._carry(error, {env_id: timestep for env_id, timestep in made if env_id not in failed}, ids)
                raise
            if again:
                self._show_next(ids, buffers, again)
        if batch.flags & RowFlag.MESSAGE:
            self._give_sequences(ids, buffers)
        return buffers.finish()

    def _give_sequences(self, ids: list[int], buffers: TimestepBuffers) -> None:
        """Give infos that came as sequences, one per agent, as such again."""
        for row, info in enumerate(buffers.infos):
            if AGENTS in info:
                self._agents[ids[row]] = info[AGENTS], len(info["agent_infos"])
                buffers.put_info(row, infos_of_agents(info))
            elif info.get("recovered") == "truncated" and ids[row] in self._agents:
                buffers.put_info(row, self._info_instead(ids[row], info))

    def _info_instead(self, env_id: int, info: dict[str, Any]) -> Any:
        """Give the info of a timestep that the env itself did not come to, in the form of its others."""
        if env_id not in self._agents:
            return info
        is_tuple, count = self._agents[env_id]
        return infos_of_agents({**info, AGENTS: is_tuple, "agent_infos": [{}] * count})

    def _keep_shown(
        self, ids: list[int], batch: Batch, buffers: TimestepBuffers, skip: Collection[int]
    ) -> Collection[int]:
        """Return `skip` with the envs that go on after an abnormal timestep: their rows have a filler."""
        fillers = [row for row, info in enumerate(buffers.infos) if ABNORMAL in info]
        kept = [ids[row] for row in fillers if not (batch.terminated[row] or batch.truncated[row])]
        for env_id in kept:
            self._shown.put_one(env_id, copy_arrays(self._shown.rows[env_id]))
        return {*skip, *kept} if kept else skip

    def _show_next(self, ids: list[int], buffers: TimestepBuffers, ended: list[int]) -> None:
        """Do as `reset_inplace` says where the reset was a command of its own: show what it gave."""
        for row in ended:
            env_id = ids[row]
            if self._env_states[env_id] is EnvState.RUN:
                buffers.infos[row].setdefault("final_obs", buffers.obs_of(row))
                buffers.replace(row, self._shown.rows[env_id], buffers.rewards[row], True)
            else:
                self._show_last(env_id, buffers, row)

    def _show_last(self, env_id: int, buffers: TimestepBuffers, row: int) -> None:
        """As `_show_next` where no episode follows: the observation that ended this one stands in both places."""
        if self._env_states[env_id] is EnvState.DONE:
            self._repeat_last(buffers, row)

    def _repeat_last(self, buffers: TimestepBuffers, row: int) -> None:
        buffers.infos[row].setdefault("final_obs", buffers.obs_of(row))

    def _last_observations(self, buffers: TimestepBuffers, batch: Batch, ended: Array, rows: list[int]) -> list[Any]:
        """Return what the last timesteps of these rows' episodes are to show."""
        if not self._worker_resets:
            own = [buffers.rows[row] for row in rows]
            # of a row that nobody watches once the next episode's is shown
            return own if self._copies else list(map(copy_arrays, own))
        # The row has the first observation of a new episode beside what ended the old one.
        finals = final_rows(self._layout.spec, batch, ended)
        if not (self._reset_inplace and self._resets_in_row):
            return finals
        shown = []
        for row, final in zip(rows, finals):
            info = buffers.infos[row]
            info["final_obs"] = final
            is_new = info.get("recovered") in BUILT_ANEW  # and has begun nothing yet
            # no next one: the row has some filler
            shown.append(final if is_new or self._is_last_episode(buffers.ids[row]) else buffers.rows[row])
        return shown

    def _take_abnormal(self, ids: list[int], buffers: TimestepBuffers) -> None:
        for row, info in enumerate(buffers.infos):
            if info.get("recovered") in BUILT_ANEW and ids[row] not in self._lost:
                self._forget([ids[row]])
            if info.get("abnormal", False):
                own = abnormal_values(info)
                if own is not None:
                    buffers.replace(row, *own)
                if self._abnormal_is_error:
                    self._set_state(ids[row], EnvState.ERROR)

    def _end_episodes(self, ended_ids: list[int]) -> None:
        """Note ends of episodes, and reset the envs that are to be reset now."""
        to_reset = []
        for env_id in ended_ids:
            if self._env_states[env_id] is EnvState.ERROR or not self._note_end(env_id):
                continue
            if not self._auto_reset:
                self._set_state(env_id, EnvState.NEED_RESET)
            elif self._resets_in_row and env_id not in self._lost:
                self._episodes_begun[env_id] += 1
                self._unstepped.add(env_id)
            else:
                to_reset.append(env_id)
        if to_reset:
            self._reset_ended(to_reset)

    def _reset_ended(self, ids: Sequence[int]) -> None:
        """Begin the next episodes, within the same call."""
        super()._reset_ended(ids)
        self._await_resets()

    # ---- failing steps ---------------------------------------------------------------------------

    def _step_with_errors(
        self, ids: list[int], actions: list[Any], batch: Batch, buffers: TimestepBuffers
    ) -> list[Any]:
        given = dict(zip(ids, actions))
        places: dict[int, tuple[TimestepBuffers, int]] = {}  # observations may move until the last attempt

        def made() -> dict[int, Any]:
            return {env_id: places[env_id][0].results[places[env_id][1]] for env_id in ids if env_id in places}

        asked = ids
        try:
            for attempts_left in reversed(range(self._max_retry if self._retries_steps else 1)):
                errors = batch.errors()
                self._take(asked, batch, buffers, skip=errors)
                places.update((env_id, (buffers, row)) for row, env_id in enumerate(asked) if env_id not in errors)
                self._check_reset_errors(errors)
                if not errors or not attempts_left:
                    break
                time.sleep(self._retry_waiting_time)
                asked = list(errors)
                batch, buffers = self._exchange(asked, [given[env_id] for env_id in asked])
        except Exception as error:
            self._carry(error, made(), ids)
            raise
        if errors:
            self._fail_steps(errors, made())
        return list(made().values())

    def _move_obs(self, moved: Mapping[int, Any]) -> None:
        """Let what this step will return look at the copies: it waits for more batches, of resets or repeated steps."""
        for buffers in self._unreturned:
            for row, env_id in enumerate(buffers.ids):
                if env_id in moved and buffers.rows[row] is moved[env_id]:
                    buffers.put_obs(row, self._shown.rows[env_id])

    def _carry(self, error: Exception, timesteps: dict[int, Any], ids: Sequence[int]) -> None:
        """Give an exception that ends a step these timesteps, too, for the caller to have; in the order of `ids`."""
        known = vars(error).get("timesteps", {})
        known = {**dict(zip(timesteps, self._hand_out(list(timesteps.values())))), **known}
        vars(error)["timesteps"] = {env_id: known[env_id] for env_id in ids if env_id in known}

    def _check_reset_errors(self, errors: dict[int, Exception]) -> None:
        """An automatic reset that failed within a step is a reset that failed."""
        for env_id, error in sorted(errors.items()):
            if isinstance(error, EnvError) and error.op == "reset":
                self._give_up_reset(env_id, error)

    def _fail_steps(self, errors: dict[int, Exception], timesteps: dict[int, Any]) -> NoReturn:
        """Raise for envs whose step failed, after doing what `on_step_error` says.

        Args:
            timesteps: of the others in that call, which the caller gets with the exception: they are not made again.
        """
        policy = self._cfg["on_step_error"]
        for env_id in errors:
            self._set_state(env_id, EnvState.ERROR)
        unbuilt = self._renew_failed(sorted(errors)) if policy == "renew" else None
        if policy == "close":
            self._close_after(next(iter(errors.values())))
        shown = self._present_errors(errors)
        if unbuilt is not None:
            first = shown[min(shown)]
            first.__context__ = unbuilt
            told = f"{type(unbuilt).__name__}: {unbuilt}"
            add_notes(first, [f"it could not be built anew either, which its next reset tries again: {told}"])
        self._carry(shown[min(shown)], timesteps, list(timesteps))
        raise_first(shown)

    def _hand_out(self, timesteps: list[Any]) -> list[Any]:
        """Give timesteps the form that the caller is to have."""
        return timesteps

    def _renew_failed(self, env_ids: list[int]) -> Exception | None:
        """Build envs anew whose step failed; return what a constructor raised, if one did."""
        try:
            self._call_envs(renew_env, "renew", env_ids)
        except (WorkerTimeoutError, WorkerDiedError):
            raise
        except Exception as error:
            return error
        return None

    def _present_errors(self, errors: dict[int, Exception]) -> dict[int, Exception]:
        """Return the exceptions that the caller is to see."""
        shown: dict[int, Exception] = {}
        state = "the manager is closed" if self._closed else "it is in ERROR until it is reset"
        for env_id, error in errors.items():
            shown[env_id] = EnvError(
                f"step of env {env_id} failed in {self._max_retry} attempts; {state}. "
                f"Last: {type(error).__name__}: {error}",
                exception_type=type(error).__qualname__,
                env_ids=(env_id,),
                op="step",
            )
            shown[env_id].__cause__ = error
        return shown
