"""Tokens that two processes take from one another: each belongs to the process that takes it first."""

from __future__ import annotations

import os

from .descriptor import Descriptor

__all__ = ["Tokens"]


class Tokens:
    """A semaphore that two processes share. No call blocks, and a process that dies keeps only the tokens it has taken.

    It is a pipe, from which each byte can be read once.

    Args:
        descriptor: the end of the pipe for reading, or another number of the same file.
        writer: the other end, by which tokens are given back; None: this process only takes them.
    """

    def __init__(self, descriptor: Descriptor, writer: Descriptor | None = None) -> None:
        self.descriptor = descriptor
        self._writer = writer

    @classmethod
    def of(cls, count: int) -> Tokens:
        """Return a new semaphore with this number of tokens."""
        found = cls(*Descriptor.of_pipe())
        found.give_back(count)
        return found

    def take(self) -> bool:
        """Take one token; return False if there is none, or if this end is closed."""
        if self.descriptor.closed:
            return False
        try:
            return bool(os.read(self.descriptor.number, 1))
        except BlockingIOError:
            return False

    def give_back(self, count: int = 1) -> None:
        """Give tokens back that were taken."""
        assert self._writer is not None
        os.write(self._writer.number, bytes(count))

    def close(self) -> None:
        """Close this end; may be repeated."""
        self.descriptor.close()
        if self._writer is not None:
            self._writer.close()
