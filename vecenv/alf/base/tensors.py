"""Tensors at the edge: arrays become torch tensors on the way out and actions arrays on the way in.

Nothing else in `vecenv.alf` knows torch, which is imported at the first conversion.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from vecenv.checks import check_flag
from vecenv.errors import require
from vecenv.nested import map_structure

__all__ = ["has_torch", "is_tensor", "to_arrays", "to_tensors", "torch", "wants_tensors"]


def torch() -> Any:
    """Return the torch module.

    Raises:
        DependencyError: it is not installed.
    """
    return require("torch", "torch")


def has_torch() -> bool:
    """Tell whether torch is installed; does not import it."""
    return importlib.util.find_spec("torch") is not None


def wants_tensors(wanted: bool | None) -> bool:
    """Return what an environment's `tensors` argument means: None is whether torch is installed.

    Raises:
        ConfigError: it is no bool.
        DependencyError: tensors are wanted and torch is not installed.
    """
    if wanted is None:
        return has_torch()
    is_wanted = check_flag("tensors", wanted)
    if is_wanted:
        torch()
    return is_wanted


def is_tensor(value: Any) -> bool:
    """Tell whether a leaf is a torch tensor; does not import torch."""
    return hasattr(value, "detach") and hasattr(value, "cpu")


def to_tensors(nest: Any) -> Any:
    """Return a nest with arrays and numbers as tensors, which share the arrays' memory; other leaves stay."""
    module = torch()
    return map_structure(lambda leaf: _to_tensor(module, leaf), nest)


def _to_tensor(module: Any, leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        # object arrays (strings, None) have no tensor
        return leaf if leaf.dtype.kind not in "biufc" else module.from_numpy(leaf)
    if isinstance(leaf, (bool, int, float, np.generic)):
        return module.as_tensor(leaf)
    return leaf


def to_arrays(nest: Any) -> Any:
    """Return a nest with tensors as arrays, which share their memory where that is the CPU's; other leaves stay."""
    if isinstance(nest, np.ndarray):  # what collectors send, without a walk
        return nest
    return map_structure(lambda leaf: leaf.detach().cpu().numpy() if is_tensor(leaf) else leaf, nest)
