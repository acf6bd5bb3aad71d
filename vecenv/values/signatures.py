"""Parameters of functions, some of which have no signature that Python can read."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

__all__ = ["parameters_of"]


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a function by name; None if its signature cannot be read, as of some C functions."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
