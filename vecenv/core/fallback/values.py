"""Checks values that go into columns, and loads actions from columns, without C; see native/py/tree.c."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ..layout.flags import Form
from ..layout.spec import Array, DictNode, Leaf, Node, NoneNode, ObjectNode, TupleNode, nest_columns
from .words import CheckedLeaves

__all__ = ["check_leaves", "load_action", "read_reward"]


def check_leaves(node: Node, value: Any, columns: list[Array], checked: CheckedLeaves) -> bool:
    """Append (column, value) to `checked` for each leaf of a value; return False if a leaf does not fit exactly."""
    if isinstance(node, Leaf):
        exact = _exact(node, value)
        checked.append((columns[node.index], exact))
        return exact is not None
    if isinstance(node, DictNode):
        if not isinstance(value, dict) or len(value) != len(node.keys):
            return False
        return all(
            key in value and check_leaves(child, value[key], columns, checked)
            for key, child in zip(node.keys, node.children)
        )
    if isinstance(node, TupleNode):
        if not isinstance(value, tuple) or len(value) != len(node.children):
            return False
        return all(check_leaves(child, part, columns, checked) for child, part in zip(node.children, value))
    if isinstance(node, NoneNode):
        return value is None or (type(value) is tuple and not value)  # `conform` returns () for None
    return True  # an object leaf, sent in a message


def _exact(leaf: Leaf, value: Any) -> Any:
    """Return a value as an array or int if it has the leaf's dtype and shape, in any memory order; else None."""
    if leaf.shape == () and leaf.dtype.kind in "iu" and isinstance(value, int):
        limits = np.iinfo(leaf.dtype)
        return value if limits.min <= value <= limits.max else None
    array = _as_array(value)
    if array is None or array.dtype != leaf.dtype or array.shape != leaf.shape:
        return None
    return array


def _as_array(value: Any) -> Array | None:
    """Return an array that shares a value's buffer; None if it has no buffer."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, NotImplementedError):
        return None


def read_reward(value: Any, shape: tuple[int, ...], size: int) -> Array | None:
    """Return a reward as a float64 array of this shape; None if it needs conversion first."""
    if size == 1 and isinstance(value, float | int):
        try:
            return np.array(float(value)).reshape(shape)
        except OverflowError:
            return None
    array = _as_array(value)
    if array is None or array.size != size or array.dtype not in (np.float64, np.float32):
        return None
    return array.astype(np.float64).reshape(shape) if array.flags.c_contiguous else None


def load_action(node: Node, columns: list[Array], row: int, form: int) -> Any:
    """Return a new action object that owns its arrays.

    Args:
        node: root of the action spec.
        columns: one array per leaf, (num_rows, *S).
        row: index of the row in the columns.
        form: a `rows.Form`; selects the type of scalar leaves.
    """
    if isinstance(node, Leaf):
        return _load_leaf(node, columns[node.index], row, form)
    return nest_columns(node, lambda leaf: _load_leaf(leaf, columns[leaf.index], row, form), _refuse)


def _refuse(_object: ObjectNode) -> NoReturn:
    raise RuntimeError("an action with object leaves travels as a payload")


def _load_leaf(leaf: Leaf, column: Array, row: int, form: int) -> Any:
    if leaf.shape:
        return column[row].copy()
    if form == Form.INT and leaf.dtype.kind in "iu":
        return int(column[row])
    if form == Form.VECTOR:
        return column[row : row + 1].copy()
    if form == Form.ARRAY0:
        return np.array(column[row], leaf.dtype)
    return column[row]  # a NumPy scalar, not a view
