"""Find out which attributes of an env a call has changed, and set attributes to such values.

The attributes of all layers are compared. Values that cannot change are compared by identity, all others by their
pickled contents. Objects outside the env, such as globals of a module or files, are not seen.
"""

from __future__ import annotations

import io
import pickle
import random
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from vecenv.envs.own_attributes import MISSING, set_own_attr
from vecenv.envs.state.generators import get_generator_state
from vecenv.errors import StateError

__all__ = ["AttributeWatch", "set_attributes"]

_CONSTANTS = frozenset((type(None), bool, int, float, complex, str, bytes, EnvSpec))
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_LOCKS = (type(__import__("threading").Lock()), type(__import__("threading").RLock()))
#: Most bytes of the attributes of an env; larger ones are not compared.
_MOST_NBYTES = 1 << 22
#: Most bytes of a value that is sent to the parent.
_MOST_VALUE_NBYTES = 4096
_MAX_DEPTH = 6  # of nested values that are sent

#: (layers of an env, from the outermost on) -> the state of one layer that its attributes do not show, or None
Capture = Callable[[Any], Any]


class AttributeWatch:
    """The attributes of an env before a call.

    Args:
        layers: of the env, from the outermost on.
        capture: returns the state of a layer by its adapter; None if it has none.
        is_deep: also compare the contents of values that can change.

    Raises:
        Exception: the attributes cannot be compared.
    """

    def __init__(self, layers: Sequence[Any], capture: Capture, *, is_deep: bool) -> None:
        self._layers = layers
        self._capture = capture
        self._is_deep = is_deep
        self._before = [dict(vars(layer)) for layer in layers]
        self._contents = [self._contents_of(depth) for depth in range(len(layers))] if is_deep else []

    def changes(self, layers: Sequence[Any]) -> dict[tuple[int, str], bytes] | None:
        """Return the attributes that have changed; see `core.layout.commands.Changes`.

        Args:
            layers: of the env now.

        Returns:
            None if a change is no plain data.

        Raises:
            Exception: the attributes cannot be compared.
        """
        if len(layers) != len(self._layers) or any(a is not b for a, b in zip(layers, self._layers)):
            return None
        found: dict[tuple[int, str], bytes] = {}
        for depth, layer in enumerate(layers):
            before, now = self._before[depth], vars(layer)
            if before.keys() - now.keys():
                return None
            contents = self._contents_of(depth) if self._is_deep else {}
            for name in contents if self._is_deep else now:
                value = now.get(name)
                if not self._has_changed(depth, name, before.get(name, MISSING), value, contents):
                    continue
                if isinstance(value, _GENERATORS):
                    found[depth, name] = b""
                elif name in now and _is_plain(value) and len(data := pickle.dumps(value, 5)) <= _MOST_VALUE_NBYTES:
                    found[depth, name] = data
                else:
                    return None
        return found

    def _has_changed(self, depth: int, name: str, before: Any, now: Any, contents: dict[str, Any]) -> bool:
        if self._is_deep:
            return bool(self._contents[depth].get(name, MISSING) != contents[name])
        return before is not now and not (type(now) in _CONSTANTS and type(before) is type(now) and before == now)

    def _contents_of(self, depth: int) -> dict[str, Any]:
        """Return what can be compared of each attribute of a layer."""
        layer = self._layers[depth]
        found: dict[str, Any] = {}
        state = self._capture(layer)
        if state is not None:
            found[" state"] = self._dump(state)
        for name, value in vars(layer).items():
            if type(value) in _CONSTANTS:
                found[name] = type(value), repr(value) if isinstance(value, float | complex) else value
            elif isinstance(value, _GENERATORS):
                found[name] = id(value), self._dump(get_generator_state(value))
            else:
                try:
                    found[name] = self._dump(value)
                except Exception:
                    if state is None:
                        raise
                    found[name] = id(value)
        return found

    def _dump(self, value: Any) -> bytes:
        sink = io.BytesIO()
        _Pickler(sink, {id(layer) for layer in self._layers}).dump(value)
        if sink.tell() > _MOST_NBYTES:
            raise StateError(f"the attributes of {self._layers[-1]!r} are larger than {_MOST_NBYTES} bytes")
        return sink.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles values to compare them: layers, functions, modules and locks by identity."""

    def __init__(self, sink: io.BytesIO, layer_ids: set[int]) -> None:
        super().__init__(sink, 5)
        self._layer_ids = layer_ids

    def reducer_override(self, obj: Any) -> Any:
        """Return the parts of an object in place of its own `__reduce__`."""
        if isinstance(obj, types.FunctionType):
            if obj.__closure__ is None and obj.__defaults__ is None:
                return int, (id(obj),)
            cells = [cell.cell_contents for cell in obj.__closure__ or ()]
            return tuple, ((id(obj), *cells, *(obj.__defaults__ or ())),)
        if isinstance(obj, type):
            is_found_by_name = "<locals>" not in obj.__qualname__ and obj.__module__ != "__main__"
            return NotImplemented if is_found_by_name else (int, (id(obj),))
        if id(obj) in self._layer_ids or isinstance(obj, (types.ModuleType, *_LOCKS)):
            return int, (id(obj),)
        return NotImplemented


def set_attributes(layers: Sequence[Any], changes: dict[tuple[int, str], bytes]) -> None:
    """Set attributes of the layers of an env to the values that `AttributeWatch.changes` has returned.

    Raises:
        StateError: the env has fewer layers now.
    """
    for (depth, name), data in changes.items():
        if not data:
            continue
        if depth >= len(layers):
            raise StateError(f"attribute {name!r} of layer {depth}: the env has {len(layers)} layers")
        present = vars(layers[depth]).get(name, MISSING)
        if present is MISSING or not _is_plain(present) or pickle.dumps(present, 5) != data:
            set_own_attr(layers[depth], name, pickle.loads(data))


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether a copy of a value is as good as the value: numbers, text, arrays, and containers of these."""
    cls = type(value)
    if cls in _CONSTANTS:
        return cls is not EnvSpec
    if isinstance(value, np.generic):
        return True
    if cls is np.ndarray:
        return bool(value.dtype.kind in "biufcSU" and value.nbytes <= _MOST_VALUE_NBYTES)
    if depth > _MAX_DEPTH or cls not in (list, tuple, dict, set, frozenset) or len(value) > _MOST_VALUE_NBYTES:
        return False
    parts = [*value.keys(), *value.values()] if cls is dict else value
    return all(_is_plain(part, depth + 1) for part in parts)
