"""Frames: a reply of a shard as one flat buffer, and a buffer as pieces of a size that the transport handles well.

header     int64: seq, kind, count, flags, num_final, num_steps, attachment_nbytes
rows       `count` rows of columns: step_id, env_id, reward, ..., and the record
obs        `count` rows of the leaves of the observation
cells      `count` rows of the cells of infos; only if a row is flagged INFO, and again for FINAL_INFO
final      the numbers of the rows flagged FINAL, int64, and as many rows of the leaves of final observations
attachment pickled messages; empty for plain steps

One copy therefore moves a row with any number of columns. Each value of a row begins at a multiple of 8 bytes.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..layout.arena import RECORD, ArenaPlan
from ..layout.columns import CELLS, Group, fields_of
from ..layout.flags import RowFlag
from ..layout.rows import AnyRows, union_of_flags
from ..layout.spec import Array

__all__ = [
    "Buffer",
    "Frame",
    "FrameKind",
    "FrameLayout",
    "bytes_of",
    "count_pieces",
    "join",
    "pack_bare",
    "split",
    "unpack_bare",
]

#: Size of a piece. Ray sends values below about 100 KiB in the message itself; larger ones pass its object store.
PIECE_NBYTES = 96 << 10
#: Larger buffers are sent as one value: beyond about 10 MiB, Ray puts each piece into its store.
MOST_SPLIT_NBYTES = 8 << 20

#: Anything that a memoryview can be made of.
Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct("<7q")
_FINAL_ROW = np.dtype("<i8")
_NONE: Array = np.empty(0, _FINAL_ROW)


def count_pieces(nbytes: int) -> int:
    """Return the number of pieces into which a buffer of `nbytes` bytes is split; at least 1."""
    if nbytes > MOST_SPLIT_NBYTES:
        return 1
    return max(1, -(-nbytes // PIECE_NBYTES))


def split(data: Buffer, num_pieces: int) -> list[memoryview]:
    """Cut a buffer into exactly `num_pieces` pieces, without a copy.

    Every piece but the last one has at most `PIECE_NBYTES` bytes; the last one has all other bytes. Pieces that are not
    needed are empty.
    """
    view = memoryview(data).cast("B")
    cuts = [min(number * PIECE_NBYTES, len(view)) for number in range(num_pieces)]
    return [view[start:stop] for start, stop in zip(cuts, [*cuts[1:], len(view)])]


def join(pieces: Sequence[Buffer]) -> Buffer:
    """Undo `split`; one piece is returned as it is."""
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class FrameKind:
    """Kinds of frames."""

    EXECUTED = 0  #: the reply to a request
    REFUSED = 1  #: the shard has not executed an earlier request yet; the driver sends both again
    FAILED = 2  #: no pool could be opened; the attachment contains the exception
    OPENED = 3  #: the pool is open; the attachment contains a `ShardReport`


@dataclass(slots=True)
class Frame:
    """One reply of a shard. Arrays are views of the buffer, possibly read-only.

    Attributes:
        seq: number of the request; 0: the reply to the start.
        kind: a `FrameKind`.
        count: number of rows.
        flags: union of the flags of all rows.
        num_steps: steps that the envs of the shard have made since its start.
        rows: their columns, (count,): the bytes of `FrameLayout.row`.
        obs: their observations, (count,): the bytes of `FrameLayout.obs`.
        cells: the cells of their infos: for each of `columns.CELLS` an array (count,), or (0,) if no row has them.
        final_rows: int64 (num_final,): rows that have a final observation.
        final: these observations, (num_final,), as `obs`.
        attachment: pickled messages.
    """

    seq: int
    kind: int = FrameKind.EXECUTED
    count: int = 0
    flags: int = 0
    num_steps: int = 0
    rows: Array = field(default_factory=lambda: _NONE)
    obs: Array = field(default_factory=lambda: _NONE)
    cells: Sequence[Array] = ()
    final_rows: Array = field(default_factory=lambda: _NONE)
    final: Array = field(default_factory=lambda: _NONE)
    attachment: Buffer = b""


class FrameLayout:
    """Packs rows into frames, and unpacks them; both ends have an equal one.

    Args:
        plan: of an arena with the same spaces; the number of envs does not matter.
        has_records: whether each row travels with its record.
        first_env_id: number of env 0 of the rows to pack in the frame.

    Attributes:
        row: dtype of the columns of a row, named as in `Rows.column`, and 'record': the record of the answer
            (`arena.RECORD`), if the shard keeps records.
        obs: dtype of an observation; the names of its fields are the numbers of the leaves.
    """

    def __init__(self, plan: ArenaPlan, *, has_records: bool, first_env_id: int = 0) -> None:
        self._first_env_id = first_env_id
        columns = fields_of(Group.COMMAND, Group.STEP, Group.OBS, reward_shape=plan.reward_shape)
        self.row = _row_of({**columns, "record": RECORD} if has_records else columns)
        self.obs = _row_of({str(leaf.index): np.dtype((leaf.dtype, leaf.shape)) for leaf in plan.obs.leaves})
        self._row_bytes, self._obs_bytes = bytes_of(self.row), bytes_of(self.obs)
        self._cells = [(cells.flag, _row_of(fields_of(cells.group))) for cells in CELLS]
        self._has_final = plan.has_final

    def _parts(self, count: int, flags: int, num_final: int) -> list[tuple[np.dtype[Any], int]]:
        """Return dtype and length of each array of a frame, in their order."""
        return [
            (self._row_bytes, count),
            (self._obs_bytes, count),
            *[(dtype, count if flags & flag else 0) for flag, dtype in self._cells],
            (_FINAL_ROW, num_final),
            (self._obs_bytes, num_final),
        ]

    def most_nbytes(self, count: int) -> int:
        """Return the size of a frame of `count` rows that have everything a row can have, without attachment."""
        flags = RowFlag.INFO | (RowFlag.FINAL_INFO if self._has_final else 0)
        return _nbytes_of(self._parts(count, flags, count if self._has_final else 0))

    def pack(
        self,
        seq: int,
        rows: AnyRows | None,
        records: Array | None = None,
        *,
        num_steps: int = 0,
        attachment: Buffer = b"",
    ) -> bytearray:
        """Copy rows into a new frame.

        Args:
            seq: number of the request.
            rows: None: there are no rows.
            records: the record of each row, (count,), if the layout has records.
            num_steps, attachment: as in `Frame`.
        """
        if rows is None:
            return pack_bare(seq, FrameKind.EXECUTED, attachment, num_steps)
        row_flags = rows.column("flags")
        flags = union_of_flags(row_flags)
        has_final = self._has_final and flags & RowFlag.FINAL
        final_rows = np.flatnonzero(row_flags & RowFlag.FINAL) if has_final else _NONE
        parts = self._parts(rows.count, flags, len(final_rows))
        data = bytearray(_nbytes_of(parts) + len(attachment))
        head = seq, FrameKind.EXECUTED, rows.count, flags, len(final_rows), num_steps, len(attachment)
        _HEADER.pack_into(data, 0, *head)
        frame = self.unpack(data)
        for array in (frame.rows.view(self.row), *frame.cells):
            for name in (array.dtype.names or ()) if len(array) else ():
                array[name] = records if name == "record" else rows.column(name)
        frame.rows.view(self.row)["env_id"] += self._first_env_id
        frame.final_rows[:] = final_rows
        obs, final = frame.obs.view(self.obs), frame.final.view(self.obs)
        for leaf, name in enumerate(self.obs.names or ()):
            obs[name] = rows.obs(leaf)
            if has_final:
                final[name] = rows.final(leaf)[final_rows]
        data[len(data) - len(attachment) :] = attachment
        return data

    def unpack(self, data: Buffer) -> Frame:
        """Return the contents of a frame, as views.

        Raises:
            ValueError: the frame has another size than its header says.
        """
        view = memoryview(data).cast("B")
        seq, kind, count, flags, num_final, num_steps, attachment_nbytes = _HEADER.unpack_from(view)
        parts = self._parts(count, flags, num_final)
        nbytes = _nbytes_of(parts) + attachment_nbytes
        if len(view) != nbytes:
            raise ValueError(f"the reply to request {seq} has {len(view)} bytes, and {nbytes} by its header")
        arrays, at = [], _HEADER.size
        for dtype, length in parts:
            arrays.append(np.frombuffer(view, dtype, length, at) if length else _NONE)
            at += length * dtype.itemsize
        rows, obs, *cells, final_rows, final = arrays
        return Frame(seq, kind, count, flags, num_steps, rows, obs, cells, final_rows, final, view[at:])


def pack_bare(seq: int, kind: int, attachment: Buffer = b"", num_steps: int = 0) -> bytearray:
    """Return a frame without rows; it needs no layout."""
    data = bytearray(_HEADER.pack(seq, kind, 0, 0, 0, num_steps, len(attachment)))
    data += attachment
    return data


def unpack_bare(data: Buffer) -> Frame:
    """Return number, kind and attachment of a frame; its rows are left out."""
    view = memoryview(data).cast("B")
    seq, kind, _, _, _, num_steps, attachment_nbytes = _HEADER.unpack_from(view)
    return Frame(seq, kind, num_steps=num_steps, attachment=view[len(view) - attachment_nbytes :])


def bytes_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the bytes of a row, which are copied ten times as fast as its fields."""
    return np.dtype((np.void, dtype.itemsize))


def _row_of(fields: Mapping[str, np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype of a row with these fields; it has at least 8 bytes."""
    *offsets, nbytes = itertools.accumulate((-(-one.itemsize // 8) * 8 for one in fields.values()), initial=0)
    formats = list(fields.values())
    row: Any = {"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": max(nbytes, 8)}
    dtype: np.dtype[Any] = np.dtype(row)
    return dtype


def _nbytes_of(parts: Sequence[tuple[np.dtype[Any], int]]) -> int:
    return _HEADER.size + sum(dtype.itemsize * length for dtype, length in parts)
