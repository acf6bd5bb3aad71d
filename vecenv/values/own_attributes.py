"""Reading the attributes of one object without making the object slower.

CPython 3.11 and 3.12 keep an object's attributes in an array. Reading its `__dict__` once moves them to a dict, and
all later look-ups are slower: a step of CartPole takes 10% longer. So in these versions the attributes are read one
by one. Their names are collected from the code of the object's class that assigns them.
"""

from __future__ import annotations

import copy
import dis
import sys
import types
from collections.abc import Sequence
from typing import Any

from .class_cache import class_cache

__all__ = [
    "MISSING",
    "attributes_of",
    "get_listed_state",
    "get_own_attr",
    "read_attributes",
    "set_listed_state",
    "set_own_attr",
]

MISSING: Any = object()

_DICT_IS_SLOW = (3, 11) <= sys.version_info < (3, 13)


def get_own_attr(layer: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of the object itself; its `__getattr__` is not used."""
    cls: Any = type(layer)
    if _has_plain_look_up(cls):
        return getattr(layer, name, default)  # a missing attribute costs a tenth of an exception
    try:
        return object.__getattribute__(layer, name)
    except AttributeError:
        return default


@class_cache
def _has_plain_look_up(cls: Any) -> bool:
    """Return whether the objects of a class have no `__getattr__` or `__getattribute__` of its own."""
    return cls.__getattribute__ is object.__getattribute__ and not hasattr(cls, "__getattr__")


def set_own_attr(layer: Any, name: str, value: Any) -> None:
    """Set an attribute of the object itself; a `__setattr__` of its class is not used."""
    object.__setattr__(layer, name, value)


def get_listed_state(layer: Any) -> dict[str, Any]:
    """Return a copy of the attributes that `state_names` of all classes of an object list."""
    return copy.deepcopy({name: getattr(layer, name) for name in _listed_names(type(layer))})


def set_listed_state(layer: Any, state: dict[str, Any]) -> None:
    """Set these attributes to copies of a state that `get_listed_state` returned."""
    for name, value in copy.deepcopy({name: state[name] for name in _listed_names(type(layer))}).items():
        setattr(layer, name, value)


def _listed_names(cls: type) -> list[str]:
    return [name for base in cls.__mro__ for name in vars(base).get("state_names", ())]


def attributes_of(layer: Any) -> dict[str, Any]:
    """Return the attributes of an object, {name: value}.

    On CPython 3.11 and 3.12 these are only the attributes that methods of its classes assign; attributes set by
    other code are left out.
    """
    if not _DICT_IS_SLOW:
        own: dict[str, Any] = getattr(layer, "__dict__", {})
        return own
    cls: Any = type(layer)
    return read_attributes(layer, _stored_names(cls))


def read_attributes(layer: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return those of some attributes that an object has, {name: value}, as `get_own_attr` reads them."""
    cls: Any = type(layer)
    read = getattr if _has_plain_look_up(cls) else get_own_attr
    return {name: value for name in names if (value := read(layer, name, MISSING)) is not MISSING}


@class_cache
def _stored_names(cls: type) -> tuple[str, ...]:
    """Return the attribute names that methods of a class assign, except properties and other data descriptors."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        for member in vars(base).values():
            for code in _codes_of(member):
                names.update((step.argval, None) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")
    taken = {name for base in cls.__mro__ for name, member in vars(base).items() if hasattr(member, "__set__")}
    return tuple(name for name in names if name not in taken)


def _codes_of(member: Any) -> list[types.CodeType]:
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    functions: list[Any] = [member.fget, member.fset] if isinstance(member, property) else [member]
    codes = []
    for function in functions:
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        if isinstance(function, types.FunctionType):
            codes.append(function.__code__)
    return codes
