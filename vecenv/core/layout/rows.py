"""Rows as arrays, in memory of their own, as a whole block of the ring, or as a view of a part of a block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arena import PRIVATE_BLOCK, ArenaPlan
from .columns import Group, fields_of, names_with
from .flags import RowFlag
from .spec import Array, Spec

__all__ = ["AnyRows", "BlockRows", "RowRange", "Rows", "copy_rows", "union_of_flags"]


class Rows:
    """B rows.

    Attributes:
        count: B.
        columns: name -> array (B, ...), named as in `columns.COLUMNS`. Those of infos may be missing if no row is
            flagged to have them.
        leaves: one array (B, *S) per observation leaf.
        final_leaves: the same for final observations, meaningful only in rows flagged FINAL; may be empty if none is.
    """

    __slots__ = ("columns", "count", "final_leaves", "leaves")

    def __init__(self, count: int, columns: dict[str, Array], leaves: list[Array], final_leaves: list[Array]) -> None:
        self.count = count
        self.columns, self.leaves, self.final_leaves = columns, leaves, final_leaves

    @classmethod
    def zeros(cls, count: int, spec: Spec, reward_shape: tuple[int, ...]) -> Rows:
        """Return `count` rows of zeros, without final observations and their infos."""
        fields = fields_of(Group.COMMAND, Group.STEP, Group.OBS, Group.INFO, reward_shape=reward_shape)
        columns: dict[str, Array] = {name: np.zeros(count, dtype) for name, dtype in fields.items()}
        return cls(count, columns, [np.zeros((count, *leaf.shape), leaf.dtype) for leaf in spec.leaves], [])

    def column(self, name: str) -> Array:
        """Return a column, (B,) or (B, ...)."""
        return self.columns[name]

    def columns_of(self, names: Sequence[str]) -> tuple[Array, ...]:
        """Return several columns, to be read at once; they may be those that other rows use, too."""
        return tuple([self.column(name) for name in names])

    def obs(self, leaf: int) -> Array:
        """Return an observation leaf, (B, *S)."""
        return self.leaves[leaf]

    def final(self, leaf: int) -> Array:
        """Return a leaf of final observations, (B, *S)."""
        return self.final_leaves[leaf]

    def put(self, index: Array | slice, rows: AnyRows, source: Array) -> int:
        """Copy the rows `source` of other rows to the rows `index` of these; return the union of their flags.

        Infos and final observations are copied only if one of the copied rows is flagged to have them.
        """
        flags = union_of_flags(rows.column("flags")[source])
        for name in names_with(flags):
            self.columns[name][index] = rows.column(name)[source]
        for leaf, ours in enumerate(self.leaves):
            ours[index] = rows.obs(leaf)[source]
        if flags & RowFlag.FINAL:
            for leaf, ours in enumerate(self.final_leaves):
                ours[index] = rows.final(leaf)[source]
        return flags


class BlockRows(Rows):
    """All rows of one block, as views.

    Attributes:
        number: number of the block; `PRIVATE_BLOCK` for rows outside the arena, which fill `memory`.
        data: the bytes of the block, uint8; every other array is a view of this one, and so are views of them.
        columns: those of a column with fields have an entry for the column and for each field.
    """

    __slots__ = ("data", "number")

    def __init__(self, plan: ArenaPlan, memory: Any, block: int) -> None:
        self.number = block
        stride = plan.words["block_stride"]
        start = 0 if block == PRIVATE_BLOCK else plan.words["blocks"] + block * stride
        self.data: Array = np.frombuffer(memory, np.uint8, stride, start)
        count = plan.words["rows"]
        columns: dict[str, Array] = {}
        for name, dtype, _, size in plan.columns:
            shape: tuple[int, ...] = (count,) if size == 1 else (count, size)
            if name == "reward":
                shape = (count, *plan.reward_shape)
            view = columns[name] = self._view(plan.words[name], dtype, shape)
            columns.update({field: view[field] for field in view.dtype.names or ()})
        obs, final = (
            [self._view(at, leaf.dtype, (count, *leaf.shape)) for at, leaf in zip(offsets, plan.obs.leaves)]
            for offsets in (plan.obs_offsets, plan.final_offsets)
        )
        super().__init__(count, columns, obs, final)

    def _view(self, offset: int, dtype: Any, shape: tuple[int, ...]) -> Array:
        nbytes = np.dtype(dtype).itemsize * math.prod(shape)
        view: Array = self.data[offset : offset + nbytes].view(dtype)
        return view.reshape(shape)


class RowRange:
    """The rows start .. stop of one block, as views.

    Args:
        block_rows: all rows of the block.
        start, stop: the range.
    """

    __slots__ = ("_rows", "count", "start", "stop")

    def __init__(self, block_rows: BlockRows, start: int, stop: int) -> None:
        self._rows = block_rows
        self.start = start
        self.stop = stop
        self.count = stop - start

    @property
    def block(self) -> int:
        """Number of the block."""
        return self._rows.number

    @property
    def leaves(self) -> list[Array]:
        """One array (B, *S) per observation leaf."""
        return [self.obs(leaf) for leaf in range(len(self._rows.leaves))]

    def column(self, name: str) -> Array:
        """Return a column, (B,) or (B, ...)."""
        return self._rows.columns[name][self.start : self.stop]

    def columns_of(self, names: Sequence[str]) -> tuple[Array, ...]:
        """Return several columns, to be read at once; those of a whole block are the block's own."""
        columns = self._rows.columns
        if self.count == self._rows.count:
            return tuple([columns[name] for name in names])
        part = slice(self.start, self.stop)
        return tuple([columns[name][part] for name in names])

    def obs(self, leaf: int) -> Array:
        """Return an observation leaf, (B, *S)."""
        return self._rows.leaves[leaf][self.start : self.stop]

    def final(self, leaf: int) -> Array:
        """Return a leaf of final observations, (B, *S)."""
        return self._rows.final_leaves[leaf][self.start : self.stop]


AnyRows = Rows | RowRange


def copy_rows(rows: AnyRows, index: Array | None = None) -> Rows:
    """Return a copy of all rows, or of those with the indices `index`, int64 (n,).

    Infos and final observations are copied only if one of the copied rows is flagged to have them.
    """

    def copy(array: Array) -> Array:
        return array.copy() if index is None else array.take(index, 0)  # an index takes longer

    flags = union_of_flags(copy(rows.column("flags")))
    columns = {name: copy(rows.column(name)) for name in names_with(flags)}
    leaves = [copy(leaf) for leaf in rows.leaves]
    final = [copy(rows.final(leaf)) for leaf in range(len(leaves))] if flags & RowFlag.FINAL else []
    return Rows(rows.count if index is None else len(index), columns, leaves, final)


def union_of_flags(flags: Array) -> int:
    """Return the union of the flags of rows."""
    return int(np.bitwise_or.reduce(flags, initial=0))
