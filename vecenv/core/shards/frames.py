"""Frames: a reply of a shard as one flat buffer, and a buffer as pieces of a size that the transport handles well.

header     int64: seq, kind, count, flags, num_final, num_steps, attachment_nbytes
columns    step_id, env_id, reward, ..., one after the other, `count` rows each; every column begins at a
           multiple of 8 bytes
obs        the leaves of the observation, `count` rows each
info       the cells of infos, `count` rows each; only if a row is flagged INFO, or FINAL_INFO
final      the leaves of final observations, only for the rows flagged FINAL
attachment pickled messages; empty for plain steps
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..layout.arena import RECORD, ArenaPlan
from ..layout.columns import CELLS, Group, fields_of
from ..layout.flags import RowFlag
from ..layout.rows import AnyRows, union_of_flags
from ..layout.spec import Array

__all__ = ["Buffer", "Frame", "FrameKind", "FrameLayout", "count_pieces", "join", "pack_bare", "split", "unpack_bare"]

#: Size of a piece. Ray sends values below about 100 KiB in the message itself; larger ones pass its object store.
PIECE_NBYTES = 96 << 10
#: Larger buffers are sent as one value: beyond about 10 MiB, Ray puts each piece into its store.
MOST_SPLIT_NBYTES = 8 << 20

#: Anything that a memoryview can be made of.
Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct("<7q")
_ALIGN = 8
_CELL_FLAGS = int(RowFlag.INFO | RowFlag.FINAL_INFO)
#: Number of forms of frames that are kept: asynchronous replies have any number of rows.
_MOST_FORMS = 256


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


@dataclass
class Frame:
    """One reply of a shard. Arrays are views of the buffer, possibly read-only.

    Attributes:
        seq: number of the request; 0: the reply to the start.
        kind: a `FrameKind`.
        count: number of rows.
        flags: union of the flags of all rows.
        num_steps: steps that the envs of the shard have made since its start.
        columns: name -> array (count, ...). The names are those of `Rows.column`, and 'record': the record of the
            answer (`arena.RECORD`), if the shard keeps records.
        obs: the observation leaves, (count, *S) each.
        final_rows: int64 (num_final,): rows that have a final observation.
        final: its leaves, (num_final, *S) each.
        attachment: pickled messages.
    """

    seq: int
    kind: int = FrameKind.EXECUTED
    count: int = 0
    flags: int = 0
    num_steps: int = 0
    columns: dict[str, Array] = field(default_factory=dict)
    obs: list[Array] = field(default_factory=list)
    final_rows: Array = field(default_factory=lambda: np.empty(0, np.int64))
    final: list[Array] = field(default_factory=list)
    attachment: Buffer = b""


class _Part(NamedTuple):
    """One array of a frame: which list it belongs to, its name or index there, and its name in `_Form.dtype`."""

    group: str
    key: Any
    name: str


class _Form(NamedTuple):
    """The arrays of frames with the same number of rows and the same parts.

    Attributes:
        parts: in their order.
        dtype: of all bytes before the attachment; each part is a field, and the header has none.
    """

    parts: list[_Part]
    dtype: np.dtype[Any]


class FrameLayout:
    """Packs rows into frames, and unpacks them; both ends have an equal one.

    Args:
        plan: of an arena with the same spaces; the number of envs does not matter.
        has_records: whether each row travels with its record.
        first_env_id: number of env 0 of the rows to pack in the frame.
    """

    def __init__(self, plan: ArenaPlan, *, has_records: bool, first_env_id: int = 0) -> None:
        self._first_env_id = first_env_id
        self._leaves = plan.obs.leaves
        self._columns = fields_of(Group.COMMAND, Group.STEP, Group.OBS, reward_shape=plan.reward_shape)
        if has_records:
            self._columns["record"] = RECORD
        self._cells = [(cells.flag, fields_of(cells.group)) for cells in CELLS]
        self._has_final = plan.has_final
        self._form = functools.lru_cache(_MOST_FORMS)(self._make_form)

    def _make_form(self, count: int, flags: int, num_final: int) -> _Form:
        """Return the form of frames; of the flags, those of infos matter."""
        parts, formats = [], []

        def add(group: str, key: Any, count: int, dtype: np.dtype[Any]) -> None:
            parts.append(_Part(group, key, f"{group} {key}"))
            formats.append(np.dtype((dtype.base, (count, *dtype.shape))))

        for name, dtype in self._columns.items():
            add("columns", name, count, dtype)
        for leaf in self._leaves:
            add("obs", leaf.index, count, np.dtype((leaf.dtype, leaf.shape)))
        for flag, columns in self._cells:
            if flags & flag:
                for name, dtype in columns.items():
                    add("columns", name, count, dtype)
        if num_final:
            add("final_rows", 0, num_final, np.dtype("<i8"))
            for leaf in self._leaves:
                add("final", leaf.index, num_final, np.dtype((leaf.dtype, leaf.shape)))
        *offsets, nbytes = itertools.accumulate((_aligned(one.itemsize) for one in formats), initial=_HEADER.size)
        names = [part.name for part in parts]
        fields: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": nbytes}
        return _Form(parts, np.dtype(fields))

    def _form_of(self, count: int, flags: int, num_final: int) -> _Form:
        return self._form(count, flags & _CELL_FLAGS, num_final)

    def most_nbytes(self, count: int) -> int:
        """Return the size of a frame of `count` rows that have everything a row can have, without attachment."""
        flags = RowFlag.INFO | (RowFlag.FINAL_INFO if self._has_final else 0)
        num_final = count if self._has_final else 0
        return self._form_of(count, flags, num_final).dtype.itemsize

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
        final_rows = np.flatnonzero(row_flags & RowFlag.FINAL) if self._has_final and flags & RowFlag.FINAL else _NONE
        form = self._form_of(rows.count, flags, len(final_rows))
        data = bytearray(form.dtype.itemsize + len(attachment))
        head = seq, FrameKind.EXECUTED, rows.count, flags, len(final_rows), num_steps, len(attachment)
        _HEADER.pack_into(data, 0, *head)
        arrays = np.frombuffer(data, form.dtype, 1)
        for group, key, name in form.parts:
            if group == "columns":
                values: Any = records if key == "record" else rows.column(key)
            elif group == "obs":
                values = rows.obs(key)
            else:
                values = final_rows if group == "final_rows" else rows.final(key)[final_rows]
            array = arrays[name][0]
            array[...] = values
            if key == "env_id":
                array += self._first_env_id
        data[form.dtype.itemsize :] = attachment
        return data

    def unpack(self, data: Buffer) -> Frame:
        """Return the contents of a frame, as views."""
        view = memoryview(data).cast("B")
        seq, kind, count, flags, num_final, num_steps, attachment_nbytes = _HEADER.unpack_from(view)
        frame = Frame(seq, kind, count, flags, num_steps)
        if count:
            form = self._form_of(count, flags, num_final)
            arrays = np.frombuffer(view, form.dtype, 1)
            for group, key, name in form.parts:
                values = arrays[name][0]
                if group == "columns":
                    frame.columns[key] = values
                elif group == "final_rows":
                    frame.final_rows = values
                else:
                    (frame.obs if group == "obs" else frame.final).append(values)
        frame.attachment = view[len(view) - attachment_nbytes :]
        return frame


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


_NONE: Array = np.empty(0, np.int64)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN
