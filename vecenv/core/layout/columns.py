"""COLUMNS: the table of the columns of a row, without those of its two observations.

The arena has the columns in the order of the table, and all other code takes their names from here: rows that are
copied, gathered without C, joined with those of spare envs, or sent by shards.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np

from .flags import RowFlag

__all__ = [
    "CELLS",
    "COLUMNS",
    "FINAL_CELLS",
    "INFO_CELLS",
    "INFO_KEYS",
    "CellColumns",
    "Group",
    "RowColumn",
    "columns_of",
    "fields_of",
    "names_of",
    "names_with",
]

#: Cells of a row for numbers in infos.
INFO_KEYS = 32


class Group(enum.Enum):
    """The thing that the value of a column belongs to."""

    PRIVATE = enum.auto()  #: the block: only the two ends of the ring read it
    COMMAND = enum.auto()  #: the command that the row answers
    STEP = enum.auto()  #: the step, or the episode that it belongs to
    OBS = enum.auto()  #: the observation
    INFO = enum.auto()  #: the info of the observation; only in rows flagged INFO
    FINAL_INFO = enum.auto()  #: the info of the final observation; only in rows flagged FINAL_INFO


class RowColumn(NamedTuple):
    """One column.

    Attributes:
        name: that of its offset in the header of the arena. A column of several fields is read by their names.
        dtype: of one value.
        group: the thing that the value belongs to.
        size: values per row; that of rewards is the size of one reward.
    """

    name: str
    dtype: Any
    group: Group
    size: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes per row."""
        itemsize: int = np.dtype(self.dtype).itemsize
        return self.size * itemsize


#: Episode counters of a row, as in native/shm/layout.h.
_EPISODE_COUNTERS = np.dtype([("episode", "<i8"), ("length", "<i8"), ("seed", "<i8"), ("return", "<f8")])

#: In the order of the enum in native/shm/layout.h.
COLUMNS = (
    RowColumn("owner", "<u8", Group.PRIVATE),
    RowColumn("cell", "<u8", Group.PRIVATE),
    RowColumn("step_id", "<u8", Group.COMMAND),
    RowColumn("env_id", "<i8", Group.COMMAND),
    RowColumn("reward", "<f8", Group.STEP),
    RowColumn("terminated", "?", Group.STEP),
    RowColumn("truncated", "?", Group.STEP),
    RowColumn("flags", "<u4", Group.OBS),
    RowColumn("episode_counters", _EPISODE_COUNTERS, Group.STEP),
    RowColumn("info_tags", "u1", Group.INFO, INFO_KEYS),
    RowColumn("info_values", "<u8", Group.INFO, INFO_KEYS),
    RowColumn("seconds", "<f8", Group.STEP),
    RowColumn("final_tags", "u1", Group.FINAL_INFO, INFO_KEYS),
    RowColumn("final_values", "<u8", Group.FINAL_INFO, INFO_KEYS),
)


class CellColumns(NamedTuple):
    """One of the two sets of cells of a row: the flag of rows that have it, and its columns of tags and values."""

    flag: int
    group: Group
    tags: str
    values: str


INFO_CELLS = CellColumns(RowFlag.INFO, Group.INFO, "info_tags", "info_values")
FINAL_CELLS = CellColumns(RowFlag.FINAL_INFO, Group.FINAL_INFO, "final_tags", "final_values")
CELLS = (INFO_CELLS, FINAL_CELLS)


def columns_of(*groups: Group) -> tuple[RowColumn, ...]:
    """Return the columns of these groups."""
    return tuple(column for column in COLUMNS if column.group in groups)


def fields_of(*groups: Group, reward_shape: tuple[int, ...] = ()) -> dict[str, np.dtype[Any]]:
    """Return the names by which the columns of these groups are read: those of the fields, for a column of several.

    Their dtypes are those of one row, with the shape of its value if that is not a single number.
    """
    fields: dict[str, np.dtype[Any]] = {}
    for column in columns_of(*groups):
        dtype = np.dtype(column.dtype)
        if dtype.names:
            fields.update((name, dtype[name]) for name in dtype.names)
        else:
            shape = reward_shape if column.name == "reward" else (column.size,) if column.size > 1 else ()
            fields[column.name] = np.dtype((dtype, shape))
    return fields


def names_of(*groups: Group) -> tuple[str, ...]:
    """Return the names by which the columns of these groups are read."""
    return tuple(fields_of(*groups))


_IN_ALL_ROWS = names_of(Group.COMMAND, Group.STEP, Group.OBS)


def names_with(flags: int) -> tuple[str, ...]:
    """Return the names of the columns that rows with these `RowFlag` bits have a value in."""
    names = _IN_ALL_ROWS
    for cells in CELLS:
        if flags & cells.flag:
            names += cells.tags, cells.values
    return names
