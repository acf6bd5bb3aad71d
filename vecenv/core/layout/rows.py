"""Views of a range of rows in the parent."""

from __future__ import annotations

from typing import Protocol

from .spec import Array

__all__ = ["RowRange", "Rows"]


class Rows(Protocol):
    """B rows: named columns (see `arena.HEADER_WORDS`) and observation leaves (B, *S)."""

    @property
    def count(self) -> int:
        """Number of rows."""

    def column(self, name: str) -> Array:
        """Return a column, (B,) or (B, ...)."""

    def obs(self, leaf: int) -> Array:
        """Return an observation leaf, (B, *S)."""

    def final(self, leaf: int) -> Array:
        """Return a leaf of final observations, (B, *S); only rows flagged FINAL are meaningful."""


class RowRange:
    """The rows start .. stop of one block, as views."""

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

    def column(self, name: str) -> Array:
        """Return a column, (B,) or (B, ...)."""
        return self._views.columns[name][self.start : self.stop]

    def obs(self, leaf: int) -> Array:
        """Return an observation leaf, (B, *S)."""
        return self._views.obs[leaf][self.start : self.stop]

    def final(self, leaf: int) -> Array:
        """Return a leaf of final observations, (B, *S)."""
        return self._views.final[leaf][self.start : self.stop]


class BlockArrays(Protocol):
    """The part of a block that `RowRange` needs; `arena.BlockViews` implements it."""

    number: int
    columns: dict[str, Array]
    obs: list[Array]
    final: list[Array]
