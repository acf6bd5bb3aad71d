"""Who is late, by a clock that the tests move: what slots run, what they do not begin, and what excuses them."""

from __future__ import annotations

from typing import Any

import pytest

from vecenv.core.layout.rows import Op
from vecenv.core.options import Limits
from vecenv.core.parent import watchdog
from vecenv.core.parent.hub import SlotState
from vecenv.core.parent.watchdog import POLL_NS, Watchdog
from vecenv.core.system import clock
from vecenv.core.system.clock import Deadline
from vecenv.errors import WorkerTimeoutError

SECOND = 1_000_000_000
IDLE = SlotState(int(Op.NONE), 0, 0, 0, 0, 0)


class Looks:
    """A watchdog of slots of one env each, every two of which share a worker; it is its hub, places and inbox as well.

    A step may take a second, a call any time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_slots: int = 2) -> None:
        self.now = 100 * SECOND
        for module in (clock, watchdog):
            monkeypatch.setattr(module, "now_ns", lambda: self.now)
        self.running = [IDLE] * num_slots
        self.waiting = [(int(Op.NONE), 0, 0)] * num_slots
        self.dead: set[int] = set()
        self.warned: list[str] = []
        hub: Any = self
        self.dog = Watchdog(hub, num_slots, Limits(step=1.0), self, hub)

    def run(self, slot: int, step_id: int, op: Op = Op.STEP) -> None:
        """Have a slot begin an operation now."""
        self.running[slot] = SlotState(int(op), slot, step_id, self.now, 0, 0)
        self.waiting[slot] = (int(Op.NONE), 0, 0)

    def give(self, slot: int, step_id: int) -> None:
        """Have a step wait for a slot that does not begin it."""
        self.waiting[slot] = (int(Op.STEP), slot, step_id)

    def go_on(self, seconds: float) -> list[str]:
        """Look around as often as a wait does for so long; return who is late then, or `[]`."""
        until = self.now + int(seconds * SECOND)
        while self.now < until:
            self.now = min(until, self.now + POLL_NS)
            late = self.look()
            if late:
                return late
        return []

    def look(self) -> list[str]:
        try:
            assert self.now < self.dog.check() <= self.now + POLL_NS
        except WorkerTimeoutError as error:
            return [str(error), *getattr(error, "__notes__", [])]
        return []

    def is_stopped_for(self, seconds: float) -> Deadline:
        """Have this process stopped; return a deadline that it has noticed this for, of a second from its start."""
        deadline = Deadline(1.0)
        self.now += int(seconds * SECOND)
        self.dog.notice_gap(int(seconds * SECOND), deadline)
        return deadline

    def state(self, slot: int) -> SlotState:
        return self.running[slot]

    def pending(self, slot: int) -> tuple[int, int, int]:
        return self.waiting[slot]

    def describe_worker(self, slot: int) -> str:
        return f"slot {slot}"

    def worker_of(self, slot: int) -> int:
        return slot // 2

    def is_alive(self, slot: int) -> bool:
        return slot not in self.dead

    def warn_once(self, key: str, text: str, category: type[Warning]) -> None:
        self.warned.append(f"{category.__name__}: {text}")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def test_late_slots_are_all_reported(looks: Looks) -> None:
    looks.run(0, 7)
    looks.run(1, 8)
    assert looks.go_on(0.99) == []
    first, second = looks.go_on(1.0)
    assert first.startswith("slot 0 did not finish step of env 0 (command 7) within 1.0 s")
    assert second.startswith("slot 1 did not finish step of env 1 (command 8) within 1.0 s")
    with pytest.raises(WorkerTimeoutError) as caught:
        looks.dog.check()
    error = caught.value
    assert (error.worker_id, error.env_ids, error.op, error.step_id, error.timeout) == (0, (0,), "step", 7, 1.0)
    assert looks.dog.describe() == (
        "slot 0 has been at step of env 0 for 1.04 s; slot 1 has been at step of env 1 for 1.04 s"
    )


def test_time_while_the_parent_was_stopped_does_not_count(looks: Looks) -> None:
    """Nor is a second stop; and of a deadline neither."""
    looks.run(0, 7)
    assert looks.go_on(0.5) == []
    for _ in range(2):
        began = looks.now
        assert looks.is_stopped_for(30.0).at_ns == began + 31 * SECOND
        assert looks.look() == []
    assert looks.go_on(0.49) == []
    assert len(looks.go_on(0.1)) == 1
    looks.run(0, 8)
    assert looks.go_on(0.99) == [] and len(looks.go_on(0.1)) == 1, "it does not excuse what came later"


def test_wakeup_a_little_late_does_not_excuse_slots(looks: Looks) -> None:
    looks.run(0, 7)
    began = looks.now
    assert looks.is_stopped_for(0.1).at_ns == began + SECOND
    assert looks.go_on(0.89) == [] and len(looks.go_on(0.1)) == 1


def test_time_spent_waiting_for_the_parent_does_not_count(looks: Looks) -> None:
    looks.run(0, 7)
    assert looks.go_on(0.8) == []
    looks.running[0] = looks.running[0]._replace(unblocked_ns=looks.now)
    assert looks.go_on(0.99) == [] and len(looks.go_on(0.1)) == 1


def test_command_that_is_not_begun_is_late_too(looks: Looks) -> None:
    looks.give(0, 7)
    assert looks.go_on(1.0) == []
    (late,) = looks.go_on(0.1)
    assert late.startswith("slot 0 has not begun step of env 0 (command 7) within 1.0 s")
    looks.give(0, 8)
    assert looks.go_on(1.0) == [] and len(looks.go_on(0.1)) == 1, "another one"
    looks.waiting[0] = (int(Op.NONE), 0, 0)
    assert looks.go_on(5.0) == []
    looks.give(0, 8)
    assert looks.go_on(1.0) == [] and len(looks.go_on(0.1)) == 1, "again"


def test_slot_that_just_got_its_payload_has_time_to_begin(looks: Looks) -> None:
    looks.give(0, 7)
    assert looks.go_on(0.8) == []
    looks.running[0] = IDLE._replace(unblocked_ns=looks.now)
    assert looks.go_on(0.99) == [] and len(looks.go_on(0.1)) == 1


def test_stopped_slot_is_not_late_for_time_without_polls(looks: Looks) -> None:
    looks.give(0, 7)
    assert looks.go_on(0.8) == []
    looks.now += 10 * SECOND  # the caller did something else
    assert looks.go_on(1.0) == [] and len(looks.go_on(0.1)) == 1
    looks.give(0, 8)
    assert looks.go_on(0.8) == []
    looks.is_stopped_for(0.15)
    assert looks.go_on(0.99) == [] and len(looks.go_on(0.1)) == 1, "nor that it has not while we were stopped"


def test_thread_that_others_of_its_worker_wait_for_is_the_late_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(monkeypatch, 3)
    looks.run(0, 7, Op.CALL)
    looks.give(1, 8)  # of the same worker
    assert looks.go_on(30.0) == []
    looks.give(2, 9)  # of another one
    assert looks.go_on(1.0) == []
    (late,) = looks.go_on(0.1)
    assert late.startswith("slot 2 has not begun")


def test_dead_workers_are_not_late(looks: Looks) -> None:
    looks.run(0, 7)
    looks.give(1, 8)
    looks.worker_of = lambda slot: slot  # type: ignore[method-assign]
    looks.dead = {0, 1}
    assert looks.go_on(5.0) == [] and looks.dog.describe() == "all workers are idle"
    looks.dead = {0}
    assert looks.go_on(1.0) == [] and len(looks.go_on(0.1)) == 1, "its successor has its own time"


def test_operation_without_a_limit_is_warned_about(looks: Looks) -> None:
    looks.run(0, 7, Op.CALL)
    assert looks.go_on(59.9) == [] and looks.warned == []
    assert looks.go_on(0.2) == []
    assert set(looks.warned) == {
        "RuntimeWarning: slot 0: call of env 0 (command 7) has been running for 60 s; no call_timeout is set"
    }


def test_limits_may_change(looks: Looks) -> None:
    looks.run(0, 7)
    assert looks.go_on(0.9) == []
    looks.dog.set_limits(Limits(step=2.0))
    assert looks.go_on(1.0) == [] and len(looks.go_on(0.1)) == 1
    looks.dog.set_limits(Limits())
    looks.now += 5 * SECOND
    assert looks.dog.check() == looks.now + looks.dog.poll_interval_ns > looks.now + POLL_NS
