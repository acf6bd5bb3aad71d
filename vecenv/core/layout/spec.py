"""Turn a Gymnasium space into leaves; each leaf is one column of the arena.

    Dict(camera=Box(3, 64, 64), speed=Discrete(4), note=Text(8))

    Spec "obs"
      leaf 0   obs/camera   uint8 (3, 64, 64)
      leaf 1   obs/speed    int64 ()
      object   obs/note     (no column: such values travel in messages)

A leaf needs a constant dtype and shape: Box, Discrete, MultiDiscrete and MultiBinary, nested in Dict and Tuple to
any depth. Every other space becomes an object. An exception is a space with a true `holds_only_none`: its only value
is None, which needs neither a column nor a message.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from ...errors import NotASequenceError, SpaceError, warn_caller

__all__ = [
    "DictNode",
    "Leaf",
    "Node",
    "NoneNode",
    "ObjectNode",
    "Space",
    "Spec",
    "TupleNode",
    "can_convert",
    "copy_spaces",
    "has_rows",
    "map_columns",
    "nest_columns",
    "pick_rows",
    "split_batch",
]

Array = NDArray[Any]


@dataclass(frozen=True)
class Leaf:
    """One array of a nested value: a column of rows with `dtype` and `shape`."""

    path: str
    index: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class ObjectNode:
    """A value without fixed layout; `index` counts the objects of a spec."""

    path: str
    index: int


@dataclass(frozen=True)
class NoneNode(ObjectNode):
    """A value that is always None and never sent; it is not counted among the objects."""


@dataclass(frozen=True)
class DictNode:
    """A dict with fixed keys, in the order of its space."""

    path: str
    keys: tuple[Any, ...]
    children: tuple[Node, ...]


@dataclass(frozen=True)
class TupleNode:
    """A tuple of fixed length."""

    path: str
    children: tuple[Node, ...]


Node = Leaf | ObjectNode | DictNode | TupleNode

_LEAF_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class Spec:
    """The leaves of one space, and the conversions between nested values and flat lists of leaves.

    Args:
        space: the space.
        name: first part of the paths in messages, such as 'obs'.
        strict: refuse values that need a conversion of their dtype.
        ignores_extra: leave out keys of a dict that are not in the space, with a warning, instead of refusing them.

    Attributes:
        root: the nested structure.
        leaves: every `Leaf`, in the order of the space.
        num_objects: number of values per row that have no column.
        is_all_arrays: whether every part has a column; parts without one are objects, or always None.
        warn: called with (path, text) the first time that a leaf is converted or keys are left out.
    """

    def __init__(self, space: Space[Any], name: str, *, strict: bool = False, ignores_extra: bool = False) -> None:
        self._strict = strict
        self._ignores_extra = ignores_extra
        self.leaves: list[Leaf] = []
        self.num_objects = 0
        self.is_all_arrays = True
        self._warned: set[str] = set()
        self.warn: Callable[[str, str], None] = _warn
        self.root = self._build(space, name)

    def _build(self, space: Space[Any], path: str) -> Node:
        if isinstance(space, spaces.Dict):
            keys = tuple(space.spaces)
            return DictNode(path, keys, tuple(self._build(space.spaces[key], f"{path}/{key}") for key in keys))
        if isinstance(space, spaces.Tuple):
            return TupleNode(path, tuple(self._build(part, f"{path}/{i}") for i, part in enumerate(space.spaces)))
        if isinstance(space, _LEAF_SPACES) and space.dtype is not None and space.shape is not None:
            dtype = np.dtype(space.dtype).newbyteorder("=")  # columns have the native byte order
            leaf = Leaf(path, len(self.leaves), dtype, tuple(space.shape))
            self.leaves.append(leaf)
            return leaf
        self.is_all_arrays = False
        if getattr(space, "holds_only_none", False):
            return NoneNode(path, -1)
        self.num_objects += 1
        return ObjectNode(path, self.num_objects - 1)

    # ---- one value ------------------------------------------------------------------

    def conform(self, value: Any) -> Any:
        """Return `value` with every leaf an array of exactly its dtype and shape.

        Objects are replaced by None. A value of a space that allows only None is replaced by (), as the C extension
        expects. Array-likes and casts of the same kind are converted, with one warning per leaf if the dtype of an
        array had to change.

        Raises:
            SpaceError: wrong structure, shape or kind; with `strict`, any conversion.
        """
        return self._conform(self.root, value)

    def _conform(self, node: Node, value: Any) -> Any:
        if isinstance(node, Leaf):
            return self._conform_leaf(node, value, node.shape)
        if isinstance(node, DictNode):
            self._check_keys(node, value)
            return {key: self._conform(child, value[key]) for key, child in zip(node.keys, node.children)}
        if isinstance(node, TupleNode):
            self._check_length(node, value)
            return tuple(self._conform(child, part) for child, part in zip(node.children, value))
        if isinstance(node, NoneNode):
            if value is not None:
                raise _mismatch(node.path, "None", _describe(value))
            return ()
        return None

    def objects(self, value: Any) -> list[Any]:
        """Return the values of one row that have no column, by their index."""
        found: list[Any] = [None] * self.num_objects
        if self.num_objects:
            for node, part in self._walk(self.root, value):
                if isinstance(node, ObjectNode) and not isinstance(node, NoneNode):
                    found[node.index] = part
        return found

    def _walk(self, node: Node, value: Any) -> Iterator[tuple[Leaf | ObjectNode, Any]]:
        """Yield each leaf and object with its part of a nested value, in the order of the space."""
        if isinstance(node, DictNode):
            self._check_keys(node, value)
            for key, child in zip(node.keys, node.children):
                yield from self._walk(child, value[key])
        elif isinstance(node, TupleNode):
            self._check_length(node, value)
            for child, part in zip(node.children, value):
                yield from self._walk(child, part)
        else:
            yield node, value

    # ---- a batch --------------------------------------------------------------------

    def batch(self, columns: Callable[[Leaf], Array], objects: Callable[[ObjectNode], Any]) -> Any:
        """Nest the columns of a batch like the space: leaves (B, *S), objects as tuples of B values."""
        return nest_columns(self.root, columns, objects)

    def flatten_batch(self, values: Any, count: int) -> tuple[Array, ...]:
        """Return one contiguous array (count, *S) per leaf from a nested batch of values.

        The arrays may share memory with `values`.

        Raises:
            SpaceError: wrong number of rows, structure, shape or kind; or a part without fixed layout.
        """
        root = self.root
        if isinstance(root, Leaf):  # the common case, kept short
            if (
                type(values) is np.ndarray
                and values.dtype == root.dtype
                and values.shape == (count, *root.shape)
                and values.flags.c_contiguous
            ):
                return (values,)
            return (self._conform_leaf(root, values, (count, *root.shape)),)
        found: list[Array] = []
        for node, part in self._walk(root, values):
            if isinstance(node, ObjectNode):
                raise SpaceError(f"{node.path}: a value without fixed layout has no batch array", path=node.path)
            found.append(self._conform_leaf(node, part, (count, *node.shape)))
        return tuple(found)

    def would_round(self, values: Any, count: int) -> bool:
        """Return whether `flatten_batch` would round the floats of a nested batch of arrays.

        Arrays of wider floats than the dtype of their leaf, such as float64 for float32, are rounded. With `strict`,
        and for values that do not fit, the answer is False, since `flatten_batch` refuses them. The first time that a
        leaf would be rounded, `warn` is called.
        """
        wide: list[tuple[str, Array, Leaf]] = []
        for node, part in self._walk(self.root, values):
            if not isinstance(node, Leaf) or type(part) is not np.ndarray:
                return False
            if part.shape != (count, *node.shape) or not can_convert(part, node.dtype):
                return False
            if part.dtype.kind == node.dtype.kind == "f" and part.dtype.itemsize > node.dtype.itemsize:
                wide.append((node.path, part, node))
        if self._strict:
            return False
        for path, part, leaf in wide:
            if path not in self._warned:
                self._warned.add(path)
                self.warn(
                    path,
                    f"{path}: {part.dtype} is pickled each time, as the space has {leaf.dtype}; "
                    f"use {leaf.dtype} for faster steps",
                )
        return bool(wide)

    # ---- for the C extension ----------------------------------------------------------

    def describe(self, offsets: list[int], *, scratch: bool = False) -> Any:
        """Return the tree as nested tuples for `_native.Slot`.

        Args:
            offsets: byte offset of each leaf, by its index.
            scratch: whether each leaf gets a private array of its dtype and shape.
        """

        def node_of(node: Node) -> Any:
            if isinstance(node, Leaf):
                private = np.zeros(node.shape or (1,), node.dtype) if scratch else None
                kind, itemsize = node.dtype.kind, node.dtype.itemsize
                return ("array", node.index, offsets[node.index], node.nbytes, kind, itemsize, node.shape, private)
            if isinstance(node, DictNode):
                return ("dict", node.keys, tuple(node_of(child) for child in node.children))
            if isinstance(node, TupleNode):
                return ("tuple", tuple(node_of(child) for child in node.children))
            # C would refuse None itself: a row with None is checked by `conform` instead.
            return ("tuple", ()) if isinstance(node, NoneNode) else ("object",)

        return node_of(self.root)

    # ---- checks -----------------------------------------------------------------------

    def _conform_leaf(self, leaf: Leaf, value: Any, shape: tuple[int, ...]) -> Array:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:  # ragged; or a tensor that NumPy cannot convert
            raise SpaceError(f"{leaf.path}: {error}", path=leaf.path) from error
        if array.dtype == leaf.dtype and array.shape == shape:
            return np.ascontiguousarray(array).reshape(shape)
        fits = array.shape == shape and can_convert(array, leaf.dtype)
        if not fits or (self._strict and array.dtype != leaf.dtype):
            kind = _error_class(array) if shape else SpaceError
            got = _describe(value, array) + _value_limits(array, shape)
            raise _mismatch(leaf.path, f"{leaf.dtype} {shape}", got, kind, _remedy(leaf, shape, array))
        may_change = isinstance(value, np.ndarray | np.generic) and not np.can_cast(array.dtype, leaf.dtype)
        if may_change and leaf.path not in self._warned:
            self._warned.add(leaf.path)
            self.warn(
                leaf.path,
                f"{leaf.path}: {array.dtype} is converted to the space's {leaf.dtype} each time; "
                "use that dtype to save the copy",
            )
        return np.ascontiguousarray(array.astype(leaf.dtype)).reshape(shape)

    def _check_keys(self, node: DictNode, value: Any) -> None:
        if not hasattr(value, "keys"):  # `in` compares the elements of a tuple, list or array
            missing, extra = list(node.keys), []
        else:
            missing = [key for key in node.keys if key not in value]
            extra = [key for key in value if key not in node.keys]
        if extra and not missing and self._ignores_extra:
            if node.path not in self._warned:
                self._warned.add(node.path)
                self.warn(
                    node.path,
                    f"{node.path}: keys {sorted(map(str, extra))} are not in the space and are left out each time",
                )
            extra = []
        if missing or extra or not hasattr(value, "keys"):
            expected = f"a dict with keys {sorted(map(str, node.keys))}"
            raise _mismatch(node.path, expected, _describe(value), _error_class(value))

    def _check_length(self, node: TupleNode, value: Any) -> None:
        if not isinstance(value, tuple | list) or len(value) != len(node.children):
            raise _mismatch(node.path, f"a tuple of {len(node.children)}", _describe(value), _error_class(value))


def _warn(path: str, text: str) -> None:
    warn_caller(text)


def nest_columns(node: Node, columns: Callable[[Leaf], Any], objects: Callable[[ObjectNode], Any]) -> Any:
    """Build a value nested like the space, from a function of leaves and a function of objects."""
    # Not a closure in `Spec.batch`: a closure that calls itself lives until the garbage collector runs, and so would
    # the batches that it refers to.
    if isinstance(node, Leaf):
        return columns(node)
    if isinstance(node, DictNode):
        return {key: nest_columns(child, columns, objects) for key, child in zip(node.keys, node.children)}
    if isinstance(node, TupleNode):
        return tuple(nest_columns(child, columns, objects) for child in node.children)
    return objects(node)


def pick_rows(node: Node, nested: Any, rows: Array) -> Any:
    """Return the rows with these indices of a nested batch, copied."""
    return map_columns(
        node,
        nested,
        lambda column: column.take(rows, 0),  # an index takes eight times as long
        lambda objects: tuple(objects[row] for row in rows.tolist()),
    )


def map_columns(
    node: Node,
    nested: Any,
    change: Callable[[Array], Array],
    change_objects: Callable[[Any], Any] | None = None,
) -> Any:
    """Apply functions to the columns (B, *S) of a batch and to its tuples of B objects; return a batch nested alike.

    Without `change_objects`, the tuples are shared.
    """
    if isinstance(node, Leaf):
        return change(nested)
    if isinstance(node, DictNode):  # most children are leaves, so this saves one call for each
        return {
            key: change(nested[key]) if type(child) is Leaf else map_columns(child, nested[key], change, change_objects)
            for key, child in zip(node.keys, node.children)
        }
    if isinstance(node, TupleNode):
        return tuple(map_columns(child, part, change, change_objects) for child, part in zip(node.children, nested))
    return nested if change_objects is None else change_objects(nested)


def can_convert(array: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether a cast keeps the kind of number; integers are compared by value."""
    if array.dtype.kind not in "iu" or dtype.kind not in "iu":
        return np.can_cast(array.dtype, dtype, casting="same_kind")
    if not array.size or np.can_cast(array.dtype, dtype):
        return True
    limits = np.iinfo(dtype)
    return int(array.min()) >= limits.min and int(array.max()) <= limits.max


