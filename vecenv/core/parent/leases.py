"""Lend blocks of the ring to the caller instead of copying a batch.

A batch that the caller keeps beyond the next ones must be copied, or its block must leave the ring's rotation while
references to it exist. NumPy shows whether they exist: a view of an array holds a reference to it, and a view of a
view refers to the first array. So a block is free when its one array of bytes has no other references than those of
the views that this module keeps. References in a forked child cannot be counted. Blocks that were referenced during a
fork are therefore never used again. (The child shares their memory, where it would have had its own copies.)

Stands after the batch on the data path, beside `Batch.copy`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Callable
from sys import getrefcount
from typing import Any, Generic, TypeVar

from ..layout.arena import ArenaPlan
from ..layout.rows import AnyRows, BlockRows, RowRange
from .hub import Hub

__all__ = ["Leases", "MIN_NBYTES", "NUM_LEASES"]

#: If the observations of a batch have fewer bytes, copying them is faster than lending.
MIN_NBYTES = 16 << 10
#: Batches that a caller may keep without a copy. A training loop uses two: the ones before and after a step.
NUM_LEASES = 3

_Views = TypeVar("_Views")


class _Lease(Generic[_Views]):
    """A block that is or was lent, and the views of it that are kept here."""

    __slots__ = ("_block", "_num_references", "number", "views")

    def __init__(self, block: BlockRows, make_views: Callable[[AnyRows], _Views]) -> None:
        self.number = block.number
        self.views = make_views(RowRange(block, 0, len(block.columns["env_id"])))
        self._block = block  # keeps every reference that is counted on the next line
        self._num_references = getrefcount(block.data)

    def is_over(self) -> bool:
        """Return whether the caller has no more references to the block."""
        return getrefcount(self._block.data) == self._num_references


class Leases(Generic[_Views]):
    """Lends blocks to the caller; one thread uses it at a time.

    If the caller writes into a lent block and the worker of an env then dies, an episode that is abandoned may end with
    the written values as its last observation.

    Args:
        hub: the hub of the pool whose batches are lent.
        plan, memory: the pool's arena; `plan.leases` blocks may be lent at the same time.
        make_views: makes views of the rows of a block; called once per block.
    """

    def __init__(self, hub: Hub, plan: ArenaPlan, memory: mmap.mmap, make_views: Callable[[AnyRows], _Views]) -> None:
        self._hub = hub
        self._plan = plan
        self._memory = memory
        self._make_views = make_views
        self._min_count = -(-MIN_NBYTES // max(1, sum(leaf.nbytes for leaf in plan.obs.leaves)))
        self._known: dict[int, _Lease[_Views]] = {}
        self._lent: list[_Lease[_Views]] = []
        self._shared: set[int] = set()  # numbers of blocks that a forked child may refer to
        _all.add(self)

    def take(self, rows: AnyRows) -> _Views | None:
        """Lend the block that contains these rows.

        Args:
            rows: rows of a valid batch.

        Returns:
            The result of `make_views` for the whole block, the same object each time that this block is lent. The
            caller must use views of it; the lease ends when they are gone. None if there are too few rows, if they are
            not in a block, or if too many blocks are lent.
        """
        for over in [lease for lease in self._lent if lease.is_over() and lease.number not in self._shared]:
            self._lent.remove(over)
            self._hub.take_back(over.number)
        if len(self._lent) == self._plan.leases or type(rows) is not RowRange or rows.count < self._min_count:
            return None
        lease = self._known.get(rows.block)
        if lease is None:
            lease = self._known[rows.block] = _Lease(BlockRows(self._plan, self._memory, rows.block), self._make_views)
        if not self._hub.lend(lease.number):
            return None  # the batch is no longer valid
        self._lent.append(lease)
        return lease.views

    def share(self) -> None:
        """Record the blocks in use now, because this process is being forked, perhaps by another thread."""
        self._shared.update(lease.number for lease in tuple(self._lent) if not lease.is_over())

    def end(self) -> None:
        """If a block is still in use, return the memory of the free blocks to the system at once.

        Without this, one observation kept from each of many pools would keep all of their memory. Call it after the
        workers have ended. Another thread may still be using the batch that it received last.
        """
        if all(lease.is_over() for lease in self._lent) and not self._shared:
            return
        words = self._plan.words
        for block in range(words["num_blocks"]):
            if not self._hub.lend(block):
                start = words["blocks"] + block * words["block_stride"]
                self._free(start, start + words["block_stride"])

    def _free(self, start: int, stop: int) -> None:
        page = mmap.PAGESIZE  # may be larger than the alignment of blocks
        start, stop = -(-start // page) * page, stop // page * page
        if start < stop:
            # memory that is locked, or that the system cannot free, stays until the last view is gone
            with contextlib.suppress(OSError):
                self._memory.madvise(mmap.MADV_REMOVE, start, stop - start)


_all: weakref.WeakSet[Leases[Any]] = weakref.WeakSet()


def _share_all() -> None:
    for leases in tuple(_all):
        leases.share()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_share_all)
