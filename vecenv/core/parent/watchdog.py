"""Watch running operations: raise an error for those over their time limit, and report long ones without a limit.

The parent judges by its own monotonic clock and by the times that slots publish. This also works for code that holds
the GIL and for stopped processes. The clock of an operation starts when its slot begins it, so several envs in one
worker are timed one by one. It restarts when the parent has taken messages, or written payloads, that the slot was
waiting for. If a slot does not begin its next operation, for example because its process is stopped, the clock starts
when the parent first sees the operation waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import WorkerTimeoutError, add_notes, locate
from ..layout.flags import Op
from ..options import Limits
from ..system.clock import Deadline, now_ns
from .hub import Hub, SlotState
from .reports import ReportSchedule, report

__all__ = ["POLL_NS", "Watchdog", "WorkerDirectory"]

_NS = 1_000_000_000
#: Longest sleep between two checks, with and without a limit.
POLL_NS = 50_000_000
_LAZY_POLL_NS = _NS
#: Most poll intervals that count between two checks: if more have passed, this process did something else.
_MOST_POLLS = 4
#: The effect of a limit, in reports of operations without one.
_REPLACED, _RAISED = "a worker that takes longer is then replaced", "a longer operation then raises TimeoutError"
#: Operations of which one report contains the stack; a request may take 0.1 s.
_MOST_STACKS = 4


class WorkerDirectory:
    """Describes the workers of slots, for messages. The defaults are those of a pool without workers."""

    def describe_worker(self, slot: int) -> str:
        """Return the name of a slot's worker, such as 'worker 3 (envs 12-15)'."""
        return "this process"

    def worker_of(self, slot: int) -> int | None:
        """Return a slot's worker_id, or None if the pool has no workers."""
        return None

    def is_alive(self, slot: int) -> bool:
        """Return whether a slot has a worker that is not known to be dead."""
        return True

    def stack_of(self, slot: int) -> str:
        """Return the present Python stack of a slot's worker, or the reason why it has none; '' if it is unknown."""
        return ""


@dataclass
class _Watched:
    """An operation without a limit: the state of its slot, when it began on the monotonic clock, and its reports."""

    state: SlotState
    began_ns: int
    schedule: ReportSchedule


