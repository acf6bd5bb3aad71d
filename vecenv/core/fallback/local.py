"""Both ends of the rows without C for envs in the caller's process, connected by a queue."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..layout.arena import ArenaPlan
from ..layout.commands import Command
from ..parent.hub import Event
from ..system.clock import now_ns
from ..system.signals import signals_deferred
from .hub import FallbackHub
from .slot import FallbackSlot
from .words import LOCAL_SLICE_NS, AttachLike, SharedWords

__all__ = ["LocalHub", "make_local_pair"]


class LocalHub(FallbackHub):
    """The parent's end for the only slot, which is in this process; the transport is a queue."""

    def __init__(self, plan: ArenaPlan, memory: Any, counters: Any, slot_of: Sequence[int]) -> None:
        super().__init__(plan, memory, counters, slot_of)
        self._queue_down: deque[Command] = deque()

    def _transmit(self, commands: list[Command]) -> None:
        self._queue_down.extend(commands)

    def _wait_for_frame(self, deadline_ns: int) -> Event | None:
        """Sleep for at most LOCAL_SLICE_NS: the slot uses this thread, so a frame cannot arrive during a wait."""
        time.sleep(min(max(0, deadline_ns - now_ns()), LOCAL_SLICE_NS) / 1e9)
        late_ns = now_ns() - deadline_ns
        return Event("timeout", -1, late_ns) if late_ns >= 0 else Event("message", -1)

    def next(self, slot: int) -> Command | None:
        """Return the next command, or None if the queue is empty; does not block. The command stays in the queue."""
        return self._queue_down[0] if self._queue_down else None

    def drop_first(self) -> None:
        """Remove the command that `next` returns, at its end: an exception of a signal handler cannot lose it then."""
        self._queue_down.popleft()

    def take_message(self, message: Any) -> None:
        """Keep a message until `take_messages` returns it."""
        self._messages[0].append(message)

    def send_frame(self, frame: tuple[Any, ...]) -> None:
        """Process one frame from the slot."""
        with signals_deferred():
            self.take_frame(frame)


class LocalSlot(FallbackSlot):
    """The worker's end in this process; a message is passed as one object, not in fragments."""

    def __init__(self, attach: AttachLike, words: SharedWords, hub: LocalHub) -> None:
        super().__init__(attach, 0, words, hub, waits=False)
        self._hub = hub

    def _end(self) -> None:
        if self._command is not None:
            self._hub.drop_first()
        super()._end()

    def send_message(self, data: Any) -> None:
        """Pass one message to the hub, by reference."""
        self._hub.take_message(data)


def make_local_pair(attach: AttachLike, memory: Any, counters: Any, slots: Sequence[int]) -> tuple[LocalHub, LocalSlot]:
    """Return (hub, slot) for envs in this process; `slot.serve` returns IDLE when the queue is empty.

    Args:
        attach: layout and options of the slot.
        memory, counters: the arena and its counters, with their headers written.
        slots: the slot of each env, all 0.
    """
    hub = LocalHub(attach.plan, memory, counters, slots)
    words = SharedWords(attach.plan, memory, counters)
    return hub, LocalSlot(attach, words, hub)
