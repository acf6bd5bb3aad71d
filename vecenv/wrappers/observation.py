"""Wrappers that change observations: their frames, channels and scale, or the values that they contain."""

from __future__ import annotations

import string
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from vecenv.envs.adapt import AdaptedEnv, reward_space_of
from vecenv.envs.arrays import copy_obs, normalise_action
from vecenv.envs.base import BaseEnvTimestep
from vecenv.envs.seeding import EpisodeSeeds
from vecenv.envs.step_formats import to_timestep
from vecenv.errors import SpaceError, require
from vecenv.registry import ENV_WRAPPER_REGISTRY
from vecenv.values.checks import check_whole
from vecenv.wrappers.base import EnvWrapper, ObsWrapper, require_box, reward_range

GREY_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA: the lengths by which a channel axis is recognised


@ENV_WRAPPER_REGISTRY.register("warp_frame")
class WarpFrameWrapper(ObsWrapper):
    """Convert frames to grey images of `size` x `size`, resized by area; bounds and dtype of the space are kept.

    The channel axis is the last axis of the space if that has 1, 3 or 4 elements, else the first. Two-dimensional
    frames are already grey. In a Tuple space each part is converted.
    """

    def __init__(self, env: Any, size: int = 84) -> None:
        """Wrap; SpaceError if the space is not an image or a tuple of images, DependencyError without OpenCV."""
        super().__init__(env)
        self._cv2: Any = require("cv2", "atari")
        self.size = size
        space = self.env.observation_space
        if isinstance(space, spaces.Tuple):
            self.observation_space = spaces.Tuple([self._warped(part) for part in space.spaces])
            self._axes: Any = tuple(_channel_axis(part) for part in space.spaces)
        else:
            self.observation_space = self._warped(space)
            self._axes = _channel_axis(space)

    def _warped(self, space: spaces.Space[Any]) -> spaces.Box:
        _channel_axis(space)
        box = require_box(space, "WarpFrameWrapper")
        return spaces.Box(box.low.min(), box.high.max(), (self.size, self.size), box.dtype.type)

    def observation(self, obs: Any) -> Any:
        if isinstance(self._axes, tuple):
            return tuple(self._warp(frame, axis) for frame, axis in zip(obs, self._axes, strict=True))
        return self._warp(obs, self._axes)

    def _warp(self, frame: Any, channel_axis: int | None) -> Any:
        cv2 = self._cv2
        frame = np.asarray(frame)
        dtype = frame.dtype
        if dtype != np.uint8 and dtype != np.float32:  # OpenCV converts colours only for these dtypes
            frame = frame.astype(np.float32)
        if channel_axis is not None:
            frame = np.ascontiguousarray(np.moveaxis(frame, channel_axis, -1))
            if frame.shape[-1] == 1:
                frame = frame[..., 0]
            else:
                code = cv2.COLOR_RGB2GRAY if frame.shape[-1] == 3 else cv2.COLOR_RGBA2GRAY
                frame = cv2.cvtColor(frame, code)
        frame = cv2.resize(frame, (self.size, self.size), interpolation=cv2.INTER_AREA)
        if np.issubdtype(dtype, np.integer) and frame.dtype != dtype:
            frame = np.rint(frame)
        return frame.astype(dtype, copy=False)

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any, size: int = 84) -> tuple[Any, Any, Any]:
        return each_shape(obs_shape, lambda _: (size, size)), act_shape, rew_shape


def _channel_axis(space: spaces.Space[Any]) -> int | None:
    shape = require_box(space, "WarpFrameWrapper").shape
    if len(shape) == 2:
        return None
    if len(shape) == 3:
        for axis in (2, 0):
            if shape[axis] in GREY_CHANNELS:
                return axis
    raise SpaceError(f"WarpFrameWrapper: expected an image (H, W), (H, W, C) or (C, H, W), got shape {shape}")


