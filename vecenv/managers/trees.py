"""Trees: observations, infos and actions of the V2 managers as `TreeArray`, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.layout.spec import DictNode, Leaf, Node, Spec, TupleNode
from ..tree import TreeArray, only_numbers
from .build import BuildFunctions

__all__ = ["NUMBERS", "as_tree", "as_treetensor", "info_tree", "info_trees", "tree_rows", "untree"]

#: Types of numbers that need no conversion.
NUMBERS = frozenset((bool, int, float, np.bool_, np.int64, np.float32, np.float64))
#: Keys of infos -> the same keys as identifiers. An env uses a few combinations.
_names: dict[tuple[str, ...], tuple[str, ...]] = {}
_MAX_NAMES = 1000


def info_tree(info: dict[str, Any]) -> TreeArray:
    """Return an info as a tree; an info of a few numbers takes 1 or 2 us."""
    if not NUMBERS.issuperset(map(type, info.values())):
        return TreeArray(info, identifiers=True)
    names = _names.get(tuple(info)) or _learn_names(info)
    return TreeArray.from_rows([dict(zip(names, map(np.asarray, info.values())))])[0]


def _learn_names(info: dict[str, Any]) -> tuple[str, ...]:
    names = tuple(TreeArray(info, identifiers=True).keys())
    if len(_names) < _MAX_NAMES:
        _names[tuple(info)] = names
    return names


def info_trees(infos: Any) -> Any:
    """Return a list or tuple of infos, one per agent, as a list or tuple of trees."""
    return type(infos)(info_tree(info) if isinstance(info, dict) else info for info in infos)


def as_treetensor(tree: TreeArray) -> Any:
    """Return a timestep's tree as one of the library treetensor, with only the numbers of its info."""
    info = only_numbers(TreeArray(info=tree["info"]))
    return TreeArray({**dict(tree.items()), **dict(info.items())}).to_treetensor()


def untree(node: Node, value: Any) -> Any:
    """Return a value of the space from the dicts of a tree, where tuples are dicts `_0`, `_1` and keys are strings."""
    if not isinstance(value, dict):
        return value
    if isinstance(node, TupleNode) and value.keys() == {f"_{i}" for i in range(len(node.children))}:
        return tuple(untree(child, value[f"_{i}"]) for i, child in enumerate(node.children))
    if isinstance(node, DictNode):
        known = {str(key): (key, child) for key, child in zip(node.keys, node.children)}
        if value.keys() == known.keys():
            return {key: untree(child, value[name]) for name, (key, child) in known.items()}
    return value


def as_tree(nested: Any) -> Any:
    """Return dicts and tuples as trees, and other values unchanged."""
    return TreeArray(nested) if isinstance(nested, dict | tuple) else nested


def tree_rows(builder: BuildFunctions, spec: Spec, batch: Any, rows: list[Any]) -> list[Any]:
    """Return rows of observations as trees.

    The rows are views of `batch`, nested arrays (B, *S); it is None if observations have no layout.
    """
    if isinstance(spec.root, Leaf):
        return rows
    if batch is None:
        return [as_tree(row) for row in rows]
    trees: list[Any] = _column(builder, spec.root, batch, len(rows))
    return trees


def _column(builder: BuildFunctions, node: Node, nested: Any, count: int) -> Any:
    """Return a column for `BuildFunctions.trees`."""
    if isinstance(node, DictNode):
        names = tuple(str(key) for key in node.keys)
        parts = [nested[key] for key in node.keys]
    elif isinstance(node, TupleNode):
        names, parts = tuple(f"_{i}" for i in range(len(node.children))), list(nested)
    else:
        return list(nested) if nested.ndim > 1 else nested
    columns = tuple(_column(builder, child, part, count) for child, part in zip(node.children, parts))
    return builder.trees(count, names, columns)
