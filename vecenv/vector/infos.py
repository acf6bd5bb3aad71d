"""Infos of a batch in the form of Gymnasium's vector envs: per key one array, and a mask of the rows that have it.

    cells in shared memory  {"lives": (tags, cells)}       read column by column
    pickled infos           {"episode": {"r": 1.0}, ...}   read row by row
                                 |
                     {"lives": int64 (B,), "_lives": bool (B,), ...}

It stands between the batches of the pool and `results`. Rows flagged FINAL have a second info: that of the step which
ended their episode. `final_info` is made from these in the same way.

The first env that has a key decides the array's dtype. If that dtype cannot hold a later value (0.5 among ints, None
among floats), the array is widened, to objects if no other dtype holds all values. Gymnasium truncates or raises there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from ..core.fallback.info_cells import read_cells
from ..core.layout.columns import FINAL_CELLS, INFO_CELLS, CellColumns
from ..core.layout.flags import RowFlag
from ..core.layout.info_cells import Column, dtype_of
from ..core.layout.native import implementation, load
from ..core.layout.spec import Array
from ..core.parent.batch import Batch
from ..errors import ConfigError
from ..values.nested import map_structure
from .nested import row_of

__all__ = [
    "InfoReader",
    "LegacyInfoReader",
    "add_statistics",
    "check_no_statistics",
    "common_dtype",
    "join_rows",
    "pick_row",
    "spread_infos",
]

Infos = dict[str, Any]

_RARE = RowFlag.MESSAGE | RowFlag.FINAL
#: A tag's high four bits are the kind of its value. Kinds below the first constant are Python's own numbers.
_FIRST_NUMPY_KIND, _NUMPY_BOOL_KIND = 4, 7
#: Largest number of cached plans. Envs whose info keys change often have many signatures.
_MAX_PLANS = 256
#: For each type of value, the dtype of an array that holds it unchanged.
_EXACT = {float: np.dtype(float), bool: np.dtype(bool)}
_NUMBERS = "biufc"


class _Plan(NamedTuple):
    """How to read a batch whose rows with an info all have the same tags, that is the same keys and types.

    Attributes:
        signature: these tags.
        fields, values, mask: arguments of `read_cells`, which overwrites `values` and `mask` for each batch.
        scalars: (key, key of its mask, its line of `values` in its dtype) of each number.
        others: the other columns, and their tags.
    """

    signature: bytes
    fields: bytes
    values: Array
    mask: Array
    scalars: list[tuple[str, str, Array]]
    others: list[tuple[Column, int]]


class InfoReader:
    """Reads the infos of batches; `space` is the observation space of one env, for `final_obs`."""

    def __init__(self, space: Space[Any]) -> None:
        self._space = space
        self._plans: dict[tuple[bytes, int], _Plan] = {}  # by signature and number of rows
        self._last_signature = b""
        native: Any = load() if implementation() == "native" else None
        self._read_cells = read_cells if native is None else native.read_cells

    def read(self, batch: Batch) -> Infos:
        """Return the infos of a batch: arrays of B rows in the order of the batch, with masks."""
        if not batch.flags & _RARE:
            uniform = self._read_uniform(batch, INFO_CELLS)
            if uniform is not None:
                return uniform
        replies = batch.replies()
        infos: Infos = {}
        if batch.flags & RowFlag.FINAL:
            _add_final_obs(infos, batch, self._space)
            finals = {row: reply.final_info for row, reply in replies.items() if reply.final_info}
            infos["final_info"] = self._read_into({}, batch, FINAL_CELLS, finals)
            infos["_final_info"] = infos["_final_obs"].copy()
        infos_by_row = {row: reply.info for row, reply in replies.items() if reply.info}
        return self._read_into(infos, batch, INFO_CELLS, infos_by_row)

    def _read_into(self, infos: Infos, batch: Batch, where: CellColumns, pickled: dict[int, Infos]) -> Infos:
        """Add the infos of a batch's rows, from cells and from the pickled dicts in `pickled`; return `infos`."""
        has_cells = batch.flags & where.flag
        if has_cells and not pickled:
            uniform = self._read_uniform(batch, where)
            if uniform is not None and not (infos and uniform.keys() & infos.keys()):
                infos.update(uniform)
                return infos
        if not has_cells and not pickled:
            return infos
        rank = _rank(batch.env_ids)
        if has_cells:
            has_info = (batch.row_flags & where.flag) != 0
            tags = np.where(has_info[:, None], batch.rows.column(where.tags), 0)
            _add_columns(infos, batch.info_table, tags, batch.rows.column(where.values), pickled, rank)
        for row in _in_order(pickled, rank):
            _add_row(infos, pickled[row], row, len(batch))
        return infos

    def _read_uniform(self, batch: Batch, where: CellColumns) -> Infos | None:
        """Return the infos if all rows that have one have the same keys and types of values, else None."""
        columns = batch.rows.columns_of(("flags", where.tags, where.values))
        count, found = len(columns[0]), self._last_signature
        while True:
            plan = self._plans.get((found, count)) or self._make_plan(batch, found)
            got = self._read_cells(columns, where.flag, found, plan.fields, plan.values, plan.mask)
            if got is None:
                return None
            if got is True:
                break
            found = self._last_signature = got
        infos: Infos = {}
        mask = plan.mask
        for name, mask_name, values in plan.scalars:
            infos[name] = values.copy()
            infos[mask_name] = mask.copy()
        if plan.others:
            self._add_others(infos, plan, columns[2])
        return infos

    def _make_plan(self, batch: Batch, signature: bytes) -> _Plan:
        plan = _make_plan(batch.info_table, signature, len(batch))
        if len(self._plans) < _MAX_PLANS:
            self._plans[signature, len(batch)] = plan
        return plan

    def _add_others(self, infos: Infos, plan: _Plan, cells: Array) -> None:
        """Add the columns that are no plain numbers, from the cells of all rows."""
        mask = plan.mask
        rows = None if mask.all() else mask.nonzero()[0]  # Often only rows that end an episode have an info.
        for column, tag in plan.others:
            into = infos
            for key in column.path[:-1]:
                if key not in into:
                    into[key], into[f"_{key}"] = {}, mask.copy()
                into = into[key]
            key = column.path[-1]
            value = _decode(column, cells if rows is None else cells[rows], tag)
            into[key] = value if rows is None else _spread(value, rows, len(mask))
            into[f"_{key}"] = mask.copy()


