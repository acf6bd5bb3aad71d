"""The content of a pickle, for comparisons.

Pickles of equal values can differ: an object that two attributes share is written once, and dicts have an order.
`content_of` reads a pickle without importing anything, and returns nested tuples whose `repr` depends on the values
only.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

__all__ = ["content_of"]


class _Node:
    """Stands for a class or function, or for an object that one of these would make."""

    def __init__(self, *parts: Any) -> None:
        self.parts = list(parts)

    def __call__(self, *arguments: Any, **keywords: Any) -> _Node:
        return _Node(self, arguments, keywords)

    def __setstate__(self, state: Any) -> None:
        self.parts.append(("state", state))

    def append(self, item: Any) -> None:
        self.parts.append(("item", item))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts.append(("entry", key, value))


_Unpickler: Any = vars(pickle)["_Unpickler"]  # the one in Python, whose steps can be replaced


class _Reader(_Unpickler):  # type: ignore[misc]
    dispatch = dict(_Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> _Node:
        return _Node(module, name)

    def persistent_load(self, pid: Any) -> Any:
        return _Node("persistent", pid)

    def load_newobj(self) -> None:
        arguments = self.stack.pop()
        self.stack.append(self.stack.pop()(*arguments))

    def load_newobj_ex(self) -> None:
        keywords, arguments = self.stack.pop(), self.stack.pop()
        self.stack.append(self.stack.pop()(*arguments, **keywords))

    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex


def content_of(data: bytes) -> Any:
    """Return the content of a pickle.

    Example:
        >>> a, b = [1], [1]
        >>> pickle.dumps((a, a)) == pickle.dumps((a, b)), content_of(pickle.dumps((a, a)))
        (False, (('list', 1), ('list', 1)))
    """
    return _plain(_Reader(io.BytesIO(data)).load(), [])


def _plain(value: Any, parents: list[int]) -> Any:
    if not isinstance(value, list | tuple | dict | set | frozenset | _Node):
        return bytes(value) if isinstance(value, bytearray) else value
    if id(value) in parents:  # it contains itself
        return "parent", len(parents) - parents.index(id(value))
    inside = [*parents, id(value)]
    if isinstance(value, dict):
        return "dict", sorted(((_plain(k, inside), _plain(v, inside)) for k, v in value.items()), key=repr)
    if isinstance(value, set | frozenset):
        return "set", sorted((_plain(part, inside) for part in value), key=repr)
    parts = tuple(_plain(part, inside) for part in (value.parts if isinstance(value, _Node) else value))
    return parts if isinstance(value, tuple) else (type(value).__name__, *parts)
