"""Infos of a batch as Gymnasium's vector envs give them: one array per key, and which rows have it.

    rows with columns   {"lives": (tags, cells)}       whole columns at once
    rows with mail      {"episode": {"r": 1.0}, ...}   row by row
    rows flagged FINAL  final_obs, final_info          row by row
                                 |
                     {"lives": int64 (B,), "_lives": bool (B,), ...}

The first env that has a key decides its dtype. Where a later value would not survive in it
(0.5 among ints, None among floats) the array is widened, where Gymnasium truncates or raises.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space

from ..core.batch import Batch, InfoColumns
from ..core.rows import RowFlag
from ..core.spec import Array
from .nested import row_of

__all__ = ["gather_infos", "spread_infos"]

Infos = dict[str, Any]

_INFO, _FINAL = int(RowFlag.INFO), int(RowFlag.FINAL)
_RARE = int(RowFlag.MAIL | RowFlag.FINAL)
_DTYPES: dict[int, tuple[Any, Any]] = {}
#: Tags below this one are Python's own numbers; a column's kind stands in a tag's high half.
_FIRST_NUMPY_KIND, _NUMPY_BOOL_KIND = 4, 7


def gather_infos(batch: Batch, space: Space[Any]) -> Infos:
    """Return the infos of a batch, arrays with B rows in the order of the batch.

    Args:
        batch: a valid batch.
        space: of one observation, for the final observations.
    """
    tags, cells = batch.rows.column("info_tags"), batch.rows.column("info_values")
    if not batch.flags & _RARE and batch.flags & _INFO:
        infos = _whole_columns(batch, tags, cells)
        if infos is not None:
            return infos
    count = len(batch)
    rank = _rank(batch.env_ids)
    mailed = batch.mailed()
    mail = {row: mailed[row].info or {} for row in _in_order(mailed, rank)}
    infos = {}
    if batch.flags & _FINAL:
        _add_finals(infos, batch, mailed, space, rank)
    has_info = (batch.row_flags & _INFO) != 0
    tags = np.where(has_info[:, None], tags, 0)
    columns = [(batch.info_names[i], tags[:, i], cells[:, i]) for i in np.flatnonzero(tags.any(0)).tolist()]
    first_mail = {key: row for row in reversed(mail) for key in mail[row]} if columns else {}
    late = []
    for name, column_tags, column_cells in columns:
        row = _first_row(column_tags, rank)
        other = first_mail.get(name)
        if other is not None and (other < row if rank is None else rank[other] < rank[row]):
            late.append((name, column_tags, column_cells, row))
        else:
            _add_column(infos, name, column_tags, column_cells, row)
    for row, info in mail.items():
        _add_row(infos, info, row, count)
    for column in late:
        _add_column(infos, *column)
    return infos


def spread_infos(infos: Infos, env_ids: Array, count: int) -> Infos:
    """Return infos of some envs as arrays over all `count` envs, zero or None elsewhere."""
    result: Infos = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            result[key] = spread_infos(value, env_ids, count)
        else:
            result[key] = _empty((count, *value.shape[1:]), value.dtype)
            result[key][env_ids] = value
    return result


def _rank(env_ids: Array) -> Array | None:
    """Return each row's place among the env ids, None if they stand in order."""
    return None if (env_ids[1:] > env_ids[:-1]).all() else np.argsort(np.argsort(env_ids))


def _in_order(rows: Any, rank: Array | None) -> list[int]:
    return sorted(rows) if rank is None else sorted(rows, key=rank.__getitem__)


def _first_row(tags: Array, rank: Array | None) -> int:
    rows = np.flatnonzero(tags)
    return int(rows[0] if rank is None else rows[rank[rows].argmin()])


def _empty(shape: tuple[int, ...], dtype: Any) -> Array:
    return np.full(shape, None, object) if np.dtype(dtype).hasobject else np.zeros(shape, dtype)


# ---- final observations ---------------------------------------------------------------------


def _add_finals(infos: Infos, batch: Batch, mailed: dict[int, Any], space: Space[Any], rank: Array | None) -> None:
    count = len(batch)
    observations = batch.final_obs
    array, mask = np.full(count, None, object), np.zeros(count, np.bool_)
    nested: Infos = {}
    for row in _in_order(np.flatnonzero(batch.row_flags & _FINAL).tolist(), rank):
        array[row], mask[row] = row_of(space, observations, row), True
        answer = mailed.get(row)
        if answer is not None and answer.final_info:
            _add_row(nested, answer.final_info, row, count)
    infos.update(final_obs=array, _final_obs=mask, final_info=nested, _final_info=mask.copy())


# ---- row by row -----------------------------------------------------------------------------


def _add_row(infos: Infos, info: Infos, row: int, count: int) -> None:
    """Put one env's info into the arrays, new ones where it has new keys."""
    for key, value in info.items():
        mask = infos.get(f"_{key}")
        if mask is None:
            mask = infos[f"_{key}"] = np.zeros(count, np.bool_)
        known = infos.get(key)
        if isinstance(value, dict) and (known is None or isinstance(known, dict)):
            known = {} if known is None else known
            _add_row(known, value, row, count)
        else:
            if known is None:
                known = _new_array(value, count, key)
            elif isinstance(known, dict):  # of an env that has a dict there: both become objects
                known = _as_objects([_pick(known, i) for i in range(count)], mask)
            known = _put(known, row, value, mask)
        infos[key] = known
        mask[row] = True


