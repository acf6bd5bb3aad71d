"""Send the caller's Gymnasium settings by value to processes that build envs.

The settings are the registry, the namespace, the log level, and functions for custom spaces.

A process that receives them knows the same ids with the same specs as the caller, also if it imports a package later
that registers these ids again. An entry point may be text such as "__main__:MyEnv". A worker has another `__main__`
than the caller, so the objects with such names are sent too.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import gymnasium
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Tuple
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from ..errors import ConfigError
from ..values.pickling import dump_by_value, dump_with_main, load_with_main

__all__ = [
    "add_to_main",
    "apply_registrations",
    "entry_points_of",
    "ids_kept",
    "ignore_overriding",
    "has_own_batches",
    "log_level",
    "named_in_main",
    "pickle_registrations",
    "registry_kept",
    "registered",
    "registered_specs",
    "running_modules",
    "set_log_level",
]

_MAIN = "__main__"
#: Modules whose `functools.singledispatch` functions accept implementations for further classes of spaces.
_DISPATCHING = (
    "gymnasium.spaces.utils",
    "gymnasium.vector.utils.space_utils",
    "gymnasium.vector.utils.shared_memory",
    "gymnasium.wrappers.utils",
)
_ENTRY_POINTS = ("entry_point", "vector_entry_point")
_OVERRIDING = ".*Overriding environment .* already in registry"


@dataclass
class _Settings:
    """The settings of one process.

    Attributes:
        specs: the registered specs that can be pickled, without their entry points that are objects.
        entry_points: these objects, pickled together, by (id, attribute of the spec).
        missing: {id: reason} of the other ones.
        named: objects of `__main__` that specs name, by their names.
        implementations: (module, function, class of a space, implementation) of the caller's implementations.
        namespace: `gymnasium.envs.registration.current_namespace`.
        min_level: `gymnasium.logger.min_level`.
        keys: those of `entry_points`.
    """

    specs: list[EnvSpec]
    entry_points: bytes
    missing: dict[str, str]
    named: dict[str, Any]
    implementations: list[tuple[str, str, type, Callable[..., Any]]]
    namespace: str | None
    min_level: int
    keys: list[tuple[str, str]]


def pickle_registrations() -> bytes:
    """Pickle Gymnasium's settings in this process; leave out parts that cannot be pickled."""
    specs = list(gymnasium.registry.values())
    named, implementations = named_in_main(specs), _implementations()
    missing: dict[str, str] = {}
    try:
        return _pickle(specs, missing, named, implementations)
    except Exception:  # find out which parts it is
        missing = {spec.id: reason for spec in specs if (reason := _why_not_picklable(spec))}
        specs = [spec for spec in specs if spec.id not in missing]
        named = {name: value for name, value in named.items() if not _why_not_picklable(value)}
        implementations = [item for item in implementations if not _why_not_picklable(item)]
        return _pickle(specs, missing, named, implementations)


def _pickle(specs: list[EnvSpec], missing: dict[str, str], named: dict[str, Any], implementations: list[Any]) -> bytes:
    """Pickle these settings, and the others of this process."""
    sent, entry_points = [], {}
    for spec in specs:
        objects = {name: value for name in _ENTRY_POINTS if callable(value := getattr(spec, name))}
        if objects:
            spec = copy.copy(spec)
            for name, value in objects.items():
                entry_points[spec.id, name] = value
                setattr(spec, name, None)
        sent.append(spec)
    settings = _Settings(
        sent,
        dump_with_main(entry_points),
        missing,
        named,
        implementations,
        registration.current_namespace,
        gymnasium.logger.min_level,
        list(entry_points),
    )
    return dump_with_main(settings)


def registered_specs() -> Mapping[str, EnvSpec]:
    """Return the specs that are registered in this process, by id."""
    return gymnasium.registry


def entry_points_of(env_id: str) -> list[Any]:
    """Return the entry points of an env and its wrappers, 'module:name' or objects; [] for other texts than ids."""
    spec = gymnasium.registry.get(env_id)
    return [] if spec is None else [spec.entry_point, *(one.entry_point for one in spec.additional_wrappers)]


