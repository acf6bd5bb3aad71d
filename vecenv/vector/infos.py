"""Infos of a batch as Gymnasium's vector envs give them: one array per key, and which rows have it.

    rows with cells     {"lives": (tags, cells)}       whole columns at once
    rows with mail      {"episode": {"r": 1.0}, ...}   row by row
                                 |
                     {"lives": int64 (B,), "_lives": bool (B,), ...}

Rows flagged FINAL have a second info, of the step that ended their episode: `final_info` is made
of those in the same way.

The first env that has a key decides its dtype. Where a later value would not survive in it
(0.5 among ints, None among floats) the array is widened, to objects if there is no dtype for all its
values, where Gymnasium truncates or raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from ..core.layout.info_cells import Column, dtype_of
from ..core.layout.rows import RowFlag
from ..core.layout.spec import Array
from ..core.parent.batch import FINAL_CELLS, INFO_CELLS, Batch, CellColumns
from ..errors import ConfigError
from .dtypes import common_dtype, is_lossless_cast
from .nested import row_of

__all__ = ["InfoReader", "add_statistics", "check_no_statistics", "join_rows", "spread_infos"]

Infos = dict[str, Any]

_RARE = RowFlag.MESSAGE | RowFlag.FINAL
#: Tags of Python's own numbers are below this one; a value's kind stands in the high half of its tag.
_FIRST_NUMPY_KIND, _NUMPY_BOOL_KIND = 4, 7
#: Signatures whose plan is remembered; envs whose keys come and go may have many.
_MAX_PLANS = 256
#: What goes into an array of this dtype unchanged.
_EXACT = {float: np.dtype(float), bool: np.dtype(bool)}


class _CellRun(NamedTuple):
    """Neighbouring cells that are numbers of one dtype; `names` are the keys of values and masks."""

    start: int
    stop: int
    unsigned: np.dtype[Any]
    dtype: np.dtype[Any]
    names: list[tuple[str, str]]


class _Plan(NamedTuple):
    """How to read batches whose rows all have the same values: with these tags."""

    runs: list[_CellRun]
    others: list[tuple[Column, int]]
    num_masks: int


class InfoReader:
    """Makes infos of batches.

    Args:
        space: of one observation, for the final observations.
    """

    def __init__(self, space: Space[Any]) -> None:
        self._space = space
        self._plans: dict[bytes, _Plan] = {}
        self._ones = np.ones((0, 0), np.bool_)  # (masks, B) of the last batch: copying takes a fifth of making them
        self._full_flags = b""  # the flags of a batch whose rows all had an info in cells

    def read(self, batch: Batch) -> Infos:
        """Return the infos of a batch, arrays with B rows in the order of the batch."""
        if not batch.flags & _RARE:
            uniform = self._read_uniform(batch, INFO_CELLS)
            if uniform is not None:
                return uniform
        mailed = batch.replies()
        infos: Infos = {}
        if batch.flags & RowFlag.FINAL:
            _add_final_obs(infos, batch, self._space)
            finals = {row: reply.final_info for row, reply in mailed.items() if reply.final_info}
            infos["final_info"] = self._read_into({}, batch, FINAL_CELLS, finals)
            infos["_final_info"] = infos["_final_obs"].copy()
        infos_by_row = {row: reply.info for row, reply in mailed.items() if reply.info}
        return self._read_into(infos, batch, INFO_CELLS, infos_by_row)

    def _read_into(self, infos: Infos, batch: Batch, where: CellColumns, mailed: dict[int, Infos]) -> Infos:
        """Add to `infos`, and return, what the rows of a batch tell in cells and in these dicts."""
        has_cells = batch.flags & where.flag
        if has_cells and not mailed:
            uniform = self._read_uniform(batch, where)
            if uniform is not None and not (infos and uniform.keys() & infos.keys()):
                infos.update(uniform)
                return infos
        if not has_cells and not mailed:
            return infos
        rank = _rank(batch.env_ids)
        if has_cells:
            has_info = (batch.row_flags & where.flag) != 0
            tags = np.where(has_info[:, None], batch.rows.column(where.tags), 0)
            _add_columns(infos, batch.info_table, tags, batch.rows.column(where.values), mailed, rank)
        for row in _in_order(mailed, rank):
            _add_row(infos, mailed[row], row, len(batch))
        return infos

    def _read_uniform(self, batch: Batch, where: CellColumns) -> Infos | None:
        """Return the infos if all rows that have any have the same keys with values of the same types."""
        tags, cells = batch.rows.column(where.tags), batch.rows.column(where.values)
        rows = self._rows_with_info(batch, where)
        count = len(tags) if rows is None else len(rows)
        if rows is not None:  # as where only the steps that end episodes tell something
            tags, cells = tags[rows], cells[rows]
        table = tags.tobytes()  # comparing bytes takes a tenth of comparing arrays
        signature = table[: tags.shape[1]]
        if table != signature * count:
            return None
        plan = self._plans.get(signature)
        if plan is None:
            plan = _make_plan(batch.info_table, signature)
            if len(self._plans) < _MAX_PLANS:
                self._plans[signature] = plan
        return self._read_by_plan(len(batch), plan, cells, rows)

    def _rows_with_info(self, batch: Batch, where: CellColumns) -> Array | None:
        """Return the rows that have an info in these cells; None: all."""
        flags = batch.row_flags
        image = flags.tobytes()  # most often the same as in the last batch
        if image == self._full_flags and where is INFO_CELLS:
            return None
        rows: Array = (flags & where.flag).nonzero()[0]
        if len(rows) < len(flags):
            return rows
        if where is INFO_CELLS:
            self._full_flags = image
        return None

    def _read_by_plan(self, count: int, plan: _Plan, cells: Array, rows: Array | None) -> Infos:
        """Return the infos of these rows of `count` (None: all), which have the plan's tags; others have none."""
        infos: Infos = {}
        if self._ones.shape != (plan.num_masks, count):
            self._ones = np.ones((plan.num_masks, count), np.bool_)
        mask_rows = self._ones.copy()
        if rows is not None:
            mask_rows[...] = False
            mask_rows[:, rows] = True
        masks = iter(mask_rows)
        for run in plan.runs:
            values = cells[:, run.start : run.stop].T.astype(run.unsigned, order="C")
            if rows is not None:
                own, values = values, np.zeros((len(values), count), run.unsigned)
                values[:, rows] = own
            for (name, mask), part, has_info in zip(run.names, values.view(run.dtype), masks):
                infos[name] = part
                infos[mask] = has_info
        for column, tag in plan.others:
            into = infos
            for key in column.path[:-1]:
                if key not in into:
                    into[key], into[f"_{key}"] = {}, next(masks)
                into = into[key]
            key = column.path[-1]
            value = _decode(column, cells, tag)
            into[key], into[f"_{key}"] = value if rows is None else _spread(value, rows, count), next(masks)
        return infos


