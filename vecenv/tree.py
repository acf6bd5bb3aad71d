"""TreeArray: nested arrays with attribute access, the batch that the V2 managers hand out."""

from __future__ import annotations

import keyword
import numbers
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np

from vecenv.errors import ConfigError, SpaceError, require

__all__ = ["TreeArray"]


class TreeArray:
    """Named children that are arrays, further trees, or opaque values such as strings.

    Numbers and lists of numbers become arrays, so `.item()` works on every numeric leaf; dicts become trees; a tuple
    becomes a tree with the keys `_0`, `_1` and so on. Strings, None and objects NumPy has no dtype for are kept as they
    are. Arrays are not copied. A child is read as an attribute or, if its name is a method of this class, as an item.
    An index that is not a string is applied to all arrays: `tree[0]`, `tree[2:5]`, `tree[mask]`.

    >>> tree = TreeArray({"obs": {"pos": [1.0, 2.0]}, "env_id": 3, "name": "left"})
    >>> tree.env_id.item(), tree.name, tree.obs.pos.shape
    (3, 'left', (2,))
    >>> batch = TreeArray.stack([tree, tree])
    >>> batch.obs.pos.shape, batch[0] == tree
    ((2, 2), True)
    """

    __slots__ = ("_children",)
    __hash__ = None  # type: ignore[assignment]  # trees are mutable

    _children: dict[str, Any]

    def __init__(self, tree: Any = None, *, identifiers: bool = False, **children: Any) -> None:
        """Build from a mapping, a tree of another library that has `json()`, or keywords.

        Args:
            tree: what to convert.
            identifiers: turn keys that are no identifiers into some, at every depth, as
                `info` dicts need it: `TimeLimit.truncated` becomes `TimeLimit_truncated`.
            children: more children by name.

        Raises:
            ConfigError: `tree` is neither a mapping nor a tree.
        """
        converted: dict[str, Any] = {}
        for source in (_as_mapping(tree), children):
            for key, value in source.items():
                name = _identifier(str(key), converted, source) if identifiers else str(key)
                converted[name] = _convert(value, identifiers)
        object.__setattr__(self, "_children", converted)

    @classmethod
    def from_rows(cls, rows: Iterable[dict[str, Any]]) -> list[TreeArray]:
        """Make one tree per dict of children that are arrays or trees already; copies and converts nothing."""
        trees = []
        new, set_children = cls.__new__, cls._children.__set__  # type: ignore[attr-defined, misc]  # the slot
        for row in rows:
            tree = new(cls)
            set_children(tree, row)
            trees.append(tree)
        return trees

    @classmethod
    def stack(cls, trees: Sequence[Any]) -> Any:
        """Join trees of one structure along a new first axis: leaves (*S) become (B, *S).

        Opaque leaves become object arrays (B,). Plain arrays instead of trees give one plain
        array.

        Raises:
            ConfigError: nothing to stack.
            SpaceError: structures or shapes differ; names the path.
        """
        if len(trees) == 0:
            raise ConfigError("expected at least one tree to stack, got none")
        return _stack([_convert(tree, False) for tree in trees], "")

    def split(self) -> list[TreeArray]:
        """Take a stacked tree apart again, one tree for each index of the first axis.

        Raises:
            SpaceError: leaves disagree on the length of their first axis, or have none.
        """
        sizes = {path: len(leaf) if leaf.ndim else None for path, leaf in _array_leaves(self, "")}
        if len(set(sizes.values())) != 1 or None in sizes.values():
            raise SpaceError(f"expected leaves of one length to split, got {sizes}")
        return [self[index] for index in range(next(iter(sizes.values())) or 0)]

    def map(self, function: Callable[[Any], Any]) -> TreeArray:
        """Apply `function` to every array; opaque leaves stay."""

        def apply(child: Any) -> Any:
            if isinstance(child, TreeArray):
                return child.map(function)
            return _convert(function(child), False) if isinstance(child, np.ndarray) else child

        return _wrap({key: apply(child) for key, child in self._children.items()})

    def json(self) -> dict[str, Any]:
        """Return nested plain dicts with the same leaf objects; lists and tuples of trees become such of dicts."""
        return {key: _plain(child) for key, child in self._children.items()}

    def to_treetensor(self) -> Any:
        """Return the same arrays as a `treetensor.numpy.ndarray`; sequences of trees become trees `_0`, `_1` there.

        Raises:
            DependencyError: treetensor is not installed.
        """
        return require("treetensor.numpy", "treetensor").array(_named(self).json())

    def tensor(self) -> Any:
        """Return the tree as a `treetensor.torch.Tensor` with memory of its own, without values that are not numbers.

        Raises:
            DependencyError: treetensor is not installed.
        """
        return only_numbers(self).to_treetensor().tensor()

    def get(self, key: str, default: Any = None) -> Any:
        """Return the child `key`, or `default` if there is none."""
        return self._children.get(key, default)

    def keys(self) -> KeysView[str]:
        """Names of the children, in order."""
        return self._children.keys()

    def values(self) -> ValuesView[Any]:
        """The children, in order."""
        return self._children.values()

    def items(self) -> ItemsView[str, Any]:
        """Pairs of name and child, in order."""
        return self._children.items()

    def __getattr__(self, name: str) -> Any:
        # Dunders are asked for by copy and pickle before there is a `_children` to look in.
        if name != "_children" and not name.startswith("__") and name in self._children:
            return self._children[name]
        raise AttributeError(f"tree has no child {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            raise AttributeError(f"{name!r} is taken by the class; set tree[{name!r}] instead")
        self[name] = value

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._children[index]
        return _wrap({key: _index(child, index) for key, child in self._children.items()})

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(f"expected the name of a child, got {key!r}; index a leaf to change it")
        self._children[key] = _convert(value, False)

    def __contains__(self, key: object) -> bool:
        return key in self._children

    def __iter__(self) -> Iterator[str]:
        return iter(self._children)

    def __len__(self) -> int:
        return len(self._children)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._children]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeArray):
            return NotImplemented
        if self._children.keys() != other._children.keys():
            return False
        return all(_same(child, other._children[key]) for key, child in self._children.items())

    def __repr__(self) -> str:
        return f"TreeArray({', '.join(f'{key}={_show(child)}' for key, child in self._children.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _wrap, (self._children,)

    def __copy__(self) -> TreeArray:
        return _wrap(dict(self._children))