class LegacyInfoReader(InfoReader):
    """Reads infos in the form of Gymnasium 0.29.

    Values that are not numbers, also dicts and arrays, are items of an array of objects (B,), with None where an env
    lacks the key. Observations that end an episode are `final_observation`; `final_info` has one dict per ended env.
    """

    def read(self, batch: Batch) -> Infos:
        infos = super().read(batch)
        final_obs = final_mask = None
        if batch.flags & RowFlag.FINAL:
            final_obs, final_mask = infos.pop("final_obs"), infos.pop("_final_obs")
            del infos["final_info"], infos["_final_info"]
        if batch.flags & RowFlag.MESSAGE or any(isinstance(value, dict) or value.ndim > 1 for value in infos.values()):
            _separate_rows(infos, batch.infos(), np.argsort(batch.env_ids).tolist())
        if final_mask is not None:
            found = batch.final_infos()
            infos.update(final_observation=final_obs, _final_observation=final_mask)
            infos.update(final_info=_as_objects(list(found), final_mask), _final_info=final_mask.copy())
        return infos


def _separate_rows(infos: Infos, rows: list[Infos], order: list[int]) -> None:
    """Replace values that are not numbers by arrays of objects (B,) with the objects of each env.

    `rows` has the info of each row, as its env returned it; `order` the rows, ordered by env id.
    """
    done = set()
    for row in order:
        for key, value in rows[row].items():
            if key in done:
                continue
            done.add(key)
            if type(value) not in (int, float, bool) and not isinstance(value, np.number):
                infos[key] = _as_objects([one.get(key) for one in rows], infos[f"_{key}"])


def _make_plan(table: list[Column], signature: bytes, count: int) -> _Plan:
    """Return the plan for `count` rows with these tags; b"" stands for rows without an info."""
    used = [(column, signature[column.first]) for column in table] if signature else []
    numbers, others = [], []
    for column, tag in used:
        if tag and (len(column.path) > 1 or column.shape or tag >> 4 == _NUMPY_BOOL_KIND):
            others.append((column, tag))
        elif tag:
            numbers.append((column, dtype_of(tag)))
    fields = [(column.first, dtype.itemsize) for column, dtype in numbers]
    lines = np.zeros((len(numbers), count), np.uint64)
    scalars = [
        (column.path[0], f"_{column.path[0]}", line.view(dtype)[:count])
        for (column, dtype), line in zip(numbers, lines)
    ]
    mask = np.zeros(count, np.bool_)
    return _Plan(signature, np.array(fields, np.uint32).tobytes(), lines, mask, scalars, others)


