"""Conversion at the border of the ALF front end: time steps become torch tensors, and actions become arrays.

Only this module of `vecenv.alf` imports torch, at the first conversion.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from vecenv.errors import require
from vecenv.values.checks import check_flag
from vecenv.values.nested import map_structure


def torch() -> Any:
    """Import torch and return the module; raise DependencyError if it is not installed."""
    return require("torch", "torch")


def wants_tensors(wanted: bool | None) -> bool:
    """Return an environment's argument `tensors` as a bool; None becomes True if torch is installed.

    Raises:
        ConfigError: the argument is neither a bool nor None.
        DependencyError: the argument is True and torch is not installed.
    """
    if wanted is None:
        return importlib.util.find_spec("torch") is not None
    is_wanted = check_flag("tensors", wanted)
    if is_wanted:
        torch()
    return is_wanted


def is_tensor(value: Any) -> bool:
    """Return whether a leaf is a torch tensor; does not import torch."""
    return hasattr(value, "detach") and hasattr(value, "cpu")


def to_tensors(nest: Any) -> Any:
    """Convert arrays and numbers in a nest to tensors, which share the arrays' memory; other leaves stay."""
    module = torch()
    return map_structure(lambda leaf: _to_tensor(module, leaf), nest)


def _to_tensor(module: Any, leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        # arrays of objects or strings cannot become tensors
        return leaf if leaf.dtype.kind not in "biufc" else module.from_numpy(leaf)
    if isinstance(leaf, (bool, int, float, np.generic)):
        return module.as_tensor(leaf)
    return leaf


def to_arrays(nest: Any) -> Any:
    """Convert tensors in a nest to arrays, which share the memory of CPU tensors; other leaves stay."""
    if isinstance(nest, np.ndarray):  # the usual case
        return nest
    return map_structure(lambda leaf: leaf.detach().cpu().numpy() if is_tensor(leaf) else leaf, nest)
