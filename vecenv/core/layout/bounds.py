"""Bounds: checks that actions are members of their space. They are on their way from the caller to the columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces

from ...errors import SpaceError
from .spec import Array, Space

__all__ = ["Bounds"]


class Bounds:
    """The bounds of an action space, by its leaves.

    Args:
        space: the action space of one env.
    """

    def __init__(self, space: Space[Any]) -> None:
        self._space = space
        self._parts = [(path, part, *_limits_of(part)) for path, part in _leaves_of(space, "action")]

    def check_columns(self, columns: Sequence[Array], env_ids: Array) -> None:
        """Check actions of several envs: one array (B, *S) per leaf of the space, and their `env_ids`, int64 (B,).

        Raises:
            SpaceError: an action is outside the space; the message contains the env, the value and the space.
        """
        for (path, space, low, high), column in zip(self._parts, columns):
            if low is None:  # a space with a rule of its own
                inside = np.array([space.contains(value) for value in column])
            else:
                inside = (column >= low) & (column <= high)
            if not inside.all():
                row = int(np.argwhere(~inside)[0, 0])
                _refuse(path, space, env_ids[row], column[row], ~inside[row])

    def check_objects(self, actions: Sequence[Any], env_ids: Array) -> None:
        """Check actions that are objects, one per env; None stands for no action. Raises as `check_columns`."""
        for env_id, action in zip(env_ids, actions):
            if action is not None and not self._space.contains(action):
                _refuse("action", self._space, env_id, action)


def _leaves_of(space: Space[Any], path: str) -> Iterator[tuple[str, Space[Any]]]:
    """Yield the leaves of a space in the order of its `Spec`."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves_of(part, f"{path}/{key}")
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from _leaves_of(part, f"{path}/{i}")
    else:
        yield path, space


def _limits_of(space: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest value; (None, None) if the space has another rule."""
    rule = getattr(type(space), "contains", None)
    if rule is spaces.Box.contains:
        return space.low, space.high
    if rule is spaces.Discrete.contains:
        return space.start, space.start + space.n - 1
    if rule is spaces.MultiDiscrete.contains:
        return space.start, space.start + space.nvec - 1
    return None, None


def _refuse(path: str, space: Space[Any], env_id: int, value: Any, is_outside: Any = None) -> NoReturn:
    got = str(value)
    if np.ndim(is_outside):
        index = tuple(np.argwhere(is_outside)[0].tolist())
        got = f"{value[index]} at index {index[0] if len(index) == 1 else index}"
    expected = f"a member of {space}"
    raise SpaceError(f"{path}: env {env_id}: expected {expected}, got {got}", path=path, expected=expected, got=got)
