"""Gym wrappers that change observations, mostly images: applied to the Gymnasium env, below time steps.

The argument `fields` contains the paths of the parts of a Dict observation that a wrapper maps, such as 'camera.left'.
None (default) means the whole observation. The argument `channel_order` is 'channels_last' (default), for images
(H, W, C), or 'channels_first'. Another value raises ConfigError, and a field that is not an image SpaceError.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from vecenv.envs.arrays import copy_obs
from vecenv.envs.spaces import map_by_space, map_space
from vecenv.errors import ConfigError, SpaceError, require
from vecenv.values.checks import check_choice, check_whole
from vecenv.values.nested import get_field, map_structure, set_field
from vecenv.wrappers.base import EnvWrapper, ObsMixin, own_generator


class BaseObservationWrapper(ObsMixin, EnvWrapper):
    """Maps chosen parts of an observation; subclasses define `transform_space` and `transform_observation`.

    Example:
        >>> import gymnasium
        >>> class Halved(BaseObservationWrapper):
        ...     def transform_space(self, space):
        ...         return spaces.Box(space.low / 2, space.high / 2, dtype=space.dtype.type)
        ...     def transform_observation(self, observation):
        ...         return observation / 2
        >>> env = Halved(gymnasium.make("Pendulum-v1"))
        >>> env.observation_space.high.tolist()
        [0.5, 0.5, 4.0]
    """

    def __init__(self, env: Any, fields: Sequence[str] | None = None) -> None:
        """Wrap an env.

        Raises:
            SpaceError: there is no such field, or the wrapper cannot map its space.
        """
        super().__init__(env)
        self.fields: tuple[str | None, ...] = (None,) if fields is None else tuple(fields)
        space = self.env.observation_space
        for field in self.fields:
            space = self._map_space(space, field.split(".") if field else [], field)
        self.observation_space = space

    def _map_space(self, space: Any, path: list[str], field: str | None) -> Any:
        if not path:
            return self._transform_space_of(space, field)
        if not isinstance(space, spaces.Dict) or path[0] not in space.spaces:
            raise SpaceError(f"fields: no {field!r} in {space}", path=str(field))
        inner = self._map_space(space.spaces[path[0]], path[1:], field)
        return spaces.Dict([(key, inner if key == path[0] else part) for key, part in space.spaces.items()])

    def _transform_space_of(self, space: Any, field: str | None) -> Any:
        return self.transform_space(space)

    def _transform_of(self, observation: Any, field: str | None) -> Any:
        return self.transform_observation(observation)

    def transform_space(self, space: Any) -> Any:
        """Return the space of mapped observations, given the space of one field."""
        raise NotImplementedError

    def transform_observation(self, observation: Any) -> Any:
        """Return the mapped observation, given the observation of one field."""
        raise NotImplementedError

    def observation(self, observation: Any) -> Any:
        """Return the whole observation with every field mapped."""
        for field in self.fields:
            part = self._transform_of(get_field(observation, field), field)
            observation = set_field(observation, field, part)
        return observation


class ObservationClipWrapper(BaseObservationWrapper):
    """Clips the numbers of an observation to `min_v` .. `max_v`, at every depth of nesting."""

    def __init__(self, env: Any, min_v: float = -200.0, max_v: float = 200.0) -> None:
        self.min_v, self.max_v = min_v, max_v
        super().__init__(env)

    def transform_space(self, space: Any) -> Any:
        return map_space(self._clip_space, space)

    def _clip_space(self, space: Any) -> Any:
        if not isinstance(space, spaces.Box):
            return space
        low, high = (np.clip(bound, self.min_v, self.max_v).astype(space.dtype) for bound in (space.low, space.high))
        return spaces.Box(low, high, space.shape, space.dtype.type)

    def transform_observation(self, observation: Any) -> Any:
        return map_structure(self._clip, observation)

    def _clip(self, leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):  # a value of a Discrete space
            return leaf
        return np.clip(leaf, self.min_v, self.max_v).astype(leaf.dtype)


class ImageChannelFirst(BaseObservationWrapper):
    """Converts images (H, W, C) to contiguous (C, H, W); without `fields`, every image of the observation.

    An image is a value of a Box space with three axes. Values of other spaces with three axes, such as masks, stay.
    """

    def _transform_of(self, observation: Any, field: str | None) -> Any:
        return map_by_space(_channels_first, get_field(self.env.observation_space, field), observation)

    def transform_space(self, space: Any) -> Any:
        return map_space(_channels_first_space, space)


def is_image(space: Any) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def _channels_first_space(space: Any) -> Any:
    if not is_image(space):
        return space
    return spaces.Box(_channel_first(space.low), _channel_first(space.high), dtype=space.dtype.type)


def _channels_first(space: Any, observation: Any) -> Any:
    return _channel_first(observation) if is_image(space) else observation


def _channel_first(image: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(np.asarray(image), -1, 0))


class FrameStack(BaseObservationWrapper):
    """Joins the last `stack_size` observations along the channel axis, oldest first.

    After a reset, the stack contains the first observation `stack_size` times.
    """

    state_names: ClassVar[tuple[str, ...]] = ("frames",)

    def __init__(
        self,
        env: Any,
        stack_size: int = 4,
        channel_order: str = "channels_last",
        fields: Sequence[str] | None = None,
    ) -> None:
        """Wrap an env.

        Args:
            stack_size: number of observations, 4 by default.
            channel_order: 'channels_last' (default) joins along the last axis, 'channels_first' along the first.

        Raises:
            ConfigError: stack_size is below 1.
            SpaceError: the space of a field is neither a Box with axes nor MultiDiscrete.
        """
        self.stack_size = check_whole("stack_size", stack_size, 1)
        self._axis = -1 if _is_channel_last(channel_order) else 0
        self.frames: dict[str | None, deque[Any]] = {}
        super().__init__(env, fields)

    def transform_space(self, space: Any) -> Any:
        if isinstance(space, spaces.MultiDiscrete):
            counts = np.concatenate([space.nvec] * self.stack_size, self._axis)
            start = np.concatenate([space.start] * self.stack_size, self._axis)
            return spaces.MultiDiscrete(counts, space.dtype.type, start=start)
        if not isinstance(space, spaces.Box) or not space.shape:
            raise SpaceError(f"FrameStack: expected a Box or MultiDiscrete with axes, got {space}")
        low, high = (np.concatenate([bound] * self.stack_size, self._axis) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype.type)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.frames = {}
        return super().reset(seed=seed, options=options)

    def _transform_of(self, observation: Any, field: str | None) -> Any:
        observation = copy_obs(observation)  # the env may reuse the array for its next observation
        frames = self.frames.get(field)
        if frames is None:
            frames = self.frames[field] = deque([observation] * self.stack_size, maxlen=self.stack_size)
        else:
            frames.append(observation)
        return np.concatenate(frames, self._axis)


class FrameResize(BaseObservationWrapper):
    """Resizes images to (height, width, C); dtype and bounds stay."""

    def __init__(
        self,
        env: Any,
        width: int = 84,
        height: int = 84,
        fields: Sequence[str] | None = None,
        interpolation: int | None = None,
    ) -> None:
        """Wrap an env.

        Args:
            width, height: size of the result in pixels, 84 by default.
            interpolation: one of OpenCV's `INTER_...` constants. None (default): INTER_AREA.

        Raises:
            DependencyError: OpenCV is not installed.
        """
        self._cv2 = require("cv2", "atari")
        self._width, self._height = width, height
        self._interpolation = self._cv2.INTER_AREA if interpolation is None else interpolation
        super().__init__(env, fields)

    def transform_space(self, space: Any) -> Any:
        return _image_space(space, (self._height, self._width, _image_shape(space)[2]))

    def transform_observation(self, observation: Any) -> Any:
        resized = self._cv2.resize(observation, (self._width, self._height), interpolation=self._interpolation)
        return resized if resized.ndim == 3 else resized[:, :, None]


class FrameGrayScale(BaseObservationWrapper):
    """Converts colour images (H, W, 3) to grey images (H, W, 1)."""

    def __init__(self, env: Any, fields: Sequence[str] | None = None) -> None:
        """Wrap an env; DependencyError if OpenCV is not installed."""
        self._cv2 = require("cv2", "atari")
        super().__init__(env, fields)

    def transform_space(self, space: Any) -> Any:
        height, width, channels = _image_shape(space)
        if channels != 3:
            raise SpaceError(f"FrameGrayScale: expected three channels, got {space}")
        return _image_space(space, (height, width, 1))

    def transform_observation(self, observation: Any) -> Any:
        return self._cv2.cvtColor(observation, self._cv2.COLOR_RGB2GRAY)[:, :, None]


class _CropMixin:
    """Cuts a window of constant size out of images; bounds and dtype stay.

    A wrapper names this class before `BaseObservationWrapper` in its list of bases, and calls `_set_up` first.
    """

    def _set_up(self, channel_order: str) -> None:
        self._channel_last = _is_channel_last(channel_order)
        self._sizes: dict[str | None, tuple[int, int]] = {}  # height, width of the uncut images
        self._windows: dict[str | None, tuple[int, int, int, int]] = {}  # sy, sx, height, width

    def _window(self, height: int, width: int) -> tuple[int, int, int, int]:
        raise NotImplementedError

    def _transform_space_of(self, space: Any, field: str | None) -> Any:
        shape = _image_shape(space)
        self._sizes[field] = height, width = shape[:2] if self._channel_last else shape[1:]
        self._windows[field] = self._window(height, width)
        return _image_space(space, self._transform_of(np.empty(shape, np.bool_), field).shape)

    def _transform_of(self, image: Any, field: str | None) -> Any:
        sy, sx, height, width = self._windows[field]
        rows, columns = slice(sy, sy + height), slice(sx, sx + width)
        return np.ascontiguousarray(image[rows, columns] if self._channel_last else image[:, rows, columns])


class FrameCrop(_CropMixin, BaseObservationWrapper):
    """Cuts the window of `width` x `height` pixels at column `sx` and row `sy` out of images."""

    def __init__(
        self,
        env: Any,
        sx: int = 0,
        sy: int = 0,
        width: int = 84,
        height: int = 84,
        channel_order: str = "channels_last",
        fields: Sequence[str] | None = None,
    ) -> None:
        """Wrap an env; ConfigError if the window is not inside the image."""
        self._wanted = (sy, sx, height, width)
        self._set_up(channel_order)
        super().__init__(env, fields)

    def _window(self, height: int, width: int) -> tuple[int, int, int, int]:
        sy, sx, h, w = self._wanted
        if min(sy, sx) < 0 or min(h, w) < 1 or sy + h > height or sx + w > width:
            raise ConfigError(f"window {w}x{h} at ({sx}, {sy}) is not inside an image of {width}x{height}")
        return self._wanted


class EpisodicRandomFrameCrop(_CropMixin, BaseObservationWrapper):
    """Cuts a window out of images, at a random position for each episode.

    Positions are drawn from the wrapper's own generator, which the seed of a reset seeds.
    """

    state_names: ClassVar[tuple[str, ...]] = ("generator", "_windows")

    def __init__(
        self,
        env: Any,
        cropping_fraction: float = 0.8,
        channel_order: str = "channels_last",
        share_cropping: bool = True,
        fields: Sequence[str] | None = None,
    ) -> None:
        """Wrap an env.

        Args:
            cropping_fraction: size of the window as a fraction of height and width, 0.8 by default.
            share_cropping: whether all fields are cut at the same relative position. Default: True.

        Raises:
            ConfigError: the fraction is not above 0 and below 1.
        """
        if not 0 < cropping_fraction < 1:
            raise ConfigError(f"cropping_fraction: expected more than 0 and less than 1, got {cropping_fraction!r}")
        self._fraction = cropping_fraction
        self._shared = share_cropping
        self.generator = own_generator(None, "frame_crop")
        self._set_up(channel_order)
        super().__init__(env, fields)

    def _window(self, height: int, width: int) -> tuple[int, int, int, int]:
        return 0, 0, max(1, int(self._fraction * height)), max(1, int(self._fraction * width))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.generator = own_generator(seed, "frame_crop")
        share = self.generator.random(2)
        for field, (height, width) in self._sizes.items():
            if not self._shared:
                share = self.generator.random(2)
            _, _, h, w = self._windows[field]
            self._windows[field] = (int(share[0] * (height - h + 1)), int(share[1] * (width - w + 1)), h, w)
        return super().reset(seed=seed, options=options)


class FrameFlip(BaseObservationWrapper):
    """Flips images at random, vertically and horizontally; all fields in the same way for a whole episode.

    Flips are drawn from the wrapper's own generator, which the seed of a reset seeds.
    """

    state_names: ClassVar[tuple[str, ...]] = ("generator", "_axes")

    def __init__(
        self,
        env: Any,
        ud_flip_prob: float = 0.5,
        lr_flip_prob: float = 0.5,
        channel_order: str = "channels_last",
        fields: Sequence[str] | None = None,
    ) -> None:
        """Wrap an env.

        Args:
            ud_flip_prob, lr_flip_prob: probabilities of a flip upside down and from left to right, 0.5 by default.

        Raises:
            ConfigError: a probability is not within 0 .. 1.
        """
        for name, value in (("ud_flip_prob", ud_flip_prob), ("lr_flip_prob", lr_flip_prob)):
            if not 0 <= value <= 1:
                raise ConfigError(f"{name}: expected 0 .. 1, got {value!r}", key=name)
        self._probabilities = (ud_flip_prob, lr_flip_prob)
        self._first_axis = 0 if _is_channel_last(channel_order) else 1
        self._axes: tuple[int, ...] = ()
        self.generator = own_generator(None, "frame_flip")
        super().__init__(env, fields)

    def transform_space(self, space: Any) -> Any:
        _image_shape(space)
        return space

    def transform_observation(self, observation: Any) -> Any:
        return np.ascontiguousarray(np.flip(observation, self._axes))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.generator = own_generator(seed, "frame_flip")
        drawn = self.generator.random(2) < self._probabilities
        self._axes = tuple(self._first_axis + int(axis) for axis in np.flatnonzero(drawn))
        return super().reset(seed=seed, options=options)


def _is_channel_last(channel_order: str) -> bool:
    check_choice("channel_order", channel_order, ("channels_last", "channels_first"))
    return channel_order == "channels_last"


def _image_shape(space: Any) -> tuple[int, int, int]:
    if not is_image(space):
        raise SpaceError(f"expected an image of three axes, got {space}", got=str(space))
    shape: tuple[int, int, int] = space.shape
    return shape


def _image_space(space: spaces.Box, shape: tuple[int, ...]) -> spaces.Box:
    """Return a space of images of another shape, with the lowest and the highest bound of `space`."""
    return spaces.Box(space.low.min(), space.high.max(), shape, space.dtype.type)
