"""Nested values: dicts, lists, tuples and named tuples of leaves, walked by their own structure.

Trees of the V2 managers walk themselves, see `tree.TreeArray`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.errors import SpaceError

__all__ = [
    "copy_arrays",
    "copy_objects",
    "equal",
    "flatten",
    "get_field",
    "has_own_structure",
    "is_sequence",
    "map_structure",
    "set_field",
    "writable_copy",
]


def map_structure(
    function: Callable[..., Any], nest: Any, *others: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """Apply a function to the leaves of nests of one structure; return the results nested as the first is.

    A mapping becomes a dict with the same order of keys. Lists, tuples and named tuples keep their class. An empty
    tuple, as unused fields of an ALF time step have it, is a nest without leaves.

    >>> map_structure(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, {"x": 10, "y": (20, 30)})
    {'x': 11, 'y': (22, 33)}

    Args:
        function: called with one leaf of each nest.
        nest: its containers determine the leaves of the others.
        others: nests of the same structure.
        is_leaf: called with each part of `nest` that is not an array; True makes a container a leaf.

    Raises:
        SpaceError: the structures differ.
    """
    return _map(function, is_leaf, nest, others)


def _map(function: Callable[..., Any], is_leaf: Callable[[Any], bool] | None, nest: Any, others: Sequence[Any]) -> Any:
    if isinstance(nest, np.ndarray) or (is_leaf is not None and is_leaf(nest)):
        return function(nest, *others)
    if isinstance(nest, (dict, Mapping)):  # dict first: a look at an abstract class takes longer
        if not others:
            return {key: _map(function, is_leaf, part, ()) for key, part in nest.items()}
        for other in others:
            if not isinstance(other, (dict, Mapping)) or other.keys() != nest.keys():
                raise _mismatch(f"a dict with keys {sorted(map(str, nest))}", other)
        return {key: _map(function, is_leaf, part, [other[key] for other in others]) for key, part in nest.items()}
    if isinstance(nest, (tuple, list)):
        for other in others:
            if not isinstance(other, (tuple, list)) or len(other) != len(nest):
                raise _mismatch(f"{len(nest)} parts", other)
        parts = [_map(function, is_leaf, part, row) for part, *row in zip(nest, *others)]
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    return function(nest, *others)


def _mismatch(expected: str, got: Any) -> SpaceError:
    found = sorted(map(str, got)) if isinstance(got, Mapping) else type(got).__name__
    return SpaceError(f"nests differ: expected {expected}, got {found}", expected=expected, got=str(found))


def is_sequence(value: Any) -> bool:
    """Return whether a value is a list or a tuple; `is_leaf` for values such as infos, where only dicts are nested."""
    return isinstance(value, (list, tuple))


def flatten(nest: Any) -> list[Any]:
    """Return the leaves in order."""
    leaves: list[Any] = []
    map_structure(leaves.append, nest)
    return leaves


def equal(one: Any, two: Any) -> bool:
    """Compare nested values exactly; NaN equals NaN."""
    if isinstance(one, Mapping):
        return isinstance(two, Mapping) and set(one) == set(two) and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return isinstance(two, (list, tuple)) and len(one) == len(two) and all(map(equal, one, two))
    if isinstance(one, (np.ndarray, np.generic, float)):
        left, right = np.asarray(one), np.asarray(two)
        if np.issubdtype(left.dtype, np.inexact):
            return np.array_equal(left, right, equal_nan=True)
        return np.array_equal(left, right)
    return bool(one == two)


def has_own_structure(nest: Any) -> bool:
    """Return whether a nest contains lists or named tuples, which Gymnasium's spaces do not have."""
    if isinstance(nest, Mapping):
        return any(has_own_structure(part) for part in nest.values())
    if isinstance(nest, (tuple, list)):
        return type(nest) is not tuple or any(has_own_structure(part) for part in nest)
    return False


def get_field(nest: Any, field: str | None) -> Any:
    """Return a part of nested dicts by a path such as 'camera.left'; None is the whole."""
    for key in field.split(".") if field else ():
        nest = nest[key]
    return nest


def set_field(nest: Any, field: str | None, value: Any) -> Any:
    """Return nested dicts with one part replaced; the argument stays as it is."""
    if not field:
        return value
    key, _, rest = field.partition(".")
    return {**nest, key: set_field(nest[key], rest or None, value)}


# ---- copies ----------------------------------------------------------------------------------


def copy_arrays(value: Any, copies: dict[int, Any] | None = None) -> Any:
    """Copy a nested value's containers and arrays; other objects are shared.

    Unlike `map_structure` it takes any value that an env may return: containers keep their class, those of unknown
    classes are shared, and a value may contain itself.

    Args:
        value: the value to copy.
        copies: the copies of the dicts and lists that contain `value`, by the id of the original.
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
    except Exception:  # a value that cannot be copied cannot be pickled either; the error then names its env
        return copy_arrays(value)


def writable_copy(value: Any) -> Any:
    """Return a nested value whose arrays are writeable: itself, or a copy. Read-only arrays are pickled as such."""
    return copy_arrays(value) if _is_frozen(value, set()) else value


def _is_frozen(value: Any, seen: set[int]) -> bool:
    """Return whether a value contains a read-only array; skips dicts and lists whose ids are in `seen`."""
    if isinstance(value, np.ndarray):
        return not value.flags.writeable
    if not isinstance(value, dict | tuple | list) or id(value) in seen:
        return False
    seen.add(id(value))
    return any(_is_frozen(part, seen) for part in (value.values() if isinstance(value, dict) else value))