def has_rows(value: Any) -> bool:
    """Return whether a value has a length; an array without dimensions and a single number have none."""
    return hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0


def _error_class(value: Any) -> type[SpaceError]:
    """Return the class of the error for a value that should have been a sequence or a dict."""
    return SpaceError if has_rows(value) else NotASequenceError


def _mismatch(path: str, expected: str, got: str, kind: type[SpaceError] = SpaceError, remedy: str = "") -> SpaceError:
    return kind(f"{path}: expected {expected}, got {got}{remedy}", path=path, expected=expected, got=got)


def _value_limits(array: Array, shape: tuple[int, ...]) -> str:
    """Return the end of a description that explains why integers of the right shape do not fit; else ''."""
    is_cause = array.shape == shape and array.ndim and array.size and array.dtype.kind in "iu"
    return f" of {array.min()} to {array.max()}" if is_cause else ""


def _remedy(leaf: Leaf, shape: tuple[int, ...], array: Array) -> str:
    """Return the end of an error about an array that does not fit a leaf: code that may be missing; else ''."""
    if array.shape == shape and array.dtype.kind == "f" and leaf.dtype.kind in "iu" and shape:
        return f"; convert it with .astype(np.{leaf.dtype})"
    if array.shape == (*shape, 1):
        return "; remove the last axis with [..., 0]"
    if shape != leaf.shape and array.ndim == len(shape) and array.shape[1:] == leaf.shape:
        return f"; write one row per env, {shape[0]} in all"
    return ""


