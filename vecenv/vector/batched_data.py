"""Data of batched envs: W batches of k envs each, seen as N = W * k envs, and back.

    rows of the pool     leaves (W, k, *S)      objects: k tuples of W
    the caller's         leaves (N, *S)         objects: one tuple of N       env w * k + j is number j of batch w

Observations and actions are reshaped, not copied; arrays of infos are put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ..core.layout.info_cells import is_mask
from ..core.layout.spec import Array
from ..envs.spaces import map_by_space
from ..errors import SpaceError
from .dtypes import common_dtype

__all__ = ["final_infos", "flatten", "join_infos", "split_actions"]

Infos = dict[str, Any]


def flatten(space: Space[Any], value: Any) -> Any:
    """Return W rows of k envs as N rows, nested like `space`, which is one env's."""
    return map_by_space(_flatten_rows, space, value)


def _flatten_rows(_space: Space[Any], value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.reshape(value.shape[0] * value.shape[1], *value.shape[2:])
    return tuple(of_row[i] for i in range(len(value[0])) for of_row in value)


def split_actions(space: Space[Any], value: Any, size: int, count: int) -> Any:
    """Return actions of `count` envs as rows of `size` envs.

    Raises:
        SpaceError: there is not one row for each env.
    """
    if isinstance(space, spaces.Dict):
        return {key: split_actions(part, value[key], size, count) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(split_actions(part, values, size, count) for part, values in zip(space.spaces, value))
    is_array = isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    values = np.asarray(value) if is_array else value
    if np.ndim(values) == 0 if is_array else not hasattr(values, "__len__"):
        raise SpaceError(f"actions: expected {count} rows, got {value!r}", path="action")
    if len(values) != count:
        raise SpaceError(f"actions: expected {count} rows, one per env, got {len(values)}", path="action")
    if is_array:
        return values.reshape(count // size, size, *values.shape[1:])
    return tuple(values[i::size] for i in range(size))


def join_infos(infos: Sequence[Infos | None], size: int, *, is_inner: bool = False) -> Infos:
    """Return the infos of W batches as those of one, as Gymnasium's are: arrays (N, ...) with masks `_key`.

    Args:
        infos: one per batch; None and keys that a batch lacks are False in the masks.
        size: envs of a batch. A value that is no array of so many rows stands for each of them.
        is_inner: these are dicts in infos: which batches have none says the mask of the dict.
    """
    result: Infos = {}
    for key in dict.fromkeys(key for part in infos if part for key in part):
        if _is_mask(key, infos):
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
    """Return what infos of a batch say, in SAME_STEP mode, of a step with which the episodes of all its envs ended.

    Args:
        observations: the last ones of these episodes, one per env.
        info: of that step.
    """
    every = np.ones(len(observations), np.bool_)
    return {"final_obs": _as_objects(observations), "_final_obs": every, "final_info": info, "_final_info": every}


def _is_mask(key: str, infos: Sequence[Infos | None]) -> bool:
    return any(part is not None and is_mask(key, part) for part in infos)


def _join(values: list[Any], has_key: list[bool], size: int) -> Array:
    """Return the values of one key as one array, zeros or None where a batch lacks it."""
    parts = [_rows_of(value, size) if has else None for value, has in zip(values, has_key)]
    present = [part for part in parts if part is not None]
    shapes = {part.shape[1:] for part in present}
    dtypes = {part.dtype for part in present}
    dtype = dtypes.pop() if len(dtypes) == 1 else common_dtype(*present)
    if len(shapes) > 1 or dtype is None:
        dtype, shapes = np.dtype(object), {()}
        parts = [None if part is None else _as_objects(part) for part in parts]
    shape = (size, *shapes.pop())
    # None where objects stand one by one, else 0, as Gymnasium and `infos.InfoReader` have it
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
