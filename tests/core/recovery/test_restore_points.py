"""The restore points of one env, compared with a list of all points that it ever had."""

from __future__ import annotations

import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vecenv.core.layout.commands import Entry, RestorePoint
from vecenv.core.layout.flags import CommandFlag, Op
from vecenv.core.recovery.restore_points import RestorePoints


class AllPoints(RuleBasedStateMachine):
    """Random events, recorded by `RestorePoints` and in plain lists.

    Attributes:
        commands: all commands of the env.
        confirmed: all confirmed points since the env was built or the journal was full, in order.
        pending: the point that is not confirmed yet.
        cancelled, requeued: step_ids of cancelled commands, and of the last requeued one.
        last_read: step_id of the last snapshot that was read.
        first_kept: commands before it may have been dropped, if there is no confirmed point.
        num_since_drop: commands since all points were dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.points = RestorePoints(RestorePoint(0))
        self.commands: list[Entry] = []
        self.confirmed = [RestorePoint(0)]
        self.pending: RestorePoint | None = None
        self.cancelled: set[int] = set()
        self.requeued = self.last_read = self.first_kept = self.num_since_drop = 0

    @property
    def next_step_id(self) -> int:
        return 2 * len(self.commands) + 1

    def supersedes(self, point: RestorePoint) -> bool:
        return any(one.step_id == point.step_id and one.flags & CommandFlag.SNAPSHOT for one in self.commands)

    def needed(self) -> list[RestorePoint]:
        """Return the newest confirmed point, and the last complete one before it if commands can be repeated since."""
        needed: list[RestorePoint] = []
        for point in reversed(self.confirmed):
            if not needed or point.is_complete:
                needed.append(point)
            if point.is_complete or self.supersedes(point):
                break
        return needed

    def all_needed(self) -> list[RestorePoint]:
        return [*([] if self.pending is None else [self.pending]), *self.needed()]

    # ---- events ------------------------------------------------------------------------------

    @rule(op=st.sampled_from([Op.STEP, Op.STEP, Op.RESET, Op.RESET, Op.CALL]), seed=st.booleans(), again=st.booleans())
    def send(self, op: Op, seed: bool, again: bool) -> None:
        if op != Op.CALL:
            self.points.confirm()
            self.confirmed += [] if self.pending is None else [self.pending]
            self.pending = None
        flags = CommandFlag.SNAPSHOT if op == Op.RESET and again else 0
        self.commands.append(Entry(self.next_step_id, op, flags, 0, None))
        self.num_since_drop += 1
        if op == Op.RESET:
            self.points.note_reset(self.commands[-1].step_id, flags, seed)
            self.pending = RestorePoint(self.commands[-1].step_id) if seed else None

    @precondition(lambda self: self.commands)
    @rule(is_complete=st.booleans(), is_mid_episode=st.booleans(), is_answered=st.booleans())
    def read_snapshot(self, is_complete: bool, is_mid_episode: bool, is_answered: bool) -> None:
        self.read(self.commands[-1].step_id, is_complete, is_mid_episode, is_answered)

    @precondition(lambda self: len(self.commands) > 1)
    @rule(back=st.integers(2, 3), is_complete=st.booleans(), is_answered=st.booleans())
    def read_snapshot_late(self, back: int, is_complete: bool, is_answered: bool) -> None:
        self.read(self.commands[-min(back, len(self.commands))].step_id, is_complete, False, is_answered)

    def read(self, step_id: int, is_complete: bool, is_mid_episode: bool, is_answered: bool) -> None:
        if step_id <= self.last_read and step_id != self.requeued:
            return  # a command takes one snapshot each time, and they are read in order
        self.last_read, self.requeued = step_id, 0
        op = self.commands[step_id // 2].op
        point = RestorePoint(step_id, b"x" * step_id, is_complete, op == Op.CALL or (is_mid_episode and op == Op.STEP))
        first = self.confirmed[-1].step_id if self.confirmed else self.first_kept
        is_accepted = step_id >= first and step_id not in self.cancelled
        assert self.points.accepts(point, self.first_kept) == is_accepted
        if not is_accepted:
            return
        self.points.add(point, is_answered=is_answered)
        if self.pending is not None and step_id < self.pending.step_id:
            self.confirmed.append(point)
        elif is_answered:
            self.confirmed.append(point)
            self.pending = None
        else:
            self.pending = point

    @precondition(lambda self: self.commands)
    @rule(is_cancelled=st.booleans())
    def cancel_or_requeue(self, is_cancelled: bool) -> None:
        step_id = self.commands[-1].step_id
        if is_cancelled:
            self.points.note_cancelled(step_id)
            self.cancelled.add(step_id)
        elif not any(point.step_id == step_id and point.state is not None for point in self.confirmed):
            self.points.note_requeued({step_id})
            self.requeued = step_id
        if self.pending is not None and self.pending.step_id == step_id:
            self.pending = self.pending if self.pending.state is None and not is_cancelled else None

    @precondition(lambda self: self.num_since_drop > 2)
    @rule(event=st.sampled_from(["full", "built", "interrupted"]))
    def drop(self, event: str) -> None:
        self.first_kept, self.num_since_drop = self.next_step_id, 0
        oldest = self.points.first_needed
        if event != "full":
            self.confirmed, self.pending = [RestorePoint(self.next_step_id)] if event == "built" else [], None
            self.points.begin_at(self.confirmed[0] if self.confirmed else None)
        elif oldest is not None:
            self.points.drop_until(oldest)
            self.confirmed = [point for point in self.needed()[:1] if point.step_id > oldest]
            self.pending = self.pending if self.pending is not None and self.pending.step_id > oldest else None
        first = self.points.first_needed
        first = self.next_step_id if first is None else first
        self.points.forget_before(first)
        self.cancelled = {step_id for step_id in self.cancelled if step_id >= first}

    # ---- results -----------------------------------------------------------------------------

    @invariant()
    def points_are_tried_in_order(self) -> None:
        for queued in ([], [self.next_step_id - 2]):
            points = [point for point in self.all_needed() if point is not self.pending or point.step_id not in queued]
            if points and points[0] is self.pending and self.supersedes(points[0]):
                points = points[:1]
            assert self.points.choose(queued) == sorted(points, key=lambda point: not point.is_complete)

    @invariant()
    def needed_commands_and_sizes_are_those_of_all_points(self) -> None:
        points = self.all_needed()
        assert self.points.first_needed == min((point.step_id for point in points), default=None)
        assert self.points.nbytes == sum(len(point.state or b"") for point in points)
        assert self.points.cancelled == self.cancelled

    @invariant()
    def only_an_incomplete_point_has_a_complete_one_beside_it(self) -> None:
        newest, complete = self.points.newest, self.points.complete
        assert complete is None or (newest is not None and complete.is_complete and not newest.is_complete)

    @invariant()
    def digests_restart_at_all_points_since_the_first(self) -> None:
        points = self.points.choose(())
        first = min((point.step_id for point in points), default=self.next_step_id)
        entries = [entry for entry in self.commands if entry.step_id >= first]
        marked = self.points.mark(entries, points)
        asked = [entry.step_id for entry in entries if entry.op != Op.CALL]
        incomplete = [point for point in (*self.confirmed, self.pending) if point and not point.is_complete]
        starts = set()
        for point in (*points, *incomplete):
            later = [step_id for step_id in asked if step_id >= point.step_id]
            starts.update(later[:1] if point.state is not None else [point.step_id])
        assert starts.intersection(asked) == steps_and_resets(marked, CommandFlag.NEW_DIGEST)
        assert self.cancelled.intersection(asked) == steps_and_resets(marked, CommandFlag.CANCELLED)

    @invariant()
    def points_are_continued_from_a_history(self) -> None:
        points = self.points.choose(())
        continued = RestorePoints.from_history(points, self.points.mark(self.commands, points))
        same = copy.deepcopy(self.points)
        same.confirm()
        points = same.choose(())
        assert continued.choose(()) == points and continued.first_needed == same.first_needed
        entries = [entry for entry in self.commands if entry.step_id >= (same.first_needed or 0)]
        marked = [steps_and_resets(one.mark(entries, points), CommandFlag.NEW_DIGEST) for one in (continued, same)]
        assert max(marked[0], default=0) == max(marked[1], default=0), "an earlier start has no effect"


def steps_and_resets(entries: list[Entry], flag: int) -> set[int]:
    """Return the step_ids of the steps and resets with a flag."""
    return {entry.step_id for entry in entries if entry.flags & flag and entry.op != Op.CALL}


TestRestorePoints = AllPoints.TestCase
TestRestorePoints.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
