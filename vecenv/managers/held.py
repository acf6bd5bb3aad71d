"""Held calls: in this process, a call gets the very objects that the caller gave, and gives back the very result.

A pool pickles what it is to call and what comes of it, also where the envs live in its own process. A held call
pickles as the number of itself, and keeps its results here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["HeldCall"]

_held: weakref.WeakValueDictionary[int, HeldCall] = weakref.WeakValueDictionary()


class HeldCall:
    """Stands in for a function of an env, for as long as the caller holds it."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._results: dict[int, Any] = {}
        _held[id(self)] = self

    def __call__(self, env: Any) -> None:
        """Call the function and keep what it returns."""
        self._results[id(env)] = self._function(env)

    def results_of(self, envs: Iterable[Any]) -> list[Any]:
        """Return what the function returned for these envs."""
        return [self._results[id(env)] for env in envs]

    def __reduce__(self) -> tuple[Callable[[int], HeldCall], tuple[int]]:
        return _find, (id(self),)


def _find(number: int) -> HeldCall:
    return _held[number]
