"""The argument ENV of commands: a registered id, or `module:factory` for an env of the user."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium

from vecenv.envs.factory import EnvFactory
from vecenv.errors import ConfigError
from vecenv.measurement.target import foreign_errors, registered_env
from vecenv.values.checks import nearest
from vecenv.values.signatures import parameters_of

__all__ = ["did_you_mean", "find_env_fn", "import_module"]


def find_env_fn(
    name: str,
    kwargs: Mapping[str, Any],
    optional: Mapping[str, Any] | None = None,
    *,
    checks_results: bool = False,
    atari: bool = False,
) -> Callable[[], Any]:
    """Return a constructor for the env called `name`; it is not called.

    Args:
        name: an id of Gymnasium's registry, `module:id` for one that importing the module registers, or
            `module:factory`, where factory is a function, a class or a dotted path to one. Modules are looked
            for in the working directory too.
        kwargs: for the constructor.
        optional: further arguments, for registered envs and for a factory that has parameters of these names; those in
            `kwargs` win.
        checks_results: keep the wrapper with which `gymnasium.make` checks the first results of a registered env.
        atari: as for `registered_env`; only for registered envs.

    Raises:
        ConfigError: the module cannot be imported, or has no such name; or `atari` for a factory.
    """
    module_name, colon, path = name.partition(":")
    for_registered = {**(optional or {}), **kwargs}
    if not checks_results:
        for_registered.setdefault("disable_env_checker", True)
    if not colon:
        if name not in gymnasium.registry and Path(f"{name}.py").is_file():
            raise ConfigError(f"{name!r}: expected the env of this module, too, such as {name}:make")
        return registered_env(name, for_registered, atari=atari)
    found: Any = import_module(name, module_name)
    for part in path.split("."):
        found = getattr(found, part, None)
    if callable(found):
        if atari:
            raise ConfigError(f"{name!r}: --atari needs the id of a registered env, such as ALE/Pong-v5")
        # A constructor that wants a config (BaseEnv's) gets the arguments as one dict.
        if _wants_config(found):
            return EnvFactory(found, (dict(kwargs),))
        taken = {key: value for key, value in (optional or {}).items() if key in (parameters_of(found) or ())}
        return EnvFactory(found, kwargs={**taken, **kwargs})
    if path in gymnasium.registry:
        return registered_env(name, for_registered, atari=atari)
    raise ConfigError(f"{name!r}: module {module_name!r} has no function or class {path!r}, and registers no such id")


def import_module(name: str, module_name: str) -> Any:
    """Import a module of the user, which may be in the working directory; else raise ConfigError with `name`."""
    with contextlib.suppress(FileNotFoundError):  # the working directory was removed
        if os.getcwd() not in sys.path:  # the console script's path begins with its own directory
            sys.path.insert(0, os.getcwd())
    failure = f"{name!r}: cannot import {module_name!r}"
    try:
        with foreign_errors(failure, ImportError):
            return importlib.import_module(module_name)
    except ImportError as error:
        is_unknown = isinstance(error, ModuleNotFoundError) and error.name == module_name
        files = (path.stem for path in Path().glob("*.py"))
        raise ConfigError(f"{failure}: {error}{did_you_mean(module_name, files) if is_unknown else ''}") from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: a guess, or '' if no known name is similar."""
    guess = nearest(name, known)
    return "" if guess is None else f"; did you mean {guess}?"


def _wants_config(function: Any) -> bool:
    parameters = list((parameters_of(function) or {}).values())
    if not parameters or parameters[0].kind not in (parameters[0].POSITIONAL_ONLY, parameters[0].POSITIONAL_OR_KEYWORD):
        return False
    first = parameters[0]
    return first.name in ("cfg", "config") or first.default is first.empty