def _new_array(value: Any, count: int, key: str) -> Array:
    if key == "final_obs":
        return np.full(count, None, object)
    if type(value) in (int, float, bool) or isinstance(value, np.number):
        return np.zeros(count, type(value))
    if isinstance(value, np.ndarray):
        return _empty((count, *value.shape), value.dtype)
    return np.full(count, None, object)


def _put(array: Array, rows: Any, value: Any, mask: Array) -> Array:
    """Return `array` with value at rows: itself, or a wider copy if the value would be changed.

    Args:
        array: B rows.
        rows: one row, or a mask (B,) with one value each.
        mask: which rows have been put before.
    """
    if array.dtype == object and array.ndim == 1:
        array[rows] = value
        return array
    try:
        given = np.asarray(value)
    except ValueError:  # nested lists of different lengths
        return _put_object(array, rows, value, mask)
    shape = given.shape if isinstance(rows, int) else given.shape[1:]
    if shape != array.shape[1:] or given.dtype == object:
        return _put_object(array, rows, value, mask)
    if given.dtype != array.dtype and not _survives(given, array.dtype):
        if given.dtype.kind not in "biufc" or array.dtype.kind not in "biufc":
            return _put_object(array, rows, value, mask)
        array = array.astype(np.result_type(array.dtype, given.dtype))
    array[rows] = given
    return array


def _survives(values: Array, dtype: Any) -> bool:
    """Tell whether a cast changes nothing but the dtype."""
    if values.dtype.kind not in "biufc" or dtype.kind not in "biufc":
        return bool(values.dtype.kind == dtype.kind and values.dtype.itemsize <= dtype.itemsize)
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        return bool(np.array_equal(cast.astype(values.dtype), values, equal_nan=values.dtype.kind in "fc"))


def _put_object(array: Array, rows: Any, value: Any, mask: Array) -> Array:
    if array.dtype == object:
        result = _as_objects(list(array), mask)
    else:
        result = _as_objects(array.tolist() if array.ndim == 1 else [part.copy() for part in array], mask)
    for row, part in [(rows, value)] if isinstance(rows, int) else zip(np.flatnonzero(rows).tolist(), value):
        result[row] = part
    return result


def _as_objects(values: list[Any], mask: Array) -> Array:
    array = np.full(len(values), None, object)
    for row in np.flatnonzero(mask).tolist():
        array[row] = values[row]
    return array


def _pick(infos: Infos, row: int) -> Infos:
    """Return one row of nested infos as the dict it was."""
    return {
        key: _pick(value, row) if isinstance(value, dict) else value[row]
        for key, value in infos.items()
        if f"_{key}" in infos and infos[f"_{key}"][row]
    }


# ---- by columns -----------------------------------------------------------------------------


def _whole_columns(batch: Batch, tags: Array, cells: Array) -> Infos | None:
    """Return the infos if all rows have the same keys with values of the same types."""
    count = len(tags)
    table = tags.tobytes()  # comparing bytes takes a tenth of comparing arrays
    if table != table[: tags.shape[1]] * count or not np.bitwise_and.reduce(batch.row_flags) & _INFO:
        return None
    infos: Infos = {}
    first = tags[0]
    indices = first.nonzero()[0].tolist()
    masks = np.ones((len(indices), count), np.bool_)
    for index, tag, mask in zip(indices, first[indices].tolist(), masks):
        if tag >> 4 == _NUMPY_BOOL_KIND:
            return None
        name = batch.info_names[index]
        infos[name] = _decode(cells[:, index], tag)
        infos[f"_{name}"] = mask
    return infos


def _decode(cells: Array, tag: int) -> Array:
    """Return 8-byte cells (B,) as an array of the tag's dtype with memory of its own."""
    known = _DTYPES.get(tag)
    if known is None:
        dtype = InfoColumns().dtype_of(tag)
        # a cell holds its value in its first bytes, which are the low ones where extensions are built
        known = _DTYPES[tag] = np.dtype(f"<u{dtype.itemsize}"), dtype
    return cells.astype(known[0]).view(known[1])


def _add_column(infos: Infos, name: str, tags: Array, cells: Array, first: int) -> None:
    """Put one key's column into the arrays; `first` is the row that decides the dtype."""
    count = len(tags)
    tag = int(tags[first])
    present = tags != 0
    array = infos.get(name)
    if array is None and tag >> 4 != _NUMPY_BOOL_KIND:
        values = _decode(cells, tag)
        if (tags == tag).all():
            infos[name], infos[f"_{name}"] = values, present
            return
        array = np.where(tags == tag, values, np.zeros((), values.dtype))
        mask = infos[f"_{name}"] = tags == tag
    elif array is None:  # a np.bool_ is an object to Gymnasium
        array, mask = np.full(count, None, object), np.zeros(count, np.bool_)
    else:
        mask = infos[f"_{name}"]
        if isinstance(array, dict):
            array = _as_objects([_pick(array, i) for i in range(count)], mask)
    for other in np.unique(tags[present & ~mask]).tolist():
        rows = tags == other
        values = _decode(cells, other)[rows]
        if array.dtype == object:
            objects = values.tolist() if other >> 4 < _FIRST_NUMPY_KIND else list(values)
            array = _put_object(array, rows, objects, mask)
        else:
            array = _put(array, rows, values, mask)
        mask = mask | rows
    infos[name], infos[f"_{name}"] = array, mask
