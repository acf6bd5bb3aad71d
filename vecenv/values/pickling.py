"""Pickles of objects of the caller: what another process cannot import travels by value.

The program's own file, `__main__`, cannot be imported by workers. There are two kinds of pickles:

    constructors    `dump_with_main` sends the classes, functions and globals of `__main__` that a value uses, by value
                    and once. A worker puts them into its own `__main__` (`adopt_main`, `load_with_main`).
    messages        `dump_message` refers to them by name, in both directions. Everything else that cannot be imported,
                    such as a lambda, travels by value, as a new function or class.

A pickle never changes a class or function that exists. A class that travels by value has an id in every process; where
a class has this id already, that class is used as it is.

The pickler is that of `cloudpickle` with these additions:

* Code keeps the name of its file, for tracebacks.
* Classes keep their `__slots__` and their `__qualname__`.
* A constructor's classes are made in a worker without `__init_subclass__` and without `__new__` and `__init__` of their
  metaclasses, which have run in the caller.
* Enums keep their aliases, and the attributes that `__init__` or `__new__` gave their members.
* Functions with `functools.lru_cache` or `functools.cache` travel by value if no other process can import them, such as
  methods of a class in the main script. The copy has an empty cache.
* `functools.cached_property` travels, too. Before Python 3.12 it holds a lock, which does not pickle.
* `functools.singledispatch` and dicts with weak references travel.
* Objects of `__main__` that pickle as their own name, such as singletons and `typing.NewType`, travel by value.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib.machinery
import io
import linecache
import operator
import os
import pickle
import re
import sys
import types
import typing
import weakref
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as internals

__all__ = [
    "adopt_main",
    "copy_by_pickle",
    "dump_by_name",
    "dump_by_value",
    "dump_message",
    "dump_with_main",
    "load",
    "load_with_main",
]

#: Names of the main module; the second one in processes that `multiprocessing` has spawned.
_MAINS = ("__main__", "__mp_main__")
#: A part of both names in a pickle.
_MAIN_MARK = b"_main__"
#: Longest pickle that is searched for this part. A search of 1 MB takes 0.5 ms, four times as long as its unpickling.
_SHORT_NBYTES = 4096
#: The methods that Python calls when a class is made. A copy of a class is made without its attributes and keywords,
#: which these methods may need, and a copy is nothing to be registered again.
_CLASS_HOOKS = ("__init_subclass__",)
_METACLASS_HOOKS = (*_CLASS_HOOKS, "__new__", "__init__", "__setattr__")
_ATTRIBUTES = ("__name__", "__package__", "__file__")
_UNKNOWN = object()
#: The objects that constructors have brought into `__main__` of this process, by name; None: it keeps its own.
_adopted: dict[str, Any] | None = None
#: Names that refer to other objects in the process that has sent them.
_shadowed: set[str] = set()
#: The classes and functions of `__main__` that this process has sent, by name, while they exist.
_sent: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
#: Objects that a pickle has made and not filled yet, by id.
_unfilled: dict[int, Any] = {}
#: Ids of classes that were sent to this process.
_received: set[str] = set()
#: (class, name, function) of the hooks that wait until all classes of a pickle exist.
_hooks: list[tuple[type, str, Any]] = []
#: Classes of the program that has forked this process, which get the attributes that they had when they were sent.
_restored: dict[int, Any] = {}
_is_restoring = False


# ---- pickles ------------------------------------------------------------------------------------


def dump_by_value(value: Any) -> bytes:
    """Return the pickle of a value, with protocol 5; `load` reads it."""
    return _dump(value, _Pickler, {})


def dump_by_name(value: Any) -> bytes:
    """Return the pickle of a value that refers to classes and functions by name; by value if that is not possible."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # lambdas and classes of __main__
        return dump_by_value(value)


