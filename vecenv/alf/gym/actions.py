"""Gym wrappers that change actions, rewards and ends of episodes: applied to the Gymnasium env, below time steps.

Actions nested in Dict and Tuple are mapped part by part. `vecenv` itself does not export these names, because other
wrappers there have the same or similar names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.envs.spaces import map_by_space, map_space
from vecenv.errors import ConfigError, SpaceError
from vecenv.wrappers.action import RepeatWrapper
from vecenv.wrappers.base import EnvWrapper


class ContinuousActionMapping(EnvWrapper):
    """Accepts continuous actions from `low` to `high`, and scales them to the env's bounds.

    Example:
        >>> import gymnasium
        >>> env = ContinuousActionMapping(gymnasium.make("Pendulum-v1"), 0.0, 1.0)
        >>> env.action_space
        Box(0.0, 1.0, (1,), float32)
    """

    def __init__(self, env: Any, low: Any, high: Any) -> None:
        """Wrap an env.

        Args:
            low, high: numbers, or arrays that broadcast to every continuous part of the action space.

        Raises:
            ConfigError: low is not below high.
            SpaceError: a continuous part of the action space has no finite bounds.
        """
        if not np.all(np.asarray(low) < np.asarray(high)):
            raise ConfigError(f"low: expected values below high, got {low!r} and {high!r}", key="low")
        super().__init__(env)
        self._low, self._high = low, high
        self.action_space = map_space(self._map_space, self.env.action_space)

    def step(self, action: Any) -> Any:
        return self.env.step(_map_continuous(self._map_box, self.env.action_space, action))

    def _map_space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        if not isinstance(space, spaces.Box) or not is_continuous(space):
            return space
        if not space.is_bounded():
            raise SpaceError(
                f"action: expected finite bounds to scale to, got {space}; give the env bounds, or do not normalize "
                "its actions",
                path="action",
            )
        low, high = (np.broadcast_to(bound, space.shape) for bound in (self._low, self._high))
        return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), space.shape, space.dtype.type)

    def _map_box(self, space: spaces.Box, action: Any) -> Any:
        share = (action - self._low) / (np.asarray(self._high) - self._low)
        return (space.low + share * (space.high - space.low)).astype(space.dtype)


class NormalizedAction(ContinuousActionMapping):
    """Accepts continuous actions from -1 to 1, and scales them to the env's bounds, which must be finite."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, -1.0, 1.0)


class ContinuousActionClip(EnvWrapper):
    """Clips continuous actions to `min_v` .. `max_v` and to the bounds of the action space.

    Raises:
        SpaceError: from `step`, if the action contains NaN (a ValueError).
    """

    def __init__(self, env: Any, min_v: float = -1e9, max_v: float = 1e9) -> None:
        """Wrap an env, whose action space stays the same; ConfigError if `min_v` is not below `max_v`."""
        if not min_v < max_v:
            raise ConfigError(f"min_v: expected less than max_v, got {min_v!r} and {max_v!r}", key="min_v")
        super().__init__(env)
        self._limits = min_v, max_v

    def step(self, action: Any) -> Any:
        return self.env.step(_map_continuous(self._map_box, self.env.action_space, action))

    def _map_box(self, space: spaces.Box, action: Any) -> Any:
        if np.isnan(action).any():
            raise SpaceError(f"action: expected numbers, got {action}", path="action")
        return np.clip(np.clip(action, *self._limits), space.low, space.high).astype(space.dtype)


class FrameSkip(RepeatWrapper):
    """Repeats each action `skip` times, or until the episode ends, and sums the rewards.

    The info `num_env_frames` is the number of env steps made, those of an inner FrameSkip included.
    """

    def __init__(self, env: Any, skip: int) -> None:
        """Wrap an env; ConfigError if `skip` is below 1."""
        super().__init__(env, skip, "skip")
        self.info_space = count_env_frames(self.env)

    def step(self, action: Any) -> Any:
        total: Any = 0.0
        num_frames = 0
        for _ in range(self.repeats):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward
            num_frames += int(info.get("num_env_frames", 1))
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, {**info, "num_env_frames": num_frames}


def count_env_frames(env: Any) -> spaces.Dict:
    """Return the `info_space` of a wrapper around this env that adds `num_env_frames` to infos."""
    inner = getattr(env, "info_space", None)
    known = inner.spaces if isinstance(inner, spaces.Dict) else {}
    return spaces.Dict({**known, "num_env_frames": spaces.Box(0, np.iinfo(np.int64).max, (), np.int64)})


class NonEpisodicEnv(EnvWrapper):
    """Makes episodes endless: `terminated` and `truncated` are always False."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = self.env.step(action)
        return obs, reward, False, False, info


class SparseReward(EnvWrapper):
    """Replaces positive rewards by 1 and all others by 0."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, 1.0 if float(reward) > 0 else 0.0, terminated, truncated, info


def is_continuous(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f"


def _map_continuous(function: Callable[[Any, Any], Any], space: spaces.Space[Any], action: Any) -> Any:
    """Return the action with `function(space, action)` in place of each continuous part, at every depth."""
    return map_by_space(
        lambda space, part: function(space, np.asarray(part)) if is_continuous(space) else part, space, action
    )
