"""Nests: what ALF passes around. Dicts, lists, tuples and named tuples of leaves, walked in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vecenv.errors import SpaceError

__all__ = ["flatten", "get_field", "has_own_structure", "map_structure", "set_field"]


def map_structure(function: Callable[..., Any], nest: Any, *others: Any) -> Any:
    """Apply a function to the leaves of nests of one structure; return the results nested as the first is.

    An empty tuple, as unused fields of a time step have it, is a nest without leaves.

    >>> map_structure(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, {"x": 10, "y": (20, 30)})
    {'x': 11, 'y': (22, 33)}

    Raises:
        SpaceError: the structures differ.
    """
    if isinstance(nest, Mapping):
        for other in others:
            if not isinstance(other, Mapping) or other.keys() != nest.keys():
                raise _mismatch(f"a dict with keys {sorted(map(str, nest))}", other)
        return {key: map_structure(function, part, *(other[key] for other in others)) for key, part in nest.items()}
    if isinstance(nest, (tuple, list)):
        for other in others:
            if not isinstance(other, (tuple, list)) or len(other) != len(nest):
                raise _mismatch(f"{len(nest)} parts", other)
        parts = [map_structure(function, *row) for row in zip(nest, *others, strict=True)]
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    return function(nest, *others)


def flatten(nest: Any) -> list[Any]:
    """Return the leaves in order."""
    leaves: list[Any] = []
    map_structure(leaves.append, nest)
    return leaves


def has_own_structure(nest: Any) -> bool:
    """Tell whether there are lists or named tuples in a nest, which Gymnasium's spaces do not know."""
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


def _mismatch(expected: str, got: Any) -> SpaceError:
    found = sorted(map(str, got)) if isinstance(got, Mapping) else type(got).__name__
    return SpaceError(f"nests differ: expected {expected}, got {found}", expected=expected, got=str(found))
