"""Tokens that two processes take from one another: each belongs to the process that takes it first."""

from __future__ import annotations

import os

from .descriptor import Descriptor

__all__ = ["Tokens"]


class Tokens:
    """A semaphore that two processes share. No call blocks, and a process that dies keeps only the tokens it has taken.

    Args:
        descriptor: an event counter of `of`, or another number of the same file.
    """

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor

    @classmethod
    def of(cls, count: int) -> Tokens:
        """Return a new semaphore with this number of tokens."""
        return cls(Descriptor(os.eventfd(count, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)))

    def take(self) -> bool:
        """Take one token; return False if there is none, or if this end is closed."""
        if self.descriptor.closed:
            return False
        try:
            os.eventfd_read(self.descriptor.number)
        except BlockingIOError:
            return False
        return True

    def give_back(self) -> None:
        """Give a token back that was taken."""
        os.eventfd_write(self.descriptor.number, 1)

    def close(self) -> None:
        """Close this end; may be repeated."""
        self.descriptor.close()
