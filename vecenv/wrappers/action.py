"""Wrappers that change what an action is, and how often it is applied."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.checks import check_whole
from vecenv.envs.arrays import copy_obs
from vecenv.errors import SpaceError
from vecenv.registry import ENV_WRAPPER_REGISTRY
from vecenv.wrappers.base import EnvWrapper, reward_range, summed_reward_space


class RepeatWrapper(EnvWrapper):
    """A wrapper that applies each action several times and sums the rewards."""

    repeats: int

    def _set_repeats(self, repeats: int, key: str) -> None:
        self.repeats = check_whole(key, repeats, 1)

    @property
    def reward_range(self) -> tuple[float, float]:
        """Bounds of the sum; an episode may end after one step."""
        low, high = reward_range(self.env)
        return min(low, low * self.repeats), max(high, high * self.repeats)

    @property
    def reward_space(self) -> Any:
        """Space of the sum, by what the env declares; None if that is nothing, or no Box."""
        return summed_reward_space(self.env, self.repeats)

    def _repeat(self, action: Any) -> tuple[Any, Any]:
        """Step until the last repeat, the end or an abnormal timestep.

        Returns:
            What `_keep` gave of the last observation but one, None if there is none; and the five-tuple.
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
        """Give what is needed of an observation once the next one is there."""
        return None


@ENV_WRAPPER_REGISTRY.register("action_repeat")
class ActionRepeatWrapper(RepeatWrapper):
    """Each action applied `action_repeat` times; rewards summed, None as 0; stops at an end."""

    def __init__(self, env: Any, action_repeat: int = 1) -> None:
        """Wrap.

        Raises:
            ConfigError: fewer than one repeat.
        """
        super().__init__(env)
        self.action_repeat = action_repeat
        self._set_repeats(action_repeat, "action_repeat")

    def step(self, action: Any) -> Any:
        return self._repeat(action)[1]


@ENV_WRAPPER_REGISTRY.register("max_and_skip")
class MaxAndSkipWrapper(RepeatWrapper):
    """Each action applied `skip` times; the observation is the maximum of the last two frames, pixel by pixel.

    Of a dict or tuple of frames it is that of each part; what is no number, such as a text, is the newest.
    """

    def __init__(self, env: Any, skip: int = 4) -> None:
        """Wrap.

        Raises:
            ConfigError: fewer than one step.
        """
        super().__init__(env)
        self.skip = skip
        self._set_repeats(skip, "skip")

    def step(self, action: Any) -> Any:
        before, (obs, total, terminated, truncated, info) = self._repeat(action)
        if before is not None and obs is not None:
            obs = _maximum(before, obs)
        return obs, total, terminated, truncated, info

    def _keep(self, obs: Any) -> Any:
        return copy_obs(obs)  # the env may draw the next frame into the same array


def _maximum(before: Any, obs: Any) -> Any:
    """Give the larger of each two numbers, nested as the observations are."""
    if isinstance(obs, Mapping):
        return {key: _maximum(before[key], value) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_maximum(*pair) for pair in zip(before, obs, strict=True))
    # A list is an array to be; a text of NumPy's is as little a number as one of Python's.
    is_number = isinstance(obs, (np.ndarray, np.generic, numbers.Number, list)) and not isinstance(obs, np.str_)
    return np.maximum(np.asarray(before), obs) if is_number else obs


@ENV_WRAPPER_REGISTRY.register("gym_hybrid_dict_action")
class GymHybridDictActionWrapper(EnvWrapper):
    """Actions {'type', 'mask', 'args'} for an env whose actions are (choice, parameters).

    The spaces come from the env's Tuple(Discrete(n), Box of k): `type` Discrete(n), `mask` int64 (k,) of 0 and
    1, `args` the Box. The mask tells a policy which parameters a choice uses; the env gets (type, args).
    """

    def __init__(self, env: Any) -> None:
        """Wrap.

        Raises:
            SpaceError: other actions than a Discrete and a vector of parameters.
        """
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
        """Give the env's form; `type` may be an int or an array of one element."""
        return int(np.asarray(action["type"]).item()), action["args"]

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any) -> tuple[Any, Any, Any]:
        if isinstance(act_shape, (tuple, list)) and len(act_shape) == 2 and not isinstance(act_shape[1], int):
            act_shape = {"type": act_shape[0], "mask": act_shape[1], "args": act_shape[1]}
        return obs_shape, act_shape, rew_shape
