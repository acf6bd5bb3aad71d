"""Watch running operations, and raise an error for those that exceed their time limit.

The parent judges by its own monotonic clock and by the times that slots publish. This also works for code that holds
the GIL and for stopped processes. The clock of an operation starts when its slot begins it, so several envs in one
worker are timed one by one. It restarts when the parent has taken messages, or written payloads, that the slot was
waiting for. If a slot does not begin its next operation, for example because its process is stopped, the clock starts
when the parent first sees the operation waiting.
"""

from __future__ import annotations

from typing import Protocol

from ...errors import WorkerTimeoutError, add_notes, locate
from ..layout.rows import Op
from ..options import Limits
from ..system.clock import Deadline, now_ns
from .hub import Hub, SlotState
from .inbox import Inbox

__all__ = ["POLL_NS", "Watchdog", "WorkerDirectory"]

_NS = 1_000_000_000
#: Longest sleep between two checks, with and without a limit.
POLL_NS = 50_000_000
_LAZY_POLL_NS = 5 * _NS
#: Without a limit, warn once about an operation that has run this long (seconds).
OVERDUE_WARNING = 60.0


class WorkerDirectory(Protocol):
    """Describes the workers of slots, for messages."""

    def describe_worker(self, slot: int) -> str:
        """Return the name of a slot's worker, such as 'worker 3 (envs 12-15)'."""

    def worker_of(self, slot: int) -> int | None:
        """Return a slot's worker_id, or None if the pool has no workers."""

    def is_alive(self, slot: int) -> bool:
        """Return whether a slot has a worker that is not known to be dead."""


