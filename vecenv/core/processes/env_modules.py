"""Find the modules that the construction of envs imports, without building an env.

The pickled factories refer to classes and functions of modules, and to modules themselves. A factory may also contain
an `import` statement, or the id of a registered env. The search looks at the objects themselves, and only at those that
a worker needs to build the envs. It may miss modules: a worker then imports them itself.
"""

from __future__ import annotations

import dis
import functools
import importlib.util
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from ...gymnasium_api import registrations

__all__ = ["find_env_modules", "find_objects"]

_Kind = TypeVar("_Kind")

#: Most objects that are looked at, in all factories together.
_MOST_OBJECTS = 5000
#: Packages that every fork server has loaded. Of their other modules, only those with `_HEAVY` names take long.
_LOADED = ("cloudpickle", "gymnasium", "numpy", "vecenv")
_HEAVY = ("gymnasium.envs.box2d", "gymnasium.envs.mujoco")
_PLAIN = (bool, int, float, complex, bytes, bytearray, type(None))


def find_env_modules(env_fns: Sequence[Callable[[], Any]], excluded: Collection[str]) -> list[str]:
    """Return the modules that workers import to build these envs, as far as a fork server may import them before.

    Args:
        env_fns: env factories.
        excluded: further modules that are left out.
    """
    search = _Search()
    for env_fn in env_fns:
        search.visit(env_fn)
    return [name for name in sorted(search.found) if _is_worth_it(name) and name not in excluded]


def find_objects(env_fn: Callable[[], Any], kind: type[_Kind]) -> list[_Kind]:
    """Return the objects of a class that an env factory refers to, itself included."""
    search = _Search()
    search.visit(env_fn)
    return [value for value in search.seen.values() if isinstance(value, kind)]


def _is_worth_it(name: str) -> bool:
    top = name.partition(".")[0]
    if top in ("", "__main__", "__mp_main__") or top in sys.stdlib_module_names:
        return False
    return top not in _LOADED or name.startswith(_HEAVY)


class _Search:
    """Collects the names of modules from factories and the objects that they refer to.

    Attributes:
        found: the names of modules.
        seen: the objects that were looked at, by id.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.seen: dict[int, Any] = {}  # it keeps the objects alive, so that no other one gets the id

    def visit(self, value: Any) -> None:
        """Collect the modules that are imported when this object is unpickled, and called if it is a factory."""
        if type(value) in _PLAIN or id(value) in self.seen or len(self.seen) > _MOST_OBJECTS:
            return
        self.seen[id(value)] = value
        if isinstance(value, str):
            for entry_point in registrations.entry_points_of(value):
                self.visit_entry_point(entry_point)
        elif isinstance(value, types.ModuleType):
            self.found.add(value.__name__)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, types.MethodType):
            self._visit_all((value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            self._visit_all((value.func, value.args, value.keywords))
        elif isinstance(value, Mapping):
            self._visit_all((type(value), *value.values()))
        elif isinstance(value, list | tuple | set | frozenset):
            self._visit_all((type(value), *value))
        else:
            self._visit_all((type(value), *getattr(value, "__dict__", {}).values()))

    def visit_entry_point(self, entry_point: Any) -> None:
        """Collect the modules of an entry point of Gymnasium's registry: 'module:name', or an object."""
        if isinstance(entry_point, str):
            self.found.add(entry_point.partition(":")[0])
        else:
            self.visit(entry_point)

    def _visit_all(self, values: Collection[Any]) -> None:
        for value in values:
            self.visit(value)

    def _visit_class(self, value: type) -> None:
        self.found.add(value.__module__)
        self._visit_imports(vars(value).get("__init__"))
        if not _is_importable(value):
            self._visit_all(value.__bases__)
            self._visit_all([part for part in vars(value).values() if isinstance(part, types.FunctionType)])

    def _visit_function(self, value: types.FunctionType) -> None:
        self._visit_imports(value)
        if _is_importable(value):
            self.found.add(value.__module__)
            return
        for code in _codes_of(value.__code__):
            self._visit_all([value.__globals__[name] for name in code.co_names if name in value.__globals__])
        self._visit_all([cell.cell_contents for cell in value.__closure__ or () if not _is_empty(cell)])
        self._visit_all(value.__defaults__ or ())

    def _visit_imports(self, function: Any) -> None:
        """Collect the modules of the `import` statements in a function."""
        if not isinstance(function, types.FunctionType):
            return
        package = function.__globals__.get("__package__") or ""
        for name in _imports_of(function.__code__):
            if package or not name.startswith("."):
                self.found.add(importlib.util.resolve_name(name, package))


def _codes_of(code: types.CodeType) -> list[types.CodeType]:
    """Return a code object and those of the functions in it."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return [code, *(found for part in inner for found in _codes_of(part))]


@functools.lru_cache(1000)
def _imports_of(code: types.CodeType) -> frozenset[str]:
    """Return the names in the `import` statements of a function, with a dot per level of a relative one."""
    found = set()
    for part in _codes_of(code):
        values: list[Any] = [None, None]  # the arguments of the last two instructions, the level and the names
        for instruction in dis.get_instructions(part):
            if instruction.opname == "IMPORT_NAME":
                found.add("." * (values[0] or 0) + instruction.argval)
            values = [values[1], instruction.argval]
    return frozenset(found)


def _is_importable(value: Any) -> bool:
    """Return whether workers import this function or class by its name; else it is sent by value."""
    module = sys.modules.get(value.__module__)
    if module is None or module.__name__ == "__main__":
        return False
    try:
        return functools.reduce(getattr, value.__qualname__.split("."), module) is value
    except AttributeError:
        return False


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
