"""Actions that come in: checked against their specs before anything is stepped."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv.alf.base import tensors
from vecenv.alf.base.spec import TensorSpec
from vecenv.core.layout.spec import Array, can_convert
from vecenv.errors import SpaceError
from vecenv.nested import map_structure

__all__ = ["fit_action", "fit_actions", "rows_of"]


def fit_actions(specs: Any, action: Any, outer: tuple[int, ...] = ()) -> Any:
    """Return a nest of action values as arrays (*outer, *S) of their specs' dtypes, memory of their own.

    Raises:
        SpaceError: another structure or shape, or a cast that would change the kind of number.
    """
    return map_structure(lambda spec, leaf: fit_action(spec, leaf, spec.dtype, outer).copy(), specs, action)


def fit_action(spec: TensorSpec, leaf: Any, dtype: np.dtype[Any], outer: tuple[int, ...] = ()) -> Array:
    """Return one leaf as an array (*outer, *S) of this dtype: itself, if it is that.

    Raises:
        SpaceError: as `fit_actions`.
    """
    array = np.asarray(leaf)
    shape = (*outer, *spec.shape)
    if array.shape != shape or not can_convert(array, dtype):
        expected, got = f"{dtype} {shape}", f"{array.dtype} {array.shape}"
        if array.shape[: len(outer)] != outer:
            expected, got = f"{outer[0]} rows", f"shape {array.shape}"
        raise SpaceError(f"action: expected {expected}, got {got}", path="action", expected=expected, got=got)
    return array if array.dtype == dtype else array.astype(dtype)


def rows_of(specs: Any, action: Any, count: int) -> list[Any]:
    """Return a batch of `count` actions, arrays or tensors, one by one.

    Raises:
        SpaceError: as `fit_actions`.
    """
    batch = fit_actions(specs, tensors.to_arrays(action), (count,))
    return [map_structure(lambda leaf, row=row: leaf[row], batch) for row in range(count)]
