"""ShardSupervisor: replaces the shards of a pool that are lost, and handles the notices of all shards.

A lost shard is replaced by a new process that resumes its episodes. No step of that blocks: the rows of the other
shards are still delivered. `handle` decides about a loss, and `repair` takes the steps that are due. The hub calls
both in its waits.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from ...errors import WorkerDiedError, WorkerError, add_notes, locate, place_of
from ..layout.commands import Command, Commands
from ..operations.requests import Requests
from ..operations.waiter import Waiter
from ..parent.hub import SlotState
from ..pool.starting import is_lasting
from ..recovery.policy import Recovery
from ..recovery.resume import Resume, make_resume
from ..system.clock import NEVER_NS, now_ns
from ..system.signals import signals_deferred
from .carrier import Lost
from .frames import Frame
from .requests import Attachment
from .shard_hub import ShardHub
from .shard_link import POLL_NS
from .shard_starts import ShardStarts
from .shard_status import ShardState, ShardStatus, death_of
from .shard_table import ShardTable
from .shard_times import ShardTimes

__all__ = ["ShardSupervisor"]

_NS = 1_000_000_000
#: Pause before a shard that was lost while it was being built is started again.
_PAUSE_NS = 500_000_000
#: Longest time until a process that is being started is noticed to be placed.
_LOOK_NS = 1_000_000_000
#: Share of `shard_timeout` that the repetition of commands may take without a heartbeat.
_RESTORE_SHARE = 0.25
#: Counts that shards keep by themselves; the recovery of the driver has all others.
_COUNTS = ("restarts", "recycled", "workers_added")


class ShardSupervisor:
    """Handles the losses of the shards of one open pool.

    Args:
        hub, recovery, requests, waiter: of the pool; without a recovery, lost shards are not replaced.
        starts: starts successors.
        times: the times that shards send.
        table: gets the state of each shard.
        check_not_closing: as for `Engine.open`.
    """

    def __init__(
        self,
        hub: ShardHub,
        recovery: Recovery | None,
        requests: Requests,
        waiter: Waiter,
        *,
        starts: ShardStarts,
        times: ShardTimes,
        table: ShardTable,
        check_not_closing: Callable[[str], None],
    ) -> None:
        self._hub = hub
        self._recovery = recovery
        self._requests = requests
        self._waiter = waiter
        self._starts = starts
        self._carrier, self._shards = starts.carrier, starts.shards
        self._times = times
        self._table = table
        self._check_not_closing = check_not_closing
        self._has_failed = False

    @property
    def _open_recovery(self) -> Recovery:
        assert self._recovery is not None
        return self._recovery

    # ---- losses ----------------------------------------------------------------------------

    def repair(self, now: int) -> int:
        """Take the steps that are due for lost shards and for their successors; return when to call this again."""
        next_ns, seconds = NEVER_NS, self._starts.shard_timeout
        for shard, status in enumerate(self._shards):
            if status.state == ShardState.SERVING:
                left_ns = int(seconds * _NS) - self._hub.links[shard].silent_ns
                if left_ns < 0:
                    self.handle(Lost(shard, f"no reply came for {seconds:g} s, and no heartbeat"))
                next_ns = min(next_ns, now + left_ns)
            if status.state == ShardState.LOST and now >= status.due_ns:
                self._replace(shard)
            if status.is_starting and self._starts.is_late(shard, now):
                self._end_late_start(shard)
            if status.is_starting or status.state == ShardState.LOST:
                next_ns = min(next_ns, status.due_ns)
            if status.is_starting and not status.is_placed:
                next_ns = min(next_ns, now + _LOOK_NS)
            self._table.note(status, self._carrier.place_of(shard))
        self._starts.show_progress()
        return next_ns

    def handle(self, event: Lost) -> None:
        """Decide whether a lost shard is replaced."""
        shard, status = event.shard, self._shards[event.shard]
        was_serving = status.state == ShardState.SERVING
        recovers = self._recovery is not None
        if status.state == ShardState.OPENING:
            try:
                self._starts.start_again(event, self._hub.info_keys)
            except WorkerError as raised:
                self._give_up(shard, raised)
            return
        commands = self._suspected(status) if recovers and was_serving else []
        error = death_of(status, self._carrier.describe(shard), f"was lost: {event.text}", event, commands)
        status.why, status.exitcode = str(error), event.exitcode
        if not recovers:
            self._give_up(shard, error)
            return
        now = now_ns()
        window_ns = self._open_recovery.policy.restart_window * _NS
        if not status.has_workers and (not was_serving or (status.lost_ns and now - status.lost_ns < window_ns)):
            status.add_workers(self._num_cpus, "its process was lost repeatedly, perhaps by an env")
        if was_serving:
            status.lost_ns = now
        elif now - status.lost_ns > self._starts.replace_timeout * _NS:
            self._give_up(shard, error)
            return
        try:
            self._judge(shard, error, event.exitcode, commands)
        except WorkerError as raised:
            self._give_up(shard, raised, is_retried=not was_serving and not is_lasting(raised))
            return
        status.state = ShardState.LOST
        status.due_ns = now + (0 if was_serving else _PAUSE_NS)

    def _unanswered(self, shard: int) -> Commands:
        return self._hub.queued(shard, self._waiter.inbox.unanswered_calls)

    def _suspected(self, status: ShardStatus) -> list[Command]:
        """Return the commands that a shard may have run when it was lost: the first unanswered one of each env."""
        found = list(self._unanswered(status.shard).first_by_env().values())
        is_known = found and (found[0].env_id, found[0].step_id) in status.run_in_turn
        return found[:1] if is_known else found

    def _judge(self, shard: int, error: WorkerDiedError, exitcode: int | None, commands: Sequence[Command]) -> None:
        """Decide whether a lost shard is replaced, and which episodes are abandoned; see `Recovery.judge`.

        Commands that were under way in several losses are suspects: the successor runs them one by one. A shard whose
        exit code is unknown, as over Ray, may have been ended from outside.
        """
        status, recovery = self._shards[shard], self._open_recovery
        place = place_of(error)
        states = [SlotState(command.op, command.env_id, command.step_id, 0, 0, 0) for command in commands]
        try:
            locate(error, **{**place, "env_ids": [state.env_id for state in states] or status.env_ids})
            if status.state == ShardState.BUILDING:  # within `replace_timeout`
                (recovery.judge_start if status.is_placed else recovery.note_failed_start)(error)
                return
            code = -signal.SIGKILL if exitcode is None else exitcode
            status.is_one_by_one = bool(recovery.judge(error, code, states, status.env_ids))
        finally:
            locate(error, **place)

    def _give_up(self, shard: int, error: Exception, *, is_retried: bool = False) -> None:
        """Let a shard be dead; waits that need it raise the error.

        Args:
            shard: number of the shard.
            error: the reason.
            is_retried: whether it is started again after the error has been raised.
        """
        status = self._shards[shard]
        status.is_retried = is_retried
        self._carrier.kill(shard)
        status.state, status.why, status.error, status.due_ns = ShardState.DEAD, str(error), error, NEVER_NS
        self._hub.links[shard].begin()
        self._times.forget(shard)
        self._hub.fail_tasks(shard, error)
        self._has_failed = True
        self._waiter.request_check()

    def take_failure(self) -> bool:
        """Return whether a shard was abandoned since the last call, so that a wait may be in vain."""
        has_failed, self._has_failed = self._has_failed, False
        return has_failed

    def _replace(self, shard: int) -> None:
        """Fence a lost shard, and start its successor."""
        status, recovery = self._shards[shard], self._open_recovery
        with signals_deferred():
            self._carrier.kill(shard)
            queued = self._unanswered(shard)
            jobs = self._requests.new_jobs(status.env_ids, queued)
            resume = make_resume(recovery, self._hub.read_records(status.env_ids), queued, jobs)
            if not status.has_workers and not self._is_soon_restored(status, resume):
                status.add_workers(self._num_cpus, "its process was lost, and many commands are repeated")
            self._begin_again(shard)
            recovery.begin_restoring(status.why, status.lost_ns, resume.restore_jobs)
            self._starts.start(shard, self._hub.info_keys, resume, state=ShardState.BUILDING)
            status.run_in_turn = {(one.env_id, one.step_id) for one in queued if status.is_one_by_one}
            status.num_replaced += 1

    def _is_soon_restored(self, status: ShardStatus, resume: Resume) -> bool:
        """Return whether a process can restore its envs without workers, and thus without a heartbeat meanwhile."""
        num_repeated = sum(len(plan.entries) for job in resume.restore_jobs.values() for plan in job.attempts[:1])
        return num_repeated * status.step_seconds < _RESTORE_SHARE * self._starts.shard_timeout

    @property
    def _num_cpus(self) -> int:
        return self._starts.num_cpus or 1

    def _begin_again(self, shard: int, *, is_new: bool = False) -> None:
        status = self._shards[shard]
        for name, count in status.counts.items():
            status.counts_before[name] = status.counts_before.get(name, 0) + count
        status.counts = {}
        self._hub.begin_again(shard, is_new=is_new)
        self._times.forget(shard)

    def _end_late_start(self, shard: int) -> None:
        """Abandon a shard that was not placed in time; treat a successor that is not built in time as lost."""
        status, text = self._shards[shard], self._starts.why_late(shard)
        if status.is_placed and status.state == ShardState.BUILDING:
            self.handle(Lost(shard, text))
        else:
            self._end(shard, text)

    def raise_dead(self) -> None:
        """Raise if a shard that is not replaced owes an answer, or is called."""
        errors = [status.take_error() for status in self._shards if self._is_missed(status)]
        if errors:
            add_notes(errors[0], map(str, errors[1:]))
            raise errors[0]

    def _is_missed(self, status: ShardStatus) -> bool:
        if status.state != ShardState.DEAD:
            return False
        return self._hub.owes(status.shard) or not self._requests.calls.keys().isdisjoint(status.env_ids)

    # ---- attachments of shards -------------------------------------------------------------

    def note_opened(self, shard: int, frame: Frame) -> None:
        """Let the successor of a shard serve; give it up if building its envs has raised."""
        status = self._shards[shard]
        try:
            self._starts.check_report(shard, frame)
        except Exception as error:  # raised by the next wait that needs this shard
            self._give_up(shard, error, is_retried=status.state == ShardState.BUILDING and not is_lasting(error))
            return
        status.state, status.due_ns = ShardState.SERVING, NEVER_NS
        if self._recovery is not None:
            self._recovery.note_built(status.env_ids)
        self._hub.serve(shard)

    def on_attachment(self, shard: int, attachment: Attachment) -> None:
        """Note the restore points, outcomes, counts, times, counters and log records of a shard."""
        status = self._shards[shard]
        self._starts.log_records.keep(shard, attachment.log_frames)
        if self._recovery is not None:
            for env_id, point in attachment.restore_points:
                is_answered = self._hub.owed(env_id)[1] != point.step_id
                self._recovery.journal.note_restore_point(env_id, point, is_answered)
            for env_id, outcome in attachment.outcomes:
                self._recovery.note_outcome(env_id, outcome)
        if attachment.counts is not None:
            status.counts = {name: attachment.counts[name] for name in _COUNTS if name in attachment.counts}
            self._table.note(status, self._carrier.place_of(shard))
        if attachment.times is not None:
            self._times.take(shard, *attachment.times)
        if attachment.counters is not None:
            self._table.count(shard, attachment.counters)

    def find_failure(self, shard: int) -> Exception | None:
        """Return the error of a dead shard; None if it is alive, or being replaced."""
        status = self._shards[shard]
        return status.take_error() if status.state == ShardState.DEAD else None

    def check_not_closing(self) -> None:
        """Raise ClosedError if the pool is being closed."""
        self._check_not_closing("wait for tasks")

    # ---- on request ------------------------------------------------------------------------

    def kill(self, shard: int) -> None:
        """End a shard at once; see `Engine.kill`."""
        self._end(shard, "was killed by the caller")

    def _end(self, shard: int, text: str) -> None:
        self._give_up(shard, death_of(self._shards[shard], self._carrier.describe(shard), text))

    def restart(self, shard: int) -> None:
        """Replace a shard, dead or alive, by a new one that builds the same envs; see `Pool.restart`."""
        status, hub = self._shards[shard], self._hub
        with signals_deferred():
            self._end(shard, "was killed to be restarted")
            self._requests.fail_calls(status.env_ids, _lost_call)
            self._requests.forget_envs(status.env_ids)
            self._begin_again(shard, is_new=True)
            status.is_one_by_one, status.run_in_turn = False, set()
            self._starts.start(shard, hub.info_keys)
        while status.state == ShardState.OPENING:
            hub.wait_briefly(now_ns() + POLL_NS)
            self._check_not_closing("restart")
        if status.state == ShardState.DEAD:
            raise status.take_error()


def _lost_call(env_id: int, step_id: int) -> WorkerError:
    """Return the error of a call to a shard that was restarted."""
    error = WorkerError(f"the shard of env {env_id} was restarted before a call was answered; call again")
    return locate(error, env_ids=[env_id], op="call", step_id=step_id)
