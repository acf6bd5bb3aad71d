"""Actions: packs the actions of a step into one array, if the envs get objects of the same types from it.

An env of a manager gets an object of the type that the caller gave: an int, a NumPy integer, an array of shape () or
(1,). If the action space has columns for it, the values are sent as one array; other actions are sent as objects.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..core.layout.flags import Form
from ..core.layout.spec import DictNode, Leaf, Node, Spec, TupleNode

__all__ = ["Packer", "packer_of"]


#: Packs one action per env, in request order; returns None if they must be sent as objects.
Packer: TypeAlias = Callable[[list[Any]], "tuple[Any, Form] | None"]
CommonType: TypeAlias = Callable[[list[Any]], "type | None"]


def packer_of(spec: Spec, common_type: CommonType) -> Packer:
    """Return the function that packs actions into (batch, form) for `Pool.send`.

    Args:
        spec: the pool's action spec.
        common_type: see `build.BuildFunctions`.
    """
    root = spec.root
    if isinstance(root, Leaf) and root.shape == ():
        return partial(_pack_scalars, root.dtype, common_type)
    return (lambda actions: None) if spec.num_objects else partial(_pack_tree, root, common_type)


def _pack_scalars(dtype: np.dtype[Any], common_type: CommonType, actions: list[Any]) -> tuple[Any, Form] | None:
    kind = common_type(actions)
    if kind is dtype.type:
        return np.array(actions, dtype), Form.NATIVE
    if kind is int and dtype.type is np.int64:
        try:
            return np.array(actions, dtype), Form.INT
        except OverflowError:
            return None
    if kind is np.ndarray:
        for shape, form in (((1,), Form.VECTOR), ((), Form.ARRAY0)):
            if all(action.shape == shape and action.dtype == dtype for action in actions):
                return np.array(actions, dtype).reshape(len(actions)), form
    return None


def _pack_tree(root: Node, common_type: CommonType, actions: list[Any]) -> tuple[Any, Form] | None:
    batch = _pack_nested(root, common_type, actions)
    return None if batch is None else (batch, Form.NATIVE)


def _stack(leaf: Leaf, values: list[Any]) -> Any:
    for value in values:
        if type(value) is not np.ndarray or value.dtype != leaf.dtype or value.shape != leaf.shape:
            return None
    return np.array(values)


def _pack_nested(node: Node, common_type: CommonType, values: list[Any]) -> Any:
    """Stack nested actions leaf by leaf; return None if an action does not fit its leaf exactly."""
    if isinstance(node, Leaf):
        if node.shape != ():
            return _stack(node, values)
        packed = _pack_scalars(node.dtype, common_type, values)
        return packed[0] if packed is not None and packed[1] == Form.NATIVE else None
    if isinstance(node, DictNode):
        if any(type(value) is not dict or tuple(value) != node.keys for value in values):
            return None
        parts = [
            _pack_nested(child, common_type, [v[key] for v in values]) for key, child in zip(node.keys, node.children)
        ]
        return None if any(part is None for part in parts) else dict(zip(node.keys, parts))
    assert isinstance(node, TupleNode)
    if any(type(value) is not tuple or len(value) != len(node.children) for value in values):
        return None
    parts = [_pack_nested(child, common_type, [value[i] for value in values]) for i, child in enumerate(node.children)]
    return None if any(part is None for part in parts) else tuple(parts)