def _make_plan(table: list[Column], signature: bytes) -> _Plan:
    runs: list[_CellRun] = []
    others = []
    masks: set[tuple[str, ...]] = set()
    for column in table:
        tag = signature[column.first]
        if not tag:
            continue
        masks.update(column.path[:depth] for depth in range(1, len(column.path) + 1))
        if len(column.path) > 1 or column.shape or tag >> 4 == _NUMPY_BOOL_KIND:
            others.append((column, tag))
            continue
        dtype = dtype_of(tag)
        name = column.path[0]
        if runs and runs[-1].stop == column.first and runs[-1].dtype == dtype:
            runs[-1] = runs[-1]._replace(stop=column.first + 1)
            runs[-1].names.append((name, f"_{name}"))
        else:
            # a cell holds its value in its first bytes, which are the low ones where extensions are built
            unsigned = np.dtype(f"<u{dtype.itemsize}")
            runs.append(_CellRun(column.first, column.first + 1, unsigned, dtype, [(name, f"_{name}")]))
    return _Plan(runs, others, len(masks))


def add_statistics(infos: Infos, episode_counters: tuple[Array, ...], dones: Array) -> None:
    """Add what Gymnasium's RecordEpisodeStatistics does, if any episode has ended.

    Args:
        episode_counters: return, length and seconds of each row's episode, (B,) each.
        dones: bool (B,), which rows end one; becomes part of the infos.

    Raises:
        ConfigError: the envs give such infos themselves.
    """
    if b"\1" not in dones.tobytes():  # a fifth of what any() takes
        return
    check_no_statistics(infos)
    # Only rows that end one are looked at: the others lie in caches of the cores that wrote them.
    rows = dones.nonzero()[0]
    episode = infos["episode"] = {}
    for key, column in zip(("r", "l", "t"), episode_counters):
        values = episode[key] = np.zeros(len(dones), column.dtype)
        values[rows] = column[rows]
    infos["_episode"] = dones


def check_no_statistics(infos: Infos) -> None:
    """Raise ConfigError if the envs give statistics of episodes themselves."""
    if "episode" in infos or "_episode" in infos:
        raise ConfigError(
            "episode_statistics: the envs' infos have 'episode' already; leave out one of the two",
            key="episode_statistics",
        )


