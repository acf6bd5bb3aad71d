"""Infos of a batch as ALF has them: one array (B, ...) per key, without masks, floats as float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenv.alf.base.known_infos import TIME_LIMIT_KEY
from vecenv.core.layout.info_cells import is_mask
from vecenv.core.layout.spec import Array
from vecenv.vector.infos import join_rows

__all__ = ["to_alf_infos", "stack_infos"]


def to_alf_infos(gathered: dict[str, Any], rows_per_env: int | None) -> dict[str, Any]:
    """Return Gymnasium's batched infos as ALF has them: without masks, floats as float32.

    Args:
        gathered: arrays (N, ...) with their masks, as of `vector.infos`.
        rows_per_env: k where each env is itself a batch and arrays are (N, k, ...), else None. They become
            (N * k, ...), and what stands for a whole batch, such as `recovered`, is there for each of its rows.
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
    """Return objects that are all bools, where there are any, as an array of bools, False where an env lacks the key.

    Gymnasium has objects for NumPy's bools, which is what comparisons give and what `env_info` of one env holds; among
    them may be Python's own, of another env or branch.
    """
    present = value if mask is None else value[mask]
    is_bool = value.ndim == 1 and len(present) > 0 and all(isinstance(part, (bool, np.bool_)) for part in present)
    return value.astype(np.bool_) if is_bool else value  # None becomes False


def _end_to_end(value: Array, size: int, mask: Array | None) -> Array:
    if value.ndim > 1:
        if value.dtype == object and mask is not None and not mask.all():
            value = value.copy()
            value[~mask] = None  # where Gymnasium has zeros, as for single objects
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
    """Return the infos of B envs as one: zero, or None among objects, where an env lacks a key.

    Values that do not make one array, such as arrays of different shapes, become an array of objects.
    """
    return to_alf_infos(join_rows([info or {} for info in infos]), None)  # () is the info of envs that have none
