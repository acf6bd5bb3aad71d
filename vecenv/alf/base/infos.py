"""Infos of a batch in ALF's form: one array (B, ...) per key, without masks, floats as float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv.alf.base.known_infos import TIME_LIMIT_KEY
from vecenv.core.layout.info_cells import is_mask
from vecenv.core.layout.spec import Array
from vecenv.vector.infos import join_rows


def to_alf_infos(gathered: dict[str, Any], rows_per_env: int | None) -> dict[str, Any]:
    """Convert Gymnasium's batched infos to ALF's form: without masks, float64 as float32.

    Args:
        gathered: arrays (N, ...) with masks, as `vector.infos` returns them.
        rows_per_env: k if each env is itself a batch of k rows, else None. Arrays (N, k, ...) then become
            (N * k, ...), and a value for a whole batch, such as `recovered`, is repeated for each of its rows.
    """
    result: dict[str, Any] = {}
    for key, value in gathered.items():
        if is_mask(key, gathered) or key == TIME_LIMIT_KEY:
            continue
        if isinstance(value, dict):
            result[key] = to_alf_infos(value, rows_per_env)
            continue
        mask = gathered.get(f"_{key}")
        if value.dtype == object:
            value = _as_bools(value, mask)
        if rows_per_env is not None:
            value = _end_to_end(value, rows_per_env, mask)
        result[key] = value.astype(np.float32) if value.dtype == np.float64 else value
    return result


def _as_bools(value: Array, mask: Array | None) -> Array:
    """Return an array of objects as bool (N,) if all its values are bools; rows without a value become False.

    Gymnasium makes arrays of objects from NumPy's bools, which are the results of comparisons. Python's bools, from
    other envs, may be among them.
    """
    present = value if mask is None else value[mask]
    is_bool = value.ndim == 1 and len(present) > 0 and all(isinstance(part, (bool, np.bool_)) for part in present)
    return value.astype(np.bool_) if is_bool else value  # None becomes False


def _end_to_end(value: Array, size: int, mask: Array | None) -> Array:
    if value.ndim > 1:
        if value.dtype == object and mask is not None and not mask.all():
            value = value.copy()
            value[~mask] = None  # Gymnasium has zeros here; None is used as for 1-D arrays of objects
        return value.reshape(len(value) * size, *value.shape[2:]) if value.shape[1] == size else value
    if value.dtype != object:
        return np.repeat(value, size)
    rows = np.full(len(value) * size, None, object)
    for i, part in enumerate(value):
        is_of_rows = isinstance(part, np.ndarray) and part.shape[:1] == (size,)
        for j in range(size):
            rows[i * size + j] = part[j] if is_of_rows else part
    return rows


def stack_infos(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the infos of B envs as one dict of arrays (B, ...). If an env lacks a key, its row is zero or None.

    Values that do not fit in one array, such as arrays of different shapes, become an array of objects.
    """
    return to_alf_infos(join_rows([info or {} for info in infos]), None)  # envs without infos return ()
