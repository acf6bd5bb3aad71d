"""Conversion between an env's own values and the arrays that managers exchange; scaling and forms of actions."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.errors import ConfigError
from vecenv.values.nested import is_sequence, map_structure

__all__ = [
    "affine_transform",
    "to_ndarray",
]


def to_ndarray(item: Any, dtype: Any = None) -> Any:
    """Turn numbers, sequences and containers of them into arrays.

    Containers (dict, tuple, list, named tuple) keep their structure and are converted leaf by leaf. A list or
    tuple of plain numbers becomes one array, and an empty one becomes None. `None`, bool and str are returned
    unchanged. An array that already has the dtype is not copied. For an object with a `numpy()` method (a torch
    tensor) that method is called.

    Args:
        item: the value to convert.
        dtype: dtype of every array in the result; None keeps each value's own.

    Raises:
        TypeError: a leaf has another type.
    """
    if isinstance(item, np.ndarray):
        return item if dtype is None else item.astype(dtype, copy=False)
    if item is None or isinstance(item, (bool, str)):
        return item
    if isinstance(item, (numbers.Number, np.generic)):
        return np.array(item, dtype=dtype)
    if isinstance(item, Mapping):
        return {key: to_ndarray(value, dtype) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return _sequence_to_ndarray(item, dtype)
    if callable(getattr(item, "numpy", None)):
        if callable(getattr(item, "detach", None)):
            item = item.detach().cpu()
        return to_ndarray(item.numpy(), dtype)
    raise TypeError(f"expected numbers, arrays or containers of them, got {type(item).__name__}: {item!r}")


def _sequence_to_ndarray(item: list[Any] | tuple[Any, ...], dtype: Any) -> Any:
    if len(item) == 0:
        return None
    if hasattr(item, "_fields"):
        return type(item)(*(to_ndarray(value, dtype) for value in item))
    if all(isinstance(value, (numbers.Number, np.generic)) for value in item):
        return np.array(item, dtype=dtype)
    return type(item)(to_ndarray(value, dtype) for value in item)


def copy_obs(obs: Any) -> Any:
    """Return a copy of an observation, so that the env may reuse its arrays; mappings become plain dicts."""
    return obs.copy() if isinstance(obs, np.ndarray) else map_structure(_copy_array, obs)


def _copy_array(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def affine_transform(
    data: Any,
    action_clip: bool = True,
    alpha: Any = None,
    beta: Any = None,
    min_val: Any = None,
    max_val: Any = None,
) -> Any:
    """Map values from [-1, 1] to another range, as `data * alpha + beta`.

    Args:
        data: a number or array, nominally in [-1, 1].
        action_clip: clip to [-1, 1] first.
        alpha: scale; computed from the two bounds if these are given.
        beta: shift; None means 0.
        min_val: the result for -1.
        max_val: the result for 1.

    Raises:
        ConfigError: only one of the two bounds is given, or neither a scale nor bounds.
    """
    if action_clip:
        data = np.clip(data, -1, 1)
    if (min_val is None) != (max_val is None):
        raise ConfigError("min_val and max_val: give both or neither")
    if min_val is not None:
        alpha = (max_val - min_val) / 2
        beta = (max_val + min_val) / 2
    elif alpha is None:
        raise ConfigError("affine_transform needs alpha, or min_val and max_val")
    return data * alpha + (0 if beta is None else beta)


def present_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space with float64 and float16 boxes as float32; the argument is not changed.

    A space without such a box is returned as the same object.
    """
    shown = space
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.dtype != np.float32:
        # A float64 bound outside float32's range becomes infinity, which is correct: there is no bound.
        with np.errstate(over="ignore"):
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        return spaces.Box(low, high, space.shape, np.float32)
    if isinstance(space, spaces.Dict):
        shown = spaces.Dict({key: present_space(part) for key, part in space.spaces.items()})
    elif isinstance(space, spaces.Tuple):
        shown = spaces.Tuple([present_space(part) for part in space.spaces])
    return space if shown == space else shown


