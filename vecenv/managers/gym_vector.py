"""GymVectorEnvManager: DI-engine's shape over a gymnasium.vector.VectorEnv, our own or any other.

    {env_id: action} -> one batch -> VectorEnv.step -> rows -> {env_id: timestep}

What happens to an env whose episode ended depends on the autoreset mode below: SAME_STEP
has it run on at once, DISABLED has it reset by a mask, NEXT_STEP leaves it in RESET until the
next step of the others, which is when such a vector env resets it.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from ..config import deep_merge_dicts, warn_unknown_keys
from ..core.layout.info_cells import is_mask
from ..envs.adapt import AdaptedEnv, adapt_and_build, find_attr
from ..envs.base import BaseEnvTimestep
from ..envs.step_formats import AGENTS
from ..envs.video import Recordable, folders_by_env, make_token
from ..errors import ClosedError, ConfigError, StateError, warn_caller
from ..registry import ENV_MANAGER_REGISTRY
from .episode_counts import EnvBooks
from .options import OTHER_KEYS, check_counts, read_env_fns
from .seeds import seeds_by_env
from .side_values import infos_of_agents
from .states import EnvState
from .timesteps import mark_end

__all__ = ["GymVectorEnvManager"]


@ENV_MANAGER_REGISTRY.register("gym_vector")
class GymVectorEnvManager(EnvBooks):
    """A vector env whose results come as timesteps, with each episode's return in its last info.

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
        "timeouts": None,  # `vecenv.Timeouts` or a dict of its fields
        "failures": None,  # `vecenv.FailurePolicy` or a dict of its fields
        "step_timeout": None,  # the same field of `timeouts`, in seconds
        "reset_timeout": None,
    }

    def __init__(
        self,
        env_fn: Sequence[Callable[[], Any]] | gymnasium.vector.VectorEnv[Any, Any, Any],
        cfg: Mapping[str, Any] | None = None,
    ) -> None:
        """Build the vector env; it is reset by `reset`.

        Args:
            env_fn: constructors, for a `vecenv.VectorEnv` of them; or a vector env, which the manager then closes.
            cfg: merged over `default_config()`: `episode_num`, and options of the `vecenv.VectorEnv` that is built
                here. For a vector env that was passed in, these have no effect.

        Raises:
            ConfigError: a value makes no sense.
            Exception: as the vector env's constructor.
        """
        name = type(self).__name__
        warn_unknown_keys({} if cfg is None else cfg, (*self.config, *OTHER_KEYS), name)
        self._cfg = deep_merge_dicts(self.default_config(), cfg)
        check_counts(self._cfg, name)
        env_fns: list[Callable[[], Any]] = []
        if isinstance(env_fn, gymnasium.vector.VectorEnv):
            self._vector_env: Any = env_fn
            self._steps_some = False
        else:
            env_fns = read_env_fns(env_fn, name)
            self._vector_env = self._make_vector_env(env_fns)
            self._steps_some = True
        vector_env = self._vector_env
        self._env_fn = env_fns or list(getattr(vector_env, "env_fns", ())) or [_no_env_fn] * vector_env.num_envs
        mode = (vector_env.metadata or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._mode = mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
        self._open_books(vector_env.num_envs, self._cfg["episode_num"])
        self._returns = np.zeros(vector_env.num_envs)
        self._shown: list[Any] = [None] * vector_env.num_envs
        self._pending_seeds: dict[int, int] = {}
        self._is_over = False
        # Known from the start, for `seed`, and when the vector env has gone. A copy: it may sample from its own, too.
        action_space = copy.deepcopy(vector_env.single_action_space)
        reward_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self._known_spaces = (vector_env.single_observation_space, action_space, reward_space)

    def _make_vector_env(self, env_fns: list[Callable[[], Any]]) -> Any:
        # Imported here: vecenv.vector stands above the managers; this class is the one that is built on it.
        from ..vector import VectorEnv

        options = {key: self._cfg[key] for key in ("backend", "num_workers", "context", "timeouts", "failures")}
        limits = {key: self._cfg[key] for key in ("step_timeout", "reset_timeout") if self._cfg[key] is not None}
        makers = [_RecordableMaker(env_fn) for env_fn in env_fns]
        return VectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP, **options, **limits)

    # ---- what is known -----------------------------------------------------------------------

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker, if the vector env tells."""
        return tuple(getattr(self._vector_env, "worker_pids", ()))

    @property
    def ready_obs(self) -> dict[int, Any]:
        """Newest observation of each env that can be stepped, {env_id: obs}; {} when none can.

        As `ready_obs_id` it steps a vector env in NEXT_STEP mode all of whose episodes are over.
        """
        return {env_id: self._shown[env_id] for env_id in self._begin_if_all_are_over()}

    @property
    def ready_obs_id(self) -> list[int]:
        """Ids of the envs that can be stepped, ascending.

        Where all episodes are over, a vector env in NEXT_STEP mode is stepped first: that begins the next ones.
        """
        return self._begin_if_all_are_over()

    def _begin_if_all_are_over(self) -> list[int]:
        """Give the ids of the envs that can be stepped, for a property."""
        if self._only_awaits():
            try:
                self._step_vector_env({})
            except AttributeError as error:
                self._raise_from_property(error)
        return super().ready_obs_id

    def _only_awaits(self) -> bool:
        """Whether no env can be stepped, and some can once the vector env has been."""
        states = self._env_states.values()
        return EnvState.RESET in states and EnvState.RUN not in states

    # ---- life --------------------------------------------------------------------------------

    def seed(self, seed: Any, dynamic_seed: bool | None = None) -> None:
        """Seed envs; used once, by the next `reset`. Arguments as for the other managers.

        A vector env has no seeds per episode: `dynamic_seed` is ignored with a warning.
        """
        if dynamic_seed is not None:
            warn_caller("dynamic_seed has no effect on a vector env: it is seeded once")
        self._pending_seeds.update(seeds_by_env(seed, len(self._all_ids)))
        if self._pending_seeds:
            self._seed_action_space(self._pending_seeds[min(self._pending_seeds)])

    def enable_save_replay(self, replay_path: str | os.PathLike[str] | Sequence[Any]) -> None:
        """Record a video of every episode from the next reset of each env on.

        Args:
            replay_path: one folder for all envs, or one per env.

        Raises:
            ClosedError: after `close`.
            ConfigError: a wrong number of folders.
            StateError: the vector env was passed in: how its envs are made is its maker's to say.
        """
        if self._is_over:
            raise ClosedError(f"enable_save_replay: {type(self).__name__} is closed; make a new one")
        if not self._steps_some:
            raise StateError(
                "enable_save_replay: a vector env that was passed in; have its env_fns wrap with RecordVideo"
            )
        self._vector_env.set_attr("video_folder", folders_by_env(replay_path, len(self._all_ids)))

    def launch(self, reset_param: None = None) -> None:
        """As `reset`, for callers that launch every manager."""
        if not self._closed:
            raise StateError(f"launch: {type(self).__name__} is running; close it first")
        self.reset(reset_param)

    def reset(self, reset_param: None = None) -> None:
        """Begin anew in all envs: counts and returns start at zero.

        Raises:
            ClosedError: after `close`.
            ConfigError: reset_param is not None.
        """
        if self._is_over:
            raise ClosedError(f"reset: {type(self).__name__} is closed; make a new one")
        if reset_param is not None:
            raise ConfigError("reset: a vector env takes no reset_param; make it None", key="reset_param")
        seeds = [self._pending_seeds.get(env_id) for env_id in self._all_ids] if self._pending_seeds else None
        obs, _ = self._vector_env.reset(seed=seeds)
        self._pending_seeds.clear()
        self._returns[:] = 0.0
        self._closed = False
        for env_id, value in enumerate(self._rows(obs)):
            self._shown[env_id] = value
            self._set_state(env_id, EnvState.RUN)
            self._env_episode_count[env_id] = 0

    def close(self) -> None:
        """End the vector env and the reference env; may be repeated, and is for good."""
        self._closed = True
        if self._is_over:
            return
        self._is_over = True
        self._set_states(EnvState.VOID)
        vector_env, self._vector_env = self._vector_env, None
        self._shown = [None] * len(self._all_ids)
        try:
            vector_env.close()
        finally:
            self._close_env_ref()

    # ---- step --------------------------------------------------------------------------------

    def step(self, actions: Any) -> dict[int, BaseEnvTimestep]:
        """Step envs and wait for all of them.

        Args:
            actions: {env_id: action}. Over a vector env that was passed in, every env in RUN must
                be there: it cannot step some only. {} begins the next episodes where all are over.

        Returns:
            {env_id: BaseEnvTimestep} of the envs asked; the info of a last timestep has
            `eval_episode_return`: the env's own, or else the sum of the episode's rewards, a float.

        Raises:
            ClosedError: not reset yet, or closed.
            StateError: an env is not in RUN.
            ConfigError: not a dict, or an env in RUN is missing.
        """
        if self._closed:
            raise ClosedError(f"step: {type(self).__name__} is closed or was never reset")
        if not isinstance(actions, Mapping):
            raise ConfigError(f"step: expected a dict of actions by env id, got {type(actions).__name__}")
        if not actions:
            return self._step_vector_env({}) if self._only_awaits() else {}
        states = {env_id: self._env_states.get(env_id, EnvState.VOID).name for env_id in actions}
        if any(state != "RUN" for state in states.values()):
            raise StateError(f"step: envs must be in RUN, got {states}")
        if not self._steps_some and len(actions) < len(self.ready_obs_id):
            missing = [env_id for env_id in self.ready_obs_id if env_id not in actions]
            raise ConfigError(f"step: this vector env steps all envs at once; actions are missing for {missing}")
        return self._step_vector_env(actions)

    def _step_vector_env(self, actions: Mapping[int, Any]) -> dict[int, BaseEnvTimestep]:
        ids = [int(env_id) for env_id in actions] if self._steps_some else self._all_ids
        batch = self._join([actions.get(env_id) for env_id in ids])
        if self._steps_some:
            obs, rewards, terminated, truncated, infos = self._vector_env.step(batch, env_id=np.array(ids))
        else:
            obs, rewards, terminated, truncated, infos = self._vector_env.step(batch)
        rows = self._rows(obs)
        timesteps = {}
        for row, env_id in enumerate(ids):
            state = self._env_states[env_id]
            self._shown[env_id] = rows[row]
            if state is EnvState.RESET:
                self._set_state(env_id, EnvState.RUN)
            elif state is EnvState.RUN:
                ends = bool(terminated[row]), bool(truncated[row])
                timesteps[env_id] = self._make_timestep(env_id, row, rows[row], rewards[row], ends, infos)
        if self._mode is AutoresetMode.DISABLED and (terminated | truncated).any():
            self._reset_ended(terminated | truncated)
        return {env_id: timesteps[env_id] for env_id in actions}

    def _make_timestep(
        self, env_id: int, row: int, obs: Any, reward: Any, ends: tuple[bool, bool], infos: dict[str, Any]
    ) -> BaseEnvTimestep:
        self._returns[env_id] += float(np.sum(reward))  # of all agents, where each has its own
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
            if self._note_end(env_id) and self._mode is not AutoresetMode.SAME_STEP:
                self._set_state(env_id, EnvState.RESET)
        given = infos_of_agents(info) if AGENTS in info else info
        return BaseEnvTimestep(obs, np.atleast_1d(np.array(reward, np.float32)), done, given)

    def _reset_ended(self, mask: Any) -> None:
        """Reset envs whose episode is over, those that are DONE too: they are stepped with the others."""
        obs, _ = self._vector_env.reset(options={"reset_mask": mask})
        rows = self._rows(obs)
        for env_id in np.flatnonzero(mask).tolist():
            self._shown[env_id] = rows[env_id]
            if self._env_states[env_id] is EnvState.RESET:
                self._set_state(env_id, EnvState.RUN)

    def _rows(self, obs: Any) -> list[Any]:
        return list(iterate(self._vector_env.observation_space, obs))

    def _join(self, actions: list[Any]) -> Any:
        """Make one batch; envs that are over or about to be reset get some action of the space."""
        space = self._vector_env.single_action_space
        filler = None
        if any(action is None for action in actions):
            filler = _some_action(space)
        values = [filler if action is None else _fit(space, action) for action in actions]
        empty: Any = create_empty_array(space, len(values))
        return concatenate(space, values, empty)

    # ---- attributes --------------------------------------------------------------------------

    def _read_from_envs(self, name: str) -> Any:
        if self._is_over:
            raise ClosedError(f"attribute {name!r}: {type(self).__name__} is closed")
        envs = getattr(self._vector_env, "envs", None)
        reference = envs[0] if envs else (None if self._env_fn[0] is _no_env_fn else self.env_ref)
        missing = object()
        value = find_attr(reference, name, missing)
        if reference is not None and value is missing:
            raise AttributeError(f"neither {type(self).__name__} nor its envs have an attribute {name!r}")
        if reference is not None and inspect.ismethod(value):
            if name not in self.method_name_list:
                raise RuntimeError(f"{name!r} is a method of the envs and is not in method_name_list")
            return lambda *args, **kwargs: list(self._vector_env.call(name, *args, **kwargs))
        return list(self._vector_env.get_attr(name))

    def render(self, mode: str = "rgb_array", env_ids: Sequence[int] | None = None) -> dict[int, Any]:
        """Render all envs in the mode they were made with; return the frames of some, by default the ready ones."""
        if self._closed:
            raise ClosedError(f"render: {type(self).__name__} is closed or was never reset")
        frames = self._vector_env.render()
        return {env_id: frames[env_id] for env_id in (self.ready_obs_id if env_ids is None else env_ids)}

    def _call_envs(self, function: Callable[[Any], Any], what: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        raise StateError(f"{what}: a vector env has no such call for single envs")


class _RecordableMaker:
    """Builds an env that can be told to record; travels by value like the function it holds."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        self.env_fn = env_fn
        self.token = make_token()

    def __call__(self) -> Recordable:
        """Build the env."""
        env = adapt_and_build(self.env_fn())
        if isinstance(env, AdaptedEnv):
            env.notes_agents = True
        return Recordable(env, self.token)


def row_info(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Take one env's info out of a vector env's, where `_key` says who has `key`."""
    info: dict[str, Any] = {}
    for key, values in infos.items():
        if is_mask(key, infos):
            continue
        mask = infos.get(f"_{key}")
        if mask is None and key == "env_id":
            continue
        if mask is not None and not mask[row]:
            continue
        info[key] = row_info(values, row) if isinstance(values, Mapping) else values[row]
    return info


def _some_action(space: gymnasium.Space[Any]) -> Any:
    """Give an action of the space; its generator stays where it is."""
    return copy.deepcopy(space).sample()


def _fit(space: gymnasium.Space[Any], action: Any) -> Any:
    """Unpack arrays of shape (1,) where the space wants a number."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.asarray(action).reshape(())[()]
    return action


def _no_env_fn() -> Any:
    raise StateError("this vector env was passed in and does not tell how its envs are built")
