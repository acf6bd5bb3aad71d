"""Copies of nested values: of what an env may overwrite, and of what its receiver could not write to."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

__all__ = ["copy_arrays", "copy_objects", "thawed"]


def copy_arrays(value: Any) -> Any:
    """Copy a nested value's containers and arrays; other objects are shared."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        copied = copy.copy(value)  # a dict of the same class
        for key, part in value.items():
            copied[key] = copy_arrays(part)
        return copied
    if type(value) in (tuple, list):
        return type(value)(copy_arrays(part) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple, such as a graph
        return value._make(copy_arrays(part) for part in value)
    return value


def copy_objects(value: Any) -> Any:
    """Copy a nested value whole, with objects that are neither containers nor arrays."""
    try:
        return copy.deepcopy(value)
    except Exception:  # what cannot be copied cannot be mailed either, and then it is said whose it is
        return copy_arrays(value)


def thawed(value: Any) -> Any:
    """Return a nested value whose arrays can be written to: a pickle keeps those of an env that cannot as they are."""
    return copy_arrays(value) if _is_frozen(value) else value


def _is_frozen(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not value.flags.writeable
    if isinstance(value, dict):
        return any(map(_is_frozen, value.values()))
    return isinstance(value, tuple | list) and any(map(_is_frozen, value))
