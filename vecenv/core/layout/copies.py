"""Copies of nested values: of what an env may overwrite, and of what its receiver could not write to."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

__all__ = ["copy_arrays", "copy_objects", "copy_value", "writable_copy"]

_CONSTANTS = frozenset((type(None), bool, int, float, complex, str, bytes))


def copy_arrays(value: Any, copies: dict[int, Any] | None = None) -> Any:
    """Copy a nested value's containers and arrays; other objects are shared.

    Args:
        value: may hold itself.
        copies: those of the dicts and lists that it is inside of, by their id.
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    copies = {} if copies is None else copies
    copied: Any
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, dict):
        copied = copies[id(value)] = copy.copy(value)  # a dict of the same class
        for key, part in value.items():
            copied[key] = copy_arrays(part, copies)
        del copies[id(value)]
        return copied
    if type(value) is list:
        copied = copies[id(value)] = []
        copied.extend(copy_arrays(part, copies) for part in value)
        del copies[id(value)]
        return copied
    if type(value) is tuple:
        return tuple(copy_arrays(part, copies) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a named tuple, such as a graph
        return value._make(copy_arrays(part, copies) for part in value)
    return value


def copy_objects(value: Any) -> Any:
    """Copy a nested value whole, with objects that are neither containers nor arrays."""
    try:
        return copy.deepcopy(value)
    except Exception:  # what cannot be copied cannot be mailed either, and then it is said whose it is
        return copy_arrays(value)


def copy_value(value: Any, copies: dict[int, Any] | None = None) -> Any:
    """Copy a nested value, so that neither side sees later changes by the other one.

    Shared instead of copied are callables, envs, and objects that `copy.deepcopy` cannot copy.

    Args:
        value: may contain itself.
        copies: the memo of `copy.deepcopy`: copies made so far, by the id of the original.
    """
    copies = {} if copies is None else copies
    kind = type(value)
    copied: Any
    if kind in _CONSTANTS:
        return value
    if id(value) in copies:
        return copies[id(value)]
    if kind is dict:
        copied = copies[id(value)] = {}
        for key, part in value.items():
            copied[key] = copy_value(part, copies)
    elif kind is list:
        copied = copies[id(value)] = []
        copied.extend(copy_value(part, copies) for part in value)
    elif kind is tuple:
        copied = copies[id(value)] = tuple(copy_value(part, copies) for part in value)
    elif isinstance(value, tuple) and hasattr(value, "_make"):
        copied = copies[id(value)] = value._make(copy_value(part, copies) for part in value)
    elif callable(value) or (hasattr(value, "step") and hasattr(value, "reset")):
        copied = value
    else:
        before = dict(copies)
        try:
            copied = copy.deepcopy(value, copies)
        except Exception:  # the class decides what it raises, for example for a lock
            copies.clear()  # of incomplete copies of its parts
            copies.update(before)
            copied = value
    return copied


def writable_copy(value: Any) -> Any:
    """Return a nested value whose arrays can be written to: a pickle keeps those of an env that cannot as they are."""
    return copy_arrays(value) if _has_read_only_array(value, set()) else value


def _has_read_only_array(value: Any, seen: set[int]) -> bool:
    """Whether there is such an array in a value; not again in the dicts and lists that have been seen, by their id."""
    if isinstance(value, np.ndarray):
        return not value.flags.writeable
    if not isinstance(value, dict | tuple | list) or id(value) in seen:
        return False
    seen.add(id(value))
    return any(_has_read_only_array(part, seen) for part in (value.values() if isinstance(value, dict) else value))
