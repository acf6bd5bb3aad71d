"""Checks and unpacks the values that an env's `step` or `reset` returned, if the slot could not write them directly."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import SpaceError
from ..layout.spec import Array

__all__ = [
    "exact_flag",
    "exact_reward",
    "function_name",
    "holds_int",
    "shorten",
    "type_name",
    "zero_reward",
    "unpack_reset",
]

#: Most characters of an action in a message.
_ACTION_WIDTH = 60
#: End of the error about a reward of another shape.
_HOW_TO_DECLARE = "an env, or a wrapper that changes the form of rewards, declares it as its `reward_space`"


def holds_int(obs: Any) -> bool:
    """Return whether an observation is a Python int, or a tuple, list or dict that contains one."""
    if isinstance(obs, Mapping):
        return any(map(holds_int, obs.values()))
    return any(map(holds_int, obs)) if isinstance(obs, tuple | list) else type(obs) is int


def unpack_reset(result: Any) -> tuple[Any, Any]:
    """Return the observation and the info of a reset.

    Raises:
        TypeError: the result does not consist of two values.
    """
    try:
        obs, info = result
    except (TypeError, ValueError):
        raise TypeError(f"reset must return (obs, info), got {type_name(result)}") from None
    return obs, info


def exact_flag(name: str, value: Any) -> bool:
    """Return `terminated` or `truncated`, called `name`, as a bool.

    Raises:
        SpaceError: the value is neither true nor false, such as an array of two bools.
    """
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type_name(value)
        raise SpaceError(f"{name}: expected a bool, got {got}", path=name, expected="bool", got=got) from error


def zero_reward(shape: tuple[int, ...]) -> Any:
    """Return the reward of a reply that does not come from a step: 0.0, or a float64 array of zeros."""
    return 0.0 if shape == () else np.zeros(shape)


def exact_reward(shape: tuple[int, ...], reward: Any) -> Any:
    """Return a reward as a float if `shape` is (), else as a contiguous float64 array of this shape.

    Raises:
        SpaceError: the reward is not numeric, or has another shape.
    """
    try:
        array = np.asarray(reward, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # NumPy cannot convert a tensor with a gradient
        try:
            array = np.array(float(reward))
        except (TypeError, ValueError, RuntimeError):
            raise SpaceError(f"reward: {error}", path="reward") from error
    if np.isnan(array).any() and None in np.asarray(reward, dtype=object).ravel().tolist():  # NumPy makes NaN of it
        raise SpaceError("reward: expected a number, got None", path="reward", expected="a number", got="None")
    if array.size == 1 and shape == ():
        return float(array.reshape(()))
    if array.shape != shape:
        expected = f"shape {shape}" if shape else "one number"
        got = f"shape {array.shape}"
        text = f"reward: expected {expected}, got {got}; {_HOW_TO_DECLARE}"
        raise SpaceError(text, path="reward", expected=expected, got=got)
    return np.ascontiguousarray(array)


def type_name(value: Any) -> str:
    """Describe the type of a value for an error message; for a tuple, list or dict also its length."""
    size = f" of {len(value)}" if isinstance(value, tuple | list | dict) else ""
    return f"{type(value).__name__}{size}"


class _Shortener(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = 6
        self.maxstring = self.maxlong = self.maxother = _ACTION_WIDTH // 2

    def repr_ndarray(self, value: Array, level: int) -> str:
        text = np.array2string(value, threshold=6, edgeitems=2, precision=4, separator=", ", max_line_width=1000)
        return " ".join(text.split()).replace("[ ", "[").replace(" ]", "]")

    def repr_instance(self, value: Any, level: int) -> str:
        return self.repr1(value.item(), level) if isinstance(value, np.generic) else super().repr_instance(value, level)


_SHORTENER = _Shortener()


def shorten(action: Any) -> str:
    """Return an action as one short line of text.

    >>> shorten(np.int64(3)), shorten(np.zeros((2, 100)))
    ('3', '[[0., 0., ..., 0., 0.], [0., 0., ..., 0., 0.]]')
    """
    text = " ".join(_SHORTENER.repr(action).split())
    return text if len(text) <= _ACTION_WIDTH else f"{text[: _ACTION_WIDTH - 3]}..."


def function_name(function: Callable[[Any], Any]) -> str:
    """Return the name of the method that the function of a call calls, or its own name."""
    return str(getattr(function, "name", None) or getattr(function, "__qualname__", type(function).__name__))