def apply_registrations(pickled: bytes, further: Mapping[str, EnvSpec] | None = None) -> None:
    """Give this process the settings from `pickle_registrations`.

    Later imports do not change the specs of the ids that the registry then has; a call of `gymnasium.register` outside
    an import does.

    Args:
        pickled: the settings.
        further: specs of ids that the settings lack, by id.
    """
    settings: _Settings = load_with_main(pickled)
    add_to_main(settings.named)
    for module, name, space_class, implementation in settings.implementations:
        getattr(sys.modules[module], name).register(space_class, implementation)
    registration.current_namespace = settings.namespace
    gymnasium.logger.min_level = settings.min_level
    specs = {spec.id: spec for spec in settings.specs}
    # They are unpickled at the first use, since that may import large modules.
    entry_points = functools.cache(functools.partial(load_with_main, settings.entry_points))
    for env_id, name in settings.keys:
        setattr(specs[env_id], name, _EntryPoint(entry_points, (env_id, name)))
    for env_id, reason in settings.missing.items():
        own = gymnasium.registry.get(env_id)
        if own is None or not _why_not_picklable(own):  # a forked worker has the caller's own objects
            own = EnvSpec(env_id, functools.partial(_raise_not_sent, env_id, reason))
        specs[env_id] = own
    ignore_overriding()
    _set_registry(_Registry({**(further or {}), **specs}))


def log_level() -> int:
    """Return the level of Gymnasium's logger."""
    return gymnasium.logger.min_level


def set_log_level(level: int) -> None:
    """Set the level of Gymnasium's logger."""
    gymnasium.logger.min_level = level


def ignore_overriding() -> None:
    """Do not warn about ids that are registered again; a package does that which is imported to create an env."""
    warnings.filterwarnings("ignore", _OVERRIDING, UserWarning)


@contextlib.contextmanager
def registered(pickled: bytes) -> Iterator[None]:
    """Use the settings from `pickle_registrations` in this process for a while; see `apply_registrations`.

    At the end the registry has its own specs again, and those that modules registered when they were imported.
    """
    registry = gymnasium.registry
    namespace, min_level = registration.current_namespace, gymnasium.logger.min_level
    apply_registrations(pickled)
    used = gymnasium.registry
    assert isinstance(used, _Registry)
    try:
        yield
    finally:
        _set_registry(registry)
        registry.update(used.imported)
        registration.current_namespace, gymnasium.logger.min_level = namespace, min_level


@contextlib.contextmanager
def ids_kept() -> Iterator[None]:
    """Keep the present specs of all registered ids; later registrations in the context add only new ids."""
    before = dict(gymnasium.registry)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _OVERRIDING, UserWarning)
        yield
    gymnasium.registry.update(before)


@contextlib.contextmanager
def registry_kept() -> Iterator[None]:
    """Put the present registry of Gymnasium back at the end of the context."""
    before = dict(gymnasium.registry)
    try:
        yield
    finally:
        gymnasium.registry.clear()
        gymnasium.registry.update(before)


def named_in_main(specs: Iterable[EnvSpec]) -> dict[str, Any]:
    """Return the objects of `__main__` that these specs name as entry points of envs or wrappers, by their names."""
    main = sys.modules[_MAIN]
    entry_points: list[Any] = []
    for spec in specs:
        entry_points += [spec.entry_point, spec.vector_entry_point]
        entry_points += [wrapper.entry_point for wrapper in spec.additional_wrappers]
    found = {}
    for entry_point in entry_points:
        module, _, name = entry_point.partition(":") if isinstance(entry_point, str) else ("", "", "")
        if module == _MAIN and hasattr(main, name):
            found[name] = getattr(main, name)
    return found


def add_to_main(named: Mapping[str, Any]) -> None:
    """Add objects to `__main__` under names that it does not have."""
    main = sys.modules[_MAIN]
    for name, value in named.items():
        if not hasattr(main, name):
            setattr(main, name, value)


