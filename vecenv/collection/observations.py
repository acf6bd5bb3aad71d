"""ObsColumns: observations as a flat list of arrays, one for each part of their space.

    Dict(camera=Box(3, 64, 64), note=Text(8))      columns: uint8 (B, 3, 64, 64), object (B,)

Parts with a fixed dtype and shape come first. Each other part is a column of objects; one that is always None has none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from ..core.layout.spec import Array, Leaf, NoneNode, ObjectNode, Spec, map_columns, nest_columns
from ..errors import ConfigError
from ..gymnasium_api.registrations import has_own_batches

__all__ = ["ObsColumns"]


class ObsColumns:
    """The columns of observations; `spec` is the layout of their space.

    Raises:
        ConfigError: functions of the caller batch the observations, so they have no rows of a known form.
    """

    def __init__(self, space: Space[Any]) -> None:
        if has_own_batches(space):
            raise ConfigError(
                f"collect: batches of {space} are made by functions of the program, so they have no columns", key="envs"
            )
        self.spec = Spec(space, "obs")
        self._is_plain = isinstance(self.spec.root, Leaf)
        self._num_leaves = len(self.spec.leaves)
        objects = [(np.dtype(object), ())] * self.spec.num_objects
        self._forms: list[tuple[Any, tuple[int, ...]]] = [(leaf.dtype, leaf.shape) for leaf in self.spec.leaves]
        self._forms += objects

    def make_empty(self, num_rows: int) -> list[Array]:
        return [np.empty((num_rows, *shape), dtype) for dtype, shape in self._forms]

    def leaves_of(self, columns: Sequence[Array]) -> tuple[Array, ...]:
        """Return the columns with a fixed dtype and shape, one for each leaf of `spec`."""
        return tuple(columns[: self._num_leaves])

    def flatten(self, obs: Any, count: int) -> Sequence[Array]:
        """Return the columns of B = `count` observations of a vector env; arrays are not copied."""
        if self._is_plain:
            return (obs,)
        if self.spec.is_all_arrays:
            return self.spec.flatten_batch(obs, count)
        leaves: list[Array] = []
        map_columns(self.spec.root, obs, functools.partial(_append, leaves))
        return [*leaves, *(_as_objects(values) for values in self.spec.objects(obs))]

    def stack(self, observations: Any, rows: Array) -> list[Array]:
        """Return columns (K, *S) of observations of single envs: those at the indices `rows`, int64 (K,)."""
        found = self.make_empty(len(rows))
        for number, row in enumerate(rows.tolist()):
            values: list[Any] = []
            map_columns(self.spec.root, observations[row], functools.partial(_append, values))
            for column, value in zip(found, [*values, *self.spec.objects(observations[row])]):
                column[number] = value
        return found

    def nest(self, columns: Sequence[Array]) -> Any:
        """Return columns as observations of a vector env: nested like the space, with tuples of B objects."""
        if self._is_plain:
            return columns[0]
        return self._nest(columns, lambda node: tuple(self._objects_of(columns, node)))

    def nest_arrays(self, columns: Sequence[Array], shape: tuple[int, ...]) -> Any:
        """Return columns nested like the space, with the leading shape `shape` and arrays of objects."""
        shaped = [column.reshape(*shape, *column.shape[1:]) for column in columns]
        return self._nest(shaped, lambda node: self._objects_of(shaped, node, shape))

    def _nest(self, columns: Sequence[Array], objects: Callable[[ObjectNode], Any]) -> Any:
        return nest_columns(self.spec.root, lambda leaf: columns[leaf.index], objects)

    def _objects_of(self, columns: Sequence[Array], node: ObjectNode, shape: tuple[int, ...] | None = None) -> Array:
        if isinstance(node, NoneNode):
            return np.full(len(columns[0]) if shape is None else shape, None, object)
        return columns[self._num_leaves + node.index]


def _append(values: list[Any], value: Any) -> Any:
    values.append(value)
    return value


def _as_objects(values: Sequence[Any]) -> Array:
    return np.fromiter(values, object, len(values))
