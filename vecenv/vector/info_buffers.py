"""InfoBuffers: arrays of infos that are filled again once the caller has dropped them.

    step k      infos of sheet 1     the caller holds them
    step k + 1  infos of sheet 2     the caller drops those of sheet 1 when this step returns
    step k + 2  infos of sheet 1     the same arrays, new numbers

Only for batches whose rows all have an info with the same keys and types, which is what simulators return; and
only in C, which tells by reference counts whether anybody still has an array, or a view of one. A caller who keeps
infos gets new arrays at every step, and so does one who changes their shape, dtype or flags in place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.layout.native import implementation, load
from ..core.layout.rows import RowRange
from ..core.layout.spec import Array
from ..core.parent.batch import INFO_CELLS, Batch

__all__ = ["Field", "InfoBuffers"]

#: Two are used in turns; more if the caller keeps the infos of a few steps.
_MAX_BUFFERS = 4
#: Rows in all of them, in batches of all envs: batches of those that finish first have many sizes.
_MAX_BATCHES = 16
#: After so many batches in which all were held, new ones are made.
_MAX_MISSES = 64
#: Blocks whose columns are remembered; a ring has fewer.
_MAX_ROWS = 64
#: (infos, their dtypes, values, masks, fields, signature), as `_native.fill_info_buffer` has it. Nothing else may
#: refer to the arrays.
_InfoBuffer = tuple[dict[str, Array], tuple[np.dtype[Any], ...], Array, Array, bytes, bytes]


class Field(NamedTuple):
    """A number of each row: the key of its array, the cell where it stands, its dtype."""

    key: str
    cell: int
    dtype: np.dtype[Any]


class _BufferKind:
    """The sheets for batches of one size whose rows all have these tags, and how often all were held."""

    __slots__ = ("num_misses", "buffers", "signature")

    def __init__(self, signature: bytes) -> None:
        self.signature = signature
        self.buffers: list[_InfoBuffer] = []
        self.num_misses = 0


class InfoBuffers:
    """The sheets for each size of batch, of the kind for which `add` was called last.

    Args:
        num_envs: rows of a whole block.
    """

    def __init__(self, num_envs: int) -> None:
        native: Any = load() if implementation() == "native" else None
        self._fill = native.fill_info_buffer if native is not None and native.reads(np.ndarray) else None
        self._num_envs = num_envs
        self._kinds: dict[int, _BufferKind] = {}  # by the number of rows
        self._columns: dict[Any, tuple[Array, Array, Array]] = {}

    def read(self, batch: Batch) -> dict[str, Array] | None:
        """Return the infos of a batch; None if it is of another kind, or the caller has all sheets."""
        rows: Any = batch.rows
        kind = self._kinds.get(rows.count)
        if kind is None or self._fill is None:
            return None
        columns = self._columns.get(rows) or self._cached_columns(rows)
        for buffer in kind.buffers:
            infos: Any = self._fill(buffer, columns, INFO_CELLS.flag)
            if infos is not False:
                return infos  # type: ignore[no-any-return]
        return None

    def _cached_columns(self, rows: Any) -> tuple[Array, Array, Array]:
        columns = rows.column("flags"), rows.column(INFO_CELLS.tags), rows.column(INFO_CELLS.values)
        if type(rows) is RowRange and rows.count == self._num_envs and len(self._columns) < _MAX_ROWS:
            self._columns[rows] = columns
        return columns

    def release_views(self) -> None:
        """Let go of the ring; nothing is read any more."""
        self._columns.clear()

    def add(self, signature: bytes, count: int, fields: Sequence[Field]) -> None:
        """Have one more sheet for batches of `count` rows which all have these tags; no key is another one's mask."""
        if self._fill is None:
            return
        kind = self._kinds.get(count)
        if kind is None or kind.signature != signature:
            self._kinds.pop(count, None)  # for this one to be the newest
            kind = self._kinds[count] = _BufferKind(signature)
        if len(kind.buffers) == _MAX_BUFFERS:
            kind.num_misses += 1
            if kind.num_misses < _MAX_MISSES:
                return
            kind.buffers.clear()
            kind.num_misses = 0
        kind.buffers.append(_make_buffer(signature, count, fields))
        while sum(size * len(known.buffers) for size, known in self._kinds.items()) > _MAX_BATCHES * self._num_envs:
            del self._kinds[next(iter(self._kinds))]


def _make_buffer(signature: bytes, count: int, fields: Sequence[Field]) -> _InfoBuffer:
    layouts = b""
    end = 0
    for field in fields:
        layouts += struct.pack("=III", field.cell, end, field.dtype.itemsize)
        end += -(-count * field.dtype.itemsize // 8) * 8
    values = np.empty(end, np.uint8)
    masks = np.empty((len(fields), count), np.bool_)
    infos: dict[str, Array] = {}
    for layout, field, mask in zip(struct.iter_unpack("=III", layouts), fields, masks):
        nbytes = count * field.dtype.itemsize
        infos[field.key] = values[layout[1] : layout[1] + nbytes].view(field.dtype)
        infos[f"_{field.key}"] = mask
    return infos, tuple([array.dtype for array in infos.values()]), values, masks, layouts, signature