def running_modules(until: CodeType | None = None) -> frozenset[str]:
    """Return the modules whose top-level code the calling thread is running, except `__main__`.

    With `until` only the callers below a call of this function count.
    """
    found = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not until:
        if frame.f_code.co_name == "<module>":
            spec = frame.f_globals.get("__spec__")  # it has the name of a main module too, if that can be imported
            found.add(getattr(spec, "name", "") or frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    return frozenset(found - {"", _MAIN})


class _Registry(dict[str, EnvSpec]):
    """A registry whose first specs are not changed by imports that begin later.

    Args:
        specs: the first specs, by their ids.

    Attributes:
        imported: the specs that were registered during imports, by their ids.
    """

    def __init__(self, specs: Mapping[str, EnvSpec]) -> None:
        super().__init__(specs)
        self._kept = dict(specs)
        self._outer_imports = running_modules()
        self.imported: dict[str, EnvSpec] = {}

    def __setitem__(self, env_id: str, spec: EnvSpec) -> None:
        if running_modules() - self._outer_imports:
            self.imported[env_id] = spec
            spec = self._kept.get(env_id, spec)
        elif env_id in self._kept:
            self._kept[env_id] = spec
        super().__setitem__(env_id, spec)


class _EntryPoint:
    """Stands for an entry point of the caller until that is used. A pickle or a deep copy is the entry point itself."""

    def __init__(self, load: Callable[[], dict[tuple[str, str], Any]], key: tuple[str, str]) -> None:
        self._load, self._key = load, key

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._load()[self._key](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # also while it is copied, when it has no fields yet
            raise AttributeError(name)
        return getattr(self._load()[self._key], name)

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        return _itself, (self._load()[self._key],)


def _itself(value: Any) -> Any:
    return value


def _raise_not_sent(env_id: str, reason: str, /, **kwargs: Any) -> Any:
    """Raise ConfigError instead of calling the entry point of a spec that could not be sent to this process."""
    raise ConfigError(
        f"the registered spec of {env_id!r} cannot be sent to a worker: {reason}. Register it with an entry point and "
        "kwargs that pickle, or register it inside env_fn",
        key="env_fns",
    )


def has_own_batches(space: gymnasium.Space[Any]) -> bool:
    """Return whether a function of the caller batches the values of a space, or of a part of it.

    The functions are those that `gymnasium.vector.utils` dispatches: `iterate` by the class of the batched space, the
    others by that of the space. An `iterate` for the class of single values is never called; SuperSuit has one for
    Discrete.
    """
    functions = (batch_space, concatenate, create_empty_array)
    if any(_is_own(function, space) for function in functions):
        return True
    # A batch of these has their own class; to build one takes long where bounds are large.
    if _is_own(iterate, space if type(space) in (Box, Dict, Tuple) else batch_space(space, 1)):
        return True
    parts = getattr(space, "spaces", ())
    return any(map(has_own_batches, parts.values() if isinstance(parts, Mapping) else parts))


def _is_own(function: Any, space: gymnasium.Space[Any]) -> bool:
    """Return whether a dispatching function of Gymnasium calls one of the caller for a space."""
    return bool(function.dispatch(type(space)).__module__ != function.__module__)


def _set_registry(registry: dict[str, EnvSpec]) -> None:
    for module in (registration, gymnasium.envs, gymnasium):
        module.registry = registry  # type: ignore[attr-defined]


def _implementations() -> list[tuple[str, str, type, Callable[..., Any]]]:
    """Return the implementations of Gymnasium's dispatching functions that are not its own; see `_Settings`."""
    found = []
    for module in _DISPATCHING:
        for name, function in vars(sys.modules[module]).items():
            if getattr(function, "__module__", None) != module or not hasattr(function, "dispatch"):
                continue
            for space_class, implementation in function.registry.items():
                if getattr(implementation, "__module__", None) != module:
                    found.append((module, name, space_class, implementation))
    return found


def _why_not_picklable(value: Any) -> str:
    """Return the error of pickling a value; '' if it can be pickled."""
    try:
        dump_by_value(value)
    except Exception as error:  # it refers to an open file or a lock, for example
        return f"{type(error).__name__}: {error}"
    return ""
