"""Checks of arguments that several parts of the package have, with one error text for each kind."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from vecenv.errors import ConfigError

__all__ = [
    "check_callable",
    "check_callables",
    "check_choice",
    "check_flag",
    "check_seconds",
    "check_whole",
    "describe_wrong_env_fn",
    "is_pettingzoo_env",
    "is_positive",
    "nearest",
]


#: The beginning of a constructor that makes an env by its id.
MAKE = "lambda: gymnasium.make"


def check_whole(name: str, value: Any, low: int) -> int:
    """Return a whole number of any type, NumPy's included, as an int; ConfigError for others and those below `low`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < low:
        raise ConfigError(f"{name}: expected a whole number of at least {low}, got {value!r}", key=name)
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    """Return a bool, NumPy's included, as Python's; ConfigError for all else, such as 'no', which is true to Python."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{name}: expected True or False, got {value!r}", key=name)
    return bool(value)


def is_positive(value: Any) -> bool:
    """Return whether a value is a real number above 0. NaN is not."""
    is_number = isinstance(value, numbers.Real)
    return is_number and bool(value > 0)


def check_seconds(name: str, value: Any) -> float:
    """Return a time in seconds, NumPy's numbers included, as an int or a float; ConfigError if it is not above 0."""
    if not is_positive(value):
        raise ConfigError(f"{name}: expected seconds above 0, got {value!r}", key=name)
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise ConfigError if a value, hashable or not, is not one of these."""
    if value not in choices:
        raise ConfigError(f"{name}: expected one of {tuple(choices)}, got {value!r}", key=name)


def check_callable(name: str, value: Any) -> None:
    """Raise ConfigError if a value is not callable."""
    if not callable(value):
        raise ConfigError(f"{name}: expected a callable, got {value!r}", key=name)


def check_callables(name: str, values: Any) -> tuple[Callable[..., Any], ...]:
    """Return a list of callables, which may be empty, as a tuple; ConfigError for others."""
    found = tuple(values) if isinstance(values, Iterable) else (None,)
    if not all(map(callable, found)):
        raise ConfigError(f"{name}: expected a list of callables, got {values!r}", key=name)
    return found


def describe_wrong_env_fn(value: Any, make: str = MAKE, *, is_one: bool = False) -> str:
    """Describe an object that was given instead of a constructor of an env, and name the code to write instead.

    Args:
        value: the object.
        make: the beginning of a constructor that makes an env by its id.
        is_one: whether a single constructor is expected, and not a list.

    >>> describe_wrong_env_fn("CartPole-v1")
    "got the string 'CartPole-v1'; write lambda: gymnasium.make('CartPole-v1')"
    """
    kind = type(value).__name__
    if isinstance(value, str):
        return f"got the string {value!r}; write {make}({value!r})"
    if kind == "EnvSpec" and hasattr(value, "entry_point"):
        method = "its method make" if is_one else "its method make, as in [spec.make] * num_envs"
        build = method if make == MAKE else f"{make}({value.id!r})"
        return f"got the EnvSpec of {value.id!r}; write {build}"
    if is_pettingzoo_env(value):
        return (
            f"got {kind}, a PettingZoo env of several agents; use PettingZooVectorEnv of vecenv.integrations.pettingzoo"
            ", or wrap the env in its JointEnv or TurnEnv"
        )
    if callable(getattr(value, "reset", None)) and callable(getattr(value, "step", None)):
        env_name = getattr(getattr(value, "spec", None), "id", None)
        build = f"lambda: {kind}(...)" if env_name is None else f"{make}({env_name!r})"
        return f"got an env that is built already, {kind}; write a function that builds a new one: {build}"
    return f"got {value!r}"


def nearest(name: Any, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that a name begins, or that is most similar to it, for errors.

    None is returned if the names are less similar than `cutoff`, from 0 to 1.
    """
    names = sorted(known)
    longer = [one for one in names if one.startswith(f"{name}_")]
    if len(longer) == 1:
        return longer[0]
    found = difflib.get_close_matches(str(name), names, 1, cutoff)
    return found[0] if found else None


def is_pettingzoo_env(value: Any) -> bool:
    """Return whether an object is an env of PettingZoo: its spaces are methods that take an agent."""
    return all(callable(getattr(value, name, None)) for name in ("observation_space", "action_space"))
