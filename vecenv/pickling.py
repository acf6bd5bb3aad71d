"""Pickles of objects of the caller: what another process cannot import travels by value.

This is `cloudpickle` with three additions:

* Code keeps the name of its file, for tracebacks.
* Functions with `functools.lru_cache` or `functools.cache` travel by value if no other process can import them, such as
  methods of a class in the main script. The copy has an empty cache.
* `functools.cached_property` travels, too. Before Python 3.12 it holds a lock, which does not pickle.
"""

from __future__ import annotations

import functools
import io
import operator
import sys
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import cloudpickle

__all__ = ["dump_by_value"]


def dump_by_value(value: Any) -> bytes:
    """Return the pickle of a value, with protocol 5; `pickle.loads` reads it."""
    with io.BytesIO() as file:
        _Pickler(file, protocol=5).dump(value)
        return file.getvalue()


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    make, args = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _named_code, (make, args, code.co_filename)


def _named_code(make: Callable[..., types.CodeType], args: tuple[Any, ...], filename: str) -> types.CodeType:
    return make(*args).replace(co_filename=filename)


def _reduce_cached_function(function: Any) -> str | tuple[Any, ...]:
    if _can_be_imported(function):
        name: str = function.__qualname__
        return name
    return _cached_function, (function.__wrapped__, *function.cache_parameters().values())


def _cached_function(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _reduce_cached_property(found: functools.cached_property[Any]) -> tuple[Any, ...]:
    return _cached_property, (found.func, found.attrname)


def _cached_property(function: Callable[[Any], Any], name: str | None) -> functools.cached_property[Any]:
    made = functools.cached_property(function)
    if name is not None:
        made.__set_name__(object, name)
    return made


def _can_be_imported(function: Any) -> bool:
    """Return whether another process finds this function by its name, in a module that is not pickled by value."""
    module = function.__module__
    by_value = cloudpickle.list_registry_pickle_by_value()  # with their submodules
    if module == "__main__" or module not in sys.modules or any(f"{module}.".startswith(f"{one}.") for one in by_value):
        return False
    try:
        return operator.attrgetter(function.__qualname__)(sys.modules[module]) is function
    except AttributeError:  # such as a local function
        return False


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    dispatch_table = ChainMap(
        {
            types.CodeType: _reduce_code,
            type(functools.lru_cache(operator.neg)): _reduce_cached_function,
            functools.cached_property: _reduce_cached_property,
        },
        cloudpickle.Pickler.dispatch_table,
    )
