"""Wrappers that normalise observations and rewards, and the running statistics they use."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenv.envs.adapt import reward_space_of
from vecenv.errors import ConfigError, SpaceError
from vecenv.registry import ENV_WRAPPER_REGISTRY
from vecenv.wrappers.base import EnvWrapper, ObsWrapper, require_box

CLIP_RANGE = (-3, 3)
MIN_COUNT = 30  # statistics are applied only after more steps than this


class RunningMeanStd:
    """Mean and standard deviation of all samples since the last `reset`, updated batch by batch.

    The initial values count as `epsilon` samples with mean 0 and variance 1.

    Example:
        >>> rms = RunningMeanStd(shape=(2,))
        >>> rms.update(np.array([[1.0, 100.0], [3.0, 300.0]]))
        >>> rms.mean.round(1).tolist(), rms.std.round(1).tolist()
        ([2.0, 200.0], [1.0, 100.0])
    """

    def __init__(self, epsilon: float = 1e-4, shape: tuple[int, ...] = ()) -> None:
        self.epsilon = epsilon
        self.shape = tuple(shape)
        self.reset()

    def reset(self) -> None:
        """Drop all samples."""
        self._mean = np.zeros(self.shape, np.float64)
        self._var = np.ones(self.shape, np.float64)
        self._count = self.epsilon

    def update(self, batch: Any) -> None:
        """Add B samples, given as an array (B, *shape)."""
        batch = np.asarray(batch, dtype=np.float64)
        count = len(batch)
        total = self._count + count
        delta = batch.mean(axis=0) - self._mean
        squares = self._var * self._count + batch.var(axis=0) * count + np.square(delta) * self._count * count / total
        self._mean, self._var, self._count = self._mean + delta * count / total, squares / total, total

    @property
    def mean(self) -> Any:
        """Mean of the samples, float64 of their shape."""
        return self._mean

    @property
    def std(self) -> Any:
        """Square root of the variance, plus `epsilon`; float64 of the samples' shape."""
        return np.sqrt(self._var) + self.epsilon


class WindowMeanStd(RunningMeanStd):
    """Mean and standard deviation of the last `window` samples, with the methods of `RunningMeanStd`."""

    def __init__(self, window: int, epsilon: float = 1e-4, shape: tuple[int, ...] = ()) -> None:
        """Make an empty window; ConfigError if it is below 2 samples."""
        if window < 2:
            raise ConfigError(f"window: expected None or at least 2 samples, got {window!r}", key="window")
        self.window = window
        super().__init__(epsilon, shape)

    def reset(self) -> None:
        super().reset()
        self._samples = np.zeros((self.window, *self.shape), np.float64)
        self._filled = 0
        self._next = 0
        self._squares = np.zeros(self.shape, np.float64)

    def update(self, batch: Any) -> None:
        """Add B samples, given as an array (B, *shape); samples older than the window are dropped."""
        for sample in np.asarray(batch, dtype=np.float64):
            self._add(sample)
        self._var = np.maximum(self._squares, 0.0) / max(self._filled, 1)

    def _add(self, sample: Any) -> None:
        old_mean = self._mean
        if self._filled < self.window:
            self._filled += 1
            self._mean = old_mean + (sample - old_mean) / self._filled
            self._squares = self._squares + (sample - old_mean) * (sample - self._mean)
        else:
            dropped = self._samples[self._next]
            self._mean = old_mean + (sample - dropped) / self.window
            self._squares = self._squares + (sample - dropped) * (sample - self._mean + dropped - old_mean)
        self._samples[self._next] = sample
        self._next = (self._next + 1) % self.window
        if self._next == 0:
            # Once per `window` samples, compute both from the samples, so that rounding errors cannot add up.
            self._mean = self._samples.mean(axis=0)
            self._squares = self._samples.var(axis=0) * self.window


def make_statistics(window: int | None, shape: tuple[int, ...]) -> RunningMeanStd:
    """Return statistics of all samples since a reset if `window` is None, else of the last `window` samples."""
    return RunningMeanStd(shape=shape) if window is None else WindowMeanStd(window, shape=shape)


