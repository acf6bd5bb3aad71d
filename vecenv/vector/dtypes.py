"""Common dtypes: a dtype that holds the values of several arrays without a change.

NumPy's promotion looks at dtypes only. From int64 and uint64, or int64 and float64, it makes float64, which cannot
hold every whole number beyond 2**53. Used by `infos` and `batched_data` where they join values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.layout.spec import Array

__all__ = ["common_dtype", "is_lossless_cast"]

_NUMBERS = "biufc"


def common_dtype(*arrays: Array) -> np.dtype[Any] | None:
    """Return a dtype that holds all values of these arrays unchanged, or None if only `object` does.

    NumPy's promoted dtype is preferred, then the arrays' own dtypes. If all arrays are whole numbers or bool and NumPy
    promotes them to a float, their own dtypes are tried first.
    """
    if any(array.dtype.kind not in _NUMBERS for array in arrays):
        return None
    own = [array.dtype for array in arrays]
    promoted = np.result_type(*own)
    are_whole = all(dtype.kind in "iub" for dtype in own)
    candidates = [*own, promoted] if are_whole and promoted.kind == "f" else [promoted, *own]
    return next((dtype for dtype in candidates if all(is_lossless_cast(array, dtype) for array in arrays)), None)


def is_lossless_cast(values: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether a cast of these values to `dtype` keeps every value."""
    if values.dtype == dtype:
        return True
    if values.dtype.kind not in _NUMBERS or dtype.kind not in _NUMBERS:
        if values.dtype.kind != dtype.kind or values.dtype.itemsize > dtype.itemsize:
            return False
        return dtype.kind in "SU" or _round_trips(values, dtype)
    if values.dtype.kind == "c" and dtype.kind != "c":
        return False
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        back = (cast if values.dtype.kind == "c" else cast.real).astype(values.dtype)
        is_equal = np.array_equal(back, values, equal_nan=values.dtype.kind in "fc")
    # A cast that wraps around, or saturates at the end of the range, can still round-trip: check these cases.
    return bool(
        is_equal and _keeps_signs(cast, values) and _is_in_range(values, dtype) and _is_in_range(cast, values.dtype)
    )


def _round_trips(values: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether a cast and its inverse keep the values: times in other units, records with other field types."""
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        return False
    return bool(np.array_equal(values.astype(dtype).astype(values.dtype), values, equal_nan=dtype.kind in "mM"))


def _keeps_signs(cast: Array, values: Array) -> bool:
    if cast.dtype.kind not in "iu" or values.dtype.kind not in "iu":
        return True
    return bool(np.array_equal(cast < 0, values < 0))


def _is_in_range(values: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether floats are below the upper limit of an integer dtype; True for all other pairs of dtypes."""
    if values.dtype.kind not in "fc" or dtype.kind not in "iu":
        return True
    limit = 2.0 ** np.iinfo(dtype).bits if dtype.kind == "u" else 2.0 ** (np.iinfo(dtype).bits - 1)
    return bool((values.real < limit).all())
