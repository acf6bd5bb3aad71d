"""Store the values of an info dict in the cells of its row, and read them back.

    {"lives": 3, "pos": array([.5, 1]), "at": {"x": 7}}
            |              |                   |
    cells   0            1   2                 3          each 8 bytes and a type tag

The pool's table of keys is built from the infos that envs return. If an info arrives as a message although all of
its values fit into cells, its keys are added to the table, and workers use these cells from then on. Values without
cells travel in messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from .spec import Array

__all__ = ["Column", "InfoColumns", "Infos", "dtype_of", "fitting", "is_mask", "is_wanted", "leaves_of"]

# As in native/py/info.h.
MAX_DEPTH, MAX_DIMS, MAX_ELEMENTS = 4, 4, 8
_MORE, _SHAPE, _INNER = "\x1d", "\x1e", "\x1f"

_PY_FLOAT, _PY_INT, _PY_BOOL, _FLOAT, _INT, _UINT, _BOOL = range(1, 8)
_PYTHON_TYPES = {_PY_FLOAT: float, _PY_INT: int, _PY_BOOL: bool}
_NUMPY_KINDS = {_FLOAT: "f", _INT: "i", _UINT: "u", _BOOL: "b"}
_INT64 = range(-(2**63), 2**63)

#: Stands for a dict in the map from paths to shapes.
_DICT = (-1,)

Shape = tuple[int, ...]


class Infos(IntEnum):
    """Selects which infos workers send to the parent."""

    ALL = 0  #: all of them
    COLUMNS = 1  #: values that fit into cells: numbers, small arrays, dicts of those
    DONE = 2  #: infos of steps that end an episode
    NONE = 3


def is_wanted(infos: Infos, is_end: bool) -> bool:
    """Return whether the info of a step or reset is sent; `is_end`: it is a step that ends an episode."""
    return infos <= Infos.COLUMNS or (infos == Infos.DONE and is_end)


def fitting(info: dict[Any, Any], depth: int = 1) -> dict[str, Any]:
    """Return an info without the values that cannot have cells, and without dicts that become empty by this."""
    result = {}
    for key, value in info.items():
        if isinstance(value, dict):
            inner = fitting(value, depth + 1) if depth < MAX_DEPTH else {}
            if inner and isinstance(key, str):
                result[key] = inner
        elif isinstance(key, str) and _shape_of(value) is not None:
            result[key] = value
    return result


def dtype_of(tag: int) -> np.dtype[Any]:
    """Return the dtype of the value in a cell with this type tag."""
    kind, nbytes = tag >> 4, tag & 15
    if kind in _PYTHON_TYPES:
        return np.dtype(_PYTHON_TYPES[kind])
    return np.dtype(f"{_NUMPY_KINDS[kind]}{nbytes}")


class Column(NamedTuple):
    """The cells of one key: its path of keys, its first cell, and the shape of its array, () for a number."""

    path: tuple[str, ...]
    first: int
    shape: Shape

    def read(self, cells: Array, tag: int) -> Array:
        """Return the values in cells (B, ...) as a copied array (B, *shape) with the dtype of the tag."""
        dtype = dtype_of(tag)
        own = cells[:, self.first : self.first + math.prod(self.shape)]
        # A value is in the first bytes of its cell. These are the low bytes on the platforms with an extension.
        return own.astype(f"<u{dtype.itemsize}").view(dtype).reshape(len(cells), *self.shape)

    def objects(self, cells: Array, tag: int) -> list[Any]:
        """Return the values as B objects of the types that the envs put into their infos."""
        values = self.read(cells, tag)
        if self.shape:
            return [part.copy() for part in values]
        return values.tolist() if tag >> 4 in _PYTHON_TYPES else list(values)


class InfoColumns:
    """The pool's table of info cells, in the parent.

    Attributes:
        columns: in the order in which they were added.
    """

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self._shapes: dict[tuple[str, ...], Shape] = {}
        self._is_full = False

    def learn(self, info: dict[str, Any] | None, add_key: Callable[[str], int]) -> None:
        """Add the keys of an info that arrived as a message to the table, if all of its values can have cells.

        `add_key` adds a name for the next cell; it returns the index of the cell, or -1 if it cannot.
        """
        if not info or self._is_full:
            return
        leaves = list(leaves_of(info))
        if any(shape is None for *_, shape in leaves):
            return
        for path, _, shape in leaves:
            if shape is not None and self._is_new(path):
                self._add(path, shape, add_key)

    def load(self, columns: Sequence[Column], add_key: Callable[[str], int]) -> None:
        """Add the columns of another table to this one, which is empty; they get the same cells."""
        for column in columns:
            self._add(column.path, column.shape, add_key)

    def close(self) -> None:
        """Add no further keys: another table decides about them."""
        self._is_full = True

    def _is_new(self, path: tuple[str, ...]) -> bool:
        """Return whether a path may get cells.

        It must be unknown, consist of valid names, and have no known path that is not a dict above it.
        """
        if path in self._shapes or len(path) > MAX_DEPTH or "final_obs" in path:
            return False
        inner = (path[:depth] for depth in range(1, len(path)))
        return all(self._shapes.get(part, _DICT) == _DICT for part in inner) and all(map(_can_be_named, path))

    def _add(self, path: tuple[str, ...], shape: Shape, add_key: Callable[[str], int]) -> None:
        name = _INNER.join(path) + (_SHAPE + ",".join(map(str, shape)) if shape else "")
        first = add_key(name)
        if first < 0:
            return  # the name is too long, or all cells are in use
        more = [add_key(_MORE) for _ in range(math.prod(shape) - 1)]
        self._shapes.update({path[:depth]: _DICT for depth in range(1, len(path))})
        self._shapes[path] = shape
        if -1 in more:  # workers do not use an array if its last cells have no name
            self._is_full = True
        else:
            self.columns.append(Column(path, first, shape))


def is_mask(key: Any, infos: Mapping[Any, Any]) -> bool:
    """Return whether a key of batched infos marks the envs that have another key; '_0' belongs to key 0."""
    return isinstance(key, str) and key.startswith("_") and (key[1:] in infos or key[1:] in map(str, infos))


def leaves_of(info: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Shape | None]]:
    """Yield the path of each value, the value, and its shape, which is None if the value cannot have cells."""
    for key, value in info.items():
        path = (*above, key)
        if isinstance(value, dict) and value and len(path) < MAX_DEPTH:
            yield from leaves_of(value, path)
        else:
            yield path, value, _shape_of(value) if all(isinstance(part, str) for part in path) else None


def _shape_of(value: Any) -> Shape | None:
    """Return the shape of an array, () for a number, None for values that cannot have cells."""
    kind = type(value)
    if kind is np.ndarray:
        dims, size = value.ndim, value.size
        fits = 1 <= dims <= MAX_DIMS and 1 <= size <= MAX_ELEMENTS and _is_plain(value.dtype)
        return value.shape if fits else None
    if isinstance(value, np.generic):
        return () if _is_plain(value.dtype) else None
    return () if kind in (float, bool) or (kind is int and value in _INT64) else None


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fiub" and dtype.itemsize <= 8 and dtype.isnative


def _can_be_named(key: str) -> bool:
    try:
        return min(key.encode(), default=32) >= 32  # control characters have a special meaning in names
    except UnicodeEncodeError:
        return False
