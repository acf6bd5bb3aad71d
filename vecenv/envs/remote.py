"""Functions that front ends run in the process of an env through `Pool.call`, and env adapters of front ends.

    front end -> Pool.call(one of these) -> worker -> function(hosted env) -> result

All are picklable and import no front end, so a worker does not load Stable-Baselines3 or torch to unpickle one. The
hosted env has `get_wrapper_attr`, like Gymnasium's envs and ALF's adapters. A manager's driver and a batched env have
the env itself in `env`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces

from ..errors import ConfigError, StateError
from ..values.own_attributes import get_own_attr
from .adapt import adapt, adapt_and_build, find_attr, has_spaces, original
from .base import BaseEnv
from .spaces import ObjectSpace, map_space

__all__ = [
    "CallBatch",
    "CallEnvMethod",
    "CallMethod",
    "FindAttribute",
    "GetAttribute",
    "GetAttributeOrNone",
    "GetOrCall",
    "HasAttribute",
    "IsWrapped",
    "ObjectEnv",
    "Render",
    "SeedActionSpace",
    "SetAttribute",
    "SetBatchAttribute",
    "SetInnerAttribute",
    "SetOuterAttribute",
    "ShapeOnlyEnv",
    "ShapeRewards",
    "render",
    "without_bounds",
]


# ---- attributes and methods --------------------------------------------------------------------


@dataclass(frozen=True)
class GetAttribute:
    """Return an attribute of the env, or of the first layer below that has it; methods are not called."""

    name: str

    def __call__(self, env: Any) -> Any:
        return env.get_wrapper_attr(self.name)


class HasAttribute(GetAttribute):
    """Return whether the env or a layer below has an attribute; the value itself is not sent."""

    def __call__(self, env: Any) -> bool:
        try:
            super().__call__(env)
        except AttributeError:
            return False
        return True


class GetAttributeOrNone(GetAttribute):
    """Return an attribute as `GetAttribute` does; None if no layer has it, as in Tianshou's worker processes."""

    def __call__(self, env: Any) -> Any:
        try:
            return super().__call__(env)
        except AttributeError:
            return None


@dataclass(frozen=True)
class SetAttribute:
    """Set an attribute of the first layer of the env that has it, or of the outermost layer if none has."""

    name: str
    value: Any

    def __call__(self, env: Any) -> None:
        env.set_wrapper_attr(self.name, self.value)


class SetOuterAttribute(SetAttribute):
    """Set an attribute of the env's outermost layer, as Stable-Baselines3 does."""

    def __call__(self, env: Any) -> None:
        setattr(original(env), self.name, self.value)


class SetInnerAttribute(SetAttribute):
    """Set an attribute of the innermost env, under all wrappers, as Tianshou does."""

    def __call__(self, env: Any) -> None:
        setattr(env.unwrapped, self.name, self.value)


@dataclass(frozen=True)
class SeedActionSpace:
    """Seed the action space of the env; None draws a seed."""

    seed: int | None

    def __call__(self, env: Any) -> None:
        env.get_wrapper_attr("action_space").seed(self.seed)


@dataclass(frozen=True)
class CallMethod:
    """Call a method of the env, or of the first layer below that has it."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, env: Any) -> Any:
        return env.get_wrapper_attr(self.name)(*self.args, **self.kwargs)


class GetOrCall(CallMethod):
    """Call a method, or read an attribute if it is not callable, like `call` of Gymnasium's vector envs."""

    def __call__(self, env: Any) -> Any:
        value = env.get_wrapper_attr(self.name)
        return value(*self.args, **self.kwargs) if callable(value) else value


class IsWrapped:
    """Return whether a layer of the env is an instance of a class; TypeError if that is no class.

    The class is compared by its name and is not pickled. Otherwise a check for Stable-Baselines3's Monitor, which
    VecMonitor makes, would load all of Stable-Baselines3 in every worker.
    """

    def __init__(self, wrapper_class: type) -> None:
        if not isinstance(wrapper_class, type):
            raise TypeError(f"env_is_wrapped: expected a class, got {wrapper_class!r}")
        self.module, self.name = wrapper_class.__module__, wrapper_class.__qualname__

    def __call__(self, env: Any) -> bool:
        layer = original(env)
        innermost = getattr(layer, "unwrapped", layer)
        while layer is not None and layer is not innermost:
            if any((kind.__module__, kind.__qualname__) == (self.module, self.name) for kind in type(layer).__mro__):
                return True
            layer = getattr(layer, "env", None)
        return False


def render(env: Any) -> Any:
    """Return the result of the env's `render`; for a batched env that is k frames, or None."""
    return env.render()


# ---- envs of managers (the hosted env is a driver; its `env` is the env) --------------------------


@dataclass(frozen=True)
class FindAttribute:
    """Look up a name in the env and the layers under it: ('value', v), ('method', None) or ('missing', None)."""

    name: str

    def __call__(self, driver: Any) -> tuple[str, Any]:
        missing = object()
        value = find_attr(driver.env, self.name, missing)
        if value is missing:
            return "missing", None
        return ("method", None) if inspect.ismethod(value) else ("value", value)


class CallEnvMethod(CallMethod):
    """Call a method of the env, or of the first layer under it that has it; AttributeError if none has."""

    def __call__(self, driver: Any) -> Any:
        method = find_attr(driver.env, self.name)
        if not callable(method):
            raise AttributeError(f"{original(driver.env)!r} has no method {self.name!r}")
        return method(*self.args, **self.kwargs)


