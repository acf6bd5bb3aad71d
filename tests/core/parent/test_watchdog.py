"""Which slots are late, by a clock that the tests move: operations that run, commands not begun, and excuses."""

from __future__ import annotations

from typing import Any

import pytest

from vecenv.core.layout.flags import Op
from vecenv.core.options import Limits
from vecenv.core.parent import reports, watchdog
from vecenv.core.parent.hub import SlotState
from vecenv.core.parent.watchdog import POLL_NS, Watchdog
from vecenv.core.system import clock
from vecenv.core.system.clock import Deadline
from vecenv.errors import WorkerTimeoutError

SECOND = 1_000_000_000
IDLE = SlotState(int(Op.NONE), 0, 0, 0, 0, 0)


class Scene:
    """A watchdog of slots with one env each, two slots to a worker. The class is its hub and its workers as well.

    A step may take one second; a call has no limit.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_slots: int = 2) -> None:
        self.now = 100 * SECOND
        for module in (clock, watchdog):
            monkeypatch.setattr(module, "now_ns", lambda: self.now)
        self.running = [IDLE] * num_slots
        self.waiting = [(int(Op.NONE), 0, 0)] * num_slots
        self.dead: set[int] = set()
        self.warned: list[str] = []
        monkeypatch.setattr(reports, "warn_caller", self.warn)
        hub: Any = self
        self.num_slots = num_slots
        self.dog = Watchdog(hub, Limits(step=1.0), self, replaces_overdue=True)

    def run(self, slot: int, step_id: int, op: Op = Op.STEP) -> None:
        """Make a slot begin an operation now."""
        self.running[slot] = SlotState(int(op), slot, step_id, self.now, 0, 0)
        self.waiting[slot] = (int(Op.NONE), 0, 0)

    def assign(self, slot: int, step_id: int) -> None:
        """Give a slot a step, which it does not begin."""
        self.waiting[slot] = (int(Op.STEP), slot, step_id)

    def advance(self, seconds: float) -> list[str]:
        """Check as often as a waiting parent does, for this many seconds. Return the late slots, or `[]`."""
        until = self.now + int(seconds * SECOND)
        while self.now < until:
            self.now = min(until, self.now + POLL_NS)
            late = self.check()
            if late:
                return late
        return []

    def check(self) -> list[str]:
        try:
            assert self.now < self.dog.check() <= self.now + self.dog.poll_interval_ns
        except WorkerTimeoutError as error:
            return [str(error), *getattr(error, "__notes__", [])]
        return []

    def stop_for(self, seconds: float) -> Deadline:
        """Simulate a stop of this process; return a deadline of one second that began before the stop."""
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

    def stack_of(self, slot: int) -> str:
        return f"  stack of slot {slot}"

    def warn(self, text: str, category: type[Warning]) -> None:
        assert category is RuntimeWarning
        self.warned.append(text)

    def reports_within(self, seconds: float) -> list[str]:
        """Return the reports of this many seconds, in which a parent waits."""
        self.warned.clear()
        assert self.advance(seconds) == []
        return self.warned


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_late_slots_are_all_reported(scene: Scene) -> None:
    scene.run(0, 7)
    scene.run(1, 8)
    assert scene.advance(0.99) == []
    first, second = scene.advance(1.0)
    assert first.startswith("slot 0 did not finish step of env 0 (command 7) within 1.0 s")
    assert second.startswith("slot 1 did not finish step of env 1 (command 8) within 1.0 s")
    with pytest.raises(WorkerTimeoutError) as caught:
        scene.dog.check()
    error = caught.value
    assert (error.worker_id, error.env_ids, error.op, error.step_id, error.timeout) == (0, (0,), "step", 7, 1.0)
    assert scene.dog.describe() == (
        "slot 0 has been at step of env 0 for 1.04 s; slot 1 has been at step of env 1 for 1.04 s"
    )


def test_time_while_the_parent_was_stopped_does_not_count(scene: Scene) -> None:
    """A second stop does not count either. Each stop extends the deadlines of waits."""
    scene.run(0, 7)
    assert scene.advance(0.5) == []
    for _ in range(2):
        began = scene.now
        assert scene.stop_for(30.0).at_ns == began + 31 * SECOND
        assert scene.check() == []
    assert scene.advance(0.49) == []
    assert len(scene.advance(0.1)) == 1
    scene.run(0, 8)
    assert scene.advance(0.99) == [] and len(scene.advance(0.1)) == 1, "it does not excuse what came later"


def test_wakeup_a_little_late_does_not_excuse_slots(scene: Scene) -> None:
    scene.run(0, 7)
    began = scene.now
    assert scene.stop_for(0.1).at_ns == began + SECOND
    assert scene.advance(0.89) == [] and len(scene.advance(0.1)) == 1


def test_time_spent_waiting_for_the_parent_does_not_count(scene: Scene) -> None:
    scene.run(0, 7)
    assert scene.advance(0.8) == []
    scene.running[0] = scene.running[0]._replace(unblocked_ns=scene.now)
    assert scene.advance(0.99) == [] and len(scene.advance(0.1)) == 1


def test_command_that_is_not_begun_is_late_too(scene: Scene) -> None:
    scene.assign(0, 7)
    assert scene.advance(1.0) == []
    (late,) = scene.advance(0.1)
    assert late.startswith("slot 0 has not begun step of env 0 (command 7) within 1.0 s")
    scene.assign(0, 8)
    assert scene.advance(1.0) == [] and len(scene.advance(0.1)) == 1, "another one"
    scene.waiting[0] = (int(Op.NONE), 0, 0)
    assert scene.advance(5.0) == []
    scene.assign(0, 8)
    assert scene.advance(1.0) == [] and len(scene.advance(0.1)) == 1, "again"


def test_slot_that_just_got_its_payload_has_time_to_begin(scene: Scene) -> None:
    scene.assign(0, 7)
    assert scene.advance(0.8) == []
    scene.running[0] = IDLE._replace(unblocked_ns=scene.now)
    assert scene.advance(0.99) == [] and len(scene.advance(0.1)) == 1


def test_stopped_slot_is_not_late_for_time_without_polls(scene: Scene) -> None:
    scene.assign(0, 7)
    assert scene.advance(0.8) == []
    scene.now += 10 * SECOND  # the caller did something else
    assert scene.advance(1.0) == [] and len(scene.advance(0.1)) == 1
    scene.assign(0, 8)
    assert scene.advance(0.8) == []
    scene.stop_for(0.15)
    assert scene.advance(0.99) == [] and len(scene.advance(0.1)) == 1, "nor that it has not while we were stopped"


def test_thread_that_others_of_its_worker_wait_for_is_the_late_one(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 3)
    scene.run(0, 7, Op.CALL)
    scene.assign(1, 8)  # a slot of the same worker
    assert scene.advance(30.0) == []
    scene.assign(2, 9)  # a slot of another worker
    assert scene.advance(1.0) == []
    (late,) = scene.advance(0.1)
    assert late.startswith("slot 2 has not begun")


def test_dead_workers_are_not_late(scene: Scene) -> None:
    scene.run(0, 7)
    scene.assign(1, 8)
    scene.worker_of = lambda slot: slot  # type: ignore[method-assign]
    scene.dead = {0, 1}
    assert scene.advance(5.0) == [] and scene.dog.describe() == "all workers are idle"
    scene.dead = {0}
    assert scene.advance(1.0) == [] and len(scene.advance(0.1)) == 1, "its successor has its own time"


@pytest.mark.extended
def test_operation_without_a_limit_is_reported_at_10_s_60_s_and_every_10_min(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.run(0, 7, Op.CALL)
    assert scene.reports_within(9.9) == []
    text = (
        "slot 0: call of env 0 (command 7) has been running for 10.0 s and has no limit. "
        "Set timeouts={'call': ...}, in seconds: a worker that takes longer is then replaced\n  stack of slot 0"
    )
    assert scene.reports_within(0.2) == [text]
    assert [record.message for record in caplog.records] == ["vecenv: " + text], "the same in the log"
    assert scene.reports_within(49.8) == []
    assert "running for 60.0 s" in scene.reports_within(0.2)[0]
    assert scene.reports_within(539.8) == []
    assert "running for 600.0 s" in scene.reports_within(0.2)[0]
    assert scene.reports_within(599.8) == []
    assert "running for 1200.0 s" in scene.reports_within(0.2)[0]


def test_command_that_is_not_begun_is_reported_without_a_limit(scene: Scene) -> None:
    scene.dog.set_limits(Limits())
    scene.assign(0, 7)
    assert scene.reports_within(9.9) == []
    (text,) = scene.reports_within(1.2)
    assert text.startswith("slot 0: step of env 0 (command 7) has not begun for 10.0 s and has no limit")


def test_long_operations_are_one_report(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, 6)
    for slot in range(6):
        scene.run(slot, 7 + slot, Op.CALL)
    (text,) = scene.reports_within(11.0)
    assert [text.count(part) for part in ("has been running for 10.0 s", "stack of slot")] == [6, 4]


def test_operations_as_slow_as_an_earlier_one_are_not_reported(scene: Scene) -> None:
    """An env whose resets take 20 s is slow, and not hung."""
    scene.run(0, 7, Op.CALL)
    assert len(scene.reports_within(20.0)) == 1
    for step_id in (8, 9):
        scene.run(0, step_id, Op.CALL)
        assert scene.reports_within(15.0) == []
    scene.run(0, 10, Op.CALL)
    assert "running for 60.0 s" in scene.reports_within(61.0)[0]
    scene.dog.set_limits(Limits())
    scene.run(0, 11)
    assert len(scene.reports_within(12.0)) == 1, "another operation"


def test_replayed_steps_are_timed_one_by_one_in_reports(scene: Scene) -> None:
    for _ in range(4):
        scene.run(0, 7, Op.CALL)
        assert scene.reports_within(9.0) == []


def test_time_while_the_parent_was_stopped_is_not_reported(scene: Scene) -> None:
    """Nor is the time in which the caller did something else: the env may have been stopped with its parent."""
    scene.run(0, 7, Op.CALL)
    for away in (scene.stop_for, lambda seconds: setattr(scene, "now", scene.now + int(seconds * SECOND))):
        assert scene.reports_within(3.0) == []
        away(3600.0)
        scene.check()
        assert scene.warned == []
    assert scene.reports_within(3.5) == []
    assert len(scene.reports_within(0.3)) == 1


def test_limits_may_change(scene: Scene) -> None:
    scene.run(0, 7)
    assert scene.advance(0.9) == []
    scene.dog.set_limits(Limits(step=2.0))
    assert scene.advance(1.0) == [] and len(scene.advance(0.1)) == 1
    scene.dog.set_limits(Limits())
    scene.now += 5 * SECOND
    assert scene.dog.check() == scene.now + scene.dog.poll_interval_ns > scene.now + POLL_NS
