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
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import cloudpickle

__all__ = ["copy_by_pickle", "dump_by_value"]


def dump_by_value(value: Any) -> bytes:
    """Return the pickle of a value, with protocol 5; `pickle.loads` reads it."""
    with io.BytesIO() as file:
        _Pickler(file, protocol=5).dump(value)
        return file.getvalue()


def copy_by_pickle(value: Any) -> Any:
    """Return a copy of a value, as another process would get it, of the same classes.

    Classes stay the same objects, and so do functions that their modules have by name.

    Raises:
        Exception: the value cannot be pickled or unpickled.
    """
    try:
        return pickle.loads(pickle.dumps(value, protocol=5))
    except Exception:  # such as lambdas and objects of local classes
        with io.BytesIO() as file:
            pickler = _CopyPickler(file, protocol=5)
            pickler.dump(value)
            file.seek(0)
            return _CopyUnpickler(file, pickler.shared).load()


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
    return _has_name(function)


def _has_name(function: Any) -> bool:
    """Return whether a function or class is found in its module by its name."""
    try:
        return operator.attrgetter(function.__qualname__)(sys.modules[function.__module__]) is function
    except (AttributeError, KeyError):  # such as a local function
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


class _CopyPickler(_Pickler):
    """Puts classes and named functions into `shared`, and their index there into the pickle."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shared: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        """Return the index of a class or function in `shared`; None for other values."""
        if not (isinstance(value, type) or (isinstance(value, types.FunctionType) and _has_name(value))):
            return None
        self.shared.append(value)
        return len(self.shared) - 1


class _CopyUnpickler(pickle.Unpickler):
    """Reads pickles of `_CopyPickler`."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, index: Any) -> Any:
        """Return a shared object."""
        return self._shared[index]
