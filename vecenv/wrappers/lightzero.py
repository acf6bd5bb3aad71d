"""Single-player envs in LightZero's dialect: dict observations, and continuous actions made discrete."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.checks import check_whole
from vecenv.envs.gym_registry import make_env
from vecenv.envs.spaces import NoneSpace
from vecenv.errors import ConfigError, SpaceError, StateError
from vecenv.registry import ENV_WRAPPER_REGISTRY
from vecenv.wrappers.base import EnvWrapper, require_box
from vecenv.wrappers.ding import DingEnvWrapper

#: What `to_play` is where there is one player.
ONE_PLAYER = -1
#: More product actions than this are a mistake in the number of bins.
MAX_ACTIONS = 1_000_000


@ENV_WRAPPER_REGISTRY.register("lightzero_env_wrapper")
class LightZeroEnvWrapper(EnvWrapper):
    """Observations {'observation', 'action_mask', 'to_play'}; the last info has `eval_episode_return`.

    The mask is int8 ones (n,) for Discrete actions and None for continuous ones, whose space is `NoneSpace`.
    `to_play` is -1. The spaces say so from the start. Discrete actions count from 0, whatever the env calls its first.

    Example:
        >>> env = LightZeroEnvWrapper(gymnasium.make("CartPole-v1"), {"is_train": True})
        >>> obs, info = env.reset(seed=0)
        >>> obs["action_mask"].tolist(), obs["to_play"], env.observation_space.contains(obs)
        ([1, 1], -1, True)
    """

    state_names: ClassVar[tuple[str, ...]] = ("episode_return",)

    def __init__(self, env: Any, cfg: Mapping[str, Any]) -> None:
        """Wrap.

        Args:
            env: with Discrete or Box actions.
            cfg: `is_train` is required, as it is elsewhere in LightZero; `continuous`, if given, must fit the env.

        Raises:
            ConfigError: `is_train` is missing, or `continuous` is wrong.
            SpaceError: other actions.
        """
        super().__init__(env)
        if "is_train" not in cfg:
            raise ConfigError(f"LightZeroEnvWrapper: cfg lacks 'is_train'; it has {sorted(cfg)}", key="is_train")
        actions = self.env.action_space
        if not isinstance(actions, (spaces.Discrete, spaces.Box)):
            raise SpaceError(f"LightZeroEnvWrapper: expected Discrete or Box actions, got {actions}")
        self.is_train = bool(cfg["is_train"])
        self.continuous = isinstance(actions, spaces.Box)
        if bool(cfg.get("continuous", self.continuous)) != self.continuous:
            raise ConfigError(f"continuous: got {cfg['continuous']!r}, but actions are {actions}", key="continuous")
        self.episode_return = 0.0
        self._num_actions = 0 if isinstance(actions, spaces.Box) else int(actions.n)
        self._first_action = 0 if isinstance(actions, spaces.Box) else int(actions.start)
        if self._first_action != 0:
            self.action_space = spaces.Discrete(self._num_actions)  # what the mask and `legal_actions` count
        mask = NoneSpace() if self.continuous else spaces.Box(0, 1, (self._num_actions,), np.int8)
        parts: dict[str, Any] = {
            "observation": self.env.observation_space,
            "action_mask": mask,
            "to_play": spaces.Discrete(1, start=ONE_PLAYER),
        }
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode_return = 0.0
        obs, info = self.env.reset(seed=seed, options=options)
        return self._lightzero_obs(obs), info

    def step(self, action: Any) -> Any:
        if self._first_action != 0:
            action = action + self._first_action
        obs, reward, terminated, truncated, info = self.env.step(action)
        if reward is not None:
            self.episode_return += float(np.asarray(reward).sum())
        if terminated or truncated:
            info = {**info, "eval_episode_return": self.episode_return}
        if obs is not None:  # else the timestep is abnormal
            obs = self._lightzero_obs(obs)
        return obs, reward, terminated, truncated, info

    @property
    def legal_actions(self) -> Any:
        """Int64 (n,): every action.

        Raises:
            SpaceError: continuous actions cannot be listed.
        """
        if self.continuous:
            raise SpaceError(f"legal_actions: continuous actions {self.env.action_space} cannot be listed")
        return np.arange(self._num_actions)

    def _lightzero_obs(self, obs: Any) -> dict[str, Any]:
        mask = None if self.continuous else np.ones(self._num_actions, np.int8)
        return {"observation": obs, "action_mask": mask, "to_play": ONE_PLAYER}

    @staticmethod
    def new_shape(
        obs_shape: Any, act_shape: Any, rew_shape: Any, cfg: Mapping[str, Any] | None = None
    ) -> tuple[Any, Any, Any]:
        """As every wrapper's; the mask has a shape where the action's is a number, that of the actions, else None."""
        is_count = isinstance(act_shape, (int, np.integer)) and not (cfg or {}).get("continuous", False)
        mask = (int(act_shape),) if is_count else None
        return {"observation": obs_shape, "action_mask": mask, "to_play": ()}, act_shape, rew_shape


@ENV_WRAPPER_REGISTRY.register("action_discretization_env_wrapper")
class ActionDiscretizationEnvWrapper(EnvWrapper):
    """Discrete actions for an env with a Box of m numbers: n values each, n ** m actions in all.

    The values are spread evenly from the Box's low to its high, both included; with one bin it is the middle. In
    action k the last number changes fastest.

    Example:
        >>> env = ActionDiscretizationEnvWrapper(gymnasium.make("Pendulum-v1"), {"each_dim_disc_size": 5})
        >>> env.action_space, [env.action(k).tolist() for k in (0, 1, 4)]
        (Discrete(5), [[-2.0], [-1.0], [2.0]])
    """

    def __init__(self, env: Any, cfg: Mapping[str, Any]) -> None:
        """Wrap.

        Args:
            env: with bounded Box actions.
            cfg: `each_dim_disc_size`, values per number.

        Raises:
            ConfigError: no such number, or too many actions.
            SpaceError: other actions, or a Box without bounds.
        """
        super().__init__(env)
        space = require_box(self.env.action_space, "ActionDiscretizationEnvWrapper")
        if not space.is_bounded():
            raise SpaceError(f"ActionDiscretizationEnvWrapper: expected bounded actions, got {space}")
        bins = check_whole("each_dim_disc_size", cfg.get("each_dim_disc_size"), 1)
        size = math.prod(space.shape)
        if bins**size > MAX_ACTIONS:
            message = f"each_dim_disc_size: {bins} values for {size} numbers are over {MAX_ACTIONS:,} actions"
            raise ConfigError(message, key="each_dim_disc_size")
        self._box, self._bins = space, bins
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        fractions = np.array([0.5]) if bins == 1 else np.arange(bins) / (bins - 1)
        fractions = fractions.reshape(-1, *[1] * len(space.shape))
        self._values = (low * (1 - fractions) + high * fractions).astype(space.dtype)  # (bins, *shape)
        self.action_space = spaces.Discrete(bins**size)

    def step(self, action: Any) -> Any:
        return self.env.step(self.action(action))

    def action(self, action: Any) -> Any:
        """Give the env's action for a discrete one, an int or an integer array of one element.

        Raises:
            SpaceError: no such action.
        """
        index = int(np.asarray(action).item())
        if not 0 <= index < int(self.action_space.n):  # type: ignore[attr-defined]  # set above
            raise SpaceError(f"action: expected 0 to {self.action_space.n - 1}, got {index}", path="action")  # type: ignore[attr-defined]
        size = math.prod(self._box.shape)
        digits = np.array([index // self._bins**place % self._bins for place in reversed(range(size))], np.int64)
        columns = self._values.reshape(self._bins, size)
        return columns[digits, np.arange(size)].reshape(self._box.shape)

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any) -> tuple[Any, Any, Any]:
        return obs_shape, (), rew_shape


class _LightZeroDingEnv(DingEnvWrapper):
    """A DingEnvWrapper whose outermost wrapper is a LightZeroEnvWrapper."""

    @property
    def legal_actions(self) -> Any:
        """As `LightZeroEnvWrapper.legal_actions`.

        Raises:
            StateError: the env is closed.
        """
        if self._env is None:
            raise StateError(f"legal_actions: {self!r} is closed")
        return self._env.get_wrapper_attr("legal_actions")


def get_wrappered_env(wrapper_cfg: Mapping[str, Any], env_name: str) -> Callable[[], DingEnvWrapper]:
    """Give a constructor of envs by id in LightZero's dialect, for a manager's `env_fn`.

    Args:
        wrapper_cfg: as `LightZeroEnvWrapper` takes it; with `manually_discretization` true also
            `each_dim_disc_size`, and the actions are made discrete first.
        env_name: a Gymnasium id.

    Example:
        >>> env = get_wrappered_env({"is_train": True, "continuous": True}, "Pendulum-v1")()
        >>> env.seed(0)
        >>> sorted(env.reset().items())[0]
        ('action_mask', None)
        >>> env.close()
    """
    cfg = dict(wrapper_cfg)
    discretises = bool(cfg.get("manually_discretization", False))

    def wrap_discretised(env: gymnasium.Env[Any, Any]) -> Any:
        return ActionDiscretizationEnvWrapper(env, cfg)

    def wrap_lightzero(env: gymnasium.Env[Any, Any]) -> Any:
        # `continuous` speaks of the env; once discretised it is not.
        return LightZeroEnvWrapper(env, {**cfg, "continuous": False} if discretises else cfg)

    def make() -> DingEnvWrapper:
        wrappers = [wrap_discretised, wrap_lightzero] if discretises else [wrap_lightzero]
        return _LightZeroDingEnv(make_env(env_name), cfg={"env_wrapper": wrappers})

    return make
