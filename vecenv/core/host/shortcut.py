"""Shortcut: lets a worker step an env directly, past wrappers that only call the next layer.

    TimeLimit -> OrderEnforcing -> PassiveEnvChecker -> env     as `gymnasium.make` builds it
    TimeLimit's count ------------------------------> env     as a worker steps it

`gymnasium.make` puts these three wrappers around every env. After the first reset and checks, two of them
only call the next layer, and TimeLimit also increments a counter. Together with the calls between them
this is 5 % of a step of CartPole. The shortcut is used only if it cannot change a result:

* The layers are of exactly these classes, not of subclasses.
* Their `step` and `reset` have the source of the supported Gymnasium releases, compared by digest.
* Neither the classes nor these layers have been changed: an object has no `step` of its own, and the same `env`.
* They are the outermost layers, which only the worker calls.

An adapter of another kind of environments may step a Gymnasium env below these environments. They are its
`skipped_layers`, whose `step` and `_step` are checked, too.

The layers are chosen after each reset and call. The C extension checks each of them again before every step,
and calls the step of the outermost layer if one has changed. Without C there is no shortcut, as the checks
would cost more.
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
        """Return a shortcut for the env, or the env itself if there is no layer to skip."""
        first = _first_layer(env)
        has_shortcut = load() is not None and (first is not env or type(first) in known_steps())
        return Shortcut(env) if has_shortcut else env

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
        native = load()
        assert native is not None
        layer, limit = first, None
        skipped = self._env.skipped_layers if hasattr(type(self._env), "skipped_layers") else ()
        passed: list[Any] = [(one, (), None) for one in skipped]
        while _is_passed(layer) and not (limit is not None and type(layer) is TimeLimit):
            if type(layer) is TimeLimit:
                limit = layer
            passed.append((layer, _flags(layer), layer.env))
            layer = layer.env
        step: Callable[[Any], Any] = native.counted(self._env, layer, limit, _unpack, tuple(passed))
        if type(layer) not in known_steps():  # a known wrapper still has checks to make: decide again later
            self._first, self._step = first, step
        return step

    def reset(self) -> Any:
        """Reset the env."""
        return self._env.reset()


def _first_layer(env: Any) -> Any:
    """Return the outermost layer of a step: the `steps_by` of an adapter that has one, else the env itself."""
    first = env.steps_by if hasattr(type(env), "steps_by") else None
    return env if first is None else first


def _unpack(result: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Convert the result of a step to a tuple of five values, or raise the same error as TimeLimit."""
    observation, reward, terminated, truncated, info = result
    return observation, reward, terminated, truncated, info


def _is_passed(layer: Any) -> bool:
    """Return whether a step in this layer only counts and calls the next layer."""
    kind, steps = type(layer), known_steps()
    if kind not in steps or "step" in vars(layer) or any(known.step is not step for known, step in steps.items()):
        return False
    return kind is not Wrapper and all(vars(layer).get(flag) is True for flag in _flags(layer))


def _flags(layer: Any) -> tuple[str, ...]:
    """Return the names of the attributes that are True once a layer has made its checks."""
    if type(layer) is OrderEnforcing:
        return ("_has_reset",)
    if type(layer) is PassiveEnvChecker:  # releases before 1.4 have only one check
        return ("checked_step", "checked_data_reuse") if "checked_data_reuse" in vars(layer) else ("checked_step",)
    return ()


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
