"""Wrappers that change the form of actions, or how often each action is applied."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.envs.arrays import copy_obs
from vecenv.errors import SpaceError
from vecenv.registry import ENV_WRAPPER_REGISTRY
from vecenv.values.checks import check_whole
from vecenv.wrappers.base import EnvWrapper, reward_range, summed_reward_space


class RepeatWrapper(EnvWrapper):
    """Base of the wrappers that apply each action several times and sum the rewards."""

    def __init__(self, env: Any, repeats: int, key: str) -> None:
        """Wrap; ConfigError, which names the argument `key`, if `repeats` is below 1."""
        super().__init__(env)
        self.repeats = check_whole(key, repeats, 1)

    @property
    def reward_range(self) -> tuple[float, float]:
        """Bounds of the summed reward; the sum may be of one step only, as an episode may end after it."""
        low, high = reward_range(self.env)
        return min(low, low * self.repeats), max(high, high * self.repeats)

    @property
    def reward_space(self) -> Any:
        """Space of the summed reward; None if the env does not declare a Box as its reward space."""
        return summed_reward_space(self.env, self.repeats)

    def _repeat(self, action: Any) -> tuple[Any, Any]:
        """Step until the last repeat, the end of the episode or an abnormal timestep; return (kept, five-tuple).

        `kept` is the result of `_keep` for the last observation but one, or None if there was only one step. The reward
        is summed.
        """
        before: Any = None
        total: Any = 0.0
        for left in reversed(range(self.repeats)):
            obs, reward, terminated, truncated, info = self.env.step(action)
            if reward is not None:
                total = total + reward
            if terminated or truncated or info.get("abnormal") or not left:
                break
            before = self._keep(obs)
        return before, (obs, total, terminated, truncated, info)

    def _keep(self, obs: Any) -> Any:
        """Return the data of an observation that are needed after the next step."""
        return None


@ENV_WRAPPER_REGISTRY.register("action_repeat")
class ActionRepeatWrapper(RepeatWrapper):
    """Apply each action `action_repeat` times and sum the rewards (None counts as 0); stop at the episode's end."""

    def __init__(self, env: Any, action_repeat: int = 1) -> None:
        """Wrap; ConfigError if `action_repeat` is below 1."""
        super().__init__(env, action_repeat, "action_repeat")
        self.action_repeat = action_repeat

    def step(self, action: Any) -> Any:
        return self._repeat(action)[1]


@ENV_WRAPPER_REGISTRY.register("max_and_skip")
class MaxAndSkipWrapper(RepeatWrapper):
    """Apply each action `skip` times; return the maximum of the last two frames, pixel by pixel.

    For a dict or tuple of frames the maximum is computed part by part. Parts that are not numbers, such as texts,
    are taken from the last frame. Rewards are summed.
    """

    def __init__(self, env: Any, skip: int = 4) -> None:
        """Wrap; ConfigError if `skip` is below 1."""
        super().__init__(env, skip, "skip")
        self.skip = skip

    def step(self, action: Any) -> Any:
        before, (obs, total, terminated, truncated, info) = self._repeat(action)
        if before is not None and obs is not None:
            obs = _maximum(before, obs)
        return obs, total, terminated, truncated, info

    def _keep(self, obs: Any) -> Any:
        return copy_obs(obs)  # the env may draw the next frame into the same array


def _maximum(before: Any, obs: Any) -> Any:
    """Return the element-wise maximum of two observations of the same structure."""
    if isinstance(obs, Mapping):
        return {key: _maximum(before[key], value) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_maximum(*pair) for pair in zip(before, obs, strict=True))
    # A list is treated as an array; a NumPy string is not a number.
    is_number = isinstance(obs, (np.ndarray, np.generic, numbers.Number, list)) and not isinstance(obs, np.str_)
    return np.maximum(np.asarray(before), obs) if is_number else obs


@ENV_WRAPPER_REGISTRY.register("gym_hybrid_dict_action")
class GymHybridDictActionWrapper(EnvWrapper):
    """Accept actions {'type', 'mask', 'args'} for an env whose actions are (choice, parameters).

    The spaces are made from the env's Tuple(Discrete(n), Box of k): `type` is Discrete(n), `mask` is int64 (k,) of
    0 and 1, and `args` is the Box. The mask marks the parameters that a choice uses; it is for the policy only. The
    env receives (type, args).
    """

    def __init__(self, env: Any) -> None:
        """Wrap; SpaceError if the env's action space is not a Tuple(Discrete, Box)."""
        super().__init__(env)
        space = self.env.action_space
        parts = space.spaces if isinstance(space, spaces.Tuple) else ()
        if len(parts) != 2 or not isinstance(parts[0], spaces.Discrete) or not isinstance(parts[1], spaces.Box):
            raise SpaceError(f"GymHybridDictActionWrapper: expected actions Tuple(Discrete, Box), got {space}")
        mask = spaces.Box(0, 1, parts[1].shape, np.int64)
        self.action_space = spaces.Dict({"type": parts[0], "mask": mask, "args": parts[1]})

    def step(self, action: Any) -> Any:
        return self.env.step(self.action(action))

    def action(self, action: Any) -> tuple[int, Any]:
        """Convert a dict action to the env's form; `type` may be an int or an array of one element."""
        return int(np.asarray(action["type"]).item()), action["args"]

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any) -> tuple[Any, Any, Any]:
        if isinstance(act_shape, (tuple, list)) and len(act_shape) == 2 and not isinstance(act_shape[1], int):
            act_shape = {"type": act_shape[0], "mask": act_shape[1], "args": act_shape[1]}
        return obs_shape, act_shape, rew_shape
