"""Watchdog: looks at running operations and says which are over their limit.

The parent judges, by its own monotonic clock and the times that slots publish: that works for
code that holds the GIL and for stopped processes. An operation's clock starts when its slot
starts it, and several envs in one worker are timed one by one.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from ..errors import WorkerTimeoutError
from .clock import Deadline, now_ns
from .hub import Hub, SlotState
from .inbox import Inbox
from .options import Limits
from .rows import Op

__all__ = ["Places", "Watchdog"]

_NS = 1_000_000_000
#: Longest sleep between two looks while any limit is set, and without limits.
_LOOK_NS = 50_000_000
_LAZY_LOOK_NS = 5 * _NS
#: Without a limit, warn once about an operation that has run this long (seconds).
OVERDUE_WARNING = 60.0


class Places(Protocol):
    """Names of slots for messages."""

    def place(self, slot: int) -> str:
        """Name a slot's worker, such as 'worker 3 (envs 12-15)'."""

    def worker_of(self, slot: int) -> int | None:
        """Return a slot's worker_id, None where there are no workers."""


class Watchdog:
    """Deadlines of one pool.

    Attributes:
        look_ns: longest time that a wait may sleep before it calls `check`.
        num_slots: how many slots, from 0 on, are looked at.
    """

    def __init__(self, hub: Hub, num_slots: int, limits: Limits, places: Places, inbox: Inbox) -> None:
        self._hub = hub
        self.num_slots = num_slots
        self._places = places
        self._inbox = inbox
        self._grace: dict[int, int] = {}
        self.set_limits(limits)

    def set_limits(self, limits: Limits) -> None:
        """Judge by these limits from now on."""
        self._limits = limits
        self.look_ns = _LOOK_NS if limits.has_any() else _LAZY_LOOK_NS

    def notice_gap(self, planned_ns: int, deadline: Deadline) -> None:
        """Extend every deadline if this process woke much later than planned.

        Then it was itself stopped (SIGSTOP, a debugger, a suspended machine), and what its
        workers owe says nothing about them.
        """
        gap = now_ns() - planned_ns
        if gap > 2 * _LOOK_NS:
            deadline.extend(gap)
            running = {state.step_id for _, state in self._running()}
            self._grace = {step_id: self._grace.get(step_id, 0) + gap for step_id in running}

    def check(self) -> int:
        """Return when to look again (nanoseconds on the monotonic clock).

        Raises:
            WorkerTimeoutError: an operation is over its limit.
        """
        now = now_ns()
        next_look = now + self.look_ns
        for slot, state in self._running():
            if state.blocked:
                continue
            limit = self._limits.of(state.op)
            age = now - state.started_ns - self._grace.get(state.step_id, 0)
            if limit is None:
                if age > OVERDUE_WARNING * _NS:
                    self._warn(slot, state, age)
            elif age >= limit * _NS:
                self._raise(slot, state, limit)
            else:
                next_look = min(next_look, now + int(limit * _NS) - age)
        return next_look

    def describe(self) -> str:
        """Say what every slot is doing."""
        busy = []
        for slot, state in self._running():
            seconds = (now_ns() - state.started_ns) / _NS
            op = Op(state.op).name.lower()
            busy.append(f"{self._places.place(slot)} has been at {op} of env {state.env_id} for {seconds:.3g} s")
        return "; ".join(busy) or "all workers are idle"

    def _running(self) -> list[tuple[int, SlotState]]:
        states = [(slot, self._hub.state(slot)) for slot in range(self.num_slots)]
        return [(slot, state) for slot, state in states if state.op != Op.NONE]

    def _warn(self, slot: int, state: SlotState, age: int) -> None:
        op = Op(state.op).name.lower()
        self._inbox.warn_once(
            f"overdue {state.step_id}",
            f"{self._places.place(slot)}: {op} {state.step_id} of env {state.env_id} has been running for "
            f"{age / _NS:.0f} s; no {op}_timeout is set",
            RuntimeWarning,
        )

    def _raise(self, slot: int, state: SlotState, limit: float) -> NoReturn:
        op = Op(state.op).name.lower()
        raise WorkerTimeoutError(
            f"{self._places.place(slot)} did not finish {op} {state.step_id} of env {state.env_id} within {limit} s; "
            f"it is alive. Raise {op}_timeout if the env needs longer",
            timeout=limit,
            worker_id=self._places.worker_of(slot),
            env_ids=(state.env_id,),
            op=op,
            step_id=state.step_id,
        )