def dump_message(value: Any, known: Mapping[str, Any]) -> bytes:
    """Return the pickle of a message, with protocol 5; `load` reads it.

    `known` are the objects of `__main__` that the other process has, by name; see `dump_with_main`. They are not used
    in a process that has adopted them: the process that has sent them has all of them.
    """
    try:
        data = pickle.dumps(value, protocol=5)
        if (_adopted is not None and not _shadowed) or _MAIN_MARK not in data:  # the search takes 0.5 ms per MB
            return data
    except Exception:  # lambdas and local classes need the slower pickler
        pass
    return _dump(value, _Pickler, known)


def load(data: bytes | bytearray | memoryview, start: int = 0) -> Any:
    """Undo `dump_by_value` and `dump_message`; the pickle begins at byte `start`."""
    if _adopted is None and _sent and (len(data) > _SHORT_NBYTES or _MAIN_MARK in bytes(data)):
        with io.BytesIO(data) as file:
            file.seek(start)
            return _Unpickler(file).load()
    return pickle.loads(memoryview(data)[start:])


def dump_with_main(
    value: Any, names: dict[str, Any] | None = None, reduce: Callable[[Any], Any] | None = None
) -> bytes:
    """Return the pickle of a value and of the objects of `__main__` that it uses; `load_with_main` reads it.

    Args:
        value: such as the constructors of envs.
        names: receives the classes and functions of `__main__` that the pickle brings, by name. If given, the pickle
            also brings the objects that this process has adopted.
        reduce: reduces some objects in its own way, as `Pickler.reducer_override` does; None: there is no such way.
    """
    if names is None:
        names = {}
    else:
        names.update(_adopted or {})
    while True:
        last = _Names(names)
        data = _dump((value, last), functools.partial(_MainPickler, reduce=reduce), names)
        if len(last.sent) == len(names):
            break
    for name, sent in last.sent.items():
        with contextlib.suppress(TypeError):  # objects without weak references
            _sent.setdefault(name, sent)
    return data


def load_with_main(data: bytes) -> Any:
    """Undo `dump_with_main`; in a process that has called `adopt_main`, add the objects to its `__main__`.

    Objects that it has received before stay as they are.
    """
    global _is_restoring
    was_restoring, _is_restoring = _is_restoring, True
    first_hook = len(_hooks)
    try:
        value, (names, shadowed) = pickle.loads(data)
    finally:
        _is_restoring = was_restoring
        while len(_hooks) > first_hook:
            cls, name, hook = _hooks.pop()
            type.__setattr__(cls, name, hook)
    _add(vars(sys.modules["__main__"]) if _adopted is not None else {}, names)
    _shadowed.update(shadowed)
    if _adopted is None:
        for name, found in names.items():
            with contextlib.suppress(TypeError):
                _sent.setdefault(name, found)
    return value


def adopt_main() -> None:
    """Let `__main__` of this process receive the objects of another program's `__main__`."""
    global _adopted
    _adopted = {}
    _received.clear()
    _shadowed.clear()


def _dump(value: Any, kind: Callable[..., _Pickler], names: Any) -> bytes:
    with io.BytesIO() as file:
        kind(file, names).dump(value)
        return file.getvalue()


def copy_by_pickle(value: Any) -> Any:
    """Return a copy of a value, as another process would get it; any exception if it cannot be pickled.

    Classes stay the same objects, and so do functions that their modules have by name.
    """
    try:
        return pickle.loads(pickle.dumps(value, protocol=5))
    except Exception:  # such as lambdas and objects of local classes
        with io.BytesIO() as file:
            pickler = _CopyPickler(file)
            pickler.dump(value)
            file.seek(0)
            return _CopyUnpickler(file, pickler.shared).load()


