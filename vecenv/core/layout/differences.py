"""Differences: describes where two spaces differ, for errors about envs that should have equal spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Tuple

__all__ = ["are_equal", "first_difference"]

#: Properties of spaces in the order of comparison; the first two decide about the memory.
_PROPERTIES = ("dtype", "shape", "low", "high", "n", "start", "nvec", "min_length", "max_length", "characters")
_NUM_MEMORY = 2


def are_equal(space: Any, other: Any) -> bool:
    """Return whether two spaces are equal, by the bytes of large bounds before `Box` compares them with a tolerance."""
    if space is other:
        return True
    parts, others = _parts_of(space), _parts_of(other)
    if type(space) is type(other) and type(space) in (Dict, Tuple) and parts is not None and others is not None:
        return list(parts) == list(others) and all(are_equal(parts[key], others[key]) for key in parts)
    if type(space) is type(other) is Box and space.dtype == other.dtype and space.shape == other.shape:
        bounds = (space.low, other.low), (space.high, other.high)
        if all(one is another or np.array_equal(one, another) for one, another in bounds):
            return True
    return bool(space == other)


def first_difference(
    space: Any, other: Any, path: str, owner: str, *, has_bounds: bool = True
) -> tuple[str, str] | None:
    """Compare a space with the space of another env.

    Args:
        space: the space.
        other: the space that it should equal.
        path: first part of the path in the result, such as 'observation_space'.
        owner: the name of the owner of `other`, such as 'env 0'.
        has_bounds: whether bounds must be equal, too; else only structure, dtypes and shapes.

    Returns:
        The path of the first part that differs, such as 'observation_space/camera', and a text that begins with it;
        None if the spaces are equal.
    """
    parts, others = _parts_of(space), _parts_of(other)
    if parts is None or others is None or type(space) is not type(other):
        return _compare_leaves(space, other, path, owner, has_bounds)
    if list(parts) != list(others):
        what = "keys" if isinstance(space.spaces, Mapping) else "indices"
        return path, f"{path}: {what} are {list(parts)}, those of {owner} are {list(others)}"
    found = (first_difference(parts[key], others[key], f"{path}/{key}", owner, has_bounds=has_bounds) for key in parts)
    return next((one for one in found if one is not None), None)


def _parts_of(space: Any) -> dict[Any, Any] | None:
    """Return the parts of a Dict or Tuple space by key or index, in their order; None for other spaces."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return dict(parts)
    return dict(enumerate(parts)) if isinstance(parts, tuple | list) else None


def _compare_leaves(space: Any, other: Any, path: str, owner: str, has_bounds: bool) -> tuple[str, str] | None:
    if has_bounds and type(space) is type(other) and are_equal(space, other):
        return None
    names = _PROPERTIES if has_bounds else _PROPERTIES[:_NUM_MEMORY]
    if type(space) is type(other) or not has_bounds:
        for name in names:
            ours, theirs = getattr(space, name, None), getattr(other, name, None)
            text = _compare_values(name, ours, theirs, owner)
            if text is not None:
                return path, f"{path}: {text}"
    return (path, f"{path}: is {space}, that of {owner} is {other}") if has_bounds else None


def _compare_values(name: str, ours: Any, theirs: Any, owner: str) -> str | None:
    """Return a text about two values of a property; None if they are equal."""
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray) and ours.shape == theirs.shape:
        wrong = np.argwhere(np.asarray(ours != theirs) & ~((ours != ours) & (theirs != theirs)))
        if not len(wrong):
            return None
        index = tuple(wrong[0].tolist())
        if index:
            where = f" at index {index[0] if len(index) == 1 else index}"
            return f"{name} is {ours[index]}{where}, that of {owner} is {theirs[index]}"
    elif ours is theirs or bool(np.all(ours == theirs)):
        return None
    return f"{name} is {ours}, that of {owner} is {theirs}"
