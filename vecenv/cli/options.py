"""Arguments of commands: those that several share, and types, which read a value or name the expected form."""

from __future__ import annotations

import argparse
import ast
import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from vecenv.errors import ConfigError

__all__ = [
    "AddArgument",
    "add_shared",
    "bounded",
    "check_file",
    "check_workers",
    "count",
    "key_value",
    "milliseconds",
    "natural",
    "seconds",
    "seed_list",
]

#: `ArgumentParser.add_argument`.
AddArgument: TypeAlias = Callable[..., argparse.Action]
#: Most seeds of one option.
_MOST_SEEDS = 1_000_000
_MAX_ENVS, _MAX_WORKERS = 65_535, 1024  # of a pool


def add_shared(add: AddArgument, *names: str, **changes: Any) -> None:
    """Add arguments of `_SHARED` by their names, with these changes."""
    for name in names:
        add(name, **{**_SHARED[name], **changes})


def count(text: str) -> int:
    """Read an integer of at least 1."""
    return _integer(text, 1)


def natural(text: str) -> int:
    """Read an integer of at least 0."""
    return _integer(text, 0)


def bounded(low: int, high: int) -> Callable[[str], int]:
    """Return a type of option that reads an integer from `low` to `high`."""

    return functools.partial(_integer, low=low, high=high)


def _integer(text: str, low: int, high: int | None = None) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low or (high is not None and value > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise argparse.ArgumentTypeError(f"expected an integer {bounds}, got {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def seconds(text: str) -> float:
    """Read a positive, finite number."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text!r}")
    return value


def milliseconds(text: str) -> float:
    """Read a finite number of at least 0."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected milliseconds of at least 0, got {text!r}")
    return value


def seed_list(text: str) -> list[int]:
    """Read seeds: numbers and ranges `A:B`, which contain A to B - 1, separated by commas.

    >>> seed_list("7,100:103")
    [7, 100, 101, 102]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, colon, end = part.partition(":")
        try:
            start = int(first) if first or not colon else 0
            stop = int(end) if colon else start + 1
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected seeds such as 0:100 or 3,5,8, got {text!r}") from None
        if start >= stop:
            raise argparse.ArgumentTypeError(f"{part} contains no seed; A:B contains A to B - 1")
        if len(seeds) + stop - start > _MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"expected at most {_MOST_SEEDS:,} seeds, got {text!r}")
        seeds.extend(range(start, stop))
    return seeds


def key_value(text: str) -> tuple[str, Any]:
    """Read KEY=VALUE, the value as a Python literal or else as text."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


_SHARED: dict[str, dict[str, Any]] = {
    "env": dict(metavar="ENV", help="registered id, or module:factory (a function or class that builds the env)"),
    "--envs": dict(type=bounded(1, _MAX_ENVS), default=64, metavar="N", help="number of envs (default: %(default)s)"),
    "--workers": dict(
        type=bounded(1, _MAX_WORKERS), metavar="W", help="worker processes (default: one per usable core)"
    ),
    "--policy-ms": dict(
        type=milliseconds,
        default=0.0,
        metavar="X",
        help="milliseconds in which one thread computes the actions of all envs (default: %(default)s)",
    ),
    "--env-kwarg": dict(type=key_value, action="append", default=[], metavar="KEY=VALUE", help="repeatable"),
    "--json": dict(
        metavar="FILE", help="write every number; - is standard output, and the table goes to standard error"
    ),
    "--overwrite": dict(action="store_true", help="replace the file of --json if it exists"),
    "--max-steps": dict(type=count, metavar="N", help="cut episodes after N steps (default: no limit)"),
}


def check_workers(options: argparse.Namespace) -> None:
    """Raise ConfigError if there are more workers than envs."""
    if options.workers and options.workers > options.envs:
        raise ConfigError(f"--workers {options.workers} is more than --envs {options.envs}")


def check_file(flag: str, path: Path) -> None:
    """Raise ConfigError before the work if a file could not be written after it."""
    if path.is_dir():
        raise ConfigError(f"{flag} {path}: is a directory, expected a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: directory {str(path.parent)!r} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{flag} {path}: not writable")
