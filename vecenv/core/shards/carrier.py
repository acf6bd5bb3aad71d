"""Carrier: the interface to the transport between the driver and its shards.

    start ... Replied (seq 0) ... ask ... Replied ... ask ... Lost ... kill, start ...

A carrier starts processes that host a `shard.Shard`, passes requests to them and their frames back. It knows no env and
decides nothing: `shard_link` repeats requests, and `shard_supervisor` replaces shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ...values.id_ranges import node_text
from .frames import Buffer

__all__ = ["Carrier", "CarrierEvent", "Lost", "Replied", "ShardPlace", "Unavailable"]


class Replied(NamedTuple):
    """A frame has arrived from a shard.

    Attributes:
        shard: number of the shard.
        data: the frame, joined if it came in pieces. It stays readable for as long as it is referenced.
    """

    shard: int
    data: Buffer


class Unavailable(NamedTuple):
    """A request may have been executed or not, and its reply will not come; the shard may still be alive.

    The driver sends the request again, under the same number, after a pause.
    """

    shard: int
    seq: int
    text: str


class Lost(NamedTuple):
    """The process of a shard has ended, or was never started: no reply will come any more.

    Attributes:
        shard: number of the shard.
        text: the reason, for messages, such as "killed by SIGKILL (exit code -9)".
        cause: the exception of the transport, if there is one.
        exitcode: of the process, negative for a signal; None if it is unknown.
    """

    shard: int
    text: str
    cause: Exception | None = None
    exitcode: int | None = None


CarrierEvent = Replied | Unavailable | Lost


class ShardPlace(NamedTuple):
    """The process of a shard: its pid, and the name and the IP address of its node; '' without nodes."""

    pid: int
    node_id: str = ""
    node_ip: str = ""

    @property
    def node(self) -> str:
        """The node for messages, such as '10.0.0.3 (0f3a51c2)'; '' without nodes."""
        return node_text(self.node_ip, self.node_id)


class Carrier(Protocol):
    """Starts the processes of shards, and passes requests and replies.

    A shard is a number from 0 on. At most one process belongs to it at a time: `kill` ends one, `start` begins the
    next one. All methods are called by one thread at a time, except `interrupt`. None but `wait` and `close` blocks. A
    signal handler may raise out of any method; the next call must find a usable state.
    """

    def start(self, shard: int, boot: bytes) -> None:
        """Begin to start a process for a shard that has none.

        The process makes `Shard.in_own_process(boot)` and calls its `open`, whose result is the first frame that comes
        back, with seq 0. A process that cannot be started is reported as `Lost`.

        Args:
            shard: number of the shard.
            boot: a pickled `ShardBoot`.

        Raises:
            ShortageError: the system has no process, descriptor or memory left here; a later call may succeed.
            ConfigError: no process of this kind can be started at all.
        """

    def share(self, data: bytes) -> Any:
        """Return a handle of a value for `ask`, which many requests may refer to; it lives as long as the handle."""

    def ask(self, shard: int, seq: int, request: bytes, most_nbytes: int, shared: Sequence[Any] = ()) -> None:
        """Send a request to a shard, which passes it to `Shard.execute` and sends back the frame.

        At most two requests of a shard are in flight. The process executes them one after the other.

        Args:
            shard: number of the shard.
            seq: number of the request, for `Unavailable`.
            request: from `pack_request`; the carrier may split it into pieces.
            most_nbytes: size of the largest reply without attachment, for carriers that fix the number of pieces now.
            shared: handles of values, which `execute` gets beside the request.
        """

    def wait(self, deadline_ns: int, count: int = 1) -> list[CarrierEvent]:
        """Return the events that have happened, in their order; wait for the first one if there is none.

        The list is empty at the deadline, and after `interrupt`.

        Args:
            deadline_ns: on the monotonic clock (`system.clock.now_ns`); one that has passed does not wait.
            count: the caller needs this number of events. A carrier whose waits are expensive may wait for them
                together, for 50 ms at most.
        """

    def kill(self, shard: int) -> None:
        """End the process of a shard, with all of its workers, so that it executes nothing more; a fence.

        Events of this process do not arrive any more. Does not wait for the end; a process that cannot be reached is
        ended as soon as it can be. Nothing happens if the shard has no process.
        """

    def waiting_for(self, shard: int) -> str:
        """Name the resources that a process which is being started waits for; '' if it is placed already."""

    def place_of(self, shard: int) -> ShardPlace | None:
        """Return the process of a shard; None if there is none yet."""

    def describe(self, shard: int) -> str:
        """Return where a shard runs, for messages, such as 'process 4711' or 'node 10.0.0.3, process 4711'."""

    def interrupt(self) -> None:
        """Make the present or the next `wait` return soon. Called by other threads and signal handlers; no lock."""

    def close(self) -> None:
        """End all processes, and release everything; called once. Blocks until they have ended, or a few seconds."""

    def end_if_unclosed(self) -> None:
        """Close as `close` does, for a driver that ends without it; may be called after `close` and repeatedly."""
