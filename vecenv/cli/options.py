"""Types of arguments, which read a value or name the expected form, and checks of arguments."""

from __future__ import annotations

import argparse
import ast
import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vecenv.errors import ConfigError

__all__ = [
    "check_file",
    "check_workers",
    "count",
    "integer",
    "key_value",
    "milliseconds",
    "natural",
    "seconds",
    "seed_list",
]

#: Most seeds of one option.
_MOST_SEEDS = 1_000_000


def integer(text: str, low: int, high: int | None = None) -> int:
    """Read an integer from `low` to `high`, which None leaves out."""
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low or (high is not None and value > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise argparse.ArgumentTypeError(f"expected an integer {bounds}, got {text!r}")
    return value


count, natural = functools.partial(integer, low=1), functools.partial(integer, low=0)


def _number(text: str, expected: str, is_right: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and is_right(value)):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value


def seconds(text: str) -> float:
    """Read a positive, finite number."""
    return _number(text, "a positive number of seconds", lambda value: value > 0)


def milliseconds(text: str) -> float:
    """Read a finite number of at least 0."""
    return _number(text, "milliseconds of at least 0", lambda value: value >= 0)


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