def present_obs(obs: Any, space: spaces.Space[Any] | None) -> Any:
    """Return the observation as new arrays, with float leaves as float32, according to the env's own space.

    All arrays are copies, because an env may write its next observation into the same memory.
    """
    if isinstance(space, spaces.Box):
        if np.issubdtype(space.dtype, np.floating):
            with np.errstate(over="ignore"):
                return np.array(obs, dtype=np.float32)
        return np.array(obs)
    if isinstance(space, spaces.Dict) and isinstance(obs, Mapping):
        return {key: present_obs(value, space.spaces.get(key)) for key, value in obs.items()}
    if isinstance(space, spaces.Tuple) and isinstance(obs, (tuple, list)) and len(obs) == len(space.spaces):
        return tuple(present_obs(value, part) for value, part in zip(obs, space.spaces, strict=True))
    return copy_obs(to_ndarray(obs))


def normalise_action(action: Any, space: spaces.Space[Any] | None) -> Any:
    """Convert an action to the form that the env's space requires; the argument is not changed.

    Integers of any width and 0-d arrays become Python numbers. So do integer arrays of shape (1,) if the space
    is Discrete or unknown; other arrays are returned unchanged. Dicts are converted key by key, and tuples and
    lists element by element if the space is a Tuple. For an object with a `json()` method (a tree of arrays)
    its result is converted. TypeError is raised for any other form.
    """
    if isinstance(action, (numbers.Integral, np.bool_)):
        return int(action)
    if isinstance(action, np.generic):
        return action.item()
    if isinstance(action, np.ndarray):
        if action.ndim == 0:
            return action.item()
        discrete = space is None or isinstance(space, spaces.Discrete)
        if discrete and action.shape == (1,) and np.issubdtype(action.dtype, np.integer):
            return int(action[0])
        return action
    if isinstance(action, Mapping):
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        return {key: normalise_action(value, parts.get(key)) for key, value in action.items()}
    if isinstance(action, (tuple, list)) and isinstance(space, spaces.Tuple):
        if len(action) != len(space.spaces):
            raise TypeError(f"action: expected {len(space.spaces)} elements, got {len(action)}: {action!r}")
        return tuple(normalise_action(value, part) for value, part in zip(action, space.spaces, strict=True))
    if callable(getattr(action, "json", None)):
        return normalise_action(action.json(), space)
    raise TypeError(f"action: expected int, array or dict of them, got {type(action).__name__}: {action!r}")


def action_to_ndarray(action: Any) -> Any:
    """Return a sampled action as arrays: an int becomes int64 of shape (1,), a dict becomes a dict of arrays.

    TypeError is raised if the action is not an array, an int or a dict of them.
    """
    return map_structure(_number_to_array, action, is_leaf=is_sequence)


def _number_to_array(action: Any) -> Any:
    if isinstance(action, np.ndarray):
        return action
    if isinstance(action, numbers.Integral):
        return np.array([action], dtype=np.int64)
    raise TypeError(f"random_action: expected int, array or dict of them, got {type(action).__name__}: {action!r}")


def scale_action(action: Any, space: spaces.Space[Any]) -> Any:
    """Map actions from [-1, 1] to the bounds of Box spaces, also in a Dict or Tuple; others are returned unchanged."""
    if isinstance(space, spaces.Dict) and isinstance(action, Mapping):
        return {key: scale_action(part, space[key]) if key in space.spaces else part for key, part in action.items()}
    if isinstance(space, spaces.Tuple) and isinstance(action, (tuple, list)) and len(action) == len(space):
        return tuple(scale_action(part, one) for part, one in zip(action, space, strict=True))
    if isinstance(space, spaces.Box):
        scaled = affine_transform(action, min_val=space.low, max_val=space.high)
        return np.asarray(scaled, dtype=space.dtype)
    return action