def _wrap(children: dict[str, Any]) -> TreeArray:
    """Make a tree of children that are converted already."""
    tree = TreeArray.__new__(TreeArray)
    object.__setattr__(tree, "_children", children)
    return tree


def _as_mapping(tree: Any) -> Mapping[Any, Any]:
    if tree is None:
        return {}
    if isinstance(tree, Mapping):
        return tree
    if isinstance(tree, TreeArray):
        return tree._children
    if hasattr(tree, "json"):  # treetensor and treevalue
        return _as_mapping(tree.json())
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None) or [f"_{index}" for index in range(len(tree))]
        return dict(zip(names, tree))
    raise ConfigError(f"expected a mapping to build a tree from, got {type(tree).__name__}")


def _convert(value: Any, identifiers: bool) -> Any:
    """Turn a value into a leaf or a tree."""
    if isinstance(value, (np.ndarray, str, bytes)) or value is None:
        return value
    if isinstance(value, TreeArray) and not identifiers:
        return value
    if isinstance(value, (Mapping, TreeArray, tuple)):
        return TreeArray(value, identifiers=identifiers)
    if isinstance(value, (numbers.Number, np.generic)):
        return np.asarray(value)
    if isinstance(value, list):
        return _convert_list(value)
    return value


def _convert_list(items: list[Any]) -> Any:
    """Make an array of a regular list of numbers; any other list stays opaque."""
    if any(isinstance(item, TreeArray) for item in items):
        return items
    try:
        array = np.asarray(items)
    except ValueError:  # ragged
        return items
    return array if array.dtype.kind in "biufc" else items


def _identifier(key: str, taken: Mapping[str, Any], source: Mapping[Any, Any]) -> str:
    """Turn `key` into an identifier that no sibling has."""
    name = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in key)
    if not name.isidentifier():  # empty, or starts with a digit
        name = f"_{name}"
    if keyword.iskeyword(name):
        name = f"{name}_"
    while name in taken or (name != key and name in source):
        name = f"{name}_"
    return name


def _plain(child: Any) -> Any:
    if isinstance(child, TreeArray):
        return child.json()
    if type(child) in (list, tuple) and any(isinstance(item, TreeArray) for item in child):
        return type(child)(map(_plain, child))
    return child


def _named(child: Any) -> Any:
    """Make sequences of trees, at any depth, trees."""
    if type(child) in (list, tuple) and any(isinstance(item, TreeArray) for item in child):
        child = TreeArray(tuple(child))
    return _wrap({key: _named(part) for key, part in child.items()}) if isinstance(child, TreeArray) else child


def only_numbers(tree: TreeArray) -> TreeArray:
    """Return a tree without its leaves that are no numbers; sequences of trees become trees `_0`, `_1`."""
    found = {key: only_numbers(part) if isinstance(part, TreeArray) else part for key, part in _named(tree).items()}
    return _wrap({key: part for key, part in found.items() if isinstance(part, TreeArray) or _is_numeric(part)})


def _is_numeric(child: Any) -> bool:
    return isinstance(child, np.ndarray) and child.dtype.kind in "biufc"


def _stack(items: list[Any], path: str) -> Any:
    first = items[0]
    if isinstance(first, TreeArray):
        for item in items:
            if not isinstance(item, TreeArray) or item.keys() != first.keys():
                got = list(item.keys()) if isinstance(item, TreeArray) else type(item).__name__
                raise _mismatch(path, f"keys {list(first.keys())}", f"{got}")
        return _wrap({key: _stack([item[key] for item in items], _join(path, key)) for key in first})
    if all(isinstance(item, np.ndarray) for item in items):
        for item in items:
            if item.shape != first.shape:
                raise _mismatch(path, f"shape {first.shape}", f"{item.shape}")
        return np.stack(items)
    stacked = np.empty(len(items), dtype=object)
    for row, item in enumerate(items):
        stacked[row] = item
    return stacked


def _mismatch(path: str, expected: str, got: str) -> SpaceError:
    return SpaceError(f"{path or 'tree'}: expected {expected}, got {got}", path=path, expected=expected, got=got)


def _join(path: str, key: str) -> str:
    return f"{path}/{key}" if path else key


def _index(child: Any, index: Any) -> Any:
    if isinstance(child, TreeArray):
        return child[index]
    if not isinstance(child, np.ndarray):
        return child
    picked = child[index]
    # A row of an object array is the opaque leaf that was stacked; a number stays an array.
    return picked if child.dtype == object else np.asarray(picked)


def _array_leaves(tree: TreeArray, path: str) -> Iterator[tuple[str, Any]]:
    for key, child in tree.items():
        if isinstance(child, TreeArray):
            yield from _array_leaves(child, _join(path, key))
        elif isinstance(child, np.ndarray):
            yield _join(path, key), child


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    return type(left) is type(right) and bool(left == right)


def _show(child: Any) -> str:
    if isinstance(child, np.ndarray) and child.ndim:
        return f"{child.dtype} {child.shape}"
    return repr(child.item()) if isinstance(child, np.ndarray) else repr(child)
