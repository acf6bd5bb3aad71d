"""GymVectorEnvManager: DI-engine's manager over a gymnasium.vector.VectorEnv, this library's or another one.

    {env_id: action} -> one batch -> VectorEnv.step -> rows -> {env_id: timestep}

At the end of an episode the autoreset mode of the vector env decides. SAME_STEP: the next episode begins in the same
step. DISABLED: the manager resets the env by a mask. NEXT_STEP: the env is in RESET until the next step of the other
envs, in which the vector env resets it.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from ..config import deep_merge_dicts, warn_unknown_keys
from ..core.layout.info_cells import is_mask
from ..core.layout.spec import copy_spaces
from ..core.options import check_env_fns
from ..core.pool.face import PoolFace
from ..envs.adapt import AdaptedEnv, adapt_and_build, find_attr, original
from ..envs.base import BaseEnvTimestep
from ..envs.factory import EnvFactory
from ..envs.step_formats import AGENTS
from ..envs.video import Recordable, folders_by_env, make_token
from ..errors import ClosedError, ConfigError, StateError, take_rows, warn_caller
from ..options import read_timeouts
from ..registry import ENV_MANAGER_REGISTRY
from ..report import Report
from ..saved_state import SavedState, StateLike
from ..statistics import Statistics
from .env_spaces import ReferenceSpaces
from .episode_counts import EpisodeCounts
from .manager import EnvManager, env_property
from .options import OTHER_KEYS, check_counts
from .seeds import seeds_by_env
from .side_values import infos_of_agents
from .states import EnvState
from .timesteps import mark_end

__all__ = ["GymVectorEnvManager"]

#: Name of the class in saved states.
_KIND = "GymVectorEnvManager"


@ENV_MANAGER_REGISTRY.register("gym_vector")
class GymVectorEnvManager(EnvManager, PoolFace):
    """A vector env with timesteps as results; the info of an episode's last timestep has the episode's return.

    Example:
        >>> manager = GymVectorEnvManager(gymnasium.make_vec("CartPole-v1", 2, "sync"))
        >>> manager.reset()
        >>> timesteps = manager.step({0: 1, 1: 0})
        >>> timesteps[1].reward, manager.ready_obs_id
        (array([1.], dtype=float32), [0, 1])
        >>> manager.close()
    """

    config: ClassVar[dict[str, Any]] = {
        "episode_num": math.inf,
        "shared_memory": False,  # accepted; see VectorEnv
        "backend": "process",  # this and the others are options of the VectorEnv that is built here
        "num_workers": None,
        "context": None,
        "worker_output": "once",
        "worker_init": None,
        "timings": True,
        "monitor": True,
        "timeouts": None,  # `vecenv.Timeouts` or a dict of its fields
        "failures": None,  # `vecenv.FailurePolicy` or a dict of its fields
        "step_timeout": None,  # the same field of `timeouts`, in seconds
        "reset_timeout": None,
        "resume": None,  # a file of `save`, or the result of `state_dict`; the first launch continues there
    }

    def __init__(
        self,
        env_fn: Sequence[Callable[[], Any]] | gymnasium.vector.VectorEnv[Any, Any, Any],
        cfg: Mapping[str, Any] | None = None,
    ) -> None:
        """Build the vector env; `reset` resets it.

        Args:
            env_fn: constructors, for a `vecenv.VectorEnv` of them; or a vector env, which the manager then closes.
            cfg: merged over `default_config()`: `episode_num`, and options of the `vecenv.VectorEnv` that is built
                here. For a vector env that was passed in, these have no effect.

        Raises:
            ConfigError: a key has a value that it cannot have.
            Exception: raised by the vector env's constructor.
        """
        name = type(self).__name__
        warn_unknown_keys({} if cfg is None else cfg, (*self.config, *OTHER_KEYS), name)
        self._cfg = deep_merge_dicts(self.default_config(), cfg)
        check_counts(self._cfg, name)
        if isinstance(env_fn, gymnasium.vector.VectorEnv):
            self._vector_env: Any = env_fn
            env_fns = list(getattr(env_fn, "env_fns", ()))
        else:
            env_fns = check_env_fns(env_fn, f"{name}: env_fn")
            self._vector_env = self._make_vector_env(env_fns)
        self._steps_some = env_fn is not self._vector_env  # else each step steps all envs
        vector_env = self._vector_env
        self._mode = AutoresetMode((vector_env.metadata or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP))
        counts = EpisodeCounts(vector_env.num_envs, self._cfg["episode_num"])
        spaces = ReferenceSpaces(env_fns[0] if env_fns else _no_env_fn, needed=True)
        spaces.set(vector_env.single_observation_space, vector_env.single_action_space, None)
        # The caller may change those of the vector env.
        self._obs_space, self._action_space = copy_spaces(vector_env.observation_space, vector_env.single_action_space)
        super().__init__(counts, spaces)
        self._has_env_fns = bool(env_fns)
        self._returns = np.zeros(vector_env.num_envs)
        self._last_obs: list[Any] = [None] * vector_env.num_envs
        self._pending_seeds: dict[int, int] = {}
        self._resume: StateLike | None = self._cfg["resume"]

    def _make_vector_env(self, env_fns: list[Callable[[], Any]]) -> Any:
        # Imported here: vecenv.vector imports nothing of the managers, and only this manager imports vecenv.vector.
        from ..vector import VectorEnv

        names = ("worker_output", "worker_init", "timings", "monitor")
        limits = {key: self._cfg[key] for key in ("step_timeout", "reset_timeout") if self._cfg[key] is not None}
        options = {
            **{key: self._cfg[key] for key in ("backend", "num_workers", "context", "failures")},
            "timeouts": read_timeouts(self._cfg["timeouts"], **limits),
            "engine": {key: self._cfg[key] for key in names},
        }
        factories = [EnvFactory(_make_recordable, (env_fn, make_token())) for env_fn in env_fns]
        return VectorEnv(factories, autoreset_mode=AutoresetMode.SAME_STEP, **options)

    # ---- properties ------------------------------------------------------------------------

    def __repr__(self) -> str:
        inner = vars(self).get("_vector_env")
        return f"{type(self).__name__}({'closed=True' if inner is None else repr(inner)})"

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker; empty if the vector env has no such attribute."""
        return tuple(getattr(self._vector_env, "worker_pids", ()))

    def statistics(self) -> Statistics:
        """Return counts and times since the launch, as `VectorEnv.statistics`.

        Raises:
            StateError: the manager is not launched, or its vector env is not one of vecenv.
        """
        read = getattr(self._vector_env, "statistics", None)
        found = read() if callable(read) else None
        if not isinstance(found, Statistics):
            raise StateError("statistics: launch the manager first; only vector envs of vecenv have statistics")
        return found

    def report(self) -> Report:
        """Return verdicts about the speed since the launch, as `VectorEnv.report`.

        Raises:
            StateError: the manager is not launched, or its vector env is not one of vecenv.
        """
        self.statistics()  # raises for other vector envs
        found: Report = self._vector_env.report()
        return found

    @env_property
    def ready_obs(self) -> dict[int, Any]:
        """Newest observation of each env that can be stepped, {env_id: obs}; {} if there is none.

        Like `ready_obs_id` it may step a vector env in NEXT_STEP mode.
        """
        return {env_id: self._last_obs[env_id] for env_id in self.ready_obs_id}

    @env_property
    def ready_obs_id(self) -> list[int]:
        """Ids of the envs that can be stepped, ascending.

        If all episodes are over, a vector env in NEXT_STEP mode is stepped first, which begins the next ones.
        """
        if self._needs_step():
            self._step_vector_env({})
        return self._counts.running_ids()

    def _needs_step(self) -> bool:
        """Return whether no env can be stepped, and a step of the vector env changes that."""
        states = self._counts.states.values()
        return EnvState.RESET in states and EnvState.RUN not in states

    # ---- attributes and methods of envs ----------------------------------------------------

    def _read_attribute(self, name: str) -> Any:
        owner = type(self).__name__
        if self._vector_env is None:
            raise ClosedError(f"attribute {name!r}: {owner} is closed")
        envs = getattr(self._vector_env, "envs", None)
        if envs or self._has_env_fns:
            missing = object()
            value = find_attr(envs[0] if envs else original(self._spaces.reference()), name, missing)
            if value is missing:
                raise AttributeError(f"neither {owner} nor its envs have an attribute {name!r}")
            if inspect.ismethod(value):
                if name not in self.method_name_list:
                    raise RuntimeError(f"{name!r} is a method of the envs and is not in method_name_list")
                return lambda *args, **kwargs: list(self._vector_env.call(name, *args, **kwargs))
        return list(self._vector_env.get_attr(name))

    def _render_envs(self, mode: str, env_ids: Sequence[int]) -> list[Any]:
        if self._counts.closed:
            raise ClosedError(f"render: {type(self).__name__} is closed or was never reset")
        frames = self._vector_env.render()  # Envs have the mode that they were made with.
        return [frames[env_id] for env_id in env_ids]

    def _call_envs(self, function: Callable[[Any], Any], what: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        raise StateError(f"{what}: a vector env has no such call for single envs")

    # ---- seeds, resets, close --------------------------------------------------------------

    def seed(self, seed: Any, dynamic_seed: bool | None = None) -> None:
        """Seed envs, as `BaseEnvManager.seed`. The next `reset` uses the seeds once.

        A vector env has no seeds of single episodes: `dynamic_seed` is ignored with a warning.
        """
        if dynamic_seed is not None:
            warn_caller("dynamic_seed has no effect on a vector env: it is seeded once")
        self._pending_seeds.update(seeds_by_env(seed, self.env_num))
        if self._pending_seeds:
            self._spaces.seed_actions(self._pending_seeds[min(self._pending_seeds)])

    def enable_save_replay(self, replay_path: str | os.PathLike[str] | Sequence[Any]) -> None:
        """Record a video of every episode, as `BaseEnvManager.enable_save_replay`.

        Raises:
            ClosedError: the manager is closed.
            ConfigError: a wrong number of folders.
            StateError: the vector env was passed in, so the manager does not build its envs.
        """
        if self._vector_env is None:
            raise ClosedError(f"enable_save_replay: {type(self).__name__} is closed; make a new one")
        if not self._steps_some:
            raise StateError(
                "enable_save_replay: a vector env that was passed in; have its env_fns wrap with RecordVideo"
            )
        self._vector_env.set_attr("video_folder", folders_by_env(replay_path, self.env_num))

    def launch(self, reset_param: None = None) -> None:
        """Reset all envs, like `reset`, for programs that launch every manager.

        With the config key `resume`, the first launch continues where that state was saved; see `load_state_dict`.

        Raises:
            StateError: the manager is running.
            ClosedError, ConfigError: as `reset`, or as `load_state_dict`.
        """
        if not self._counts.closed:
            raise StateError(f"launch: {type(self).__name__} is running; close it first")
        if self._resume is None:
            self.reset(reset_param)
        else:
            self._load(SavedState.read(self._resume))
            self._resume = None

    def reset(self, reset_param: None = None) -> None:
        """Begin new episodes in all envs; counts and returns start at zero.

        Raises:
            ClosedError: the manager is closed.
            ConfigError: reset_param is not None.
        """
        if self._vector_env is None:
            raise ClosedError(f"reset: {type(self).__name__} is closed; make a new one")
        if reset_param is not None:
            raise ConfigError("reset: a vector env takes no reset_param; make it None", key="reset_param")
        all_ids = self._counts.all_ids
        seeds = [self._pending_seeds.get(env_id) for env_id in all_ids] if self._pending_seeds else None
        obs, _ = self._vector_env.reset(seed=seeds)
        self._pending_seeds.clear()
        self._returns[:] = 0.0
        self._counts.open()
        for env_id, value in enumerate(self._rows(obs)):
            self._last_obs[env_id] = value
            self._counts.set_state(env_id, EnvState.RUN)

    def close(self) -> None:
        """Close the vector env and the reference env; may be repeated. The manager cannot be opened again."""
        self._counts.close()
        vector_env, self._vector_env = self._vector_env, None
        if vector_env is None:
            return
        self._last_obs = [None] * self.env_num
        try:
            vector_env.close()
        finally:
            self._spaces.close()

    # ---- saving ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the manager and of its vector env, a dict of plain values; see `save`."""
        return self._save("state_dict").as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called; the vector env builds its envs again.

        Raises:
            ConfigError: the state is damaged, or it does not fit; nothing was changed.
            StateError: the vector env is not one of vecenv.
            Exception: as for `VectorEnv.load_state_dict`; the manager is closed then.
        """
        self._load(SavedState.read(state))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state into one file, as `BaseEnvManager.save`.

        Raises:
            ClosedError: the manager is closed or was never reset.
            StateError: the vector env is not one of vecenv; and as for `VectorEnv.save`.
            OSError: the file cannot be written.
        """
        self._save("save").write(path)

    def _save(self, what: str) -> SavedState:
        if self._counts.closed:
            raise ClosedError(f"{what}: {type(self).__name__} is closed or was never reset")
        inner = SavedState.read(self._own_vector_env(what).state_dict())
        values = {
            "counts": self._counts.save(),
            "last_obs": self._last_obs,
            "returns": self._returns,
            "seeds": self._pending_seeds,
            "spaces": self._spaces.save(),
        }
        return inner.around(_KIND, values)

    def _load(self, saved: SavedState) -> None:
        vector_env = self._own_vector_env("load_state_dict")
        pool = vector_env.pool
        saved.check(kind=_KIND, num_envs=pool.num_envs, autoreset_mode=pool.options.autoreset.name)
        saved.check_spaces(pool.spaces.observation_space, pool.spaces.action_space, pool.implementation)
        inner, values = saved.value
        try:
            vector_env.load_state_dict(inner)
        except BaseException:
            if vector_env.closed:
                self.close()
            raise
        self._counts.open()
        self._counts.load(values["counts"])
        self._last_obs, self._returns = values["last_obs"], values["returns"]
        self._pending_seeds = values["seeds"]
        self._spaces.load(values["spaces"])

    def _own_vector_env(self, what: str) -> Any:
        """Return the vector env; raise StateError if it is not one of vecenv, whose state can be saved."""
        from ..vector.base import BaseVectorEnv

        if self._vector_env is None:
            raise ClosedError(f"{what}: {type(self).__name__} is closed; make a new one")
        if not isinstance(self._vector_env, BaseVectorEnv):
            raise StateError(f"{what}: only vector envs of vecenv have a state, got {self._vector_env!r}")
        return self._vector_env

    # ---- step --------------------------------------------------------------------------------

    def step(self, actions: Any) -> dict[int, BaseEnvTimestep]:
        """Step envs and wait for all of them.

        Args:
            actions: {env_id: action}. A vector env that was passed in cannot step some envs only: the dict must
                have all envs in RUN. {} begins the next episodes if all are over.

        Returns:
            {env_id: BaseEnvTimestep} of the envs in `actions`; `reward` is float32 (1,), or has one number per
            agent. At the end of an episode the info has `eval_episode_return`: the env's own value, or else the sum
            of the episode's rewards, a float.

        Raises:
            ClosedError: the manager has not been reset, or is closed.
            StateError: an env is not in RUN.
            ConfigError: not a dict, or it lacks an env in RUN.
        """
        if self._counts.closed:
            raise ClosedError(f"step: {type(self).__name__} is closed or was never reset")
        if not isinstance(actions, Mapping):
            raise ConfigError(f"step: expected a dict of actions by env id, got {type(actions).__name__}")
        if not actions:
            return self._step_vector_env({}) if self._needs_step() else {}
        states = {env_id: self._counts.states.get(env_id, EnvState.VOID).name for env_id in actions}
        if any(state != "RUN" for state in states.values()):
            raise StateError(f"step: envs must be in RUN, got {states}")
        if not self._steps_some and len(actions) < len(self.ready_obs_id):
            missing = [env_id for env_id in self.ready_obs_id if env_id not in actions]
            raise ConfigError(f"step: this vector env steps all envs at once; actions are missing for {missing}")
        return self._step_vector_env(actions)

    def _step_vector_env(self, actions: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        ids = [int(env_id) for env_id in actions] if self._steps_some else self._counts.all_ids
        batch = self._join([actions.get(env_id) for env_id in ids])
        try:
            if self._steps_some:
                step = self._vector_env.step(batch, env_id=np.array(ids))
            else:
                step = self._vector_env.step(batch)
        except Exception as error:
            if (rows := take_rows(error)) is not None:
                has_row = rows.mask if len(rows.mask) == len(ids) else rows.mask[ids]
                answered = [env_id for env_id, has in zip(ids, has_row.tolist()) if has]
                vars(error)["timesteps"] = self._make_timesteps(ids, rows.result, answered)
            raise
        timesteps = self._make_timesteps(ids, step, ids)
        return {env_id: timesteps[env_id] for env_id in actions}

    def _make_timesteps(self, ids: list[int], step: Any, answered: Collection[int]) -> dict[int, BaseEnvTimestep]:
        """Return the timesteps of the envs in `answered`, and update their states; `ids` has the env of each row."""
        obs, rewards, terminated, truncated, infos = step
        rows = self._rows(obs)
        timesteps = {}
        for row, env_id in enumerate(ids):
            if env_id not in answered:
                continue
            state = self._counts.states[env_id]
            self._last_obs[env_id] = rows[row]
            if state is EnvState.RESET:
                self._counts.set_state(env_id, EnvState.RUN)
            elif state is EnvState.RUN:
                ends = bool(terminated[row]), bool(truncated[row])
                timesteps[env_id] = self._make_timestep(env_id, row, rows[row], rewards[row], ends, infos)
        if self._mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            self._reset_by_mask(terminated | truncated)
        return timesteps

    def _make_timestep(
        self, env_id: int, row: int, obs: Any, reward: Any, ends: tuple[bool, bool], infos: dict[str, Any]
    ) -> BaseEnvTimestep:
        self._returns[env_id] += float(np.sum(reward))  # The sum of all agents, where each has its own reward.
        info = row_info(infos, row)
        done = ends[0] or ends[1]
        if done:
            if self._mode is AutoresetMode.SAME_STEP:
                obs, info = info["final_obs"], info.get("final_info") or {}
            score = info.get("eval_episode_return", self._returns[env_id])
            # Python's numbers come out of the vector env's arrays as NumPy's of these types.
            info["eval_episode_return"] = score.item() if type(score) in (np.float64, np.int64) else score
            self._returns[env_id] = 0.0
            mark_end(info, *ends)
            info.update({key: value.item() for key, value in info.items() if isinstance(value, np.bool_)})
            if self._counts.count_end(env_id) and self._mode is not AutoresetMode.SAME_STEP:
                self._counts.set_state(env_id, EnvState.RESET)
        given = infos_of_agents(info) if AGENTS in info else info
        return BaseEnvTimestep(obs, np.atleast_1d(np.array(reward, np.float32)), done, given)

    def _reset_by_mask(self, mask: Any) -> None:
        """Reset envs whose episode is over, those that are DONE too: they are stepped with the others."""
        obs, _ = self._vector_env.reset(options={"reset_mask": mask})
        rows = self._rows(obs)
        for env_id in np.flatnonzero(mask).tolist():
            self._last_obs[env_id] = rows[env_id]
            if self._counts.states[env_id] is EnvState.RESET:
                self._counts.set_state(env_id, EnvState.RUN)

    def _rows(self, obs: Any) -> list[Any]:
        return list(iterate(self._obs_space, obs))

    def _join(self, actions: list[Any]) -> Any:
        """Return a batch of actions; an env without an action gets one of the space."""
        space = self._action_space
        # Sampling moves the generator of a space.
        placeholder = copy.deepcopy(space).sample() if any(action is None for action in actions) else None
        values = [placeholder if action is None else _fit(space, action) for action in actions]
        empty: Any = create_empty_array(space, len(values))
        return concatenate(space, values, empty)


def _make_recordable(env_fn: Callable[[], Any], token: str) -> Recordable:
    env = adapt_and_build(env_fn())
    if isinstance(env, AdaptedEnv):
        env.notes_agents = True
    return Recordable(env, token)


def row_info(infos: Mapping[Any, Any], row: int) -> dict[Any, Any]:
    """Return one env's info out of the infos of a vector env.

    The mask `_key` marks the envs that have `key`; without a mask, as in other libraries, all envs have it.
    """
    return {
        key: row_info(values, row) if isinstance(values, Mapping) else values[row]
        for key, values in infos.items()
        if not is_mask(key, infos) and (infos[f"_{key}"][row] if f"_{key}" in infos else key != "env_id")
    }


def _fit(space: gymnasium.Space[Any], action: Any) -> Any:
    """Return an action that fits the space: a number for Discrete, also from an array of shape (1,)."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.asarray(action).reshape(())[()]
    return action


def _no_env_fn() -> Any:
    raise StateError("this vector env was passed in and its env_fns are unknown")
