"""Caches of facts about classes and functions, which an env server empties between two programs.

A cache keeps the classes that it has seen, and each class keeps the module that defines it. A worker of an env server
gets the classes of one program after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["class_cache", "forget_classes"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_caches: list[Any] = []


def class_cache(function: _Function) -> _Function:
    """Return a function that remembers its results, as `functools.cache` does, until `forget_classes` is called."""
    cached: Any = functools.cache(function)
    _caches.append(cached)
    return cached  # type: ignore[no-any-return]


def forget_classes() -> None:
    """Empty all of these caches."""
    for one in _caches:
        one.cache_clear()