def add_statistics(infos: Infos, episode_counters: tuple[Array, ...], dones: Array) -> None:
    """Add the statistics of ended episodes in the form of Gymnasium's RecordEpisodeStatistics; nothing if none ended.

    Args:
        episode_counters: returns (B, *K), lengths (B,) and seconds (B,) of the rows' episodes.
        dones: bool (B,), True where an episode ended; becomes part of the infos.

    Raises:
        ConfigError: the infos of the envs already contain 'episode'.
    """
    if b"\1" not in dones.tobytes():  # takes a fifth of the time of any()
        return
    check_no_statistics(infos)
    # Read only the rows that end an episode: the others are in the caches of the cores that wrote them.
    rows = dones.nonzero()[0]
    episode = infos["episode"] = {}
    for key, column in zip(("r", "l", "t"), episode_counters):
        values = episode[key] = np.zeros(column.shape, column.dtype)
        values[rows] = column[rows]
    infos["_episode"] = dones


def check_no_statistics(infos: Infos) -> None:
    if "episode" in infos or "_episode" in infos:
        raise ConfigError(
            "episode_statistics: the envs' infos have 'episode' already; leave out one of the two",
            key="episode_statistics",
        )


def spread_infos(infos: Infos, env_ids: Array, count: int) -> Infos:
    """Return infos of some envs as arrays of `count` rows, with zero or None in the rows of the other envs."""
    result: Infos = map_structure(lambda column: _spread(column, env_ids, count), infos)
    return result


def _spread(values: Array, rows: Array, count: int) -> Array:
    result = _empty((count, *values.shape[1:]), values.dtype)
    result[rows] = values
    return result


def _rank(env_ids: Array) -> Array | None:
    """Return each row's position in the order of env ids, or None if the rows are in that order."""
    return None if (env_ids[1:] > env_ids[:-1]).all() else np.argsort(np.argsort(env_ids))


def _in_order(rows: Any, rank: Array | None) -> list[int]:
    return sorted(rows) if rank is None else sorted(rows, key=rank.__getitem__)


def _empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an empty array as Gymnasium makes it: None in a 1-D array of objects, else 0."""
    return np.full(shape, None, object) if np.dtype(dtype).hasobject and len(shape) == 1 else np.zeros(shape, dtype)


def join_rows(rows: Sequence[Infos]) -> Infos:
    """Return the infos of B rows in the form of `InfoReader.read`; `rows` contains {} for a row without an info."""
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
        array[row] = row_of(space, observations, row, bool(batch.row_flags[row] & RowFlag.FINAL_INTS))
    infos.update(final_obs=array, _final_obs=mask)


# ---- row by row -----------------------------------------------------------------------------


def _add_row(infos: Infos, info: Infos, row: int, count: int) -> None:
    """Add the info of one row to the arrays of `count` rows in `infos`; create arrays for new keys."""
    for key, value in info.items():
        mask = infos.get(f"_{key}")
        if mask is None:
            infos[key] = None  # inserted before its mask, as in Gymnasium
            mask = infos[f"_{key}"] = np.zeros(count, np.bool_)
        known = infos.get(key)
        if isinstance(value, dict) and key != "final_obs" and (known is None or isinstance(known, dict)):
            known = {} if known is None else known
            _add_row(known, value, row, count)
        else:
            if known is None:
                known = _new_array(value, count, key)
            elif isinstance(known, dict):  # another env has a dict here: both become objects
                known = _as_objects([pick_row(known, i) for i in range(count)], mask)
            known = _put(known, row, value, mask)
        infos[key] = known
        mask[row] = True


def _new_array(value: Any, count: int, key: str) -> Array:
    if key == "final_obs":
        return np.full(count, None, object)
    if type(value) in (int, float, bool):
        return np.zeros(count, type(value))
    if isinstance(value, np.number):
        return np.zeros(count, value.dtype)  # the dtype, as the type of a time lacks its unit
    if isinstance(value, np.ndarray):
        return np.zeros((count, *value.shape), value.dtype)  # 0 also for objects
    return np.full(count, None, object)


def _put(array: Array, rows: Any, value: Any, mask: Array) -> Array:
    """Store `value` in `array` and return it, or a copy of a wider dtype if the array's cannot hold the value.

    Args:
        rows: one row; or bool (B,), with one value per True.
        mask: bool (B,), True where a value was stored before.
    """
    if array.ndim == 1 and (array.dtype is _EXACT.get(type(value)) or array.dtype == object):
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
        is_time = array.dtype.kind in "mM"  # `tolist` would make datetime objects or ints
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


def pick_row(infos: Infos, row: int, *, has_masks: bool = True) -> Infos:
    """Return the original info dict of one row; without masks, as in the dict of `add_statistics`, it has all keys."""
    return {
        key: pick_row(value, row, has_masks=any(f"_{name}" in value for name in value))
        if isinstance(value, dict)
        else value[row]
        for key, value in infos.items()
        if not has_masks or (f"_{key}" in infos and infos[f"_{key}"][row])
    }


# ---- by columns -----------------------------------------------------------------------------


def _decode(column: Column, cells: Array, tag: int) -> Array:
    """Return the values of a column, read with this tag, in the dtype that Gymnasium would choose."""
    values = column.read(cells, tag)
    return _as_scalars(values) if tag >> 4 == _NUMPY_BOOL_KIND and not column.shape else values


def _as_scalars(values: Array) -> Array:
    """Return an array of objects, NumPy scalars: Gymnasium's form for np.bool_."""
    result = np.full(len(values), None, object)
    result[:] = list(values)
    return result


