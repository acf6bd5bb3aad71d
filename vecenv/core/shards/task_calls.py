"""TaskCall: the driver's end of one call of a task in a shard.

    make_request -> RunTask -> shard ... -> TaskReply -> value or error

If the shard is lost before the result has arrived, its successor gets the call again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..system.clock import now_ns
from .requests import RunTask

__all__ = ["TaskCall"]


class TaskCall:
    """One call of a task.

    Args:
        shard: number of the shard.
        make_request: called with the number of predecessors that the shard's process has had, right before the call is
            sent; called again with another number if the shard was lost. It returns the operation, and the handle of
            the shared value that it refers to, or None. It must not raise.
        most_nbytes: approximate size of the result.

    Attributes:
        shard: as given.
        generation: number of predecessors of the process that was sent the call last.
        is_sent: whether the present process of the shard was sent the call.
        most_nbytes: as given.
        is_done: whether the call has ended.
        done_ns: when it has ended, on the monotonic clock.
        value: the result.
        error: the exception that it has ended with, or None.
        is_lost: whether the shard was lost and not replaced; then it is unknown which commands were executed.
    """

    def __init__(self, shard: int, make_request: Callable[[int], tuple[RunTask, Any]], most_nbytes: int = 0) -> None:
        self.shard, self.most_nbytes = shard, most_nbytes
        self._make_request: Callable[[int], tuple[RunTask, Any]] | None = make_request
        self.is_sent = self.is_done = self.is_lost = False
        self.done_ns = self.generation = 0
        self.value: Any = None
        self.error: Exception | None = None

    def request(self, generation: int) -> tuple[RunTask, Any]:
        """Return the request for the present process of the shard, which is sent now."""
        assert self._make_request is not None, "the call has ended"
        self.is_sent, self.generation = True, generation
        return self._make_request(generation)

    def forget_sent(self) -> None:
        """Note that the process that was sent the call is lost."""
        self.is_sent = False

    def end(self, value: Any, error: Exception | None, *, is_lost: bool = False) -> None:
        """Note the end."""
        self.value, self.error, self.is_lost = value, error, is_lost
        self.is_done, self.done_ns = True, now_ns()
        self._make_request = None  # it may refer to this call