def spread_infos(infos: Infos, env_ids: Array, count: int) -> Infos:
    """Return infos of some envs as arrays over all `count` envs, zero or None elsewhere."""
    result: Infos = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            result[key] = spread_infos(value, env_ids, count)
        else:
            result[key] = _spread(value, env_ids, count)
    return result


def _spread(values: Array, rows: Array, count: int) -> Array:
    result = _empty((count, *values.shape[1:]), values.dtype)
    result[rows] = values
    return result


def _rank(env_ids: Array) -> Array | None:
    """Return each row's place among the env ids, None if they stand in order."""
    return None if (env_ids[1:] > env_ids[:-1]).all() else np.argsort(np.argsort(env_ids))


def _in_order(rows: Any, rank: Array | None) -> list[int]:
    return sorted(rows) if rank is None else sorted(rows, key=rank.__getitem__)


def _empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return what Gymnasium starts from: 0, also in arrays of objects, but None for single objects."""
    return np.full(shape, None, object) if np.dtype(dtype).hasobject and len(shape) == 1 else np.zeros(shape, dtype)


def join_rows(rows: Sequence[Infos]) -> Infos:
    """Return the infos of a batch's rows, {} for a row without, as `InfoReader` does."""
    infos: Infos = {}
    for row, info in enumerate(rows):
        _add_row(infos, info, row, len(rows))
    return infos


# ---- final observations ---------------------------------------------------------------------


def _add_final_obs(infos: Infos, batch: Batch, space: Space[Any]) -> None:
    observations = batch.final_obs
    mask = (batch.row_flags & RowFlag.FINAL) != 0
    array = np.full(len(batch), None, object)
    for row in np.flatnonzero(mask).tolist():
        array[row] = row_of(space, observations, row)
    infos.update(final_obs=array, _final_obs=mask)


# ---- row by row -----------------------------------------------------------------------------


def _add_row(infos: Infos, info: Infos, row: int, count: int) -> None:
    """Put one env's info into the arrays, new ones where it has new keys."""
    for key, value in info.items():
        mask = infos.get(f"_{key}")
        if mask is None:
            infos[key] = None  # before its mask, as elsewhere and in Gymnasium
            mask = infos[f"_{key}"] = np.zeros(count, np.bool_)
        known = infos.get(key)
        if isinstance(value, dict) and key != "final_obs" and (known is None or isinstance(known, dict)):
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
    if type(value) in (int, float, bool):
        return np.zeros(count, type(value))
    if isinstance(value, np.number):
        return np.zeros(count, value.dtype)  # not its type, which knows no unit of time
    if isinstance(value, np.ndarray):
        return np.zeros((count, *value.shape), value.dtype)  # zeros of objects, too
    return np.full(count, None, object)


def _put(array: Array, rows: Any, value: Any, mask: Array) -> Array:
    """Return `array` with value at rows: itself, or a wider copy if the value would be changed.

    Args:
        array: B rows.
        rows: one row, or a mask (B,) with one value each.
        mask: which rows have been put before.
    """
    if array.dtype is _EXACT.get(type(value)) and array.ndim == 1:
        array[rows] = value
        return array
    if array.dtype == object and array.ndim == 1:
        array[rows] = value
        return array
    try:
        given = np.asarray(value)
    except ValueError:  # nested lists of different lengths
        return _put_object(array, rows, value, mask)
    shape = given.shape if isinstance(rows, int) else given.shape[1:]
    if shape != array.shape[1:] or (given.dtype == object) != (array.dtype == object):
        return _put_object(array, rows, value, mask)
    if not is_lossless_cast(given, array.dtype):
        wider = common_dtype(array, given)
        if wider is None:
            return _put_object(array, rows, value, mask)
        array = array.astype(wider)
    array[rows] = given
    return array


def _put_object(array: Array, rows: Any, value: Any, mask: Array) -> Array:
    if array.dtype == object:
        result = _as_objects(list(array), mask)
    else:
        is_time = array.dtype.kind in "mM"  # of which `tolist` makes datetime's objects, or bare ints
        parts = array.tolist() if array.ndim == 1 and not is_time else [part.copy() for part in array]
        result = _as_objects(parts, mask)
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


def _decode(column: Column, cells: Array, tag: int) -> Array:
    """Return the values of a column whose rows all have this tag, in the dtype that Gymnasium gives them."""
    values = column.read(cells, tag)
    return _as_scalars(values) if tag >> 4 == _NUMPY_BOOL_KIND and not column.shape else values


def _as_scalars(values: Array) -> Array:
    """Return an array of NumPy scalars: what Gymnasium makes of np.bool_."""
    result = np.full(len(values), None, object)
    result[:] = list(values)
    return result


