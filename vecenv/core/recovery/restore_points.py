"""Keep the points from which one env can be restored, and choose between them.

    a seeded reset is sent, or a snapshot is read -> pending -> confirmed, before the next command is sent

A point is pending until its command must have been answered: until then, a crash would make the command run again.
Confirmed points are in one of three states, each with or without a pending point:

    state       newest        complete
    none        None          None          the journal was full, or a record was interrupted
    single      a point       None          nothing before it is needed
    double      incomplete    complete      the state of the newest point may lack something, so that the last complete
                                            point is kept, too

Events that change the confirmed points:

    event                                           none         single complete    single incomplete    double
    pending point confirmed: complete               single       single             single               single
        incomplete, before a superseding reset      single       single             single               single
        any other incomplete point                  single       double             single               double
    snapshot read after the next command was sent   as for a pending point that is confirmed
    journal full: the oldest point is dropped       none         none               none                 single
    env built (again)                               single       single             single               single
    record interrupted                              none         none               none                 none

Events that change the pending point:

    seeded reset sent                               the reset
    snapshot read before the next command is sent   the snapshot, which replaces a seeded reset by the same command
    snapshot read after that, or before `newest`    unchanged; in the second case, the snapshot is ignored
    confirmed, env built again, interrupted         None
    its command is cancelled                        None; a snapshot that is read later for this command is ignored
    its command is requeued                         None if it is a snapshot, which the command takes again if it is due
    journal full                                    None if it is the oldest point

A reset that supersedes a command asks for a snapshot. The superseded command may have been executed or not, so that
no command before that snapshot can be repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..layout.commands import Entry, RestorePoint
from ..layout.flags import CommandFlag, Op

__all__ = ["RestorePoints"]


class RestorePoints:
    """The restore points of one env.

    Args:
        newest: the first point, which precedes all commands of the env; None if there is none.

    Attributes:
        pending: the point whose command may not be answered yet.
        newest, complete: the confirmed points.
        cancelled: step_ids of cancelled commands since the first point; they were executed or not.
    """

    def __init__(self, newest: RestorePoint | None) -> None:
        self.cancelled: set[int] = set()
        self._superseding: set[int] = set()  # step_ids of resets that superseded a command
        self.begin_at(newest)

    @classmethod
    def from_history(cls, points: Sequence[RestorePoint], entries: Sequence[Entry]) -> RestorePoints:
        """Return the points of an env that was restored elsewhere: those of all attempts, with all their commands."""
        self = cls(None)
        self._superseding = {entry.step_id for entry in entries if entry.flags & CommandFlag.SNAPSHOT}
        self.cancelled = {entry.step_id for entry in entries if entry.flags & CommandFlag.CANCELLED}
        # A snapshot before the first command of a new env is newer than the construction of that env.
        for point in sorted(points, key=lambda point: (point.step_id, point.state is not None)):
            self.pending = point
            self.confirm()
        if self.complete is not None:
            self._incomplete = [RestorePoint(one.step_id) for one in entries if one.flags & CommandFlag.NEW_DIGEST]
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        points = (self.pending, self.newest, self.complete)
        return sum([len(point.state) for point in points if point is not None and point.state is not None])

    @property
    def first_needed(self) -> int | None:
        """The first command that is needed to restore the env; None if it cannot be restored."""
        first = self.complete or self.newest or self.pending
        return None if first is None else first.step_id

    # ---- events ------------------------------------------------------------------------------

    def begin_at(self, newest: RestorePoint | None) -> None:
        """Drop all points but this one: the env was built again, or a record was interrupted (None)."""
        self.pending: RestorePoint | None = None
        self._keep_only(newest)

    def _keep_only(self, newest: RestorePoint | None) -> None:
        self.newest = newest
        self.complete: RestorePoint | None = None
        self._incomplete: list[RestorePoint] = []  # points confirmed since `complete`, with empty states

    def note_reset(self, step_id: int, flags: int, is_seeded: bool) -> None:
        """Record that a reset was sent, after `confirm`.

        `is_seeded`: whether it brings a new env to the same state by itself.
        """
        if flags & CommandFlag.SNAPSHOT:
            self._superseding.add(step_id)
        if is_seeded:
            self.pending = RestorePoint(step_id)

    def accepts(self, point: RestorePoint, first_kept: int) -> bool:
        """Return whether a snapshot can be a restore point.

        `first_kept`: commands before this one may have been dropped, unless there is a confirmed point.
        """
        first = first_kept if self.newest is None else self.newest.step_id
        return point.step_id >= first and point.step_id not in self.cancelled

    def add(self, point: RestorePoint, *, is_answered: bool) -> bool:
        """Add a snapshot that `accepts` allows; return whether earlier points were dropped.

        `is_answered`: whether the command of this point has been answered.
        """
        later = self.pending if self.pending is not None and point.step_id < self.pending.step_id else None
        self.pending = point
        # If a later command has been sent, the message was read after that.
        has_dropped = (is_answered or later is not None) and self.confirm()
        self.pending = later or self.pending
        return has_dropped

    def confirm(self) -> bool:
        """Make the pending point the newest one; return whether earlier points were dropped.

        Called before the next command is sent, when the command of that point must have been answered.
        """
        point, self.pending = self.pending, None
        if point is None:
            return False
        complete = self.complete or self.newest
        if point.is_complete or complete is None or not complete.is_complete or point.step_id in self._superseding:
            self._keep_only(point)
            return True
        self.newest, self.complete = point, complete
        self._incomplete.append(point if point.state is None else point._replace(state=b""))
        return False

    def note_cancelled(self, step_id: int) -> None:
        """Record that a command was cancelled: it may have been executed or not, so it cannot be a restore point."""
        self.cancelled.add(step_id)
        if self.pending is not None and self.pending.step_id == step_id:
            self.pending = None

    def note_requeued(self, step_ids: Collection[int]) -> None:
        """Record that these commands will be executed again; a snapshot is a point only if it is then taken again."""
        if self.pending is not None and self.pending.state is not None and self.pending.step_id in step_ids:
            self.pending = None

    def drop_until(self, step_id: int) -> None:
        """Drop the points up to a command, because the journal is full."""
        if self.pending is not None and self.pending.step_id <= step_id:
            self.pending = None
        self._keep_only(self.newest if self.newest is not None and self.newest.step_id > step_id else None)

    def forget_before(self, step_id: int) -> None:
        """Forget the commands before this one."""
        for step_ids in (self.cancelled, self._superseding):
            step_ids.difference_update([one for one in step_ids if one < step_id])

    # ---- reading -----------------------------------------------------------------------------

    def choose(self, queued: Collection[int]) -> list[RestorePoint]:
        """Return the points from which to restore the env, in the order in which to try them.

        `queued`: step_ids of the commands that will be executed again.
        """
        pending = None if self.pending is None or self.pending.step_id in queued else self.pending
        if pending is not None and pending.step_id in self._superseding:
            return [pending]
        points = [point for point in (pending, self.newest, self.complete) if point is not None]
        return sorted(points, key=lambda point: not point.is_complete)

    def mark(self, entries: Sequence[Entry], points: Sequence[RestorePoint]) -> list[Entry]:
        """Return the commands from these points on, with `CommandFlag.CANCELLED` and `CommandFlag.NEW_DIGEST`."""
        digest_starts = {_digest_start(point, entries) for point in (*points, *self._incomplete)}
        marked = []
        for entry in entries:
            flags = CommandFlag.CANCELLED if entry.step_id in self.cancelled else 0
            flags |= CommandFlag.NEW_DIGEST if entry.step_id in digest_starts else 0
            marked.append(entry._replace(flags=entry.flags | flags) if flags else entry)
        return marked


def _digest_start(point: RestorePoint, entries: Sequence[Entry]) -> int:
    """Return the step_id of the command at whose answer the digest of an env restarts."""
    if point.state is None:
        return point.step_id
    asked = (entry.step_id for entry in entries if entry.step_id >= point.step_id and entry.op != Op.CALL)
    return next(asked, point.step_id)
