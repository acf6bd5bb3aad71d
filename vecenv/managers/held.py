"""Held calls and objects: in this process nothing has to be pickled, and what cannot be is passed on as it is.

A pool pickles what it is to call, what it tells envs and what comes of it, also where the envs live in its own
process. A held call pickles as the number of itself, and keeps its results here; so does a held object, which
becomes itself again where it is unpickled.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from ..core.layout import messages
from ..core.pool.serial import SerialPool

__all__ = ["HeldCall", "HoldingPool"]

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


_objects: weakref.WeakValueDictionary[int, _HeldObject] = weakref.WeakValueDictionary()


class _HeldObject:
    """Stands in for one object in a pickle that is read once; `holder` has it until then."""

    def __init__(self, value: Any, holder: set[_HeldObject]) -> None:
        self.value = value
        self.holder = holder
        holder.add(self)
        _objects[id(self)] = self

    def __reduce__(self) -> tuple[Callable[[int], Any], tuple[int]]:
        return _take, (id(self),)


def _take(number: int) -> Any:
    held = _objects[number]
    held.holder.discard(held)
    return held.value


class HoldingPool(SerialPool):
    """Passes on the very objects where they cannot be pickled: actions, parameters of resets, infos, observations.

    All else is copied, so that neither side sees what the other does to it later.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._under_way: set[_HeldObject] = set()

    def _dump_payload(self, payload: messages.Payload) -> bytes:
        try:
            return messages.dump(payload)
        except Exception:  # whatever the class of an object does when it is to be pickled
            return messages.dump(self._hold_fields(payload, ("kwargs", "action")))

    def _dump_reply(self, reply: messages.Reply) -> bytes:
        try:
            return messages.dump_reply(reply)
        except Exception:
            names = ("info", "final_info", "objects", "final_objects", "value")
            return messages.dump_reply(self._hold_fields(reply, names))

    def _hold_fields(self, message: Any, names: Iterable[str]) -> Any:
        return dataclasses.replace(message, **{name: self._hold(getattr(message, name)) for name in names})

    def _hold(self, value: Any) -> Any:
        """Put held objects in the place of the parts that cannot be pickled."""
        try:
            messages.dump(value)
            return value
        except Exception:
            if type(value) is dict:
                return {key: self._hold(part) for key, part in value.items()}
            if type(value) in (list, tuple):
                return type(value)(map(self._hold, value))
            return _HeldObject(value, self._under_way)
