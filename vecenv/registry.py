"""Registries: names by which configs refer to classes of envs, managers and wrappers."""

from __future__ import annotations

import difflib
import importlib
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, TypeVar, overload

from vecenv.errors import ConfigError, UnknownNameError

__all__ = ["ENV_MANAGER_REGISTRY", "ENV_REGISTRY", "ENV_WRAPPER_REGISTRY", "Registry"]

# One for all, and re-entrant: a home registers and looks up too, in the thread that imports it. No attribute of a
# registry, which would keep one in a user's main module from travelling to workers by value.
_importing = threading.RLock()

_T = TypeVar("_T", bound=Callable[..., Any])


class Registry:
    """Maps names to classes or functions, in the order of registration.

    >>> shapes = Registry("shape")
    >>> @shapes.register("square")
    ... class Square:
    ...     def __init__(self, side): self.side = side
    >>> shapes.build("square", side=2).side
    2
    """

    def __init__(self, kind: str, homes: tuple[str, ...] = ()) -> None:
        """Make an empty registry.

        Args:
            kind: the word for an entry in error messages, such as `env manager`.
            homes: modules that register the entries of vecenv; they are imported before the first other
                registration, or when a name is not found yet.
        """
        self.kind = kind
        self._homes = homes
        self._is_importing = False
        self._entries: dict[str, Callable[..., Any]] = {}

    @overload
    def register(
        self, name: str | None = None, obj: None = None, force_overwrite: bool = False
    ) -> Callable[[_T], _T]: ...
    @overload
    def register(self, name: str | None, obj: _T, force_overwrite: bool = False) -> _T: ...
    def register(self, name: str | None = None, obj: Any = None, force_overwrite: bool = False) -> Any:
        """Register `obj`, or the decorated class or function if `obj` is not given.

        Args:
            name: key to register under; None takes the object's own name.
            obj: what `get` will return.
            force_overwrite: replace an entry of the same name.

        Raises:
            ConfigError: the name is taken by another object, or is not a string.
        """
        if obj is None:
            return lambda decorated: self.register(name, decorated, force_overwrite=force_overwrite)
        if name is None:
            name = obj.__name__
        if not isinstance(name, str):
            raise ConfigError(f"expected a name for the {self.kind}, got {name!r}", key="name")
        if not str(getattr(obj, "__module__", "")).startswith("vecenv."):
            self._import_homes()  # else a name of vecenv's own could be taken before it is registered
        if name in self._entries and not force_overwrite:
            taken_by = self._entries[name]
            raise ConfigError(
                f"{self.kind} {name!r} is already registered as {taken_by!r}; pass force_overwrite=True to replace it",
                key="name",
            )
        self._entries[name] = obj
        return obj

    def get(self, name: str) -> Callable[..., Any]:
        """Return the entry that is registered under `name`.

        Raises:
            UnknownNameError: there is no such entry; the message contains the nearest names.
        """
        try:
            if name not in self._entries:
                self._import_homes()
            return self._entries[name]
        except (KeyError, TypeError):  # TypeError: an unhashable name
            raise self._unknown(name) from None

    def build(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the entry that is registered under `name`; exceptions of the call are not changed.

        Raises:
            UnknownNameError: there is no such entry.
        """
        return self.get(name)(*args, **kwargs)

    def keys(self) -> tuple[str, ...]:
        """Names in the order of registration."""
        self._import_homes()
        return tuple(self._entries)

    query = keys  # DI-engine's name
    __getitem__ = get

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}, {list(self._entries)})"

    def _import_homes(self) -> None:
        """Import the modules that register vecenv's entries, once; a failed import is repeated by the next call."""
        if not self._homes:
            return
        with _importing:
            if self._is_importing:  # This thread imports a home.
                return
            self._is_importing = True
            try:
                for name in self._homes:
                    importlib.import_module(name)
                self._homes = ()
            finally:
                self._is_importing = False

    def _unknown(self, name: Any) -> UnknownNameError:
        known = self.keys()
        near = difflib.get_close_matches(str(name), known, n=3)
        if near:
            advice = f"did you mean {' or '.join(map(repr, near))}?"
        elif known:
            advice = f"known are {', '.join(map(repr, sorted(known)))}"
        else:
            advice = "none is registered; name the module that registers it in import_names"
        return UnknownNameError(f"unknown {self.kind} {name!r}; {advice}", name=str(name), known=known)


ENV_REGISTRY = Registry("env", ("vecenv.envs.board", "vecenv.envs.agents"))
ENV_MANAGER_REGISTRY = Registry("env manager", ("vecenv.managers",))
ENV_WRAPPER_REGISTRY = Registry("env wrapper", ("vecenv.wrappers",))


def import_modules(names: Iterable[str] | str | None) -> list[ModuleType]:
    """Import the modules of a config's `import_names`, so that their classes are registered.

    Args:
        names: dotted names; None means none, one string means one name.

    Raises:
        ConfigError: an entry of `names` is not a name.
        ImportError: the import of a module failed.
    """
    if names is None:
        return []
    found = [names] if isinstance(names, str) else list(names) if isinstance(names, Iterable) else [None]
    if not all(isinstance(name, str) for name in found):
        raise ConfigError(f"import_names: expected a list of names, got {names!r}", key="import_names")
    return [importlib.import_module(name) for name in found]