@ENV_WRAPPER_REGISTRY.register("scaled_float_frame")
class ScaledFloatFrameWrapper(ObsWrapper):
    """Scale observations from the bounds of the space to float32 in [0, 1]."""

    def __init__(self, env: Any) -> None:
        """Wrap; SpaceError if the space is not a Box, or is not bounded on both sides."""
        super().__init__(env)
        box = require_box(self.env.observation_space, "ScaledFloatFrameWrapper")
        low, high = np.float64(box.low.min()), np.float64(box.high.max())
        if not (np.isfinite(low) and np.isfinite(high)) or low == high:
            raise SpaceError(f"ScaledFloatFrameWrapper: expected two finite bounds, got [{low}, {high}]")
        self.bias, self.scale = np.float32(low), np.float32(high - low)
        self.observation_space = spaces.Box(0.0, 1.0, box.shape, np.float32)

    def observation(self, obs: Any) -> Any:
        return (np.asarray(obs, dtype=np.float32) - self.bias) / self.scale


@ENV_WRAPPER_REGISTRY.register("frame_stack")
class FrameStackWrapper(ObsWrapper):
    """Stack the last `n_frames` observations on a new first axis, oldest first; a new array each time.

    After a reset all frames are the first observation. Every space that Gymnasium can batch is supported. The
    observation None of an abnormal timestep is passed on and does not count as a frame.
    """

    state_names: ClassVar[tuple[str, ...]] = ("frames",)

    def __init__(self, env: Any, n_frames: int = 4) -> None:
        """Wrap; ConfigError if `n_frames` is below 1."""
        super().__init__(env)
        self.n_frames = n_frames = check_whole("n_frames", n_frames, 1)
        self.frames: deque[Any] = deque(maxlen=n_frames)
        self._inner_space = self.env.observation_space
        self._is_array = isinstance(self._inner_space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete))
        self.observation_space = batch_space(self._inner_space, n_frames)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self.frames.clear()
        return self.observation(obs), info

    def observation(self, obs: Any) -> Any:
        # A copy, because an env may reuse its array.
        self.frames.extend([copy_obs(obs)] * (1 if self.frames else self.n_frames))
        if self._is_array:
            return np.stack(self.frames)
        out: Any = create_empty_array(self._inner_space, self.n_frames)
        return concatenate(self._inner_space, tuple(self.frames), out)

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any, n_frames: int = 4) -> tuple[Any, Any, Any]:
        return each_shape(obs_shape, lambda shape: (n_frames, *shape)), act_shape, rew_shape


@ENV_WRAPPER_REGISTRY.register("obs_transpose")
class ObsTransposeWrapper(ObsWrapper):
    """Transpose images (H, W, C) to (C, H, W), and a tuple of k images to one array (k, C, H, W)."""

    def __init__(self, env: Any) -> None:
        """Wrap; SpaceError if the space is not an image or a tuple of images of one shape and dtype."""
        super().__init__(env)
        space = self.env.observation_space
        if isinstance(space, spaces.Tuple):
            boxes = [_channel_first(part) for part in space.spaces]
            if len({(box.shape, box.dtype) for box in boxes}) != 1:
                raise SpaceError(f"ObsTransposeWrapper: expected images of one shape and dtype, got {space}")
            low, high = np.stack([box.low for box in boxes]), np.stack([box.high for box in boxes])
            self.observation_space = spaces.Box(low, high, dtype=boxes[0].dtype.type)
        else:
            self.observation_space = _channel_first(space)

    def observation(self, obs: Any) -> Any:
        if isinstance(obs, tuple):
            return np.stack([np.transpose(part, (2, 0, 1)) for part in obs])
        return np.ascontiguousarray(np.transpose(obs, (2, 0, 1)))

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any) -> tuple[Any, Any, Any]:
        if has_parts(obs_shape):
            height, width, channels = obs_shape[0]
            return (len(obs_shape), channels, height, width), act_shape, rew_shape
        height, width, channels = obs_shape
        return (channels, height, width), act_shape, rew_shape


def _channel_first(space: spaces.Space[Any]) -> spaces.Box:
    box = require_box(space, "ObsTransposeWrapper")
    if len(box.shape) != 3:
        raise SpaceError(f"ObsTransposeWrapper: expected an image (H, W, C), got shape {box.shape}")
    return _last_axis_first(box)