class _Names:
    """The second part of a pickle with objects of `__main__`: these objects, and the names that are shadowed.

    Attributes:
        sent: the objects that were known when this part was pickled.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self.sent: dict[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        self.sent = dict(self._names)
        shadowed = {name for name, value in self.sent.items() if _sent.get(name, value) is not value}
        return tuple, ((self.sent, shadowed | _shadowed),)


# ---- names ------------------------------------------------------------------------------------


def _name_of(value: Any, name: str | None = None) -> str:
    """Return the name by which `__main__` has this object, such as 'Outer.Inner'; '' if it has none."""
    if getattr(value, "__module__", None) not in _MAINS:
        return ""
    name = name or getattr(value, "__qualname__", "")
    return name if name and _has(vars(sys.modules["__main__"]), name, value) else ""


def _has(names: Mapping[str, Any], name: str, value: Any) -> bool:
    first, _, rest = name.partition(".")
    found = names.get(first, _UNKNOWN)
    try:
        return (operator.attrgetter(rest)(found) if rest else found) is value
    except AttributeError:  # such as a local function
        return False


def _find_in_main(name: str) -> Any:
    """Return the object that the sender of a message calls by this name in its `__main__`."""
    first, _, rest = name.partition(".")
    main = sys.modules["__main__"]
    found = (_sent if _adopted is None else _adopted).get(first, _UNKNOWN)
    if found is _UNKNOWN:
        found = getattr(main, first)
    return operator.attrgetter(rest)(found) if rest else found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _find_in_main(name) if module in _MAINS else super().find_class(module, name)


def _add(target: dict[str, Any], names: Mapping[str, Any]) -> None:
    """Add objects to a namespace; those that this process has received for its `__main__` stay."""
    if _adopted is None or target is not vars(sys.modules["__main__"]):
        target.update(names)
        return
    for name, value in names.items():
        if name not in _adopted:
            target[name] = _adopted[name] = value


# ---- the objects --------------------------------------------------------------------------------


class _MainGlobals:
    """Stands for the namespace of `__main__` in a pickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        main = sys.modules["__main__"]
        attributes = {name: value for name in _ATTRIBUTES if (value := getattr(main, name, None)) is not None}
        if "__file__" in attributes:
            with contextlib.suppress(FileNotFoundError):  # a relative path in a folder that was removed
                attributes["__file__"] = os.path.abspath(attributes["__file__"])
        return _main_globals, (attributes, getattr(getattr(main, "__spec__", None), "name", None))


def _main_globals(attributes: dict[str, Any], spec_name: str | None) -> dict[str, Any]:
    """Return the namespace of `__main__`; a new one if this process keeps its own `__main__`."""
    if _adopted is None:
        return dict(attributes)
    main = sys.modules["__main__"]
    file = attributes.get("__file__")
    if getattr(main, "__file__", None) != file:  # otherwise this process has it already, such as a forked one
        # Children of this process that `multiprocessing` spawns import the module with this name, or else the file. A
        # file without a main guard would start its pools again there: nothing is imported for the name `__main__`.
        spec_name = spec_name if _has_main_guard(file) else "__main__"
        main.__spec__ = None if spec_name is None else importlib.machinery.ModuleSpec(spec_name, None, origin=file)
    if not _adopted:
        vars(main).update(attributes)
        sys.modules[main.__name__] = main
    return vars(main)


def _has_main_guard(file: str | None) -> bool:
    return file is not None and re.search(r"__name__\s*(==|!=)", "".join(linecache.getlines(file))) is not None