class ShapeRewards(CallEnvMethod):
    """Call `reward_shaping`; return its result and the transitions, which the method may have changed."""

    def __call__(self, driver: Any) -> tuple[Any, Any]:
        return super().__call__(driver), self.args[0]


@dataclass(frozen=True)
class Render:
    """Render one frame in a mode; StateError if the env renders in another mode only.

    The mode is the env's `render_mode`, the `mode` argument of its `render`, or that of the env inside a DI-engine
    env. An env with old calls and without a render mode renders by its own `render`.
    """

    mode: str

    def __call__(self, driver: Any) -> Any:
        env = driver.env
        fixed = env.render_mode
        if fixed == self.mode:
            return env.render()
        with_mode = find_attr(env.unwrapped, "render")
        if callable(with_mode) and "mode" in inspect.signature(with_mode).parameters:
            return with_mode(mode=self.mode)
        own = original(env)
        held = get_own_attr(own, "_env")  # DI-engine's envs keep the wrapped env in this attribute
        if fixed is None and getattr(held, "render_mode", None) == self.mode:
            return held.render()
        own_render = getattr(type(own), "render", None)
        is_old_env = isinstance(own, BaseEnv) or not isinstance(own, gymnasium.Env)
        if fixed is None and is_old_env and own_render not in (None, gymnasium.Env.render, BaseEnv.render):
            return own.render()
        raise StateError(
            f"{original(env)!r} renders in mode {fixed!r}, not {self.mode!r}; make the env with "
            f"render_mode={self.mode!r}"
        )


# ---- vector envs (the hosted env is a batched env; its `env` is the vector env) -------------------


class CallBatch(CallMethod):
    """Call a method or read an attribute of each env, or of the vector env if it has no `call`."""

    def __call__(self, batched: Any) -> tuple[bool, Any]:
        call = getattr(batched.env, "call", None)
        if call is not None:
            return True, tuple(call(self.name, *self.args, **self.kwargs))
        value = getattr(batched.env, self.name)
        return False, value(*self.args, **self.kwargs) if callable(value) else value


@dataclass(frozen=True)
class SetBatchAttribute(SetAttribute):
    """Set an attribute of each env, or of the vector env if it has no `set_attr`.

    With `is_each`, `value` is a list with one value for each env; ConfigError if the vector env has no `set_attr`.
    """

    is_each: bool

    def __call__(self, batched: Any) -> None:
        set_attr = getattr(batched.env, "set_attr", None)
        if set_attr is not None:
            set_attr(self.name, self.value)
        elif self.is_each:
            raise ConfigError(
                f"set_attr: expected one value for all, as {type(batched.env).__name__} has no set_attr of its own, "
                "got a list",
                key=self.name,
            )
        else:
            setattr(batched.env, self.name, self.value)


# ---- envs whose values differ from their spaces ----------------------------------------------------


class ObjectEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env whose observation is the pair (observation, reward) of its env, two objects of any form.

    The reward of a step is 0.0, and the second object after a reset is None. Attributes are looked up from the env
    inwards, so its own spaces are found. An env without spaces takes actions of any form.

    Args:
        env: the env, adapted.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = getattr(env, "observation_space", None)
        self.observation_space = spaces.Tuple((ObjectSpace(space), ObjectSpace(None)))
        if getattr(env, "action_space", None) is None:
            self.action_space = ObjectSpace(None)

    @classmethod
    def build(cls, env_fn: Callable[[], Any], always: bool) -> Any:
        """Build an env, which may have the calls of old Gym, as an `ObjectEnv`; not `always`: if it has no spaces.

        An env that has no spaces after a reset is closed and built again, since the reset may have changed it.
        """
        env = adapt_and_build(env_fn(), needed=False)
        if has_spaces(env):
            return cls(env) if always else env
        env.close()
        return cls(adapt(env_fn()))

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return (obs, None), info

    def step(self, action: Any) -> Any:
        obs, reward, *others = self.env.step(action)
        return (obs, reward), 0.0, *others

    def get_wrapper_attr(self, name: str) -> Any:
        try:
            return self.env.get_wrapper_attr(name)
        except AttributeError:
            if name in ("observation_space", "action_space"):
                return getattr(self, name)
            raise


# ---- envs whose spaces may differ in bounds -------------------------------------------------------


class ShapeOnlyEnv:
    """An env whose observation space has shapes and dtypes but no bounds, so that envs may differ in bounds."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.step, self.reset, self.close = env.step, env.reset, env.close
        self.observation_space = map_space(_without_bounds, env.observation_space)
        self.action_space = env.action_space
        self.metadata, self.render_mode, self.spec = env.metadata, env.render_mode, env.spec
        self.unwrapped = env.unwrapped
        self.get_wrapper_attr, self.set_wrapper_attr = env.get_wrapper_attr, env.set_wrapper_attr


def without_bounds(env: Any) -> ShapeOnlyEnv:
    """Adapt an env and remove the bounds of its observation space."""
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
    return ObjectSpace(None) if isinstance(space, ObjectSpace) else spaces.Text(1)


class _UnboundedBox(spaces.Box):
    """A Box with a space's shape and dtype; its repr, shown in errors, is that of the space."""

    def __init__(self, space: Space[Any], low: float, high: float) -> None:
        assert space.shape is not None
        super().__init__(low, high, space.shape, np.dtype(space.dtype).type)
        self._repr = repr(space)

    def __repr__(self) -> str:
        return self._repr