class Watchdog:
    """The time limits of one pool, and the checks of its slots.

    Args:
        hub: the slots.
        limits: of operations.
        workers: names and stacks of workers.
        replaces_overdue: whether a worker over its limit is replaced; else the caller gets an error.
        first_env_id: number of env 0 in messages.

    Attributes:
        poll_interval_ns: longest time that a wait may sleep before it calls `check`, in nanoseconds.
    """

    def __init__(
        self,
        hub: Hub,
        limits: Limits,
        workers: WorkerDirectory,
        *,
        replaces_overdue: bool,
        first_env_id: int = 0,
    ) -> None:
        self._hub = hub
        self._workers = workers
        self._replaces_overdue = replaces_overdue
        self._first_env_id = first_env_id
        self._grace: dict[int, int] = {}
        # slot -> step_id not begun yet, and the time when we first saw it
        self._waiting: dict[int, tuple[int, int]] = {}
        self._checked_ns = 0
        self._suspected: set[int | None] = set()  # step_ids that were late in the last check
        self._watched: dict[int, _Watched] = {}  # keys: slots
        # op -> duration of the longest operation that was old enough for a report, and has finished
        self._longest_ns: dict[int, int] = {}
        self.set_limits(limits)

    def set_limits(self, limits: Limits) -> None:
        """Use these limits from now on."""
        self._limits = limits
        self.poll_interval_ns = POLL_NS if limits.has_any() else _LAZY_POLL_NS

    def notice_gap(self, late_ns: int, deadline: Deadline) -> None:
        """Extend every deadline by `late_ns` if this process woke much later than planned.

        Such a gap means that this process itself was stopped (SIGSTOP, a debugger, a suspended machine), so its workers
        must not be blamed for the delay. `deadline` is extended too.
        """
        if late_ns > 2 * POLL_NS:
            deadline.extend(late_ns)
            now = now_ns()
            self._grace = {
                state.step_id: min(self._grace.get(state.step_id, 0) + late_ns, max(0, now - state.started_ns))
                for _, state in self._running()
            }
            self._waiting.clear()

    def check(self, *, after_pause: bool = False) -> int:
        """Check all slots; return when to check again (nanoseconds on the monotonic clock).

        Operations without a limit that run for long are reported in the log and by a warning.

        Args:
            after_pause: the caller has not waited for a poll interval, so that workers that were stopped together with
                it had no time to answer. Then only operations that an earlier check has found late raise an error.

        Raises:
            WorkerTimeoutError: an operation exceeds its limit.
        """
        now = now_ns()
        next_poll = now + self.poll_interval_ns
        running = self._running()
        late: list[WorkerTimeoutError] = []
        long: list[tuple[int, SlotState, str]] = []
        # A blocked slot waited for the parent. It waits no longer once its messages are taken and its payload
        # is written, and waits do both before they call `check`.
        began = [(slot, state, max(state.started_ns, state.unblocked_ns), True) for slot, state in running]
        began += [(slot, state, state.started_ns, False) for slot, state in self._not_begun(running, now)]
        for slot, state, began_ns, has_begun in began:
            age_ns = now - began_ns - self._grace.get(state.step_id, 0)
            limit = self._limits.of(state.op)
            if limit is not None:
                if age_ns >= limit * _NS:
                    verdict = "did not finish" if has_begun else "has not begun"
                    late.append(self._error_of(slot, state, limit, verdict))
                next_poll = min(next_poll, now + int(limit * _NS) - age_ns)
            else:
                is_due, next_in_ns = self._watch(slot, state, began_ns, now)
                next_poll = min(next_poll, now + next_in_ns)
                if is_due:
                    verdict = "has been running for" if has_begun else "has not begun for"
                    long.append((slot, state, f"{verdict} {age_ns / _NS:.1f} s"))
        self._checked_ns = now
        if long:
            self._report(long)
        suspected, self._suspected = self._suspected, {error.step_id for error in late}
        if after_pause:
            late = [error for error in late if error.step_id in suspected]
        if late:
            add_notes(late[0], map(str, late[1:]))
            raise late[0]
        return next_poll

    def _watch(self, slot: int, state: SlotState, began_ns: int, now: int) -> tuple[bool, int]:
        """Count the time of an operation without a limit.

        Returns whether to report it now, and in how many nanoseconds its next report is due.
        """
        known = self._watched.get(slot)
        if known is None or (known.state.step_id, known.began_ns) != (state.step_id, began_ns):
            if known is not None and known.schedule.is_long() and known.state.step_id != state.step_id:
                longest_ns = self._longest_ns.get(known.state.op, 0)
                self._longest_ns[known.state.op] = max(longest_ns, known.schedule.counted_ns)
            # Envs that have taken that long before are slow, and do not hang.
            schedule = ReportSchedule(2 * self._longest_ns.get(state.op, 0))
            known = self._watched[slot] = _Watched(state, began_ns, schedule)
        seen_ns = now - max(began_ns, self._checked_ns)
        is_due = known.schedule.is_due(max(0, min(seen_ns, _MOST_POLLS * self.poll_interval_ns)))
        return is_due, known.schedule.next_in_ns()

    def _not_begun(self, running: list[tuple[int, SlotState]], now: int) -> list[tuple[int, SlotState]]:
        """Return slots that do not begin their next command, each as if it had been running since we first saw it.

        A process that was stopped between two operations runs none that could be late. If another thread of the
        same worker runs an operation, only that operation is judged.
        """
        if now - self._checked_ns > _MOST_POLLS * self.poll_interval_ns:
            self._waiting.clear()  # there was no check for some time, so the recorded times are too old
        busy = {self._workers.worker_of(slot) for slot, _ in running}
        slots = {slot for slot, _ in running}
        found = []
        for slot in range(self._hub.num_slots):
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
            worker = self._workers.describe_worker(slot)
            busy.append(f"{worker} has been at {self._name_of(state)} for {seconds:.3g} s")
        return "; ".join(busy) or "all workers are idle"

    def _running(self) -> list[tuple[int, SlotState]]:
        states = [(slot, self._hub.state(slot)) for slot in range(self._hub.num_slots)]
        return [(slot, state) for slot, state in states if state.op != Op.NONE and self._workers.is_alive(slot)]

    def _name_of(self, state: SlotState) -> str:
        """Return the name of an operation, such as 'step of env 3'."""
        return f"{Op(state.op).name.lower()} of env {self._first_env_id + state.env_id}"

    def _report(self, long: list[tuple[int, SlotState, str]]) -> None:
        """Report operations without a limit, each with the words for its age, in one warning and one log entry."""
        lines = []
        for number, (slot, state, age) in enumerate(long):
            op = Op(state.op).name.lower()
            effect = _REPLACED if self._replaces_overdue else _RAISED
            stack = self._workers.stack_of(slot) if number < _MOST_STACKS else ""
            lines.append(
                f"{self._workers.describe_worker(slot)}: {self._name_of(state)} (command {state.step_id}) {age} "
                f"and has no limit. Set timeouts={{{op!r}: ...}}, in seconds: {effect}{chr(10) if stack else ''}{stack}"
            )
        report("\n".join(lines))

    def _error_of(self, slot: int, state: SlotState, limit: float, verdict: str) -> WorkerTimeoutError:
        op = Op(state.op).name.lower()
        error = WorkerTimeoutError(
            f"{self._workers.describe_worker(slot)} {verdict} {self._name_of(state)} (command {state.step_id}) "
            f"within {limit} s; it is alive. Raise timeouts={{{op!r}: ...}} if the env needs longer",
            timeout=limit,
        )
        worker_id = self._workers.worker_of(slot)
        return locate(error, worker_id=worker_id, env_ids=(state.env_id,), op=op, step_id=state.step_id)
