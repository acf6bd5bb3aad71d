"""Leases: blocks of the ring that the caller keeps, instead of a copy of what is in them.

A batch that is to stay when the next ones arrive is copied, or its block is left out of the ring's rotation for as
long as anybody looks at it. NumPy tells: a view of an array holds a reference to it, and so does a view of a view,
as it is made one of the first array. So a block is free when its one array of bytes has no other references than
those of the views that are remembered here. What a forked child looks at, nobody can tell: blocks that somebody
looked at when it was forked are not used again. (It shares their memory, where it would have had copies of its own.)

Stands behind the batch on the data path, beside `Batch.copy`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Callable
from sys import getrefcount
from typing import Any, Generic, Protocol, TypeVar

from ..layout.arena import ArenaPlan, BlockViews
from ..layout.rows import RowRange, Rows

__all__ = ["Leases", "MIN_NBYTES"]

#: Smaller observations of a batch are copied in less time than it takes to lend them.
MIN_NBYTES = 16 << 10

_Views = TypeVar("_Views")


class Lender(Protocol):
    """What is needed of a hub."""

    def lend(self, block: int, /) -> bool:
        """Leave the block of a valid batch out of the rotation; False: it is free."""

    def take_back(self, block: int, /) -> None:
        """Give it back to the rotation."""


class _Lease(Generic[_Views]):
    """A block that is or was lent, and the views of it that are kept here."""

    __slots__ = ("_block", "_num_references", "number", "views")

    def __init__(self, block: BlockViews, make_views: Callable[[Rows], _Views]) -> None:
        self.number = block.number
        self.views = make_views(RowRange(block, 0, len(block.columns["env_id"])))
        self._block = block  # all that was there while references were counted stays
        self._num_references = getrefcount(block.data)

    def is_over(self) -> bool:
        """Tell whether nobody looks at the block any more."""
        return getrefcount(self._block.data) == self._num_references


class Leases(Generic[_Views]):
    """Lends blocks to the caller; one thread uses it at a time.

    If the caller writes into what was lent and a worker dies then, an episode that is given up shows what the caller
    wrote as its last observation.

    Args:
        hub: of the pool whose batches these are.
        plan, memory: its arena; `plan.leases` blocks may be lent at the same time.
        make_views: makes views of the rows of a block; called once per block.
    """

    def __init__(self, hub: Lender, plan: ArenaPlan, memory: mmap.mmap, make_views: Callable[[Rows], _Views]) -> None:
        self._hub = hub
        self._plan = plan
        self._memory = memory
        self._make_views = make_views
        self._min_count = -(-MIN_NBYTES // max(1, sum(leaf.nbytes for leaf in plan.obs.leaves)))
        self._known: dict[int, _Lease[_Views]] = {}
        self._lent: list[_Lease[_Views]] = []
        self._shared: set[int] = set()  # numbers of blocks that a forked child may look at
        _all.add(self)

    def take(self, rows: Rows) -> _Views | None:
        """Lend the block that these rows lie in.

        Args:
            rows: of a batch that is valid.

        Returns:
            What `make_views` made of the whole block, the same whenever it is the turn of this one. The caller gets
            views of that, and the lease is over when they go. None: rows are too few, not in a block, or too many are
            lent.
        """
        for over in [lease for lease in self._lent if lease.is_over() and lease.number not in self._shared]:
            self._lent.remove(over)
            self._hub.take_back(over.number)
        if len(self._lent) == self._plan.leases or type(rows) is not RowRange or rows.count < self._min_count:
            return None
        lease = self._known.get(rows.block)
        if lease is None:
            lease = self._known[rows.block] = _Lease(BlockViews(self._plan, self._memory, rows.block), self._make_views)
        if not self._hub.lend(lease.number):
            return None  # the batch is not valid any more
        self._lent.append(lease)
        return lease.views

    def share(self) -> None:
        """Remember what is looked at now: this process is being forked, perhaps by another thread."""
        self._shared.update(lease.number for lease in tuple(self._lent) if not lease.is_over())

    def end(self) -> None:
        """If some block is still looked at, give the memory of those that are free back to the system at once.

        Else one observation kept from each of many pools would keep all of their memory. To be called once the workers
        are gone; another thread may be about to look at the batch that it received last.
        """
        if all(lease.is_over() for lease in self._lent) and not self._shared:
            return
        words = self._plan.words
        for block in range(words["num_blocks"]):
            if not self._hub.lend(block):
                start = words["blocks"] + block * words["block_stride"]
                self._free(start, start + words["block_stride"])

    def _free(self, start: int, stop: int) -> None:
        page = mmap.PAGESIZE  # may be larger than what blocks are aligned to
        start, stop = -(-start // page) * page, stop // page * page
        if start < stop:
            with contextlib.suppress(OSError):  # locked, or a system that cannot: it stays until the last view goes
                self._memory.madvise(mmap.MADV_REMOVE, start, stop - start)


_all: weakref.WeakSet[Leases[Any]] = weakref.WeakSet()


def _share_all() -> None:
    for leases in tuple(_all):
        leases.share()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_share_all)