class Watchdog:
    """The time limits of one pool, and the checks of its slots.

    Attributes:
        poll_interval_ns: longest time that a wait may sleep before it calls `check`, in nanoseconds.
        num_slots: number of slots that are checked, from slot 0 on.
    """

    def __init__(self, hub: Hub, num_slots: int, limits: Limits, workers: WorkerDirectory, inbox: Inbox) -> None:
        self._hub = hub
        self.num_slots = num_slots
        self._workers = workers
        self._inbox = inbox
        self._grace: dict[int, int] = {}
        # slot -> step_id not begun yet, and the time when we first saw it
        self._waiting: dict[int, tuple[int, int]] = {}
        self._checked_ns = 0
        self.set_limits(limits)

    def set_limits(self, limits: Limits) -> None:
        """Use these limits from now on."""
        self._limits = limits
        self.poll_interval_ns = POLL_NS if limits.has_any() else _LAZY_POLL_NS

    def add_slot(self) -> None:
        """Check one more slot, the next one."""
        self.num_slots += 1

    def notice_gap(self, late_ns: int, deadline: Deadline) -> None:
        """Extend every deadline by `late_ns` if this process woke much later than planned.

        Such a gap means that this process itself was stopped (SIGSTOP, a debugger, a suspended machine), so its workers
        must not be blamed for the delay. `deadline` is extended too.
        """
        if late_ns > 2 * POLL_NS:
            deadline.extend(late_ns)
            running = {state.step_id for _, state in self._running()}
            self._grace = {step_id: self._grace.get(step_id, 0) + late_ns for step_id in running}
            self._waiting.clear()

    def check(self) -> int:
        """Check all slots; return when to check again (nanoseconds on the monotonic clock).

        Raises:
            WorkerTimeoutError: an operation exceeds its limit.
        """
        now = now_ns()
        next_poll = now + self.poll_interval_ns
        running = self._running()
        late: list[WorkerTimeoutError] = []
        for slot, state in running:
            # A blocked slot waited for the parent. It waits no longer once its messages are taken and its payload
            # is written, and waits do both before they call `check`.
            began_ns = max(state.started_ns, state.unblocked_ns)
            next_poll = min(next_poll, self._judge(slot, state, now - began_ns, now, "did not finish", late))
        for slot, state in self._not_begun(running, now):
            next_poll = min(next_poll, self._judge(slot, state, now - state.started_ns, now, "has not begun", late))
        if late:
            add_notes(late[0], map(str, late[1:]))
            raise late[0]
        self._checked_ns = now
        return next_poll

    def _judge(
        self, slot: int, state: SlotState, age: int, now: int, verdict: str, late: list[WorkerTimeoutError]
    ) -> int:
        """Return when an operation will be late; if it is late now, add an error to `late`.

        `age` is in nanoseconds. Without a limit, warn once if the operation runs for more than `OVERDUE_WARNING`.
        """
        age -= self._grace.get(state.step_id, 0)
        limit = self._limits.of(state.op)
        if limit is None:
            if age > OVERDUE_WARNING * _NS:
                self._warn(slot, state, age)
            return now + self.poll_interval_ns
        if age >= limit * _NS:
            late.append(self._error_of(slot, state, limit, verdict))
        return now + int(limit * _NS) - age

    def _not_begun(self, running: list[tuple[int, SlotState]], now: int) -> list[tuple[int, SlotState]]:
        """Return slots that do not begin their next command, each as if it had been running since we first saw it.

        A process that was stopped between two operations runs none that could be late. If another thread of the
        same worker runs an operation, only that operation is judged.
        """
        if now - self._checked_ns > 4 * self.poll_interval_ns:
            self._waiting.clear()  # there was no check for some time, so the recorded times are too old
        busy = {self._workers.worker_of(slot) for slot, _ in running}
        slots = {slot for slot, _ in running}
        found = []
        for slot in range(self.num_slots):
            op, env_id, step_id = self._hub.pending(slot) if slot not in slots else (int(Op.NONE), 0, 0)
            if op == Op.NONE or self._workers.worker_of(slot) in busy or not self._workers.is_alive(slot):
                self._waiting.pop(slot, None)
                continue
            known, since_ns = self._waiting.get(slot, (0, 0))
            if known != step_id:
                since_ns = now
                self._waiting[slot] = (step_id, since_ns)
            unblocked_ns = self._hub.state(slot).unblocked_ns
            found.append((slot, SlotState(op, env_id, step_id, max(since_ns, unblocked_ns), 0, 0)))
        return found

    def describe(self) -> str:
        """Describe in words what every slot is doing."""
        busy = []
        for slot, state in self._running():
            seconds = (now_ns() - state.started_ns) / _NS
            op = Op(state.op).name.lower()
            worker = self._workers.describe_worker(slot)
            busy.append(f"{worker} has been at {op} of env {state.env_id} for {seconds:.3g} s")
        return "; ".join(busy) or "all workers are idle"

    def _running(self) -> list[tuple[int, SlotState]]:
        states = [(slot, self._hub.state(slot)) for slot in range(self.num_slots)]
        return [(slot, state) for slot, state in states if state.op != Op.NONE and self._workers.is_alive(slot)]

    def _warn(self, slot: int, state: SlotState, age: int) -> None:
        op = Op(state.op).name.lower()
        self._inbox.warn_once(
            f"overdue {state.step_id}",
            f"{self._workers.describe_worker(slot)}: {op} of env {state.env_id} (command {state.step_id}) "
            f"has been running for {age / _NS:.0f} s; no {op}_timeout is set",
            RuntimeWarning,
        )

    def _error_of(self, slot: int, state: SlotState, limit: float, verdict: str) -> WorkerTimeoutError:
        op = Op(state.op).name.lower()
        error = WorkerTimeoutError(
            f"{self._workers.describe_worker(slot)} {verdict} {op} of env {state.env_id} (command {state.step_id}) "
            f"within {limit} s; it is alive. Raise {op}_timeout if the env needs longer",
            timeout=limit,
        )
        worker_id = self._workers.worker_of(slot)
        return locate(error, worker_id=worker_id, env_ids=(state.env_id,), op=op, step_id=state.step_id)
