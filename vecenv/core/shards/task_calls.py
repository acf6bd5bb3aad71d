"""TaskCall: the driver's end of one call of a task in a shard.

    make_request -> RunTask -> shard ... -> TaskReply -> value or error

If the shard is lost before the result has arrived, its successor gets the call again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..system.clock import now_ns
from .requests import RunTask

__all__ = ["TaskCall", "TaskRequest"]


class TaskRequest(NamedTuple):
    """The request to a shard.

    Attributes:
        op: the operation.
        shared: handle of the shared value that it refers to; None: it refers to none.
        most_nbytes: approximate size of the result.
    """

    op: RunTask
    shared: Any
    most_nbytes: int


class TaskCall:
    """One call of a task.

    Args:
        shard: number of the shard.
        make_request: called with the number of predecessors that the shard's process has had, right before the call is
            sent; called again with another number if the shard was lost. It must not raise.

    Attributes:
        shard: as given.
        generation: number of predecessors of the process that was sent the call last.
        is_sent: whether the present process of the shard was sent the call.
        most_nbytes: approximate size of the result.
        is_done: whether the call has ended.
        done_ns: when it has ended, on the monotonic clock.
        value: the result.
        error: the exception that it has ended with, or None.
        is_lost: whether the shard was lost and not replaced; then it is unknown which commands were executed.
    """

    def __init__(self, shard: int, make_request: Callable[[int], TaskRequest]) -> None:
        self.shard = shard
        self._make_request: Callable[[int], TaskRequest] | None = make_request
        self.is_sent = self.is_done = self.is_lost = False
        self.most_nbytes = self.done_ns = self.generation = 0
        self.value: Any = None
        self.error: Exception | None = None

    def request(self, generation: int) -> TaskRequest:
        """Return the request for the present process of the shard, which is sent now."""
        assert self._make_request is not None, "the call has ended"
        request = self._make_request(generation)
        self.is_sent, self.generation, self.most_nbytes = True, generation, request.most_nbytes
        return request

    def forget_sent(self) -> None:
        """Note that the process that was sent the call is lost."""
        self.is_sent = False

    def end(self, value: Any, error: Exception | None, *, is_lost: bool = False) -> None:
        """Note the end."""
        self.value, self.error, self.is_lost = value, error, is_lost
        self.is_done, self.done_ns = True, now_ns()
        self._make_request = None  # which may refer to this call