def _make_named(name: str, make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return the object that this process has received by this name for its `__main__`; make it if there is none."""
    if _adopted is not None and name in _adopted:
        return _adopted[name]
    made = make(*args)
    _unfilled[id(made)] = made
    return made


def _fill_function(function: Any, state: tuple[Any, ...]) -> None:
    fill, inner, names = state
    if _unfilled.pop(id(function), None) is not None:
        fill(function, inner)
        _add(function.__globals__, names)


def _fill_named(value: Any, state: dict[str, Any]) -> None:
    if _unfilled.pop(id(value), None) is not None:
        vars(value).update(state)


def _make_class(make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """Return the class with the id in `args[-2]`; make it if this process has none."""
    known: type | None = internals._DYNAMIC_CLASS_TRACKER_BY_ID.get(args[-2])
    if known is None:
        known = make(*args)
        _unfilled[id(known)] = known
    elif _is_restoring and _adopted is not None and args[-2] not in _received:
        _restored[id(known)] = known  # a class of the program that has forked this process
    _received.add(args[-2])
    return known


def _fill_class(cls: type, state: tuple[Any, ...]) -> None:
    fill, (attributes, slots), members = state
    if _unfilled.pop(id(cls), None) is not None:
        if _is_restoring:
            hooks = _METACLASS_HOOKS if issubclass(cls, type) else _CLASS_HOOKS
            _hooks.extend((cls, name, attributes.pop(name)) for name in hooks if name in attributes)
        fill(cls, (attributes, slots))
        for name, values in members.items():  # the enum was made without its `__init__` and `__new__`
            vars(cls.__members__[name]).update(values)  # type: ignore[attr-defined]
    elif _restored.pop(id(cls), None) is not None:
        attributes.pop("_abc_impl", None)  # stands for the classes that `register` has added
        for name, value in attributes.items():
            with contextlib.suppress(AttributeError, TypeError):  # members of an enum, for example
                setattr(cls, name, value)


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


def _reduce_weak_dict(found: Any) -> tuple[Any, ...]:
    return type(found), (dict(found),)


def _can_be_imported(function: Any) -> bool:
    """Return whether another process finds this function by its name, in a module that is not pickled by value."""
    module = function.__module__
    by_value = cloudpickle.list_registry_pickle_by_value()  # submodules are included
    if module in _MAINS or module not in sys.modules or any(f"{module}.".startswith(f"{one}.") for one in by_value):
        return False
    return _has_name(function)


def _has_name(function: Any) -> bool:
    """Return whether a function is found in its module by its name."""
    module = sys.modules.get(function.__module__)
    return module is not None and _has(vars(module), function.__qualname__, function)


_CACHED = type(functools.lru_cache(operator.neg))


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles a message; `known` are the objects of `__main__` that the other process has, by name."""

    dispatch_table = ChainMap(
        {
            types.CodeType: _reduce_code,
            _CACHED: _reduce_cached_function,
            functools.cached_property: _reduce_cached_property,
            weakref.WeakKeyDictionary: _reduce_weak_dict,
            weakref.WeakValueDictionary: _reduce_weak_dict,
        },
        cloudpickle.Pickler.dispatch_table,
    )

    def __init__(self, file: io.BytesIO, known: Mapping[str, Any]) -> None:
        super().__init__(file, protocol=5)
        if _adopted is not None:
            known = {name: value for name, value in _adopted.items() if name not in _shadowed}
        self.known = known

    def reducer_override(self, value: Any) -> Any:
        """Reduce classes, functions and named objects."""
        kind = type(value)
        if issubclass(kind, type):
            return self.refer_to(value) or self.reduce_class(value)
        if kind is types.FunctionType or kind is _CACHED:
            return self.refer_to(value) or self.reduce_function(value)
        return NotImplemented

    def refer_to(self, value: Any) -> tuple[Any, ...] | None:
        """Reduce an object of `__main__` to its name if the other process has it."""
        if getattr(value, "__module__", None) in _MAINS and _has(self.known, value.__qualname__, value):
            return _find_in_main, (value.__qualname__,)
        return None

    def reduce_class(self, cls: type) -> Any:
        """Reduce a class, by value unless it can be imported."""
        is_own = cls.__module__ in _MAINS
        reduced = internals._dynamic_class_reduce(cls) if is_own else super().reducer_override(cls)
        if not isinstance(reduced, tuple) or len(reduced) != 6:
            return reduced
        make, args, (attributes, slots), _, _, fill = reduced
        if make is internals._make_skeleton_class:
            kwargs = args[3]
            kwargs["__qualname__"] = cls.__qualname__
            if issubclass(cls, tuple) and "__orig_bases__" in attributes:  # else NamedTuple makes another class
                kwargs["__orig_bases__"] = attributes["__orig_bases__"]
                args = (*args[:2], cls.__bases__, *args[3:])
            if "__slots__" in attributes:
                kwargs["__slots__"] = attributes["__slots__"]
                attributes = {name: one for name, one in attributes.items() if not _is_made_from_slots(cls, name, one)}
        members: dict[str, dict[str, Any]] = {}
        if make is internals._make_skeleton_enum:
            members = {name: vars(one) for name, one in cls.__members__.items()}  # type: ignore[attr-defined]
            args = (*args[:3], {name: one["_value_"] for name, one in members.items()}, *args[4:])
            attributes = {name: one for name, one in attributes.items() if name not in members}
        return _make_class, (make, args), (fill, (attributes, slots), members), None, None, _fill_class

    def reduce_function(self, function: Any) -> Any:
        """Reduce a function, by value unless it can be imported."""
        if type(function) is types.FunctionType and function.__module__ in _MAINS:
            return self._dynamic_function_reduce(function)
        return super().reducer_override(function)


def _is_made_from_slots(cls: type, name: str, value: Any) -> bool:
    is_member = isinstance(value, types.MemberDescriptorType) and value.__objclass__ is cls
    return is_member or name in ("__slots__", "__slotnames__")


class _MainPickler(_Pickler):
    """Pickles objects of `__main__` by value, and adds their names to `names`."""

    def __init__(self, file: io.BytesIO, names: dict[str, Any], reduce: Callable[[Any], Any] | None = None) -> None:
        super().__init__(file, {})
        self._reduce = reduce
        self.known = {}
        self._names = names
        self.globals_ref[id(vars(sys.modules["__main__"]))] = _MainGlobals()

    def reducer_override(self, value: Any) -> Any:
        reduced = NotImplemented if self._reduce is None else self._reduce(value)
        if reduced is NotImplemented:
            reduced = super().reducer_override(value)
        kind = type(value)
        if reduced is not NotImplemented or kind in self.dispatch_table:
            return reduced
        if kind is typing.NewType or kind.__module__ in _MAINS:
            reduced = value.__reduce_ex__(5)
            if isinstance(reduced, str) and (name := self._record(value, reduced)):
                return _make_named, (name, copyreg.__newobj__, (kind,)), dict(vars(value)), None, None, _fill_named  # type: ignore[attr-defined]
        return reduced

    def reduce_class(self, cls: type) -> Any:
        self._record(cls)
        return super().reduce_class(cls)

    def reduce_function(self, function: Any) -> Any:
        name = self._record(function)
        if type(function) is _CACHED:
            reduced = _reduce_cached_function(function)
            if isinstance(reduced, str):
                return reduced
            return _make_named, (name, *reduced), dict(vars(function)), None, None, _fill_named
        reduced = super().reduce_function(function)
        if not isinstance(reduced, tuple) or function.__globals__ is not vars(sys.modules["__main__"]):
            return reduced
        make, args, (attributes, state), _, _, fill = reduced
        names, state["__globals__"] = state["__globals__"], {}
        return _make_named, (name, make, args), (fill, (attributes, state), names), None, None, _fill_function

    def _record(self, value: Any, name: str | None = None) -> str:
        """Return the name of an object at the top of `__main__`, and record it; '' if it has none."""
        name = _name_of(value, name)
        first = name.partition(".")[0]
        if first:
            self._names[first] = getattr(sys.modules["__main__"], first)
        return name if name == first else ""


class _CopyPickler(_Pickler):
    """Puts classes and named functions into `shared`, and their index there into the pickle."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, {})
        self.shared: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        """Return the index of a class or function in `shared`; None for other values."""
        is_function = isinstance(value, types.FunctionType)
        if not (isinstance(value, type) or (is_function and _has_name(value))):
            return None
        self.shared.append(value)
        return len(self.shared) - 1


class _CopyUnpickler(pickle.Unpickler):
    """Reads pickles of `_CopyPickler`."""

    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, index: Any) -> Any:
        return self._shared[index]
