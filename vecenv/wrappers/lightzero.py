"""Single-player envs in LightZero's form: dict observations, and continuous actions made discrete."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from vecenv.envs.gym_registry import make_env
from vecenv.envs.spaces import NoneSpace
from vecenv.errors import ConfigError, SpaceError, StateError
from vecenv.registry import ENV_WRAPPER_REGISTRY
from vecenv.values.checks import check_whole
from vecenv.wrappers.base import EnvWrapper, require_box
from vecenv.wrappers.ding import DingEnvWrapper

#: Value of `to_play` in games with one player.
ONE_PLAYER = -1
#: Limit of the number of discrete actions; a larger one is surely a mistake in the number of bins.
MAX_ACTIONS = 1_000_000


@ENV_WRAPPER_REGISTRY.register("lightzero_env_wrapper")
class LightZeroEnvWrapper(EnvWrapper):
    """Make observations {'observation', 'action_mask', 'to_play'}; the last info has `eval_episode_return`.

    The mask is int8 ones (n,) for Discrete actions. For continuous actions it is None, and its space `NoneSpace`.
    `to_play` is -1. The spaces are complete before the first reset. Discrete actions always start at 0, even if the
    env's own start at another number.

    Example:
        >>> import gymnasium
        >>> env = LightZeroEnvWrapper(gymnasium.make("CartPole-v1"), {"is_train": True})
        >>> obs, info = env.reset(seed=0)
        >>> obs["action_mask"].tolist(), obs["to_play"], env.observation_space.contains(obs)
        ([1, 1], -1, True)
    """

    state_names: ClassVar[tuple[str, ...]] = ("episode_return",)

    def __init__(self, env: Any, cfg: Mapping[str, Any]) -> None:
        """Wrap.

        Args:
            env: an env with Discrete or Box actions.
            cfg: must contain `is_train`, as everywhere in LightZero; `continuous`, if given, must fit the env.

        Raises:
            ConfigError: `is_train` is missing, or `continuous` does not fit the env.
            SpaceError: the action space is not Discrete or Box.
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
            self.action_space = spaces.Discrete(self._num_actions)  # It starts at 0, like the mask and `legal_actions`.
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
        """All actions, int64 (n,); SpaceError if the actions are continuous and cannot be listed."""
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
        """Return the shapes after this wrapper; the mask has shape (n,) if `act_shape` is a number n, else None."""
        is_count = isinstance(act_shape, (int, np.integer)) and not (cfg or {}).get("continuous", False)
        mask = (int(act_shape),) if is_count else None
        return {"observation": obs_shape, "action_mask": mask, "to_play": ()}, act_shape, rew_shape


@ENV_WRAPPER_REGISTRY.register("action_discretization_env_wrapper")
class ActionDiscretizationEnvWrapper(EnvWrapper):
    """Make discrete actions for an env with a Box of m numbers: n values for each number, n ** m actions in all.

    The values are evenly spaced from the Box's low to its high, both included; a single value is the middle. From one
    action to the next, the last number changes fastest.

    Example:
        >>> import gymnasium
        >>> env = ActionDiscretizationEnvWrapper(gymnasium.make("Pendulum-v1"), {"each_dim_disc_size": 5})
        >>> env.action_space, [env.action(k).tolist() for k in (0, 1, 4)]
        (Discrete(5), [[-2.0], [-1.0], [2.0]])
    """

    def __init__(self, env: Any, cfg: Mapping[str, Any]) -> None:
        """Wrap.

        Args:
            env: an env with bounded Box actions.
            cfg: must contain `each_dim_disc_size`, the number of values per dimension.

        Raises:
            ConfigError: `each_dim_disc_size` is missing or below 1, or there are more than 1,000,000 actions.
            SpaceError: the action space is not a Box, or is not bounded.
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
        """Convert an action, an int or an integer array of one element, to the env's; SpaceError out of range."""
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
        """The value of `LightZeroEnvWrapper.legal_actions`; StateError if the env is closed."""
        if self._env is None:
            raise StateError(f"legal_actions: {self!r} is closed")
        return self._env.get_wrapper_attr("legal_actions")


def get_wrappered_env(wrapper_cfg: Mapping[str, Any], env_name: str) -> Callable[[], DingEnvWrapper]:
    """Return a constructor of LightZero envs for a manager's `env_fn`.

    Args:
        wrapper_cfg: the config of `LightZeroEnvWrapper`. If `manually_discretization` is true, the actions are made
            discrete first, and it must also contain `each_dim_disc_size`.
        env_name: a Gymnasium id.

    Example:
        >>> env = get_wrappered_env({"is_train": True, "continuous": True}, "Pendulum-v1")()
        >>> env.seed(0)
        >>> sorted(env.reset().items())[0]
        ('action_mask', None)
        >>> env.close()
    """
    cfg = dict(wrapper_cfg)
    wrappers: list[Callable[..., EnvWrapper]] = [partial(LightZeroEnvWrapper, cfg=cfg)]
    if cfg.get("manually_discretization", False):
        # `continuous` describes the env's own actions; after discretisation they are discrete.
        discrete = {**cfg, "continuous": False}
        wrappers = [partial(ActionDiscretizationEnvWrapper, cfg=cfg), partial(LightZeroEnvWrapper, cfg=discrete)]
    return lambda: _LightZeroDingEnv(make_env(env_name), cfg={"env_wrapper": wrappers})
