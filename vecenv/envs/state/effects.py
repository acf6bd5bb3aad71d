"""Find out which attributes of an env a call has changed, and set attributes to such values.

The attributes of all layers are compared. Values that cannot change are compared by identity, all others by an outline
of their contents: the parts of containers and objects, the bytes of arrays, the states of random generators. Large
containers and foreign objects are compared by their pickled contents. Objects outside the env, such as globals of a
module or files, are not seen.
"""

from __future__ import annotations

import copyreg
import enum
import io
import pickle
import random
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from vecenv.envs.state.generators import get_generator_state
from vecenv.errors import StateError
from vecenv.values.own_attributes import MISSING, set_own_attr

__all__ = ["AttributeWatch", "is_plain", "set_attributes"]

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_CONSTANTS = frozenset((*_PLAIN, EnvSpec, range, slice, type(...)))
_LOCKS = (type(__import__("threading").Lock()), type(__import__("threading").RLock()))
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
#: Most bytes of the contents of an attribute; larger ones are not compared.
_MOST_NBYTES = 1 << 22
#: Parts of an attribute that are compared one by one, and how deeply they may be nested. Beyond that, pickling is
#: quicker.
_MOST_PARTS, _MOST_NESTED = 128, 12
#: Most bytes of a value that is sent to the parent.
_MOST_VALUE_NBYTES = 4096
_MAX_DEPTH = 6  # levels of nested values that are sent

#: (layers of an env, from the outermost on) -> the state of one layer that its attributes do not show, or None
Capture = Callable[[Any], Any]

# How the values of a class are compared.
_CONSTANT, _IDENTITY, _ARRAY, _SEQUENCE, _DICT, _OBJECT, _SPACE, _GENERATOR, _FUNCTION, _METHOD, _FOREIGN = range(1, 12)
_PICKLED = (_ARRAY, _FOREIGN)  # unless the array is one of numbers
_BY_IDENTITY = (type, types.ModuleType, types.BuiltinFunctionType, np.ufunc, enum.Enum, weakref.ref, *_LOCKS)
_kinds: dict[type, int] = dict.fromkeys(_CONSTANTS, _CONSTANT)
_kinds.update(dict.fromkeys((list, tuple, set, frozenset, deque), _SEQUENCE))
_kinds.update(dict.fromkeys((dict, OrderedDict, defaultdict), _DICT))
_kinds.update({np.ndarray: _ARRAY, types.FunctionType: _FUNCTION, types.MethodType: _METHOD})


def _kind_of(cls: type) -> int:
    if issubclass(cls, np.dtype) or (issubclass(cls, np.generic) and not issubclass(cls, np.void | np.object_)):
        kind = _CONSTANT
    elif issubclass(cls, _BY_IDENTITY):
        kind = _IDENTITY
    elif issubclass(cls, _GENERATORS):
        kind = _GENERATOR
    elif issubclass(cls, spaces.Space) and cls.__dictoffset__:
        kind = _SPACE
    elif issubclass(cls, tuple) and hasattr(cls, "_fields") and not cls.__dictoffset__:
        kind = _SEQUENCE
    else:
        kind = _OBJECT if _has_only_attributes(cls) else _FOREIGN
    _kinds[cls] = kind
    return kind


