"""Returned: what came out of an env's `step` or `reset`, taken apart and checked, where the slot could not."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import SpaceError

__all__ = ["exact_reward", "type_name", "zero_reward", "unpack_reset"]


def unpack_reset(result: Any) -> tuple[Any, Any]:
    """Return the observation and the info of a reset.

    Raises:
        TypeError: these are not two values.
    """
    try:
        obs, info = result
    except (TypeError, ValueError):
        raise TypeError(f"reset must return (obs, info), got {type_name(result)}") from None
    return obs, info


def zero_reward(shape: tuple[int, ...]) -> Any:
    """Return the reward of what was no step."""
    return 0.0 if shape == () else np.zeros(shape)


def exact_reward(shape: tuple[int, ...], reward: Any) -> Any:
    """Return a reward as a float, or as float64 of the reward space's shape.

    Raises:
        SpaceError: it is no number, or not as many.
    """
    try:
        array = np.asarray(reward, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor with a gradient is no array, but a number
        try:
            array = np.array(float(reward))
        except (TypeError, ValueError, RuntimeError):
            raise SpaceError(f"reward: {error}", path="reward") from error
    if array.size == 1 and shape == ():
        return float(array.reshape(()))
    if array.shape != shape:
        expected = f"shape {shape}" if shape else "one number"
        got = f"shape {array.shape}"
        raise SpaceError(f"reward: expected {expected}, got {got}", path="reward", expected=expected, got=got)
    return np.ascontiguousarray(array)


def type_name(value: Any) -> str:
    """Say what a value is, for the end of a message."""
    size = f" of {len(value)}" if isinstance(value, tuple | list | dict) else ""
    return f"{type(value).__name__}{size}"