def _last_axis_first(box: spaces.Box) -> spaces.Box:
    low, high = np.moveaxis(box.low, -1, 0), np.moveaxis(box.high, -1, 0)
    return spaces.Box(low, high, dtype=box.dtype.type)


@ENV_WRAPPER_REGISTRY.register("transpose")
class TransposeWrapper(ObsWrapper):
    """Move the last axis of observations to the front."""

    def __init__(self, env: Any) -> None:
        """Wrap; SpaceError if the space is not a Box."""
        super().__init__(env)
        self.observation_space = _last_axis_first(require_box(self.env.observation_space, "TransposeWrapper"))

    def observation(self, obs: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(obs, -1, 0))

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any) -> tuple[Any, Any, Any]:
        shape = as_shape(obs_shape)
        return (shape[-1], *shape[:-1]), act_shape, rew_shape


@ENV_WRAPPER_REGISTRY.register("ram")
class RamWrapper(ObsWrapper):
    """Convert a vector of n bytes of memory to a float32 image (n, 1, 1)."""

    def __init__(self, env: Any, render: bool = False) -> None:
        """Wrap; SpaceError if the space is not a Box. `render` is accepted for compatibility and has no effect."""
        super().__init__(env)
        box = require_box(self.env.observation_space, "RamWrapper")
        low, high = (bound.reshape(-1, 1, 1).astype(np.float32) for bound in (box.low, box.high))
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def observation(self, obs: Any) -> Any:
        return np.asarray(obs).reshape(-1, 1, 1).astype(np.float32)

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any) -> tuple[Any, Any, Any]:
        return (int(np.prod(as_shape(obs_shape))), 1, 1), act_shape, rew_shape


@ENV_WRAPPER_REGISTRY.register("obs_plus_prev_action_reward")
class ObsPlusPrevActRewWrapper(EnvWrapper):
    """Make observations {'obs', 'prev_action', 'prev_reward_extrinsic'}, with the last action and reward.

    At a reset the reward is 0 and the action is -1. For a Discrete space that starts elsewhere, or a MultiDiscrete
    space that starts below 0, it is one below the first action. The observation space contains these values; actions
    of unsigned integers and bools are therefore shown as int64. A reward of None counts as 0. The observation None of
    an abnormal timestep is passed on.
    """

    state_names: ClassVar[tuple[str, ...]] = ("prev_action", "prev_reward_extrinsic")

    def __init__(self, env: Any) -> None:
        """Wrap; SpaceError if the action space is a container."""
        super().__init__(env)
        prev_action_space, self._first_action = _with_no_action(self.env.action_space)
        low, high = reward_range(self.env)
        self.observation_space = spaces.Dict(
            {
                "obs": self.env.observation_space,
                "prev_action": prev_action_space,
                "prev_reward_extrinsic": spaces.Box(min(low, 0.0), max(high, 0.0), (1,), np.float32),
            }
        )
        self._action_form = prev_action_space.shape, prev_action_space.dtype
        self.prev_action: Any = self._first_action
        self.prev_reward_extrinsic = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self.prev_action, self.prev_reward_extrinsic = self._first_action, 0.0
        return self._with_previous(obs), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        shape, dtype = self._action_form
        # Some policies return a Discrete action as an array (1,).
        self.prev_action = np.array(action, dtype=dtype).reshape(shape)
        self.prev_reward_extrinsic = 0.0 if reward is None else float(np.sum(np.asarray(reward)))
        if obs is not None:
            obs = self._with_previous(obs)
        return obs, reward, terminated, truncated, info

    def _with_previous(self, obs: Any) -> dict[str, Any]:
        return {
            "obs": obs,
            "prev_action": np.array(self.prev_action, dtype=self._action_form[1]),
            "prev_reward_extrinsic": np.array([self.prev_reward_extrinsic], dtype=np.float32),
        }

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any) -> tuple[Any, Any, Any]:
        shapes = {"obs": obs_shape, "prev_action": act_shape, "prev_reward_extrinsic": rew_shape}
        return shapes, act_shape, rew_shape