class _Presence:
    """Which rows have a value under a key, with which tags."""

    def __init__(self, tags: bytes) -> None:
        self.tags = np.frombuffer(tags, np.uint8)
        self.distinct_tags = set(tags) - {0}
        self.mask = self.tags.astype(np.bool_)
        self.is_everywhere = 0 not in tags

    def first_row(self, rank: Array | None) -> int:
        """Return the row of the lowest env id."""
        rows = np.flatnonzero(self.mask)
        return int(rows[0]) if rank is None else int(rows[int(rank[rows].argmin())])


def _add_columns(
    infos: Infos, table: list[Column], tags: Array, cells: Array, rows: dict[int, Infos], rank: Array | None
) -> None:
    """Put cells into the arrays, or into the infos of `rows` where what came by mail decides what they become."""
    by_mail: dict[Any, list[Any]] = {}
    for info in rows.values():
        for key, value in info.items():
            by_mail.setdefault(key, []).append(value)
    used: list[bool] = np.any(tags, 0).tolist()
    known: dict[bytes, _Presence] = {}  # keys that come together look alike
    for column in table:
        if not used[column.first]:
            continue
        raw = tags[:, column.first].tobytes()
        presence = known.get(raw)
        if presence is None:
            presence = known[raw] = _Presence(raw)
        are_uniform = _are_uniform(by_mail.get(column.path[0], ()), column, presence)
        if not are_uniform or not _add_column(infos, column, presence, cells, rank):
            _spread_column(rows, column, presence, cells)


def _are_uniform(mailed: Sequence[Any], column: Column, presence: _Presence) -> bool:
    """Tell whether all that came by mail is such as the column's cells hold, so that no order shows."""
    if not mailed:
        return True
    if len(column.path) > 1 or len(presence.distinct_tags) > 1:
        return False
    (tag,) = presence.distinct_tags
    dtype = dtype_of(tag)
    if tag >> 4 < _FIRST_NUMPY_KIND:
        return all(type(value) in (int, float, bool) and np.dtype(type(value)) == dtype for value in mailed)
    arrays = (np.generic, np.ndarray)
    return all(isinstance(one, arrays) and (one.dtype, one.shape) == (dtype, column.shape) for one in mailed)


def _spread_column(rows: dict[int, Infos], column: Column, presence: _Presence, cells: Array) -> None:
    """Put a column's values into the infos of its rows, for `_add_row`."""
    row_tags = presence.tags.tolist()
    for tag in presence.distinct_tags:
        for row, (row_tag, value) in enumerate(zip(row_tags, column.objects(cells, tag))):
            if row_tag == tag:
                info = rows.setdefault(row, {})
                for key in column.path[:-1]:
                    info = info.setdefault(key, {})
                info[column.path[-1]] = value


def _add_column(infos: Infos, column: Column, presence: _Presence, cells: Array, rank: Array | None) -> bool:
    """Put one key's column into the arrays; False: it must go row by row, as by mail, since their order shows."""
    tag = (
        next(iter(presence.distinct_tags))
        if len(presence.distinct_tags) == 1
        else int(presence.tags[presence.first_row(rank)])
    )
    array = _decode(column, cells, tag)
    if not presence.is_everywhere or len(presence.distinct_tags) > 1:
        array[presence.tags != tag] = None if array.dtype == object else 0
    if len(presence.distinct_tags) > 1:
        mixed = _add_other_tags(array, column, presence, cells, tag)
        if mixed.dtype != array.dtype and (mixed.dtype == object or len(presence.distinct_tags) > 2):
            return False  # widened step by step, or to objects, of which those before may have become others
        array = mixed
    for key in column.path[:-1]:
        if key in infos:
            infos[f"_{key}"] |= presence.mask
        else:
            infos[key], infos[f"_{key}"] = {}, presence.mask.copy()
        infos = infos[key]
    infos[column.path[-1]], infos[f"_{column.path[-1]}"] = array, presence.mask.copy()
    return True


def _add_other_tags(array: Array, column: Column, presence: _Presence, cells: Array, tag: int) -> Array:
    """Put the values of other tags than this one into the array, widened if need be."""
    mask = presence.tags == tag
    for other in sorted(presence.distinct_tags - {tag}):
        rows = presence.tags == other
        values = column.read(cells, other)[rows]
        if array.dtype == object:
            objects = values.tolist() if other >> 4 < _FIRST_NUMPY_KIND else list(values)
            array = _put_object(array, rows, objects, mask)
        else:
            array = _put(array, rows, values, mask)
        mask = mask | rows
    return array
