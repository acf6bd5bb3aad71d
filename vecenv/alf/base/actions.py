"""Actions from the caller, checked and converted by their specs before any env is stepped."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv.alf.base import tensors
from vecenv.alf.base.spec import TensorSpec
from vecenv.core.layout.spec import Array, can_convert
from vecenv.errors import SpaceError
from vecenv.values.nested import map_structure


def fit_actions(specs: Any, action: Any, outer: tuple[int, ...] = ()) -> Any:
    """Return a nest of actions as new arrays (*outer, *S) in the dtypes of their specs.

    Args:
        specs: nest of specs.
        action: nest of the same structure: arrays, numbers or lists.
        outer: axes in front of each spec's shape S, such as (B,).

    Raises:
        SpaceError: the structure or a shape differs, or a cast would change the kind of number.
    """
    return map_structure(lambda spec, leaf: fit_action(spec, leaf, spec.dtype, outer).copy(), specs, action)


def fit_action(spec: TensorSpec, leaf: Any, dtype: np.dtype[Any], outer: tuple[int, ...] = ()) -> Array:
    """Return one leaf of an action for `fit_actions`, in another dtype than the spec's; not copied if it fits."""
    array = np.asarray(leaf)
    shape = (*outer, *spec.shape)
    if array.shape != shape or not can_convert(array, dtype):
        expected, got = f"{dtype} {shape}", f"{array.dtype} {array.shape}"
        if array.shape[: len(outer)] != outer:
            expected, got = f"{outer[0]} rows", f"shape {array.shape}"
        raise SpaceError(f"action: expected {expected}, got {got}", path="action", expected=expected, got=got)
    return array if array.dtype == dtype else array.astype(dtype)


def rows_of(specs: Any, action: Any, count: int) -> list[Any]:
    """Return a batch of `count` actions, arrays or tensors, as a list of single actions that `fit_actions` returns."""
    batch = fit_actions(specs, tensors.to_arrays(action), (count,))
    return [map_structure(lambda leaf, row=row: leaf[row], batch) for row in range(count)]
