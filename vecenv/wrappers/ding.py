"""`DingEnvWrapper` makes a `BaseEnv` from any Gymnasium or old-Gym env, and applies the usual wrappers by name."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.config import deep_merge_dicts, warn_unknown_keys
from vecenv.envs.adapt import adapt, find_attr, reward_space_of
from vecenv.envs.arrays import action_to_ndarray, normalise_action, present_obs, present_space, scale_action
from vecenv.envs.base import BaseEnv, BaseEnvTimestep, copy_env_cfg
from vecenv.envs.gym_registry import make_env
from vecenv.envs.seeding import EpisodeSeeds, check_seed
from vecenv.envs.step_formats import to_timestep
from vecenv.envs.video import DEFAULT_FOLDER, EpisodeRecorder, unique_name
from vecenv.errors import ConfigError, StateError
from vecenv.gymnasium_api.first_seeds import seed_generators
from vecenv.values.own_attributes import get_own_attr
from vecenv.values.pickling import dump_by_value
from vecenv.wrappers.create import create_env_wrapper

from ..own_log import own_logger

__all__ = [
    "DingEnvWrapper",
    "get_default_wrappers",
]

_LOG = own_logger(__name__)
CALLERS = ("collector", "evaluator")
FIRE_GAMES = ("Pong", "Qbert", "SpaceInvader", "Montezuma")
# Keys that configs of envs may contain in addition to those in DingEnvWrapper.config.
OTHER_KEYS = ("render_mode", "is_train", "type", "import_names", "collector_env_num", "evaluator_env_num", "stop_value")
REWARD_FLOOR = -10.0  # rew_clip raises lower rewards to this value; higher rewards are not changed


class DingEnvWrapper(BaseEnv):
    """A `BaseEnv` around an env object, or around an env id that is made at the first reset.

    Observations are arrays, with floats as float32. Rewards are float32 of shape (1,); vector rewards keep their
    shape. Both are copies, because the env may reuse its own arrays.

    With an id, the three spaces are None until the first reset, and a closed wrapper can be reset again. With an
    object, the spaces are available at once, and the wrapper cannot be used after `close`. An `env_id` in the config
    then only selects the default wrappers.

    Config keys:
        env_id: id of the env.
        env_wrapper: a name for `get_default_wrappers`, or a list of wrapper configs and callables, applied in order.
        act_scale: True: actions are in [-1, 1] and are scaled to the bounds of the action space.
        rew_clip: True: rewards below -10 become -10.
        render_mode: passed to `gymnasium.make` unless it is None.
        is_train: False sets the caller to 'evaluator'.

    Example:
        >>> env = DingEnvWrapper(cfg={"env_id": "CartPole-v1"})
        >>> env.seed(3, dynamic_seed=False)
        >>> env.reset().dtype
        dtype('float32')
        >>> timestep = env.step(env.random_action())
        >>> timestep.reward, timestep.done
        (array([1.], dtype=float32), False)
        >>> env.close()
    """

    observation_space: Any
    """Space of the observations, with floats as float32; None before the env is made."""
    action_space: Any
    """The env's action space; None before the env is made."""
    reward_space: Any
    """The env's reward space, else float32 (1,) with the bounds of its `reward_range`; None before it is made."""

    config: ClassVar[dict[str, Any]] = {"act_scale": False, "rew_clip": False, "env_wrapper": "default", "env_id": None}

    def __init__(
        self,
        env: Any = None,
        cfg: Mapping[str, Any] | None = None,
        seed_api: bool = True,
        caller: str = "collector",
        is_gymnasium: bool = False,
    ) -> None:
        """Wrap the env if one is given, else store the config for the first reset.

        Args:
            env: any env that `envs.adapt` accepts, or None.
            cfg: merged over the class's `config`; not changed.
            seed_api: False: the env is never seeded.
            caller: 'collector' or 'evaluator'; selects some default wrappers.
            is_gymnasium: ignored; the kind of env is recognised.

        Raises:
            ConfigError: there is neither an env nor `env_id`, or the caller is unknown.
        """
        if cfg is not None and not isinstance(cfg, Mapping):
            raise ConfigError(f"DingEnvWrapper: cfg: expected a dict, got {cfg!r}")
        warn_unknown_keys(cfg or {}, (*self.config, *OTHER_KEYS), type(self).__name__)
        self._cfg = deep_merge_dicts(self.config, dict(cfg or {}))
        self._seed_api = seed_api
        self._caller = _check_caller("evaluator" if self._cfg.get("is_train") is False else caller)
        self._seed: int | None = None  # None: never seeded
        self._dynamic_seed: bool = True
        self._seeds = EpisodeSeeds()
        self._was_given = env is not None
        self._raw_env: gymnasium.Env[Any, Any] | None = None
        self._env: gymnasium.Env[Any, Any] | None = None
        self._recorder: EpisodeRecorder | None = None
        self._replay_path: str | None = None
        self._replay_token: str | None = None
        self._first_seed: int | None = None
        self.observation_space = self.action_space = self.reward_space = None
        self.reset_info: dict[str, Any] = {}
        """Info of the last reset."""
        if env is not None:
            # A GymToGymnasiumWrapper contains a Gymnasium env: use that directly.
            self._install(env.env if getattr(type(env), "is_old_api_adapter", False) else env)
            self.action_space.seed(0)
        elif not self._cfg.get("env_id"):
            raise ConfigError("DingEnvWrapper needs an env, or a cfg with env_id")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Make the env if there is none, seed it with the next episode seed, and return the first observation.

        Args:
            seed: seed of this episode only, instead of the one from the sequence that `seed()` began.
            options: passed on to the env.

        Raises:
            StateError: the wrapper is closed and its env was given as an object, so it cannot be made again.
            ConfigError: a video was requested and cannot be recorded, e.g. the env object has another render_mode.
        """
        self._prepare()
        assert self._env is not None
        if self._first_seed is not None:
            seed_generators(self._env, self._first_seed)
            self._first_seed = None
        first = self._seeds.episode == 0
        with self._seeds.for_reset() as planned:
            episode_seed = planned if seed is None else check_seed(seed)
            if not self._seed_api:
                episode_seed = None
            if episode_seed is not None:
                self._env.action_space.seed(episode_seed)
                if first or seed is not None:
                    self._forget_lives()
            obs, self.reset_info = self._env.reset(seed=episode_seed, options=options)
        return present_obs(obs, self._env.observation_space)

    def step(self, action: Any) -> BaseEnvTimestep:  # type: ignore[override]  # DI-engine's signature
        """Apply one action, given as an int, an array or a dict of them; TypeError for another form.

        StateError: called before the first reset or after `close`.
        """
        env = self._env
        if env is None:
            raise StateError(f"step of {self!r} before a reset")
        action = normalise_action(action, env.action_space)
        if self._cfg["act_scale"]:
            action = scale_action(action, env.action_space)
        obs, reward, terminated, truncated, info = env.step(action)
        if obs is not None:
            obs = present_obs(obs, env.observation_space)
        if reward is not None:
            reward = np.array(reward, dtype=np.float32, ndmin=1)
            if self._cfg["rew_clip"]:
                reward = np.maximum(reward, np.float32(REWARD_FLOOR))
        return to_timestep(obs, reward, terminated, truncated, info)

    def close(self) -> None:
        """Close and drop the env; may be called more than once. Exceptions of the env's `close` are logged."""
        env, self._env, self._raw_env, self._recorder = self._env, None, None, None
        if env is not None:
            try:
                env.close()
            except Exception:
                _LOG.warning("close of %r raised an exception; the env is dropped anyway", env, exc_info=True)

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Set the seed from which episode seeds are computed; the next reset starts episode 0.

        `dynamic_seed`: True gives each episode a seed of its own, False gives all the same seed. ConfigError: the seed
        is not an integer >= 0.
        """
        self._seeds.seed(seed, dynamic_seed)
        self._seed, self._dynamic_seed = self._seeds.base, self._seeds.dynamic

    def generator_owners(self, first: int) -> list[Any]:
        if self._env is None:
            self._first_seed = first
            return []
        return [self._env]

    def random_action(self) -> Any:
        """Return a random action: an array (int64 of shape (1,) for a Discrete space) or a dict of arrays.

        StateError: the env is not made yet. TypeError: the space has samples of another form (a Tuple space).
        """
        if self.action_space is None:
            raise StateError(f"random_action of {self!r} before its first reset")
        return action_to_ndarray(self.action_space.sample())

    def enable_save_replay(self, replay_path: str | None = None, token: str | None = None) -> None:
        """Record a video of every episode, starting at the next reset.

        Args:
            replay_path: folder of the files; None means './video'.
            token: part of the file names, unique to this env; None makes a new one.
        """
        self._replay_path = DEFAULT_FOLDER if replay_path is None else replay_path
        self._replay_token = token

    def clone(self, caller: str = "collector") -> DingEnvWrapper:
        """Return an independent wrapper with the same settings; an env given as an object is copied by pickle.

        Raises:
            ConfigError: the caller is unknown.
            StateError: the env object cannot be copied, or the wrapper is closed.
        """
        cfg = {key: value for key, value in self._cfg.items() if key != "is_train"}
        if not self._was_given:
            return type(self)(None, cfg, self._seed_api, caller)
        if self._raw_env is None:
            raise StateError(f"cannot clone {self!r}: it is closed, and its env is gone; clone before the close")
        try:
            raw_env = pickle.loads(dump_by_value(self._raw_env))
        except Exception as error:
            raise StateError(
                f"cannot clone {self!r}: its env cannot be copied ({type(error).__name__}: {error}); "
                f"make the wrapper from an env_id instead"
            ) from error
        return type(self)(raw_env, cfg, self._seed_api, caller)

    def render(self) -> Any:
        """Render the env in the mode it was made with; StateError before the first reset or after `close`."""
        if self._env is None:
            raise StateError(f"render of {self!r} before a reset")
        return self._env.render()

    def get_state(self) -> dict[str, Any]:
        """Return this layer's own state between two episodes, picklable, without that of the env inside."""
        return {
            "seeds": self._seeds.get_state(),
            "replay_path": self._replay_path,
            "has_env": self._env is not None,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned; makes the env if there was one."""
        self._seeds.set_state(state["seeds"])
        self._seed, self._dynamic_seed = self._seeds.base, self._seeds.dynamic
        self._replay_path = state["replay_path"]
        if state["has_env"]:
            self._prepare()

    @staticmethod
    def create_collector_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """Return one config per collector env, like `BaseEnv`, with `is_train` True in each."""
        return copy_env_cfg(cfg, "collector_env_num", is_train=True)

    @staticmethod
    def create_evaluator_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """Return one config per evaluator env, like `BaseEnv`, with `is_train` False in each."""
        return copy_env_cfg(cfg, "evaluator_env_num", is_train=False)

    @property
    def render_mode(self) -> Any:  # type: ignore[override]
        """The render mode of the env, or of the env to be made at the next reset."""
        return self._cfg.get("render_mode") if self._env is None else self._env.render_mode

    @property
    def unwrapped(self) -> Any:
        """The innermost env, or this object before the env is made."""
        return self if self._env is None else self._env.unwrapped

    def __repr__(self) -> str:
        name = self._cfg.get("env_id")
        if name is None and self._raw_env is not None:
            spec = getattr(self._raw_env, "spec", None)
            name = type(self._raw_env.unwrapped).__name__ if spec is None else spec.id
        return f"DingEnvWrapper({name})"

    def _prepare(self) -> None:
        """Make the env if there is none, and start or move the video recorder if requested."""
        wants_video = self._replay_path is not None and self._recorder is None
        can_make = not self._was_given
        if can_make and self._env is not None and wants_video and self._env.render_mode != "rgb_array":
            self.close()  # it was made without rendering: make it again with rendering
        if self._env is None:
            if not can_make:
                raise StateError(f"{self!r} is closed, and an env given as an object cannot be made again")
            render_mode = "rgb_array" if wants_video else self._cfg.get("render_mode")
            # Some constructors do not take a render_mode.
            options = {} if render_mode is None else {"render_mode": render_mode}
            self._install(make_env(self._cfg["env_id"], **options))
        recorder = self._recorder
        if recorder is not None and recorder.video_folder != os.path.abspath(self._replay_path or DEFAULT_FOLDER):
            if recorder.recording:
                recorder.stop_recording()
            self._env, self._recorder = recorder.env, None
        if self._replay_path is not None and self._recorder is None:
            assert self._env is not None
            name = unique_name(self._env, self._replay_token)
            self._env = self._recorder = EpisodeRecorder(self._env, self._replay_path, name)

    def _install(self, env: Any) -> None:
        self._raw_env = adapt(env)
        self._env = self._wrap_env(self._raw_env)
        self.observation_space = present_space(self._env.observation_space)
        self.action_space = self._env.action_space
        self.reward_space = self._find_reward_space(self._env)

    def _wrap_env(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        wrappers = self._cfg["env_wrapper"]
        if isinstance(wrappers, str):
            env_name = self._cfg.get("env_id")
            if env_name is None and env.spec is not None:
                env_name = env.spec.id
            wrappers = get_default_wrappers(wrappers, env_name, self._caller)
        for wrapper in wrappers or ():
            if isinstance(wrapper, Mapping):
                env = create_env_wrapper(env, wrapper)
            elif callable(wrapper):
                env = wrapper(env)
            else:
                raise ConfigError(f"env_wrapper: expected a dict or a callable, got {wrapper!r}")
        return adapt(env)

    def _find_reward_space(self, env: gymnasium.Env[Any, Any]) -> spaces.Space[Any]:
        declared = reward_space_of(env)
        if isinstance(declared, spaces.Box) and declared.shape == ():  # `step` returns numbers as shape (1,)
            declared = spaces.Box(declared.low.reshape(1), declared.high.reshape(1), (1,), declared.dtype.type)
        if declared is not None:
            return present_space(declared)
        low, high = find_attr(env, "reward_range", (-np.inf, np.inf))
        if self._cfg["rew_clip"]:
            low, high = max(low, REWARD_FLOOR), max(high, REWARD_FLOOR)
        return spaces.Box(np.float32(low), np.float32(high), (1,), np.float32)

    def _forget_lives(self) -> None:
        """Make an EpisodicLifeWrapper start a new game, so that a seeded episode depends on its seed only."""
        layer: Any = self._env
        while layer is not None:
            if get_own_attr(layer, "was_real_done") is not None:
                layer.was_real_done = True
            layer = get_own_attr(layer, "env")


def get_default_wrappers(
    env_wrapper_name: str, env_id: str | None = None, caller: str = "collector"
) -> list[dict[str, Any]]:
    """Return the usual wrapper configs for a family of envs, innermost first; a new list at each call.

    For the evaluator, the Atari list does not clip rewards or end episodes at a lost life, so scores are those of
    whole games.

    Args:
        env_wrapper_name: 'default', 'mujoco_default', 'atari_default' or 'gym_hybrid_default'.
        env_id: id of the env; some Atari games need the FIRE action to start and get a wrapper for it.
        caller: 'collector' or 'evaluator'.

    Raises:
        NotImplementedError: the name is unknown.
        ConfigError: the caller is unknown.
    """
    training = _check_caller(caller) == "collector"
    score: dict[str, Any] = {"type": "eval_episode_return"}
    if env_wrapper_name in ("default", "mujoco_default"):
        return [score]
    if env_wrapper_name == "gym_hybrid_default":
        return [{"type": "gym_hybrid_dict_action"}, score]
    if env_wrapper_name != "atari_default":
        raise NotImplementedError(
            f"no default wrappers named {env_wrapper_name!r}; there are 'default', 'mujoco_default', "
            f"'atari_default' and 'gym_hybrid_default'"
        )
    fires = env_id is not None and any(game in env_id for game in FIRE_GAMES)
    return [
        {"type": "noop_reset", "kwargs": {"noop_max": 30}},
        {"type": "max_and_skip", "kwargs": {"skip": 4}},
        *([{"type": "episodic_life"}] if training else []),
        *([{"type": "fire_reset"}] if fires else []),
        {"type": "warp_frame"},
        {"type": "scaled_float_frame"},
        *([{"type": "clip_reward"}] if training else []),
        {"type": "frame_stack", "kwargs": {"n_frames": 4}},
        score,
    ]


def _check_caller(caller: str) -> str:
    if caller not in CALLERS:
        raise ConfigError(f"caller: expected 'collector' or 'evaluator', got {caller!r}")
    return caller