@ENV_WRAPPER_REGISTRY.register("obs_norm")
class ObsNormWrapper(ObsWrapper):
    """Subtract the running mean from observations and divide by the standard deviation, per feature; clip to ±3.

    The result is float32. Observations are not normalised until the statistics include more than 30 steps. With
    `window=None` the statistics start again at each reset. With a number n they are those of the last n steps,
    across episodes.
    """

    state_names: ClassVar[tuple[str, ...]] = ("rms", "data_count")

    def __init__(self, env: Any, window: int | None = None) -> None:
        """Wrap; SpaceError if the observation space is not a Box, ConfigError if the window is below 2."""
        super().__init__(env)
        box = require_box(self.env.observation_space, "ObsNormWrapper")
        self.window = window
        self.data_count = 0
        self.clip_range = CLIP_RANGE
        self.rms = make_statistics(window, box.shape)
        # The space contains the raw observations of the first steps and the normalised ones.
        with np.errstate(over="ignore"):
            low, high = box.low.astype(np.float32), box.high.astype(np.float32)
        low, high = np.minimum(low, np.float32(CLIP_RANGE[0])), np.maximum(high, np.float32(CLIP_RANGE[1]))
        self.observation_space = spaces.Box(low, high, box.shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.window is None:
            self.data_count = 0
            self.rms.reset()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if obs is not None:  # else the timestep is abnormal
            self.data_count += 1
            self.rms.update(np.asarray(obs)[np.newaxis])
            obs = self.observation(obs)
        return obs, reward, terminated, truncated, info

    def observation(self, obs: Any) -> Any:
        if self.data_count <= MIN_COUNT:
            return np.asarray(obs, dtype=np.float32)
        return np.asarray(np.clip((obs - self.rms.mean) / self.rms.std, *self.clip_range), np.float32)


@ENV_WRAPPER_REGISTRY.register("static_obs_norm")
class StaticObsNormWrapper(ObsWrapper):
    """Subtract a given mean from observations and divide by a given standard deviation; float32, clipped to ±3."""

    def __init__(self, env: Any, mean: Any, std: Any) -> None:
        """Wrap.

        Raises:
            SpaceError: the observation space is not a Box.
            ConfigError: `mean` or `std` does not contain numbers that broadcast to the observations, or a `std` is
                not above 0.
        """
        super().__init__(env)
        box = require_box(self.env.observation_space, "StaticObsNormWrapper")
        self.mean, self.std = _numbers("mean", mean, box.shape), _numbers("std", std, box.shape)
        self.clip_range = CLIP_RANGE
        if not np.all(self.std > 0):
            raise ConfigError(f"std: expected numbers above 0, got {std!r}", key="std")
        self.observation_space = spaces.Box(*CLIP_RANGE, box.shape, np.float32)

    def observation(self, obs: Any) -> Any:
        return np.clip((obs - self.mean) / self.std, *self.clip_range).astype(np.float32)


def _numbers(name: str, value: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Convert numbers to an array that broadcasts to `shape`, or raise ConfigError."""
    try:
        array = np.asarray(value)
        fits = array.dtype.kind in "biuf" and np.broadcast_shapes(array.shape, shape) == shape
    except ValueError:  # lists of different lengths, or shapes that do not broadcast
        fits = False
    if not fits:
        raise ConfigError(f"{name}: expected numbers that broadcast to {shape}, got {value!r}", key=name)
    return array


@ENV_WRAPPER_REGISTRY.register("reward_norm")
class RewardNormWrapper(EnvWrapper):
    """Divide rewards by the standard deviation of the discounted cumulative reward; the result is a Python float.

    Rewards are not normalised until the statistics include more than 30 steps. The cumulative reward restarts at 0
    at each reset. With `window=None` the statistics also start again; with a number n they are those of the last n
    steps.
    """

    state_names: ClassVar[tuple[str, ...]] = ("rms", "data_count", "cum_reward")
    reward_range = (-np.inf, np.inf)

    def __init__(self, env: Any, reward_discount: float, window: int | None = None) -> None:
        """Wrap; SpaceError if the env declares several rewards per step, ConfigError if the window is below 2."""
        super().__init__(env)
        _check_single(getattr(reward_space_of(self.env), "shape", None) or ())
        self.reward_discount = reward_discount
        self.window = window
        self.cum_reward: NDArray[np.float64] = np.zeros(1, np.float64)
        self.data_count = 0
        self.rms = make_statistics(window, (1,))
        self.reward_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)  # the env's own bounds are of raw rewards

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.cum_reward = np.zeros(1, np.float64)
        if self.window is None:
            self.data_count = 0
            self.rms.reset()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if reward is not None:  # else the timestep is abnormal
            raw = np.asarray(reward, dtype=np.float64)
            _check_single(raw.shape)  # The env may have declared no reward space when it was wrapped.
            self.data_count += 1
            self.cum_reward = self.cum_reward * self.reward_discount + raw.reshape(1)
            self.rms.update(self.cum_reward[np.newaxis])
            reward = self.reward(reward)
        return obs, reward, terminated, truncated, info

    def reward(self, reward: Any) -> float:
        """Normalise one reward by the current statistics."""
        raw = float(np.asarray(reward).item())
        return raw if self.data_count <= MIN_COUNT else raw / float(self.rms.std[0])


def _check_single(shape: tuple[int, ...]) -> None:
    """Raise SpaceError if rewards of this shape are not single numbers."""
    if math.prod(shape) != 1:
        expected = "one number per step"
        raise SpaceError(
            f"RewardNormWrapper: reward: expected {expected}, got an array {shape}; add the rewards up before it",
            path="reward",
            expected=expected,
            got=str(shape),
        )
