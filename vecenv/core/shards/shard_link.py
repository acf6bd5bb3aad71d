"""Numbered requests to one shard, each of which is executed exactly once, over a transport that may lose them.

    ops -> Request 1 -> reply 1
           Request 2 -> (no reply, the shard may have executed it) -> Request 2 again -> reply 2, from its cache

A shard executes request n + 1 only after request n, and keeps a reply until it is acknowledged. So a request may be
sent any number of times. At most two are in flight: while the shard executes one, the next one is on its way.
"""

from __future__ import annotations

from typing import Any

from ..system.clock import NEVER_NS
from .carrier import Carrier
from .frames import Frame, FrameKind
from .requests import Op, Request, pack_request

__all__ = ["PATIENCE_SECONDS", "POLL_NS", "ShardLink"]

#: Seconds after which a shard answers even if it has no row: the heartbeat.
PATIENCE_SECONDS = 1.0
#: Longest sleep between two checks whether the pool is being closed.
POLL_NS = 50_000_000
_MOST_IN_FLIGHT = 2
#: Pause before a request is sent again; it is doubled up to the second one.
_FIRST_PAUSE_NS, _LONGEST_PAUSE_NS = 100_000_000, 2_000_000_000


class ShardLink:
    """The requests to one shard.

    Args:
        shard: number of the shard.
        carrier: the transport.

    Attributes:
        num_calls, bytes_up, bytes_down: number of requests that were sent, repeated ones included, their bytes, and
            those of replies.
        is_open: whether the shard executes requests; until then operations are queued.
        silent_ns: for how long waits have waited for a reply of this shard, as of the last `advance`. The time until
            the first `advance` after a reply, or after the first request, is left out.
    """

    def __init__(self, shard: int, carrier: Carrier) -> None:
        self._shard = shard
        self._carrier = carrier
        self.num_calls = self.bytes_up = self.bytes_down = 0
        self.is_open = False
        self.begin()

    def begin(self) -> None:
        """Forget all requests and operations: another process takes the place of the shard."""
        self.is_open = False
        self.silent_ns = 0
        self._begins_to_wait = False  # since the last `advance`
        self._ops: list[Op] = []
        self._shared: list[Any] = []  # handles of the values that these operations refer to
        self._last = 0  # number of the last request
        self._received = 0  # all requests up to this number are answered
        #: by number: the request, the size of its reply, and its shared values
        self._in_flight: dict[int, tuple[bytes, int, list[Any]]] = {}
        self._early: dict[int, Frame] = {}  # replies that came before the one of an earlier request
        self._pause_ns = _FIRST_PAUSE_NS
        self._repeat_at_ns = NEVER_NS

    def open(self) -> None:
        """Begin to send requests."""
        self.is_open = True

    # ---- sending ---------------------------------------------------------------------------

    @property
    def num_in_flight(self) -> int:
        """How many requests are not answered."""
        return len(self._in_flight)

    @property
    def has_ops(self) -> bool:
        """Whether operations are queued."""
        return bool(self._ops)

    def add(self, op: Op, shared: Any = None) -> None:
        """Queue an operation, with the handle of a shared value if it needs one; the next `ask` sends it."""
        self._ops.append(op)
        if shared is not None:
            self._shared.append(shared)

    def ask(self, least: int, most_nbytes: int) -> bool:
        """Send all queued operations as one request; return False if the shard is not open or two are in flight.

        Args:
            least: as in `Request`.
            most_nbytes: size of the largest reply without attachment.
        """
        if not self.is_open or len(self._in_flight) >= _MOST_IN_FLIGHT:
            return False
        self._begins_to_wait |= not self._in_flight
        self._last += 1
        request = pack_request(Request(self._last, self._received, self._ops, least, PATIENCE_SECONDS))
        self._in_flight[self._last] = request, most_nbytes, self._shared
        self._ops, self._shared = [], []
        self._send(self._last)
        return True

    def _send(self, seq: int) -> None:
        request, most_nbytes, shared = self._in_flight[seq]
        self.num_calls += 1
        self.bytes_up += len(request)
        self._carrier.ask(self._shard, seq, request, most_nbytes, shared)

    # ---- receiving -------------------------------------------------------------------------

    def receive(self, frame: Frame) -> list[Frame]:
        """Take a frame; return the replies that are new, ordered by the numbers of their requests."""
        self._begins_to_wait = True
        if frame.kind == FrameKind.REFUSED:
            self.repeat()
            return []
        if frame.seq not in self._in_flight:
            return []  # the second reply to a request that was sent twice
        del self._in_flight[frame.seq]
        self._early[frame.seq] = frame
        self._pause_ns = _FIRST_PAUSE_NS
        found = []
        while (reply := self._early.pop(self._received + 1, None)) is not None:
            found.append(reply)
            self._received += 1
        return found

    def repeat_after_pause(self, now: int) -> None:
        """Send the requests in flight again after a pause: one of them, or its reply, may be lost."""
        if self._repeat_at_ns == NEVER_NS:
            self._repeat_at_ns = now + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)

    def advance(self, now: int, waited_ns: int = 0) -> int:
        """Send requests again if that is due; return when to call this again, on the monotonic clock.

        Args:
            now: the time.
            waited_ns: how long waits have waited since the last call.
        """
        if self._begins_to_wait:
            self._begins_to_wait, self.silent_ns = False, 0
        elif self._in_flight:
            self.silent_ns += waited_ns
        if now >= self._repeat_at_ns:
            self.repeat()
        return self._repeat_at_ns

    def repeat(self) -> None:
        """Send the requests in flight again, in their order."""
        self._repeat_at_ns = NEVER_NS
        for seq in self._in_flight:
            self._send(seq)