def _with_no_action(space: spaces.Space[Any]) -> tuple[spaces.Space[Any], Any]:
    """Return the action space extended by a value that means "no action yet", and that value."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n) + 1, start=int(space.start) - 1), int(space.start) - 1
    if isinstance(space, spaces.Box):
        has_no_minus_one = space.dtype.kind in "ub"
        dtype = np.promote_types(space.dtype, np.int64) if has_no_minus_one else space.dtype  # uint64 becomes float64
        low, high = np.minimum(space.low.astype(dtype), -1), np.maximum(space.high.astype(dtype), -1)
        return spaces.Box(low, high, space.shape, dtype.type), np.full(space.shape, -1, dtype)
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        first, last = np.zeros(space.shape, np.int64), np.ones(space.shape, np.int64)
        if isinstance(space, spaces.MultiDiscrete):
            first, last = space.start.astype(np.int64), (space.start + space.nvec - 1).astype(np.int64)
        none_yet = np.where(first > 0, -1, first - 1)
        return spaces.Box(none_yet, last, space.shape, np.int64), none_yet
    raise SpaceError(f"ObsPlusPrevActRewWrapper: expected a Discrete, Box or Multi space of actions, got {space}")


@ENV_WRAPPER_REGISTRY.register("flat_obs")
class FlatObsWrapper(ObsWrapper):
    """Flatten grid-world observations {'image', 'mission'} to one uint8 vector: the image, then the text one-hot.

    Each character of the text is one of 28 classes (26 letters, blank, comma). The text is padded with zeros to
    `maxStrLen` characters, and case is ignored.
    """

    characters = string.ascii_lowercase + " ,"

    def __init__(self, env: Any, maxStrLen: int = 96) -> None:
        """Wrap; SpaceError if the space is not a Dict with `image`."""
        super().__init__(env)
        space = self.env.observation_space
        if not isinstance(space, spaces.Dict) or "image" not in space.spaces:
            raise SpaceError(f"FlatObsWrapper: expected a Dict space with 'image' and 'mission', got {space}")
        self.maxStrLen = maxStrLen
        image = require_box(space.spaces["image"], "FlatObsWrapper")
        size = int(np.prod(image.shape)) + len(self.characters) * maxStrLen
        self.observation_space = spaces.Box(0, 255, (size,), np.uint8)
        self._coded: tuple[str, Any] | None = None

    def observation(self, obs: Any) -> Any:
        """Flatten an observation, or that of a pair (obs, info); SpaceError if the text does not fit."""
        if isinstance(obs, tuple):
            obs = obs[0]
        mission = obs["mission"].lower()
        if self._coded is None or self._coded[0] != mission:
            self._coded = mission, self._encode(mission)
        return np.concatenate([np.asarray(obs["image"], np.uint8).ravel(), self._coded[1]])

    def _encode(self, mission: str) -> Any:
        if len(mission) > self.maxStrLen:
            raise SpaceError(f"mission: expected at most {self.maxStrLen} characters, got {len(mission)}: {mission!r}")
        codes = np.zeros((self.maxStrLen, len(self.characters)), np.uint8)
        for position, character in enumerate(mission):
            index = self.characters.find(character)
            if index < 0:
                raise SpaceError(f"mission: expected letters, blanks and commas, got {character!r} in {mission!r}")
            codes[position, index] = 1
        return codes.ravel()

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any, maxStrLen: int = 96) -> tuple[Any, Any, Any]:
        image = obs_shape["image"] if isinstance(obs_shape, Mapping) else obs_shape
        size = int(np.prod(as_shape(image))) + len(FlatObsWrapper.characters) * maxStrLen
        return (size,), act_shape, rew_shape


@ENV_WRAPPER_REGISTRY.register("reward_in_obs")
class AllinObsWrapper(EnvWrapper):
    """Make observations {'obs', 'reward'}, with `BaseEnv`'s calls: `step` returns a `BaseEnvTimestep`.

    `reset` returns the observation alone. The reward is float32 and has the shape of the env's reward space, or (1,)
    for numbers and without a reward space. In the observation of a reset it is 0. In an abnormal timestep, a reward of
    None appears as 0 in the observation, and an observation of None is passed on as None.
    """

    uses_old_calls: ClassVar[bool] = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._seeds = EpisodeSeeds()
        self.reward_space: spaces.Box | None = None
        """Bounds of the env's rewards as float32; None before the first reset if the env has no spaces before it."""
        self.reset_info: dict[str, Any] = {}
        """Info of the last reset."""
        self._set_spaces()

    def _set_spaces(self) -> None:
        inner: Any = self.env.observation_space
        if inner is None:  # an env that is built at its first reset has no spaces before
            return
        declared = reward_space_of(self.env)
        if isinstance(declared, spaces.Box):
            low, high = np.atleast_1d(declared.low), np.atleast_1d(declared.high)
        else:
            low, high = (np.full(1, bound) for bound in reward_range(self.env))
        with np.errstate(over="ignore"):
            low, high = low.astype(np.float32), high.astype(np.float32)
        self.reward_space = spaces.Box(low, high, dtype=np.float32)
        seen = spaces.Box(np.minimum(low, np.float32(0)), np.maximum(high, np.float32(0)), dtype=np.float32)
        self.observation_space = spaces.Dict({"obs": inner, "reward": seen})

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Pass both arguments to the env's `seed`, if it has one; else seed its resets by `seeding.episode_seed`."""
        inner_seed = getattr(self.env, "seed", None)
        if callable(inner_seed):
            inner_seed(seed, dynamic_seed)
        else:
            self._seeds.seed(seed, dynamic_seed)

    def reset(self, **reset_param: Any) -> Any:  # BaseEnv's signature
        with self._seeds.for_reset() as seed:
            if seed is not None:
                reset_param.setdefault("seed", seed)
            obs, self.reset_info = self.env.reset(**reset_param)
        if self.reward_space is None:
            self._set_spaces()
        return {"obs": obs, "reward": self._no_reward()}

    def step(self, action: Any) -> BaseEnvTimestep:  # type: ignore[override]  # BaseEnv's signature
        """Apply one action and return a timestep; the action may have the form of `BaseEnv.random_action`."""
        actions = self.env.action_space
        has_same_calls = isinstance(self.env, AdaptedEnv)
        if not has_same_calls and (isinstance(action, np.ndarray) or isinstance(actions, (spaces.Dict, spaces.Tuple))):
            action = normalise_action(action, actions)
        obs, reward, terminated, truncated, info = self.env.step(action)
        seen = self._no_reward()
        if reward is not None:
            seen[...] = np.asarray(reward, dtype=np.float32).reshape(seen.shape)
            reward = seen.copy()
        if obs is not None:
            obs = {"obs": obs, "reward": seen}
        return to_timestep(obs, reward, terminated, truncated, info)

    def _no_reward(self) -> Any:
        return np.zeros((1,) if self.reward_space is None else self.reward_space.shape, np.float32)

    @staticmethod
    def new_shape(obs_shape: Any, act_shape: Any, rew_shape: Any) -> tuple[Any, Any, Any]:
        return {"obs": obs_shape, "reward": rew_shape}, act_shape, rew_shape


def as_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple; a number is the length of a vector."""
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)


def has_parts(shape: Any) -> bool:
    """Return whether a shape is a dict or tuple of shapes."""
    return isinstance(shape, Mapping) or (
        isinstance(shape, (tuple, list)) and any(not isinstance(part, (int, np.integer)) for part in shape)
    )


def each_shape(shape: Any, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Any:
    """Apply `change` to a shape, or to each one in a dict or tuple of shapes; None (no shape) is returned as None."""
    if not has_parts(shape):
        return None if shape is None else change(as_shape(shape))
    if isinstance(shape, Mapping):
        return {key: each_shape(part, change) for key, part in shape.items()}
    return tuple(each_shape(part, change) for part in shape)
