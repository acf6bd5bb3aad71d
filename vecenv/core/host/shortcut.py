"""Shortcut: steps an env past the wrappers that a step only passes through.

    TimeLimit -> OrderEnforcing -> PassiveEnvChecker -> env     as `gymnasium.make` builds it
    TimeLimit's count ------------------------------> env     as a worker steps it

`gymnasium.make` puts these three around every env. Once an env has been reset and checked, two of them
do nothing but call the next one, and the first adds one to a count: with the calls in between 5 % of a step
of CartPole. The shortcut is taken only where nobody can tell: through exactly these classes, not a subclass;
with the `step` and `reset` that they have in the releases of Gymnasium this was written for, by a digest of
their sources; with no other `step` put in its place since, in the class or in the object; and only in the
outermost layers, which nobody but the worker calls. A reset or a call by the caller, which may change that,
has all of it looked at again.
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

__all__ = ["Shortcut", "known_steps"]

#: Class -> digests of the sources of its `step` and `reset` in Gymnasium 1.1 to 1.4.
_DIGESTS: dict[Any, set[str]] = {
    TimeLimit: {"ef39e49ce4239f93"},
    OrderEnforcing: {"36f075e9f8bf6f5b"},
    PassiveEnvChecker: {"f9f378beb3f060d7", "07737e6c71183bfc"},
    Wrapper: {"7f6e7ecc3773bc2c"},  # whose calls OrderEnforcing goes on with
}


class Shortcut:
    """Stands in for an env towards the slot, which takes its `step` anew after every reset.

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
        """Return a stand-in for the env, or the env itself where its outermost layer is none to step past."""
        return Shortcut(env) if type(_first_layer(env)) in known_steps() else env

    def __init__(self, env: Any) -> None:
        self._env = env
        self._first: Any = None  # the layer that _step begins in
        self._step: Callable[[Any], Any] | None = None

    @property
    def step(self) -> Callable[[Any], Any]:
        """What to step the env by until its next reset."""
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
        if type(layer) not in known_steps():  # else it has still to check something
            self._first, self._step = first, step
        return step

    def reset(self) -> Any:
        """Reset the env."""
        return self._env.reset()


def _first_layer(env: Any) -> Any:
    """Return the layer that a step begins in: the env, or the one that a manager's env has for its steps, if any."""
    return env.steps_by if hasattr(type(env), "steps_by") else env


def _pass_on(env: Any) -> Callable[[Any], Any]:
    def step(action: Any) -> Any:
        return env.step(action)

    return step


def _counted(env: Any, limit: Any) -> Callable[[Any], Any]:
    """Step and count as TimeLimit does; its attributes stay the place where the count is kept."""
    native = load()
    if native is not None:
        return native.counted(env, limit, _unpack)  # type: ignore[no-any-return]
    return _count(env, limit)


def _unpack(result: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Give what a step returned, if that is no tuple of five, as one, or raise as TimeLimit does."""
    observation, reward, terminated, truncated, info = result
    return observation, reward, terminated, truncated, info


def _count(env: Any, limit: Any) -> Callable[[Any], Any]:
    """Do what `_native.counted` does."""

    def step(action: Any) -> Any:
        observation, reward, terminated, truncated, info = env.step(action)
        limit._elapsed_steps = elapsed = limit._elapsed_steps + 1
        if elapsed >= limit._max_episode_steps:
            truncated = True
        return observation, reward, terminated, truncated, info

    return step


def _is_passed(layer: Any) -> bool:
    """Tell whether a step does no more in this layer than count or call the next one."""
    kind, steps = type(layer), known_steps()
    if kind not in steps or "step" in vars(layer) or any(known.step is not step for known, step in steps.items()):
        return False
    if kind is OrderEnforcing:
        return bool(layer._has_reset)
    if kind is PassiveEnvChecker:  # releases before 1.4 have one check only
        return layer.checked_step is True and getattr(layer, "checked_data_reuse", True) is True
    return kind is TimeLimit


@functools.cache
def known_steps() -> dict[Any, Any]:
    """Return class -> its `step`, of all four or of none: a release that changed one is not known here."""
    if all(_digest(kind) in digests for kind, digests in _DIGESTS.items()):
        return {kind: kind.step for kind in _DIGESTS}
    return {}


def _digest(kind: Any) -> str:
    try:
        source = inspect.getsource(kind.step) + inspect.getsource(kind.reset)
    except (OSError, TypeError):  # no source here, or a function replaced by another kind of callable
        return ""
    return hashlib.blake2b(source.encode(), digest_size=8).hexdigest()
