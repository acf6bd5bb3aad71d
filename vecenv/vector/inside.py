"""What a VectorEnv sends to its workers: calls by name, and envs in disguise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec

from ..envs.adapt import adapt_and_build
from ..envs.spaces import map_space

__all__ = ["Assignment", "Call", "ShapeOnlyEnv", "EnvMaker", "adapt_shape_only"]


class Call:
    """A method to call or an attribute to read, by name."""

    def __init__(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs

    def __call__(self, env: Any) -> Any:
        """Return the result for one env."""
        value = env.get_wrapper_attr(self.name)
        return value(*self.args, **self.kwargs) if callable(value) else value


class Assignment:
    """An attribute to set."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def __call__(self, env: Any) -> None:
        """Set it in one env."""
        env.set_wrapper_attr(self.name, self.value)


class ShapeOnlyEnv:
    """An env whose observation space tells shapes and dtypes only, so that bounds may differ."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.step, self.reset, self.close = env.step, env.reset, env.close
        self.observation_space = map_space(_without_bounds, env.observation_space)
        self.action_space = env.action_space
        self.metadata, self.render_mode, self.spec = env.metadata, env.render_mode, env.spec
        self.unwrapped = env.unwrapped
        self.get_wrapper_attr, self.set_wrapper_attr = env.get_wrapper_attr, env.set_wrapper_attr


def adapt_shape_only(env: Any) -> ShapeOnlyEnv:
    """Adapt an env and hide the bounds of its observation space."""
    return ShapeOnlyEnv(adapt_and_build(env))


def _without_bounds(space: Space[Any]) -> Space[Any]:
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        dtype = np.dtype(space.dtype)
        if dtype.kind == "f":
            low, high = -np.inf, np.inf
        elif dtype.kind == "b":
            low, high = 0, 1
        else:
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return _UnboundedBox(space, low, high)
    return spaces.Text(1)


class _UnboundedBox(spaces.Box):
    """A space's shape and dtype; errors show the space itself."""

    def __init__(self, space: Space[Any], low: float, high: float) -> None:
        assert space.shape is not None
        super().__init__(low, high, space.shape, np.dtype(space.dtype).type)
        self._repr = repr(space)

    def __repr__(self) -> str:
        return self._repr


class EnvMaker:
    """Builds one registered env with its wrappers, wherever it is called."""

    def __init__(self, spec: EnvSpec, kwargs: dict[str, Any], wrappers: Sequence[Callable[[Any], Any]]) -> None:
        self.spec, self.kwargs, self.wrappers = spec, kwargs, wrappers

    def __call__(self) -> Any:
        """Return a new env."""
        env: Any = gymnasium.make(self.spec, **self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env
