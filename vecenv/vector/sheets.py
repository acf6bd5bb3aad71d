"""Sheets: arrays of infos that are filled again once the caller has dropped them.

    step k      infos of sheet 1     the caller holds them
    step k + 1  infos of sheet 2     the caller drops those of sheet 1 when this step returns
    step k + 2  infos of sheet 1     the same arrays, new numbers

Only for batches whose rows all have an info with the same keys and types, which is what simulators return; and
only in C, which tells by reference counts whether anybody still has an array, or a view of one. A caller who keeps
infos gets new arrays at every step.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.batch import INFO_CELLS, Batch
from ..core.native import implementation, load
from ..core.rows import Run
from ..core.spec import Array

__all__ = ["Field", "Sheets"]

#: Two are used in turns; more if the caller keeps the infos of a few steps.
_MAX_SHEETS = 4
#: After so many batches in which all were held, new ones are made.
_PATIENCE = 64
#: Blocks whose columns are remembered; a ring has fewer.
_MAX_ROWS = 64
#: (infos, values, masks, fields, signature), as `_native.fill_sheet` has it. Nothing else may refer to the arrays.
_Sheet = tuple[dict[str, Array], Array, Array, bytes, bytes]


class Field(NamedTuple):
    """A number of each row: the key of its array, the cell where it stands, its dtype."""

    key: str
    cell: int
    dtype: np.dtype[Any]


class Sheets:
    """The sheets of one kind of batch, the last for which `add` was called.

    Args:
        num_envs: rows of a whole block.
    """

    def __init__(self, num_envs: int) -> None:
        native: Any = load() if implementation() == "native" else None
        self._fill = None if native is None else native.fill_sheet
        self._num_envs = num_envs
        self._sheets: list[_Sheet] = []
        self._kind: Any = None
        self._columns: dict[Any, tuple[Array, Array, Array]] = {}
        self._num_misses = 0

    def read(self, batch: Batch) -> dict[str, Array] | None:
        """Return the infos of a batch; None if it is of another kind, or the caller has all sheets."""
        if not self._sheets or self._fill is None:
            return None
        rows: Any = batch.rows
        columns = self._columns.get(rows) or self._look_at(rows)
        for sheet in self._sheets:
            infos: Any = self._fill(sheet, columns, INFO_CELLS.flag)
            if infos is not False:
                return infos  # type: ignore[no-any-return]
        return None

    def _look_at(self, rows: Any) -> tuple[Array, Array, Array]:
        columns = rows.column("flags"), rows.column(INFO_CELLS.tags), rows.column(INFO_CELLS.values)
        if type(rows) is Run and rows.count == self._num_envs and len(self._columns) < _MAX_ROWS:
            self._columns[rows] = columns
        return columns

    def forget_views(self) -> None:
        """Let go of the ring; nothing is read any more."""
        self._columns.clear()

    def add(self, signature: bytes, count: int, fields: Sequence[Field]) -> None:
        """Have one more sheet for batches of `count` rows which all have these tags; no key is another one's mask."""
        if self._fill is None:
            return
        if self._kind != (signature, count):
            self._kind, self._sheets, self._num_misses = (signature, count), [], 0
        if len(self._sheets) == _MAX_SHEETS:
            self._num_misses += 1
            if self._num_misses < _PATIENCE:
                return
            self._sheets, self._num_misses = [], 0
        self._sheets.append(_make_sheet(signature, count, fields))


def _make_sheet(signature: bytes, count: int, fields: Sequence[Field]) -> _Sheet:
    places = b""
    end = 0
    for field in fields:
        places += struct.pack("=III", field.cell, end, field.dtype.itemsize)
        end += -(-count * field.dtype.itemsize // 8) * 8
    values = np.empty(end, np.uint8)
    masks = np.empty((len(fields), count), np.bool_)
    infos: dict[str, Array] = {}
    for place, field, mask in zip(struct.iter_unpack("=III", places), fields, masks):
        nbytes = count * field.dtype.itemsize
        infos[field.key] = values[place[1] : place[1] + nbytes].view(field.dtype)
        infos[f"_{field.key}"] = mask
    return infos, values, masks, places, signature
