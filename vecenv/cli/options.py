"""Types of option values that several commands share: each turns text into a value or says what it expected."""

from __future__ import annotations

import argparse
import ast
import math
from typing import Any

__all__ = ["count", "key_value", "natural", "seconds"]


def count(text: str) -> int:
    """Read an integer of at least 1."""
    return _integer(text, 1)


def natural(text: str) -> int:
    """Read an integer of at least 0."""
    return _integer(text, 0)


def _integer(text: str, low: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low:
        raise argparse.ArgumentTypeError(f"expected an integer of at least {low}, got {text!r}")
    return value


def seconds(text: str) -> float:
    """Read a positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text!r}")
    return value


def key_value(text: str) -> tuple[str, Any]:
    """Read KEY=VALUE, the value as a Python literal or else as text."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value
