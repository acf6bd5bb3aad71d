"""Options of `VectorEnv` and `BatchedVectorEnv`: how they become options of a pool, and keywords that have moved.

MOVED                step_timeout -> the field `step` of `timeouts`; the old keywords work for one release
move_options         {"step_timeout": 10.0} -> {"timeouts": {"step": 10.0}}, with a DeprecationWarning
read_pool_options    timeouts, failures, checks and engine -> options of a pool
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core.options import RECOVERING, Limits, resolve
from ..errors import WrongTypeError, warn_caller
from ..options import EngineOptions, Timeouts, check_once, given_fields, read_engine, read_failures, read_timeouts
from ..ray_options import RayOptions, read_backend
from ..values.checks import check_choice, check_flag, nearest

__all__ = ["MOVED", "find_names", "move_options", "read_pool_options", "suggest"]

#: Keyword that has moved -> the argument that contains it now, and its name there.
MOVED = {
    **{f"{field.name}_timeout": ("timeouts", field.name) for field in dataclasses.fields(Timeouts)},
    "on_failure": ("failures", "on_failure"),
    "strict": ("checks", "strict"),
    "debug": ("checks", "debug"),
    **{field.name: ("engine", field.name) for field in dataclasses.fields(EngineOptions)},
    "ray": ("backend", "ray"),
}
#: Option of another library -> the option of vecenv for the same.
_OTHER_NAMES = {"n_envs": "num_envs", "start_method": "context", "num_threads": "num_workers", "wait_num": "batch_size"}
#: Argument that is no option where it is given -> the code to write instead.
_NO_OPTIONS = {"num_envs": "write [env_fn] * num_envs", "seed": "write reset(seed=...)"}
#: Least similarity of two names that mean the same, such as `seed` and `seeds`.
_SAME = 0.85
#: Value of `checks` -> the options of a pool that it switches on.
_CHECKS: dict[str | None, dict[str, bool]] = {
    None: {},
    "strict": {"strict": True},
    "debug": {"debug": True},
    "all": {"strict": True, "debug": True},
}


def _read_checks(checks: Any) -> dict[str, bool]:
    check_choice("checks", checks, tuple(_CHECKS))
    return _CHECKS[checks]


#: Argument -> function that returns its fields that are given, by name.
_READERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "timeouts": lambda value: given_fields(read_timeouts(value)),
    "failures": lambda value: given_fields(read_failures(value)),
    "checks": _read_checks,
    "engine": lambda value: given_fields(read_engine(value)),
}


def find_names(vector_env_class: type) -> frozenset[str]:
    """Return the names of the options of a class, and of those that have moved."""
    return (frozenset(inspect.signature(vector_env_class).parameters) | MOVED.keys()) - {"env_fns", "moved"}


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error for an unknown option: the known one that was meant probably, as it is written now."""
    known = frozenset(known)
    name = _OTHER_NAMES.get(name, name)
    if name in _NO_OPTIONS and nearest(name, known, _SAME) is None:
        return f"; {_NO_OPTIONS[name]}"
    near = nearest(name, known)
    return "" if near is None else f"; did you mean {_write(near) if near in MOVED else repr(near)}?"


def _write(name: str, value: Any = ...) -> str:
    """Return how to write a keyword that has moved, `...` standing for its value where none is given."""
    argument, key = MOVED[name]
    if argument == "backend":
        return "backend=vecenv.RayOptions(...)"
    if argument == "checks":
        return f"checks={key!r}" if value else "checks=None"
    shown = "..." if value is ... else "math.inf" if value == math.inf else repr(value)
    return f"{argument}={shown if argument == 'failures' else f'{{{key!r}: {shown}}}'}"


def move_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a vector env with those that have moved under their new names, and warn of each.

    Raises:
        ConfigError: a value is wrong, or an option is given twice.
    """
    result = {name: value for name, value in options.items() if name not in MOVED}
    for name in [name for name in options if name in MOVED]:
        (argument, key), value = MOVED[name], options[name]
        if argument == "timeouts" and value is None:
            value = math.inf
        text = f"{name}= has moved: write {_write(name, value)}. The old keyword works until the next release"
        warn_caller(text, DeprecationWarning)
        if argument == "backend":
            backend = result.get(argument, "process")
            check_once(name, value, argument, backend if isinstance(backend, RayOptions) else None, backend)
            result[argument] = read_backend(backend, value)
            continue
        found = _READERS[argument](result.get(argument))
        check_once(name, value, argument, found.get(key), result.get(argument))
        if argument == "checks":
            given = {**found, **({key: True} if check_flag(name, value) else {})}
            result[argument] = next(names for names, flags in _CHECKS.items() if flags == given)
        else:
            result[argument] = {**found, key: value}
    return result


def read_pool_options(vector_env_class: type, moved: Mapping[str, Any], **arguments: Any) -> tuple[Any, dict[str, Any]]:
    """Return the backend, and the fields of `PoolOptions` that these arguments decide.

    Args:
        vector_env_class: the class that takes them.
        moved: its other keywords.
        arguments: `backend`, `timeouts`, `failures`, `checks` and `engine`.

    Raises:
        ConfigError: a value is wrong, or an option is given twice.
        WrongTypeError: a keyword is unknown.
    """
    for name in moved.keys() - MOVED.keys():
        hint = suggest(name, find_names(vector_env_class))
        raise WrongTypeError(f"{vector_env_class.__name__}: there is no option {name!r}{hint}", key=name)
    current = move_options({**arguments, **moved})
    flags = _read_checks(current["checks"])
    return current["backend"], {
        **flags,
        "ignores_extra_keys": "strict" not in flags,
        "limits": resolve(read_timeouts(current["timeouts"]), Limits()),
        "failures": resolve(read_failures(current["failures"]), RECOVERING),
        **given_fields(read_engine(current["engine"])),
    }
