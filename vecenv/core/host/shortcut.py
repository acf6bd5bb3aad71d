"""Shortcut: lets a worker step an env directly, past wrappers that only call the next layer.

    TimeLimit -> OrderEnforcing -> PassiveEnvChecker -> env     as `gymnasium.make` builds it
    TimeLimit's count ------------------------------> env     as a worker steps it

`gymnasium.make` puts these three wrappers around every env. After the first reset and checks, two of them
only call the next layer, and TimeLimit also increments a counter. Together with the calls between them
this is 5 % of a step of CartPole. The shortcut is used only if it cannot change a result:

* The layers are of exactly these classes, not of subclasses.
* Their `step` and `reset` have the source of the supported Gymnasium releases, compared by digest.
* Their `step` was not replaced later, in the class or in the object.
* They are the outermost layers, which only the worker calls.

All this is checked again after each reset and after each call by the caller, which may change it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

from gymnasium import Wrapper
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from ..layout.native import load

__all__ = ["ExposedEnv", "Shortcut", "known_steps"]

#: Class -> digests of the sources of its `step` and `reset` in Gymnasium 1.1 to 1.4.
_DIGESTS: dict[Any, set[str]] = {
    TimeLimit: {"ef39e49ce4239f93"},
    OrderEnforcing: {"36f075e9f8bf6f5b"},
    PassiveEnvChecker: {"f9f378beb3f060d7", "07737e6c71183bfc"},
    Wrapper: {"7f6e7ecc3773bc2c"},  # OrderEnforcing calls its `step` and `reset`
}


class Shortcut:
    """Replaces an env in the slot; the slot reads its `step` attribute again after every reset.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("CartPole-v1")
        >>> stand_in = Shortcut.to(env)
        >>> obs, _ = stand_in.reset()
        >>> stand_in.step(0)[0].shape
        (4,)
    """

    __slots__ = ("_env", "_first", "_step")

    @staticmethod
    def to(env: Any) -> Any:
        """Return a shortcut for the env, or the env itself if its outermost layer is not one of these wrappers."""
        return Shortcut(env) if type(_first_layer(env)) in known_steps() else env

    def __init__(self, env: Any) -> None:
        self._env = env
        self._first: Any = None  # the outermost layer when _step was made
        self._step: Callable[[Any], Any] | None = None

    @property
    def step(self) -> Callable[[Any], Any]:
        """The function that steps the env until its next reset."""
        first = _first_layer(self._env)
        if self._step is not None and first is self._first:
            return self._step
        layer, limit = first, None
        while _is_passed(layer) and not (limit is not None and type(layer) is TimeLimit):
            if type(layer) is TimeLimit:
                limit = layer
            layer = layer.env
        if layer is first:
            return self._env.step  # type: ignore[no-any-return]
        step = _pass_on(layer) if limit is None else _counted(layer, limit)
        if type(layer) not in known_steps():  # a known wrapper still has checks to make: decide again later
            self._first, self._step = first, step
        return step

    def reset(self) -> Any:
        """Reset the env."""
        return self._env.reset()


class ExposedEnv:
    """Replaces an env in the slot that the caller has, too: methods that the caller has replaced are used at once."""

    __slots__ = ("_env",)

    def __init__(self, env: Any) -> None:
        self._env = env

    def step(self, action: Any) -> Any:
        """Step the env."""
        return self._env.step(action)

    def reset(self) -> Any:
        """Reset the env."""
        return self._env.reset()


def _first_layer(env: Any) -> Any:
    """Return the outermost layer of a step: the `steps_by` of a manager's env driver, else the env itself."""
    return env.steps_by if hasattr(type(env), "steps_by") else env


def _pass_on(env: Any) -> Callable[[Any], Any]:
    def step(action: Any) -> Any:
        return env.step(action)

    return step


def _counted(env: Any, limit: Any) -> Callable[[Any], Any]:
    """Return a function that steps `env` and counts as TimeLimit does, in the attributes of `limit`."""
    native = load()
    if native is not None:
        return native.counted(env, limit, _unpack)  # type: ignore[no-any-return]
    return _count(env, limit)


def _unpack(result: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Convert the result of a step to a tuple of five values, or raise the same error as TimeLimit."""
    observation, reward, terminated, truncated, info = result
    return observation, reward, terminated, truncated, info


def _count(env: Any, limit: Any) -> Callable[[Any], Any]:
    """Return the same function as `_native.counted`, in Python."""

    def step(action: Any) -> Any:
        observation, reward, terminated, truncated, info = env.step(action)
        limit._elapsed_steps = elapsed = limit._elapsed_steps + 1
        if elapsed >= limit._max_episode_steps:
            truncated = True
        return observation, reward, terminated, truncated, info

    return step


def _is_passed(layer: Any) -> bool:
    """Return whether a step in this layer only counts and calls the next layer."""
    kind, steps = type(layer), known_steps()
    if kind not in steps or "step" in vars(layer) or any(known.step is not step for known, step in steps.items()):
        return False
    if kind is OrderEnforcing:
        return bool(layer._has_reset)
    if kind is PassiveEnvChecker:  # releases before 1.4 have only one check
        return layer.checked_step is True and getattr(layer, "checked_data_reuse", True) is True
    return kind is TimeLimit


@functools.cache
def known_steps() -> dict[Any, Any]:
    """Return {class: its `step`} for all four classes; {} if this Gymnasium release has changed any of them."""
    if all(_digest(kind) in digests for kind, digests in _DIGESTS.items()):
        return {kind: kind.step for kind in _DIGESTS}
    return {}


def _digest(kind: Any) -> str:
    try:
        source = inspect.getsource(kind.step) + inspect.getsource(kind.reset)
    except (OSError, TypeError):  # there is no source, or the callable is not a function
        return ""
    return hashlib.blake2b(source.encode(), digest_size=8).hexdigest()