class _Presence:
    """The rows that have a value for a key, and the tags of these values."""

    def __init__(self, tags: bytes) -> None:
        self.tags = np.frombuffer(tags, np.uint8)
        self.distinct_tags = set(tags) - {0}
        self.mask = self.tags.astype(np.bool_)
        self.is_everywhere = 0 not in tags

    def first_row(self, rank: Array | None) -> int:
        """Return the row with a value whose env_id is the lowest."""
        rows = np.flatnonzero(self.mask)
        return int(rows[0]) if rank is None else int(rows[int(rank[rows].argmin())])


def _add_columns(
    infos: Infos, table: list[Column], tags: Array, cells: Array, rows: dict[int, Infos], rank: Array | None
) -> None:
    """Add the columns of cells to the arrays in `infos`, or to `rows` if only `_add_row` gives the right dtype.

    Args:
        tags: uint8 (B, num_cells), 0 where a row has no value.
        cells: uint64 (B, num_cells).
        rows: the pickled infos by row; changed in place.
    """
    pickled_by_key: dict[Any, list[Any]] = {}
    for info in rows.values():
        for key, value in info.items():
            pickled_by_key.setdefault(key, []).append(value)
    used: list[bool] = np.any(tags, 0).tolist()
    known: dict[bytes, _Presence] = {}  # keys that always appear together have equal tags
    for column in table:
        if not used[column.first]:
            continue
        raw = tags[:, column.first].tobytes()
        presence = known.get(raw)
        if presence is None:
            presence = known[raw] = _Presence(raw)
        are_uniform = _are_uniform(pickled_by_key.get(column.path[0], ()), column, presence)
        if not are_uniform or not _add_column(infos, column, presence, cells, rank):
            _spread_column(rows, column, presence, cells)


def _are_uniform(pickled: Sequence[Any], column: Column, presence: _Presence) -> bool:
    """Return whether pickled values of a key have the type of the column, so that their order cannot matter."""
    if not pickled:
        return True
    if len(column.path) > 1 or len(presence.distinct_tags) > 1:
        return False
    (tag,) = presence.distinct_tags
    dtype = dtype_of(tag)
    if tag >> 4 < _FIRST_NUMPY_KIND:
        return all(type(value) in (int, float, bool) and np.dtype(type(value)) == dtype for value in pickled)
    arrays = (np.generic, np.ndarray)
    return all(isinstance(one, arrays) and (one.dtype, one.shape) == (dtype, column.shape) for one in pickled)


def _spread_column(rows: dict[int, Infos], column: Column, presence: _Presence, cells: Array) -> None:
    """Add the values of a column to the infos of its rows, for `_add_row`."""
    row_tags = presence.tags.tolist()
    for tag in presence.distinct_tags:
        for row, (row_tag, value) in enumerate(zip(row_tags, column.objects(cells, tag))):
            if row_tag == tag:
                info = rows.setdefault(row, {})
                for key in column.path[:-1]:
                    info = info.setdefault(key, {})
                info[column.path[-1]] = value


def _add_column(infos: Infos, column: Column, presence: _Presence, cells: Array, rank: Array | None) -> bool:
    """Add one column to the arrays; return False if it must be added row by row because the order matters."""
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
            return False  # earlier values would depend on the order in which the array was widened
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
    """Store the values with other tags than `tag` in the array; return it, or a wider copy."""
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


# ---- dtypes without loss of values ------------------------------------------------------------


def common_dtype(*arrays: Array) -> np.dtype[Any] | None:
    """Return a dtype that holds all values of these arrays unchanged, or None if only `object` does.

    NumPy's promoted dtype is preferred, then the arrays' own dtypes. If all arrays are whole numbers or bool and NumPy
    promotes them to a float, which cannot hold all beyond 2**53, their own dtypes are tried first.
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