def _has_only_attributes(cls: Any) -> bool:
    """Return whether the objects of a class consist of their attributes and slots, without data of a class in C."""
    num_words = len(_slot_names(cls)) + (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
    return bool(
        (cls.__dictoffset__ or _slot_names(cls))
        and not cls.__itemsize__
        and cls.__basicsize__ <= object.__basicsize__ + num_words * np.intp().itemsize
    )


def _slot_names(cls: type) -> list[str]:
    names: list[str] = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    return names


class AttributeWatch:
    """The attributes of an env before a call; an exception is raised if they cannot be compared.

    Args:
        layers: of the env, from the outermost on.
        capture: returns the state of a layer that its attributes do not show; None if it has none.
        is_deep: also compare the contents of values that can change.
    """

    def __init__(self, layers: Sequence[Any], capture: Capture, *, is_deep: bool) -> None:
        self._layers = layers
        self._capture = capture
        self._is_deep = is_deep
        self._before = [dict(vars(layer)) for layer in layers]
        self._states: list[Any] = []  # one outline per layer; None: its attributes show the state
        self._outlines: list[dict[str, list[Any]]] = []  # per layer: {name of a value that can change: outline}
        if not is_deep:
            return
        outliner = _Outliner(layers)
        for layer, values in zip(layers, self._before):
            self._states.append(outliner.of_state(capture(layer)))
            self._outlines.append(
                {name: outliner.of(value) for name, value in values.items() if type(value) not in _CONSTANTS}
            )

    def changes(self) -> dict[tuple[int, str], bytes] | None:
        """Return the attributes that have changed, see `core.layout.commands.Changes`; None if one is no plain data.

        An exception is raised if they cannot be compared.
        """
        found: dict[tuple[int, str], bytes] = {}
        outliner = _Outliner(self._layers)
        for depth, layer in enumerate(self._layers):
            before, now = self._before[depth], vars(layer)
            outlines: dict[str, list[Any]] = {}
            if self._is_deep:
                outlines = self._outlines[depth]
                if not _are_same(self._states[depth], outliner.of_state(self._capture(layer))):
                    return None
            names: Any = outlines
            if [*before] != [*now] or not all(map(is_, before.values(), now.values())):
                names = now
                if any(name not in now for name in before):
                    return None
            for name in names:
                value, outline = now[name], outlines.get(name)
                if outline is None:
                    is_same = _is_same(before.get(name, MISSING), value)
                else:
                    is_same = _are_same(outline, outliner.of(value))
                if is_same:
                    continue
                if isinstance(value, _GENERATORS):
                    found[depth, name] = b""
                elif is_plain(value) and len(data := pickle.dumps(value, 5)) <= _MOST_VALUE_NBYTES:
                    found[depth, name] = data
                else:
                    return None
        return found


class _Outliner:
    """Lists the contents of values, so that two such lists can be compared; layers of an env are listed by identity."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layer_ids = frozenset(map(id, layers))
        self._seen = set(self._layer_ids)  # ids of objects that are listed; these live as long as the env
        self._has_state = False  # whether the present layer has a state

    def of_state(self, state: Any) -> list[Any]:
        """Return the contents of the state of a layer, and continue with its attributes.

        If the layer has a state, foreign objects in its attributes that cannot be pickled are listed by identity.
        """
        self._has_state = state is not None
        return self._of_copy(state) if state else []

    def of(self, value: Any) -> list[Any]:
        """Return the contents of an attribute; objects that were listed before are listed by identity."""
        if id(value) in self._seen:
            return [value]
        parts: list[Any] = []
        self._add(value, parts, 0)
        if len(parts) > _MOST_PARTS:
            parts = []
            self._add_pickled(value, parts)
        return parts

    def _of_copy(self, value: Any) -> list[Any]:
        """Return the contents of a value that is not part of the env, and may be deleted."""
        seen, self._seen = self._seen, set(self._layer_ids)
        try:
            return self.of(value)
        finally:
            self._seen = seen

    def _add(self, value: Any, parts: list[Any], depth: int) -> None:
        cls = type(value)
        kind = _kinds.get(cls) or _kind_of(cls)
        if kind <= _IDENTITY or id(value) in self._seen:
            parts.append(value)
            return
        self._seen.add(id(value))
        if kind == _ARRAY and not value.dtype.hasobject:
            if value.nbytes > _MOST_NBYTES:
                raise StateError(f"an array of {value.nbytes} bytes is larger than {_MOST_NBYTES} bytes")
            parts += (cls, value.dtype, *value.shape, value.tobytes())
        elif kind in _PICKLED or depth > _MOST_NESTED or (kind <= _DICT and len(value) > _MOST_PARTS):
            self._add_pickled(value, parts)
        elif kind == _SEQUENCE:
            parts += (cls, len(value))
            self._add_all(value, parts, depth + 1)
        elif kind == _DICT:
            parts += (cls, len(value))
            self._add_all(value, parts, depth + 1)
            self._add_all(value.values(), parts, depth + 1)
        elif kind == _OBJECT:
            parts.append(cls)
            for name in _slot_names(cls):
                self._add(getattr(value, name, MISSING), parts, depth + 1)
            if cls.__dictoffset__:
                self._add(vars(value), parts, depth + 1)
        elif kind == _SPACE:  # nothing writes into its bounds
            parts.append(value)
            for part in vars(value).values():
                if _kinds.get(type(part), _FOREIGN) <= _ARRAY:
                    parts.append(part)
                else:
                    self._add(part, parts, depth + 1)
        elif kind == _GENERATOR:
            self._add_generator(value, parts)
        elif kind == _METHOD:
            parts.append(value.__func__)
            self._add(value.__self__, parts, depth + 1)
        else:
            parts.append(value)
            self._add_all([_contents_of(cell) for cell in value.__closure__ or ()], parts, depth + 1)
            self._add_all(value.__defaults__ or (), parts, depth + 1)

    def _add_all(self, values: Iterable[Any], parts: list[Any], depth: int) -> None:
        for value in values:
            if type(value) in _CONSTANTS:
                parts.append(value)
            elif len(parts) <= _MOST_PARTS:  # else they are pickled
                self._add(value, parts, depth)

    def _add_generator(self, generator: Any, parts: list[Any]) -> None:
        state = get_generator_state(generator)
        parts.append(generator)
        if isinstance(state, dict) and state["bit_generator"] in ("PCG64", "PCG64DXSM"):
            parts += (state["has_uint32"], state["uinteger"], *state["state"].values())
        else:
            parts += self._of_copy(state)

    def _add_pickled(self, value: Any, parts: list[Any]) -> None:
        sink = io.BytesIO()
        try:
            _ComparingPickler(sink, self._layer_ids).dump(value)
        except Exception:
            if not self._has_state:
                raise
            parts.append(value)
            return
        if sink.tell() > _MOST_NBYTES:
            raise StateError(f"a {type(value).__name__} of {sink.tell()} bytes is larger than {_MOST_NBYTES} bytes")
        parts.append(sink.getvalue())


def _contents_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return MISSING


def _are_same(before: list[Any], now: list[Any]) -> bool:
    if len(before) != len(now):
        return False
    changed = [one for one, two in zip(before, now) if one is not two and not _is_same(one, two)]
    return not changed


def _is_same(before: Any, now: Any) -> bool:
    """Return whether two values are one object, or equal constants."""
    if before is now:
        return True
    cls = type(before)
    if cls is not type(now):
        return False
    if cls is bytes or cls is int or cls is str:
        return bool(before == now)
    if cls is float or cls is complex:  # -0.0 is not 0.0, and nan is nan
        return repr(before) == repr(now)
    if issubclass(cls, np.generic):
        return bool(before.dtype == now.dtype and before.tobytes() == now.tobytes())
    return bool(_kinds.get(cls) == _CONSTANT and before == now)


class _ComparingPickler(pickle.Pickler):
    """Pickles values to compare them, in the process where they are: layers, classes and locks by identity."""

    def __init__(self, sink: io.BytesIO, layer_ids: frozenset[int]) -> None:
        super().__init__(sink, 5)
        self._layer_ids = layer_ids

    def reducer_override(self, obj: Any) -> Any:
        """Return the parts of an object instead of its own `__reduce__`, which may leave some out."""
        cls = type(obj)
        kind = _kinds.get(cls) or _kind_of(cls)
        if id(obj) in self._layer_ids or isinstance(obj, (types.ModuleType, weakref.ref, *_LOCKS)):
            return int, (id(obj),)
        if isinstance(obj, type):
            is_found_by_name = "<locals>" not in obj.__qualname__ and obj.__module__ != "__main__"
            return NotImplemented if is_found_by_name else (int, (id(obj),))
        if kind == _FUNCTION:
            cells = [_contents_of(cell) for cell in obj.__closure__ or ()]
            return tuple, ((id(obj), *cells, *(obj.__defaults__ or ())),)
        if kind == _OBJECT:
            values = vars(obj) if cls.__dictoffset__ else None
            return copyreg.__newobj__, (cls,), (values, [getattr(obj, name, None) for name in _slot_names(cls)])  # type: ignore[attr-defined]
        return NotImplemented


def set_attributes(layers: Sequence[Any], changes: dict[tuple[int, str], bytes]) -> None:
    """Set attributes of the layers of an env to the values that `AttributeWatch.changes` has returned.

    StateError is raised if the env has fewer layers now.
    """
    for (depth, name), data in changes.items():
        if not data:
            continue
        if depth >= len(layers):
            raise StateError(f"attribute {name!r} of layer {depth}: the env has {len(layers)} layers")
        present = vars(layers[depth]).get(name, MISSING)
        if present is MISSING or not is_plain(present) or pickle.dumps(present, 5) != data:
            set_own_attr(layers[depth], name, pickle.loads(data))


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether a copy of a value is as good as the value: numbers, text, arrays, and containers of these."""
    cls = type(value)
    if cls in _PLAIN or isinstance(value, np.generic):
        return True
    if cls is np.ndarray:
        return bool(value.dtype.kind in "biufcSU" and value.nbytes <= _MOST_VALUE_NBYTES)
    if depth > _MAX_DEPTH or cls not in (list, tuple, dict, set, frozenset) or len(value) > _MOST_VALUE_NBYTES:
        return False
    parts = [*value.keys(), *value.values()] if cls is dict else value
    return all(is_plain(part, depth + 1) for part in parts)
