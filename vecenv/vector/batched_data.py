"""Data of BatchedVectorEnv: conversion between W batches of k envs and N = W * k envs.

    rows of the pool     leaves (W, k, *S)      objects: k tuples of W
    the caller's         leaves (N, *S)         objects: one tuple of N       env w * k + j is number j of batch w

Observations and actions are reshaped without a copy; arrays of infos are joined. It stands between `batched` and the
pool's batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ..core.layout.info_cells import is_mask
from ..core.layout.spec import Array, has_rows
from ..envs.spaces import map_by_space
from ..errors import NotASequenceError, SpaceError
from .infos import common_dtype

__all__ = ["final_infos", "flatten", "join_infos", "pick_rows", "split_actions"]

Infos = dict[str, Any]


def flatten(space: Space[Any], value: Any) -> Any:
    """Return W rows of k envs, leaves (W, k, *S) or k tuples of W objects, as N = W * k rows."""
    return map_by_space(_flatten_rows, space, value)


def _flatten_rows(_space: Space[Any], value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.reshape(value.shape[0] * value.shape[1], *value.shape[2:])
    return tuple(of_row[i] for i in range(len(value[0])) for of_row in value)


def pick_rows(space: Space[Any], value: Any, env_ids: Array) -> Any:
    """Return the rows of some envs, int64 (B,), in this order, of leaves (N, *S) or tuples of N objects, as copies."""

    def pick(_: Space[Any], rows: Any) -> Any:
        return rows[env_ids] if isinstance(rows, np.ndarray) else tuple(rows[i] for i in env_ids.tolist())

    return map_by_space(pick, space, value)


def split_actions(space: Space[Any], value: Any, size: int, count: int) -> Any:
    """Return the actions of `count` envs as rows for batches of `size` envs: the inverse of `flatten`.

    Raises:
        NotASequenceError: a part is a single value.
        SpaceError: the number of rows is not `count`, or a part has another form than its space.
    """
    is_array = isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    values = np.asarray(value) if is_array else value
    if not has_rows(values):
        raise NotASequenceError(f"actions: expected {count} rows, got {value!r}", path="action")
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or not space.spaces.keys() <= value.keys():
            got = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise SpaceError(f"actions: expected a dict with keys {list(space.spaces)}, got {got}", path="action")
        return {key: split_actions(part, value[key], size, count) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if len(value) != len(space.spaces):
            raise SpaceError(f"actions: expected a tuple of {len(space.spaces)}, got {len(value)} items", path="action")
        return tuple(split_actions(part, values, size, count) for part, values in zip(space.spaces, value))
    if len(values) != count:
        raise SpaceError(f"actions: expected {count} rows, one per env, got {len(values)}", path="action")
    if is_array:
        return values.reshape(count // size, size, *values.shape[1:])
    return tuple(values[i::size] for i in range(size))


def join_infos(infos: Sequence[Infos | None], size: int, *, is_inner: bool = False) -> Infos:
    """Join the infos of W batches into one dict in Gymnasium's form: arrays (N, ...) with bool masks `_key` (N,).

    Args:
        infos: one dict per batch, or None. The mask of a key is False in the rows of a batch without that key.
        size: k, number of envs in a batch. A value that is not an array of k rows is repeated for each env.
        is_inner: whether these dicts are values in other infos. The mask of the outer key then already shows which
            batches have None here.
    """
    result: Infos = {}
    for key in dict.fromkeys(key for part in infos if part for key in part):
        if any(part is not None and is_mask(key, part) for part in infos):
            continue
        found = [None if part is None else part.get(key) for part in infos]
        has_key = [part is not None and key in part for part in infos]
        if all(isinstance(value, dict) for value, has in zip(found, has_key) if has):
            result[key] = join_infos(found, size, is_inner=True)
        else:
            result[key] = _join(found, has_key, size)
        masks = [part.get(f"_{key}") if part else None for part in infos]
        lacks_key = [not has and not (is_inner and part is None) for has, part in zip(has_key, infos)]
        if any(lacks_key) or any(mask is not None for mask in masks):
            result[f"_{key}"] = np.concatenate(
                [
                    np.full(size, has) if mask is None else np.asarray(mask, np.bool_)
                    for mask, has in zip(masks, has_key)
                ]
            )
    return result


def final_infos(observations: Sequence[Any], info: Infos) -> Infos:
    """Return `final_obs` and `final_info`, with masks, as SAME_STEP mode has them where all episodes of a batch end."""
    every = np.ones(len(observations), np.bool_)
    return {"final_obs": _as_objects(observations), "_final_obs": every, "final_info": info, "_final_info": every}


def _join(values: list[Any], has_key: list[bool], size: int) -> Array:
    """Return the values of one key as one array (N, ...), zeros or None in the rows of batches without the key."""
    parts = [_rows_of(value, size) if has else None for value, has in zip(values, has_key)]
    present = [part for part in parts if part is not None]
    shapes = {part.shape[1:] for part in present}
    dtypes = {part.dtype for part in present}
    dtype = dtypes.pop() if len(dtypes) == 1 else common_dtype(*present)
    if len(shapes) > 1 or dtype is None:
        dtype, shapes = np.dtype(object), {()}
        parts = [None if part is None else _as_objects(part) for part in parts]
    shape = (size, *shapes.pop())
    # Rows without a value are None in a 1-D array of objects and 0 in others, as in Gymnasium and `InfoReader`.
    empty = np.full(shape, None, dtype) if dtype.hasobject and len(shape) == 1 else np.zeros(shape, dtype)
    return np.concatenate([empty if part is None else part.astype(dtype, copy=False) for part in parts])


def _rows_of(value: Any, size: int) -> Array:
    if isinstance(value, np.ndarray) and value.ndim and len(value) == size:
        return value
    if isinstance(value, int | float | bool | np.generic):
        return np.full(size, value)
    rows = np.full(size, None, object)
    for i in range(size):
        rows[i] = value
    return rows


def _as_objects(values: Iterable[Any]) -> Array:
    return np.fromiter(values, object)
