"""Nested observations of B envs: array leaves have shape (B, *S), values without a fixed layout are tuples of B."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ..core.layout.spec import Array, DictNode, Leaf, Node, TupleNode, map_columns
from ..envs.spaces import map_by_space

__all__ = ["merge", "own", "row_of", "view"]


_copy: Callable[[Array], Array] = operator.methodcaller("copy")


def own(node: Node, value: Any) -> Any:
    """Return nested observations with all arrays copied."""
    return map_columns(node, value, _copy)


def view(node: Node, value: Any, rows: slice) -> Any:
    """Return nested observations with views of these rows of the arrays."""
    return map_columns(node, value, operator.itemgetter(rows))


def merge(node: Node, before: Any, new: Any, env_ids: Array) -> Any:
    """Return `before` with the rows at `env_ids`, int64 (B,), replaced by those of `new`, in place."""
    if isinstance(node, Leaf):
        before[env_ids] = new
        return before
    if isinstance(node, DictNode):
        return {k: merge(child, before[k], new[k], env_ids) for k, child in zip(node.keys, node.children)}
    if isinstance(node, TupleNode):
        return tuple(merge(child, b, n, env_ids) for child, b, n in zip(node.children, before, new))
    objects = list(before)
    for env_id, value in zip(env_ids.tolist(), new):
        objects[env_id] = value
    return tuple(objects)


def row_of(space: Space[Any], batch: Any, row: int, has_ints: bool = False) -> Any:
    """Return a copy of one row of batched observations, in the form that a single env returns.

    With `has_ints`, values of Discrete spaces are Python ints.
    """

    def take(part: Space[Any], values: Any) -> Any:
        if isinstance(values, np.ndarray) and not isinstance(part, spaces.Discrete):
            return values[row, ...].copy()  # an array even if its shape is ()
        if has_ints and isinstance(part, spaces.Discrete):
            return int(values[row])
        return values[row]  # a number, or an object that was pickled

    return map_by_space(take, space, batch)
