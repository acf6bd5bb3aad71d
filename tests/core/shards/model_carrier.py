"""A carrier for tests: shards in this process, whose requests and replies can be lost, repeated or delayed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from vecenv.core.shards.carrier import CarrierEvent, Lost, Replied, ShardPlace, Unavailable
from vecenv.core.shards.frames import count_pieces, join, split
from vecenv.core.shards.shard import Shard
from vecenv.core.system.clock import now_ns

#: A fault: called with the shard and the number of a request; returns one of the names below, or '' for none.
Fault = Callable[[int, int], str]
#: "silent" is a further one: neither a reply nor an event comes.
FAULTS = ("request lost", "reply lost", "repeated", "late", "dead before", "dead after")


def no_fault(shard: int, seq: int) -> str:
    return ""


#: Shard, number, request, size of the reply and shared values.
_Asked = tuple[int, int, bytes, int, Sequence[Any]]


class ModelCarrier:
    """Executes requests in the thread that waits, one after the other; see `Carrier` for the calls.

    Args:
        fault: chooses the fault of each request.

    Attributes:
        executed: (shard, seq) of each call of `Shard.execute`, in their order.
        num_started: processes that were started so far.
        missing: the resources that processes wait for which are being started; '' if nodes have room for them.
    """

    def __init__(self, fault: Fault = no_fault) -> None:
        self.fault = fault
        self.executed: list[tuple[int, int]] = []
        self.num_started = 0
        self.missing = ""
        self._shards: dict[int, Shard] = {}
        self._requests: deque[_Asked] = deque()
        self._late: deque[_Asked] = deque()  # requests that another one overtakes
        self._events: deque[CarrierEvent] = deque()
        self._starting: deque[tuple[int, bytes]] = deque()

    def start(self, shard: int, boot: bytes) -> None:
        self._starting.append((shard, boot))

    def share(self, data: bytes) -> bytes:
        return data

    def ask(self, shard: int, seq: int, request: bytes, most_nbytes: int, shared: Sequence[Any] = ()) -> None:
        request = bytes(join(split(request, count_pieces(len(request)))))
        self._requests.append((shard, seq, request, most_nbytes, shared))

    def wait(self, deadline_ns: int, count: int = 1) -> list[CarrierEvent]:
        while not self._events and (self._may_start() or self._requests or self._late):
            if self._may_start():
                shard, boot = self._starting.popleft()
                self.num_started += 1
                self._shards[shard] = Shard(boot)
                self._events.append(Replied(shard, self._shards[shard].open()))
            elif self._requests:
                self._pass_on(*self._requests.popleft())
            else:
                self._execute(*self._late.popleft())
        while not self._events and now_ns() < deadline_ns:
            pass  # a pause before a request is sent again
        events = list(self._events)
        self._events.clear()
        return events

    def _may_start(self) -> bool:
        return bool(self._starting) and not self.missing

    def _pass_on(self, shard: int, seq: int, request: bytes, most_nbytes: int, shared: Sequence[Any]) -> None:
        fault = self.fault(shard, seq)
        if fault == "late" and any(one[0] == shard for one in self._requests):
            self._late.append((shard, seq, request, most_nbytes, shared))
            return
        if fault == "dead before":
            self._die(shard)
        elif fault == "silent":
            pass
        elif fault == "request lost":
            self._events.append(Unavailable(shard, seq, fault))
        else:
            self._execute(shard, seq, request, most_nbytes, shared)
            if fault == "repeated":
                self._execute(shard, seq, request, most_nbytes, shared)
            elif fault == "reply lost":
                self._events.pop()
                self._events.append(Unavailable(shard, seq, fault))
            elif fault == "dead after":
                self._events.pop()
                self._die(shard)

    def _execute(self, shard: int, seq: int, request: bytes, most_nbytes: int, shared: Sequence[Any]) -> None:
        self.executed.append((shard, seq))
        reply = self._shards[shard].execute(request, shared)
        self._events.append(Replied(shard, bytes(join(split(reply, count_pieces(most_nbytes))))))

    def _die(self, shard: int) -> None:
        self._end(shard)
        self._events.append(Lost(shard, "killed by the test", exitcode=-9))

    def _end(self, shard: int) -> None:
        if shard in self._shards:
            self._shards.pop(shard).close()
        for queue in (self._requests, self._late):
            for one in [one for one in queue if one[0] == shard]:
                queue.remove(one)

    def lose(self, shard: int) -> None:
        """Let a shard die now."""
        if shard in self._shards:
            self._die(shard)

    def worker_pids(self, shard: int) -> list[int]:
        """Return the process ids of the workers of a shard."""
        pool = self._shards[shard]._pool
        return [] if pool is None else list(pool.worker_pids)

    def kill(self, shard: int) -> None:
        self._end(shard)
        self._events = deque(event for event in self._events if event.shard != shard)
        self._starting = deque(one for one in self._starting if one[0] != shard)

    def waiting_for(self, shard: int) -> str:
        return self.missing

    def place_of(self, shard: int) -> ShardPlace | None:
        return ShardPlace(os.getpid()) if shard in self._shards else None

    def describe(self, shard: int) -> str:
        return "this process"

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        for shard in list(self._shards):
            self._end(shard)

    end_if_unclosed = close
