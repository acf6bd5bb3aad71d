"""The C and the Python implementation of slots and hubs have the methods and signatures of their bases."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from vecenv.core.fallback.hub import FallbackHub
from vecenv.core.fallback.slot import FallbackSlot
from vecenv.core.host.slot import Slot
from vecenv.core.layout.native import load
from vecenv.core.parent.hub import METHODS_OF_C, Hub, NativeHub

_native = load()
_NEEDS_C = [pytest.mark.native, pytest.mark.skipif(_native is None, reason="the extension was not built")]


def public_methods(base: type) -> dict[str, Callable[..., Any]]:
    """Return the methods of a base class or protocol, by name."""
    return {name: member for name, member in vars(base).items() if callable(member) and name[0] != "_"}


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, bool]]:
    """Return the name and the kind of each parameter but self, and whether it has a default."""
    _, *found = inspect.signature(function).parameters.values()  # self of C functions is positional only
    return [(one.name, one.kind, one.default is not one.empty) for one in found]


@pytest.mark.parametrize("implementation", ["FallbackSlot", pytest.param("_native.Slot", marks=_NEEDS_C)])
def test_slots_have_the_signatures_of_the_protocol(implementation: str) -> None:
    kind: Any = FallbackSlot if implementation == "FallbackSlot" else _native.Slot
    for name, method in public_methods(Slot).items():
        assert parameters(getattr(kind, name)) == parameters(method), name
        assert inspect.getdoc(getattr(FallbackSlot, name)) == inspect.getdoc(method), name


@pytest.mark.parametrize("implementation", ["FallbackHub", pytest.param("NativeHub", marks=_NEEDS_C)])
def test_hubs_have_the_signatures_of_their_base(implementation: str) -> None:
    for name, method in public_methods(Hub).items():
        kind: Any = FallbackHub if implementation == "FallbackHub" else NativeHub
        if name in vars(kind):
            assert parameters(getattr(kind, name)) == parameters(method), name
        elif kind is NativeHub and name in METHODS_OF_C:
            found, expected = parameters(getattr(_native.Hub, name)), parameters(method)
            assert [one[1:] for one in found] == [one[1:] for one in expected], name