def _describe(value: Any, array: Array | None = None) -> str:
    """Describe, for an error, a value that does not fit its space; `array` was made from it if the space has a leaf."""
    if value is None:
        return "None"
    if hasattr(value, "keys"):
        return f"a dict with keys {sorted(map(str, value))}"
    if array is None and isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    if array is None and not isinstance(value, np.ndarray):
        return type(value).__name__
    array = np.asarray(value) if array is None else array
    if array.dtype == object:
        return f"{type(value).__name__} of objects" if array.ndim else type(value).__name__
    if not array.ndim:
        return f"{array.dtype if isinstance(value, np.ndarray) else type(value).__name__} {array}"
    return f"{array.dtype} {array.shape}"


def copy_spaces(*spaces_given: Any) -> tuple[Any, ...]:
    """Return copies of spaces, with the states of their generators. A space that cannot be copied is shared.

    Parts that the spaces have in common are common parts of the copies, too.
    """
    try:
        return copy.deepcopy(spaces_given)
    except Exception:  # a space of the user may contain anything, such as a lock
        return spaces_given if len(spaces_given) == 1 else tuple(copy_spaces(space)[0] for space in spaces_given)


# ---- conventions of Gymnasium, only used here ----------------------------------------


def split_batch(space: Space[Any], values: Any, count: int) -> list[Any]:
    """Return the `count` values of a batch as a list, as Gymnasium's vector envs pass them to their envs.

    Raises:
        NotASequenceError: a part of the batch is a single value.
        SpaceError: a dict lacks a key.
    """
    try:
        return list(iterate(batch_space(space, count), values))
    except (TypeError, LookupError) as error:
        kind = SpaceError if isinstance(error, KeyError) else NotASequenceError
        text = f"action: expected {count} actions, one per env, in the form of {space}: {type(error).__name__}: {error}"
        raise kind(text, path="action") from error
