"""Rows: the words that both ends of a row agree on, and a run of rows as the parent sees it."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from .spec import Array

__all__ = ["Autoreset", "Column", "CommandFlag", "FORM_MASK", "Form", "Op", "Rows", "RowFlag", "RowRange"]


class Op(IntEnum):
    """What a command asks of an env; 0 is no command."""

    NONE = 0
    STEP = 1
    RESET = 2
    CALL = 3


class Autoreset(IntEnum):
    """What happens when an episode ends; the names are Gymnasium's `AutoresetMode`."""

    DISABLED = 0
    NEXT_STEP = 1
    SAME_STEP = 2


class RowFlag:
    """What a row is beside the result of a step (native/shm/layout.h): bits of an int.

    Plain ints, since an operator of `enum.IntFlag` takes a microsecond and every batch has its flags looked at.
    """

    RESET = 0x01  #: the answer to a reset
    AUTORESET = 0x02  #: NEXT_STEP: the first observation of a new episode
    FINAL = 0x04  #: SAME_STEP: there is the observation that ended the episode, too
    MESSAGE = 0x08  #: mail with this step_id was written before
    ERROR = 0x10  #: the env raised; the mail holds the exception
    INFO = 0x20  #: cells hold values of the info
    VOID = 0x40  #: superseded: nobody waits for this row
    FINAL_INFO = 0x80  #: with FINAL: cells hold values of the info that ended the episode


class CommandFlag:
    """What comes with a command beside the form of its action: bits of an int."""

    PAYLOAD = 0x10  #: further values come by mail
    SEED = 0x20  #: the argument is a seed
    SNAPSHOT = 0x40  #: a reset superseded a step: look at the env's state before it
    CANCELLED = 0x100  #: in a journal only: cancelled, so it was made and answered, or not
    NEW_DIGEST = 0x80  #: in a journal only: the checksum of the env's answers starts anew


#: The bits of a command's flags that hold the `Form` of its action.
FORM_MASK = 0x0F


class Form(IntEnum):
    """The object that an action of shape () arrives as in the env."""

    NATIVE = 0  #: what `gymnasium.vector.utils.iterate` gives
    INT = 1  #: a Python int
    VECTOR = 2  #: an array of shape (1,)
    ARRAY0 = 3  #: an array of shape ()


Column = str


class Rows(Protocol):
    """B rows: named columns (see `arena.HEADER_WORDS`) and observation leaves (B, *S)."""

    @property
    def count(self) -> int:
        """How many rows."""

    def column(self, name: Column) -> Array:
        """Return a column, (B,) or (B, ...)."""

    def obs(self, leaf: int) -> Array:
        """Return an observation leaf."""

    def final(self, leaf: int) -> Array:
        """Return a leaf of the observations that ended episodes (where flagged FINAL)."""


class RowRange:
    """Rows start .. stop of one block, as views."""

    __slots__ = ("_views", "count", "start", "stop")

    def __init__(self, views: BlockArrays, start: int, stop: int) -> None:
        self._views = views
        self.start = start
        self.stop = stop
        self.count = stop - start

    @property
    def block(self) -> int:
        """Number of the block."""
        return self._views.number

    def column(self, name: Column) -> Array:
        """Return a column, (B,) or (B, ...)."""
        return self._views.columns[name][self.start : self.stop]

    def obs(self, leaf: int) -> Array:
        """Return an observation leaf."""
        return self._views.obs[leaf][self.start : self.stop]

    def final(self, leaf: int) -> Array:
        """Return a leaf of the observations that ended episodes."""
        return self._views.final[leaf][self.start : self.stop]


class BlockArrays(Protocol):
    """What `RowRange` needs of a block; `arena.BlockViews` has it."""

    number: int
    columns: dict[str, Array]
    obs: list[Array]
    final: list[Array]
