"""Actions: finds out how the objects that a caller gives reach the envs unchanged and fast.

An env behind a manager gets the very kind of object that the caller gave: an int, a NumPy
integer, an array of shape () or (1,). Where the action space has columns for it the values
travel as one array; anything else is pickled, each by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.rows import Form
from ..core.spec import DictNode, Leaf, Node, Spec, TupleNode

__all__ = ["pack_actions"]


def pack_actions(spec: Spec, actions: Sequence[Any]) -> tuple[Any, Form] | None:
    """Return (batch, form) for `Pool.send`, or None if the actions have to travel as objects.

    Args:
        spec: the pool's action spec.
        actions: one per env asked, in request order.
    """
    root = spec.root
    if isinstance(root, Leaf):
        return _pack_scalars(root, actions) if root.shape == () else _pack_arrays(root, actions)
    if spec.num_objects:
        return None
    batch = _pack_nested(root, actions)
    return None if batch is None else (batch, Form.NATIVE)


def _pack_scalars(leaf: Leaf, actions: Sequence[Any]) -> tuple[Any, Form] | None:
    kinds = set(map(type, actions))
    if len(kinds) != 1:
        return None
    kind = kinds.pop()
    if kind is int and leaf.dtype.type is np.int64:
        try:
            return np.array(actions, np.int64), Form.INT
        except OverflowError:
            return None
    if kind is leaf.dtype.type:
        return np.array(actions, leaf.dtype), Form.NATIVE
    if kind is np.ndarray:
        for shape, form in (((1,), Form.VECTOR), ((), Form.ARRAY0)):
            if all(action.shape == shape and action.dtype == leaf.dtype for action in actions):
                return np.array(actions, leaf.dtype).reshape(len(actions)), form
    return None


def _pack_arrays(leaf: Leaf, actions: Sequence[Any]) -> tuple[Any, Form] | None:
    batch = _stack(leaf, actions)
    return None if batch is None else (batch, Form.NATIVE)


def _stack(leaf: Leaf, values: Sequence[Any]) -> Any:
    for value in values:
        if type(value) is not np.ndarray or value.dtype != leaf.dtype or value.shape != leaf.shape:
            return None
    return np.array(values)


def _pack_nested(node: Node, values: Sequence[Any]) -> Any:
    """Stack nested actions leaf by leaf; None as soon as one is not exactly what its leaf holds."""
    if isinstance(node, Leaf):
        if node.shape != ():
            return _stack(node, values)
        packed = _pack_scalars(node, values)
        return packed[0] if packed is not None and packed[1] == Form.NATIVE else None
    if isinstance(node, DictNode):
        if any(type(value) is not dict or tuple(value) != node.keys for value in values):
            return None
        parts = [_pack_nested(child, [v[key] for v in values]) for key, child in zip(node.keys, node.children)]
        return None if any(part is None for part in parts) else dict(zip(node.keys, parts))
    assert isinstance(node, TupleNode)
    if any(type(value) is not tuple or len(value) != len(node.children) for value in values):
        return None
    parts = [_pack_nested(child, [value[i] for value in values]) for i, child in enumerate(node.children)]
    return None if any(part is None for part in parts) else tuple(parts)
