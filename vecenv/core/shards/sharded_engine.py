"""ShardedEngine: envs in shards, which a carrier starts somewhere; each shard has worker processes of its own.

    OPENING -> SERVING -> LOST -> (fence) -> BUILDING -> SERVING        on_failure='recover'
                       -> DEAD                                          on_failure='raise', or too many losses

A lost shard is replaced by a new process that resumes its episodes. No step of that blocks: the other shards go on, and
their rows are delivered. `advance` takes the steps that are due; the hub calls it in every wait.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ...errors import (
    ConfigError,
    DifferentSpacesError,
    WorkerDiedError,
    WorkerError,
    WorkerTimeoutError,
    add_notes,
    locate,
    place_of,
)
from ...own_log import own_logger
from ...registrations import pickle_registrations
from ...statistics import EnvTimes, ShardInfo, WorkerTimes
from ..host.replay import Snapshotter
from ..layout.messages import Reply, dump_by_value, pack_error, unpack_error
from ..layout.rows import Op
from ..layout.spec import Array, Spec
from ..options import Limits, PoolOptions, check_env_fns, check_options
from ..parent.hub import SlotState
from ..pool.engine import AskedEnvs, EnvSpaces, OpenedEnvs, WaitState, with_limits
from ..pool.slots import split_evenly
from ..pool.starting import pickle_env_fns, working_directory
from ..processes.worker_main import describe_envs, find_difference
from ..recovery.journal import Journal
from ..recovery.policy import Recovery
from ..recovery.reproducer import FailureContext, Reproducer, failure_context, newest_episode
from ..recovery.resume import QueuedCommand, Resume, make_resume
from ..system.clock import NEVER_NS, limit_of, now_ns
from ..system.log_records import LogLevels, emit_frame
from ..system.segment import private_segment
from ..system.signals import signals_deferred
from .carrier import Carrier, Lost, Replied, ShardPlace
from .frames import Frame, FrameKind, FrameLayout, unpack_bare
from .requests import Commands, Mail, ReadTimes, Rounds, SetLimits, ShardBoot, ShardReport, Steps
from .shard_hub import ShardHub
from .shard_journals import ShardJournals
from .shard_link import PATIENCE_SECONDS, ShardLink
from .shard_times import ShardTimes

__all__ = ["ShardedEngine"]

_LOG = own_logger()
_NS = 1_000_000_000
#: Longest sleep between two checks whether the pool is being closed, and of shards that are built.
_POLL_NS = 50_000_000
#: Pause before a shard that was lost while it was being built is started again.
_PAUSE_NS = 500_000_000
#: Longest time until a process that is being started is noticed to have its place.
_LOOK_NS = 1_000_000_000
#: Longest wait for the times of shards: one that waits for rows answers within a heartbeat.
_TIMES_NS = 2 * int(PATIENCE_SECONDS * _NS)
#: Counts that shards keep by themselves; all others are in the driver's own recoveries.
_COUNTS = ("restarts", "recycled", "workers_added")


class _State(Enum):
    OPENING = "opening"
    SERVING = "serving"
    LOST = "lost"
    BUILDING = "building"
    DEAD = "dead"


@dataclass
class _ShardStatus:
    """The state of one shard.

    Attributes:
        env_ids: its envs.
        state: see the text of this module.
        num_replaced: how often it was replaced.
        lost_ns: when it was lost, on the monotonic clock; its successors may have been lost since.
        due_ns: if it is lost: when it is started again. If it is being started: when it must have a place, and once it
            has one, when its envs must be built.
        is_placed: whether its process is known to have a place.
        num_failed_starts: how many successors in a row were lost after they had a place and before they served.
        is_one_by_one: whether its successor runs the commands that are not answered one after the other; see
            `ShardBoot`.
        run_in_turn: the commands that its present process runs like that: env_id and step_id, in its numbers.
        why: if it is dead: the reason, for messages; else of the last loss.
        error: if it is dead: an exception that is raised once, in the place of a WorkerDiedError.
        exitcode: of its last process.
        counts, counts_before: its counts of failures, and the sums of those of its predecessors.
    """

    env_ids: list[int]
    state: _State = _State.OPENING
    num_replaced: int = 0
    lost_ns: int = 0
    due_ns: int = NEVER_NS
    is_placed: bool = False
    num_failed_starts: int = 0
    is_one_by_one: bool = False
    run_in_turn: set[tuple[int, int]] = field(default_factory=set)
    why: str = ""
    error: Exception | None = None
    exitcode: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    counts_before: dict[str, int] = field(default_factory=dict)


class ShardedEngine:
    """Runs envs in shards, and replaces shards that are lost; see `Engine` for the calls.

    In `kill`, `restart` and `envs_of`, a worker is a shard.

    Args:
        env_fns: one constructor per env.
        options: of the pool, and of the pools of the shards; `num_workers` is the number of workers of each shard.
        carrier: starts shards; it serves this engine alone.
        num_shards: how many; at most one per env.
        adapt, snapshotter: as for `ProcessEngine`.
        shard_timeout: seconds without any reply, also no heartbeat, after which a shard counts as lost.
        replace_timeout: seconds that the successor of a lost shard may wait for a place.
    """

    runs_here = False
    worker_pids: tuple[int, ...] = ()

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        options: PoolOptions | None = None,
        *,
        carrier: Carrier,
        num_shards: int,
        adapt: Callable[[Any], Any] | None = None,
        snapshotter: Snapshotter | None = None,
        shard_timeout: float = 30.0,
        replace_timeout: float = 300.0,
    ) -> None:
        self.env_fns = check_env_fns(env_fns)
        self.num_envs = len(self.env_fns)
        self.options = check_options(options or PoolOptions())
        self.end_if_unclosed = carrier.end_if_unclosed
        self._carrier = carrier
        self._adapt = adapt or _identity
        self._snapshotter = snapshotter
        self._shard_timeout_ns = int(shard_timeout * _NS)
        self._replace_timeout = replace_timeout
        self._shares = split_evenly(self.num_envs, min(num_shards, self.num_envs))
        self._shards = [_ShardStatus(share) for share in self._shares]
        self._check_not_closing: Callable[[str], None] = _ignore
        self._has_failed = False
        self._report: ShardReport | None = None
        self._action_spec: Spec | None = None
        self._last_counts: dict[str, Any] = {}  # at the end
        self._times = ShardTimes(self._shares)
        self._log_frames: list[tuple[str, bytes]] = []  # name of the shard, and a record
        self._hub: ShardHub | None = None
        self._journals: ShardJournals | None = None
        self._requests: AskedEnvs | None = None
        self._waiter: WaitState | None = None

    # ---- start -----------------------------------------------------------------------------

    def open(self, check_not_closing: Callable[[str], None]) -> OpenedEnvs:
        """Start all shards at once, and wait until they have built their envs."""
        self._check_not_closing = check_not_closing
        for shard in range(len(self._shards)):
            self._carrier.start(shard, self._boot(shard))
            self._note_start(shard, self.options.limits.construct)
        try:
            reports = self._await_reports()
        finally:
            self.emit_log_records()
        first = self._report = reports[0]
        for shard, report in enumerate(reports):
            self._compare(shard, report)
        spaces = EnvSpaces.of(first, self.options)
        options = dataclasses.replace(self.options, leases=0, timings=False)
        plan = spaces.plan_arena(self.num_envs, len(self._shards), max(map(len, self._shares)), options)
        memory, counters = private_segment(plan.nbytes), private_segment(plan.counters.nbytes)
        self._action_spec = plan.action
        plan.write_header(memory)
        plan.counters.write_header(counters, is_native=first.implementation == "native", opened_ns=now_ns())
        recovers = self.options.failures.recovers
        layout = FrameLayout(plan, has_records=recovers)
        links = [ShardLink(shard, self._carrier) for shard in range(len(self._shards))]
        has_cells = first.implementation == "native"
        hub = ShardHub(plan, memory, self._shares, links, self._carrier, layout, self, has_cells=has_cells)
        journals = ShardJournals(hub, self._shares, self._make_recovery if recovers else None)
        self._hub, self._journals = hub, journals
        for shard, status in enumerate(self._shards):
            status.state = _State.SERVING
            hub.serve(shard)
        return OpenedEnvs(
            spaces=spaces,
            properties=first.properties,
            implementation=first.implementation,
            plan=plan,
            memory=memory,
            counters=counters,
            hub=hub,
            num_slots=len(self._shards),
            journal=journals,
            listener=journals if recovers else None,
            tasks=hub,
        )

    def _boot(self, shard: int, resume: Resume | None = None) -> bytes:
        """Return the pickled `ShardBoot` of a shard."""
        failures = self.options.failures
        failures = dataclasses.replace(failures, max_log_bytes=failures.max_log_bytes // len(self._shares))
        options = dataclasses.replace(
            self.options, depth=2, leases=0, debug=False, warns_of_views=False, monitor=False, failures=failures
        )
        boot = ShardBoot(
            env_fns=pickle_env_fns(self.env_fns, self._shares[shard]),
            adapt=dump_by_value(self._adapt),
            snapshotter=dump_by_value(self._snapshotter),
            registrations=pickle_registrations(),
            options=options,
            first_env_id=self._shares[shard][0],
            log_levels=LogLevels.now(),
            info_keys=[] if self._hub is None else list(self._hub.info_keys),
            resume=resume,
            is_one_by_one=self._shards[shard].is_one_by_one,
        )
        return pickle.dumps(boot, protocol=5)

    def _note_start(self, shard: int, place_seconds: float | None) -> None:
        """Note that a process is being started for a shard.

        Args:
            shard: number of the shard.
            place_seconds: within which it must have a place; None: no limit.
        """
        status = self._shards[shard]
        status.is_placed = False
        status.due_ns = NEVER_NS if place_seconds is None else now_ns() + int(place_seconds * _NS)

    def _is_late(self, shard: int, now: int) -> bool:
        """Return whether a process that is being started has no place in time, or does not build its envs in time.

        The shard itself has `limits.construct` seconds for its constructors, and as many until its workers serve. It
        reports if these are over, unless its process is stopped.
        """
        status = self._shards[shard]
        if not status.is_placed and self._carrier.place_of(shard) is not None:
            status.is_placed = True
            limit = self._start_seconds
            status.due_ns = NEVER_NS if limit is None else now + int(limit * _NS)
        return now >= status.due_ns

    @property
    def _start_seconds(self) -> float | None:
        """Seconds within which a process that has a place must report that its envs are built."""
        limit = self.options.limits.construct
        return None if limit is None else 2 * limit + self._shard_timeout_ns / _NS

    def _why_unbuilt(self) -> str:
        return f"did not build its envs within {self._start_seconds:g} s, and it does not answer; it may be stopped"

    def _await_reports(self) -> list[ShardReport]:
        reports: dict[int, ShardReport] = {}
        while len(reports) < len(self._shards):
            self._check_not_closing("construct")
            for shard in range(len(self._shards)):
                if shard not in reports and self._is_late(shard, now_ns()):
                    error = self._late_start(shard)
                    self._carrier.kill(shard)
                    raise error
            for event in self._carrier.wait(now_ns() + _POLL_NS):
                if isinstance(event, Lost):
                    raise self._died(event.shard, f"died while it built its envs: {event.text}", event)
                if isinstance(event, Replied):
                    reports[event.shard] = self._read_report(event.shard, unpack_bare(event.data))
        return [reports[shard] for shard in range(len(reports))]

    def _late_start(self, shard: int) -> Exception:
        if not self._shards[shard].is_placed:
            return ConfigError(
                f"{self.describe_worker(shard)} found no place within {self.options.limits.construct:g} s; it waits "
                f"for {self._carrier.waiting_for(shard)}"
            )
        error = WorkerTimeoutError(
            f"{self.describe_worker(shard)} {self._why_unbuilt()} ({self._carrier.describe(shard)})",
            timeout=self._start_seconds,
        )
        return locate(error, worker_id=shard, env_ids=self._shares[shard], op="construct")

    def _read_report(self, shard: int, frame: Frame) -> ShardReport:
        """Return the report of a shard; raise the exception that building its envs has raised."""
        if frame.kind == FrameKind.OPENED:
            report: ShardReport = pickle.loads(frame.mail)
            self._keep_log_frames(shard, report.log_frames)
            return report
        error = unpack_error(pickle.loads(frame.mail))
        add_notes(error, [f"raised in {self.describe_worker(shard)}, {self._carrier.describe(shard)}"])
        raise error

    def _compare(self, shard: int, report: ShardReport) -> None:
        """Raise an error unless the envs of a shard are like those of the first one."""
        assert self._report is not None
        found = find_difference(self._report, report, 0)
        if found is not None:
            name, text = found
            raise DifferentSpacesError(f"env {self._shares[shard][0]}: {text}", path=name)
        if report.implementation != self._report.implementation:
            raise ConfigError(
                f"{self.describe_worker(shard)}, {self._carrier.describe(shard)}, uses the implementation "
                f"{report.implementation!r}, and others {self._report.implementation!r}; install the same build of "
                "vecenv everywhere"
            )

    def _make_recovery(self, shard: int) -> Recovery:
        policy = self.options.failures
        share = self._shares[shard]
        journal = Journal(len(share), policy.max_log_bytes // len(self._shares))
        reproduce = functools.partial(self._reproduce, shard)
        return Recovery(
            policy, journal, self.options.limits, reproduce, first_env_id=share[0], logs_outcomes=False
        )

    def _reproduce(self, shard: int, env_id: int, op: int, step_id: int) -> FailureContext:
        """Describe the commands of an env until it ended its shard; its numbers are those of the shard."""
        assert self._action_spec is not None
        journals = self._open_journals
        among_all = self._shares[shard][env_id]
        restore_point, entries, persistent_calls = newest_episode(journals.recoveries[shard].journal, env_id)
        episode = Reproducer(
            env_fns=pickle_env_fns(self.env_fns, [among_all]),
            adapt=dump_by_value(self._adapt),
            snapshotter=dump_by_value(self._snapshotter),
            registrations=pickle_registrations(),
            autoreset=self.options.autoreset,
            env_id=among_all,
            step_id=step_id,
            why="",
            restore_point=restore_point,
            entries=entries,
            persistent_calls=persistent_calls,
            path=list(sys.path),
            cwd=working_directory(),
        )
        records = journals.records(shard)[env_id]
        return failure_context(episode, op, self._action_spec, records, self.options.failures.reproducer_dir)

    def connect(self, requests: AskedEnvs, waiter: WaitState) -> None:
        """Begin to handle losses of shards."""
        self._requests, self._waiter = requests, waiter

    # ---- end -------------------------------------------------------------------------------

    def close(self, timeout: float | None) -> Exception | None:
        """Have all shards close their envs at the same time, then end them."""
        self._last_counts = self.statistics()
        for recovery in [] if self._journals is None else self._journals.recoveries:
            recovery.log_summary()
        hub = self._hub
        limit = self.options.limits.close if timeout is None else limit_of(timeout)
        error = None
        try:
            if hub is not None and (limit is None or limit > 0):
                until_ns = NEVER_NS if limit is None else now_ns() + int((limit + PATIENCE_SECONDS) * _NS)
                error = hub.close_envs(limit, until_ns)
        finally:
            self._carrier.close()
            self.emit_log_records()
            self._hub = self._journals = self._requests = self._waiter = None
            self._check_not_closing = _ignore
        return error

    def interrupt(self) -> None:
        """Wake up the wait of the pool."""
        self._carrier.interrupt()

    # ---- losses ----------------------------------------------------------------------------

    def advance(self, now: int) -> int:
        """Take the steps that are due for lost shards and for their successors; return when to call this again."""
        next_ns = NEVER_NS
        for shard, status in enumerate(self._shards):
            if status.state == _State.SERVING and self._open_hub.links[shard].silent_ns > self._shard_timeout_ns:
                seconds = self._shard_timeout_ns / _NS
                self.note_lost(Lost(shard, f"no reply came for {seconds:g} s, and no heartbeat"))
            if status.state == _State.LOST and now >= status.due_ns:
                self._replace(shard)
            is_starting = status.state in (_State.OPENING, _State.BUILDING)
            if is_starting and self._is_late(shard, now):
                self._end_late_start(shard)
            if status.state in (_State.LOST, _State.OPENING, _State.BUILDING):
                next_ns = min(next_ns, status.due_ns)
            if is_starting and not status.is_placed:
                next_ns = min(next_ns, now + _LOOK_NS)
        return next_ns

    def note_lost(self, event: Lost) -> None:
        """Decide whether a lost shard is replaced."""
        shard, status = event.shard, self._shards[event.shard]
        was_serving = status.state == _State.SERVING
        recovers = self._journals is not None and bool(self._journals.recoveries)
        commands = self._suspected(shard) if recovers and was_serving else []
        error = self._died(shard, f"was lost: {event.text}", event, commands)
        status.why, status.exitcode = str(error), event.exitcode
        if not recovers or status.state == _State.OPENING:
            self._give_up(shard, error)
            return
        now = now_ns()
        if was_serving:
            status.lost_ns = now
        elif now - status.lost_ns > self._replace_timeout * _NS:
            self._give_up(shard, error)
            return
        try:
            self._judge(shard, error, event.exitcode, commands)
        except WorkerError as raised:
            self._give_up(shard, raised)
            return
        status.state = _State.LOST
        status.due_ns = now + (0 if was_serving else _PAUSE_NS)

    def _suspected(self, shard: int) -> list[QueuedCommand]:
        """Return the commands that a shard may have run when it was lost: the first unanswered one of each env."""
        first: dict[int, QueuedCommand] = {}
        for command in sorted(self._queued(shard), key=lambda command: command.step_id):
            first.setdefault(command.env_id, command)
        found = list(first.values())
        is_known = found and (found[0].env_id, found[0].step_id) in self._shards[shard].run_in_turn
        return found[:1] if is_known else found

    def _judge(
        self, shard: int, error: WorkerDiedError, exitcode: int | None, commands: Sequence[QueuedCommand]
    ) -> None:
        """Decide whether a lost shard is replaced, and which episodes are abandoned; see `Recovery.judge`.

        Commands that were under way in several losses are suspects: the successor runs them one by one. A shard whose
        exit code is unknown, as over Ray, may have been ended from outside.
        """
        status, recovery = self._shards[shard], self._open_journals.recoveries[shard]
        if status.state == _State.BUILDING:
            status.num_failed_starts += status.is_placed
            recovery.judge_start(error, status.num_failed_starts, is_from_outside=exitcode is None)
            return
        place = place_of(error)
        suspects: list[int] = []

        def isolate(env_id: int) -> bool:
            suspects.append(env_id)
            return True

        states = [SlotState(command.op, command.env_id, command.step_id, 0, 0, 0) for command in commands]
        try:
            env_ids = [state.env_id for state in states] or range(len(status.env_ids))  # in the numbers of the shard
            locate(error, **{**place, "env_ids": env_ids})
            recovery.judge(error, -signal.SIGKILL if exitcode is None else exitcode, states, isolate)
        finally:
            locate(error, **place)
        status.is_one_by_one = bool(suspects)

    def _give_up(self, shard: int, error: Exception) -> None:
        """Let a shard be dead; waits that need it raise the error."""
        status = self._shards[shard]
        self._carrier.kill(shard)
        status.state, status.why, status.error, status.due_ns = _State.DEAD, str(error), error, NEVER_NS
        self._open_hub.links[shard].begin()
        self._times.forget(shard)
        self._open_hub.fail_tasks(shard, error)
        self._has_failed = True
        if self._waiter is not None:
            self._waiter.request_check()

    def take_failure(self) -> bool:
        """Return whether a shard was given up since the last call, so that a wait may be in vain."""
        has_failed, self._has_failed = self._has_failed, False
        return has_failed

    def _replace(self, shard: int) -> None:
        """Fence a lost shard, and start its successor."""
        status, recovery = self._shards[shard], self._open_journals.recoveries[shard]
        with signals_deferred():
            self._carrier.kill(shard)
            resume = self._resume_of(shard)
            self._begin_again(shard)
            recovery.begin_restoring(status.why, status.lost_ns, resume.restore_jobs)
            self._carrier.start(shard, self._boot(shard, resume))
            queued = resume.queued if status.is_one_by_one else ()
            status.run_in_turn = {(command.env_id, command.step_id) for command in queued}
            status.state = _State.BUILDING
            status.num_replaced += 1
            self._note_start(shard, self._replace_timeout)

    def _begin_again(self, shard: int, *, is_new: bool = False) -> None:
        status = self._shards[shard]
        for name, count in status.counts.items():
            status.counts_before[name] = status.counts_before.get(name, 0) + count
        status.counts = {}
        self._open_hub.begin_again(shard, is_new=is_new)
        self._times.forget(shard)

    def _resume_of(self, shard: int) -> Resume:
        """Return the state from which another process continues a shard."""
        hub, requests, waiter = self._open_hub, self._requests, self._waiter
        assert requests is not None and waiter is not None
        first, inbox, journals = self._shares[shard][0], waiter.inbox, self._open_journals

        def last_delivered(env_id: int, before: int) -> list[Array] | None:
            return hub.last_delivered_obs(first + env_id, before)

        resume = make_resume(
            journals.recoveries[shard],
            journals.records(shard),
            self._queued(shard),
            last_delivered,
            last_delivered_message=lambda env_id: inbox.last_delivered_message(first + env_id),
            takes_seed=lambda env_id: requests.takes_seed(first + env_id),
        )
        resume.is_paused = True  # until the shard is known to have built its envs
        return resume

    def _queued(self, shard: int) -> list[QueuedCommand]:
        """Return the commands of a shard that are not answered, in its numbers."""
        assert self._waiter is not None
        payloads = self._waiter.inbox.payloads
        return self._open_hub.queued(shard, lambda step_id: payloads[step_id][1] if step_id in payloads else None)

    def _end_late_start(self, shard: int) -> None:
        """Give up a shard that has waited too long for a place; treat one as lost that has a place and is not built."""
        if self._shards[shard].is_placed:
            self.note_lost(Lost(shard, self._why_unbuilt()))
            return
        is_first = self._shards[shard].state == _State.OPENING
        seconds = self.options.limits.construct if is_first else self._replace_timeout
        text = f"found no place within {seconds:g} s; it waits for {self._carrier.waiting_for(shard)}"
        self._give_up(shard, self._died(shard, text, None))

    def note_opened(self, shard: int, frame: Frame) -> None:
        """Let the successor of a shard serve; give it up if building its envs has raised."""
        status = self._shards[shard]
        try:
            self._compare(shard, self._read_report(shard, frame))
        except Exception as error:  # raised by the next wait that needs this shard
            self._give_up(shard, error)
            return
        status.state, status.due_ns, status.num_failed_starts = _State.SERVING, NEVER_NS, 0
        self._open_hub.serve(shard)

    def note_news(self, shard: int, mail: Mail) -> None:
        """Note the restore points, outcomes, counts, times and log records of a shard."""
        self._keep_log_frames(shard, mail.log_frames)
        first, journals = self._shares[shard][0], self._open_journals
        for env_id, point in mail.restore_points:
            is_answered = not self._open_hub.awaits(first + env_id, point.step_id)
            journals.note_restore_point(first + env_id, point, is_answered)
        for env_id, outcome in mail.outcomes:
            journals.note_outcome(first + env_id, outcome)
        if mail.counts is not None:
            self._shards[shard].counts = {name: mail.counts[name] for name in _COUNTS if name in mail.counts}
        if mail.times is not None:
            self._times.take(shard, *mail.times)

    def _keep_log_frames(self, shard: int, frames: Sequence[bytes]) -> None:
        """Keep log records until `emit_log_records`, with the place of the shard, which may change."""
        if frames:
            name = f"shard {shard}, {self._carrier.describe(shard)}"
            self._log_frames += [(name, frame) for frame in frames]

    def has_log_records(self) -> bool:
        """Return whether log records of shards wait for `emit_log_records`."""
        return bool(self._log_frames)

    def note_records(self, shard: int, records: Array, env_ids: Array) -> None:
        """Keep the newest records of envs."""
        self._open_journals.note_records(shard, records, env_ids)

    def note_executed(self, shard: int, first: int, op: Rounds | Steps | Commands) -> None:
        """Record the commands of a task."""
        self._open_journals.note_executed(shard, first, op)

    def find_failure(self, shard: int) -> Exception | None:
        """Return the error of a dead shard; None if it is alive, or being replaced."""
        return self._error_of(shard) if self._shards[shard].state == _State.DEAD else None

    def check_not_closing(self) -> None:
        """Raise ClosedError if the pool is being closed."""
        self._check_not_closing("wait for tasks")

    def _died(
        self, shard: int, text: str, event: Lost | None, commands: Sequence[QueuedCommand] = ()
    ) -> WorkerDiedError:
        """Return the error of a shard; it names the command that the shard has run, if there was only one."""
        exitcode = None if event is None else event.exitcode
        env_ids, op = self._shards[shard].env_ids, None
        if len(commands) == 1:
            env_ids, op = [env_ids[commands[0].env_id]], Op(commands[0].op).name.lower()
            text = f"{text}; it was in a {op} of env {env_ids[0]}"
        place = self._carrier.describe(shard)
        error = WorkerDiedError(f"{self.describe_worker(shard)} {text} ({place})", exitcode=exitcode)
        error.__cause__ = None if event is None else event.cause
        return locate(error, worker_id=shard, env_ids=env_ids, op=op)

    @property
    def _open_hub(self) -> ShardHub:
        assert self._hub is not None
        return self._hub

    @property
    def _open_journals(self) -> ShardJournals:
        assert self._journals is not None
        return self._journals

    # ---- while envs are there ----------------------------------------------------------------

    def serve(self) -> None:
        """Do nothing: shards run by themselves."""

    def emit_log_records(self) -> None:
        """Pass the log records of shards to the loggers of this process; each names its shard."""
        while self._log_frames:
            name, frame = self._log_frames.pop(0)
            emit_frame(frame, name, names_worker=True)

    def on_descriptor(self, descriptor: int) -> None:
        """Raise if a shard that is not replaced owes an answer."""
        self.check_alive()

    def on_overdue(self, error: WorkerTimeoutError) -> None:
        """Raise the error; the driver itself has no limits, shards have."""
        raise error

    def check_alive(self) -> None:
        """Raise if a shard that is not replaced owes an answer, or is called."""
        errors = [self._error_of(shard) for shard in range(len(self._shards)) if self._is_missed(shard)]
        if errors:
            add_notes(errors[0], map(str, errors[1:]))
            raise errors[0]

    def _is_missed(self, shard: int) -> bool:
        status = self._shards[shard]
        if status.state != _State.DEAD or self._hub is None or self._requests is None:
            return False
        return self._hub.owes(shard) or not self._requests.calls.keys().isdisjoint(status.env_ids)

    def _error_of(self, shard: int) -> Exception:
        """Return the error of a dead shard: first the one that was raised, then one that says so."""
        status = self._shards[shard]
        error, status.error = status.error, None
        if error is not None:
            return error
        again = WorkerDiedError(status.why, exitcode=status.exitcode)
        return locate(again, worker_id=shard, env_ids=status.env_ids)

    def has_dead(self) -> bool:
        """Return whether a shard is lost and not replaced."""
        return any(status.state == _State.DEAD for status in self._shards)

    def set_limits(self, limits: Limits) -> None:
        """Change the limits of operations, in all shards."""
        self.options = with_limits(self.options, limits)
        if self._hub is not None and self._journals is not None:
            for recovery in self._journals.recoveries:
                recovery.set_limits(limits)
            for shard in range(len(self._shards)):
                self._hub.tell(shard, SetLimits(limits))

    def statistics(self) -> dict[str, Any]:
        """Return the counts of failures of all shards, and of replaced shards, and the workers of each shard."""
        journals = self._journals
        if journals is None:
            return self._last_counts
        found: dict[str, Any] = {}
        for recovery in journals.recoveries:
            for name, count in recovery.statistics().items():
                found[name] = found.get(name, 0) + count
        for status in self._shards:
            for counts in (status.counts, status.counts_before):
                for name, count in counts.items():
                    found[name] = found.get(name, 0) + count
        found["shards_replaced"] = sum(status.num_replaced for status in self._shards)
        links = [] if self._hub is None else self._hub.links
        found["shard_calls"] = sum(link.num_calls for link in links)
        found["bytes_up"] = sum(link.bytes_up for link in links)
        found["bytes_down"] = sum(link.bytes_down for link in links)
        if isinstance(self.options.num_workers, int):  # else each shard decides for itself
            found["num_workers"] = sum(min(self.options.num_workers, len(share)) for share in self._shares)
        found["threads_per_worker"] = self.options.threads_per_worker
        return found

    def read_times(self) -> tuple[EnvTimes, WorkerTimes] | None:
        """Return the times that all shards have sent last; None until each one has."""
        return self._times.join()

    def ask_times(self) -> None:
        """Ask all shards for their times, and wait a short time for the answers."""
        if not self.options.timings:
            return
        hub, until_ns = self._open_hub, now_ns() + _TIMES_NS
        asked = [shard for shard, status in enumerate(self._shards) if status.state == _State.SERVING]
        self._times.await_from(asked)
        for shard in asked:
            hub.tell(shard, ReadTimes())
        while self._times.is_awaited() and now_ns() < until_ns and not hub.has_errors():
            hub.wait_briefly(min(until_ns, now_ns() + _POLL_NS))

    def shards(self) -> list[ShardInfo]:
        """Return the state and the place of every shard."""
        found = []
        for shard, status in enumerate(self._shards):
            place = self._carrier.place_of(shard) or ShardPlace(0)
            found.append(ShardInfo(shard, *place, tuple(status.env_ids), status.state.value, status.num_replaced))
        return found

    # ---- shards as workers -------------------------------------------------------------------

    def envs_of(self, worker_id: int) -> list[int]:
        """Return the ids of the envs of a shard."""
        return list(self._shares[worker_id])

    def describe_worker(self, slot: int) -> str:
        """Name a shard, for messages."""
        return f"shard {slot} ({describe_envs(self._shares[slot])})"

    def worker_of(self, slot: int) -> int:
        """Return the number of the shard."""
        return slot

    def is_alive(self, slot: int) -> bool:
        """Return whether a shard is not known to be dead."""
        return self._shards[slot].state != _State.DEAD

    def stack_of(self, slot: int) -> str:
        """Return '': stacks of shards are unknown here."""
        return ""

    def kill(self, worker_id: int) -> None:
        """End a shard at once."""
        self._give_up(worker_id, self._died(worker_id, "was killed by the caller", None))

    def restart(self, worker_id: int) -> None:
        """Replace a shard, dead or alive, by a new one that builds the same envs; see `Pool.restart`."""
        shard, status = worker_id, self._shards[worker_id]
        hub, requests, waiter = self._open_hub, self._requests, self._waiter
        assert requests is not None and waiter is not None
        with signals_deferred():
            self._give_up(shard, self._died(shard, "was killed to be restarted", None))
            self._fail_calls(status.env_ids, requests, waiter)
            requests.forget_envs(status.env_ids)
            self._begin_again(shard, is_new=True)
            self._open_journals.renew(shard)
            status.is_one_by_one, status.run_in_turn = False, set()
            self._carrier.start(shard, self._boot(shard))
            status.state = _State.OPENING
            self._note_start(shard, self.options.limits.construct)
        while status.state == _State.OPENING:
            hub.wait_briefly(now_ns() + _POLL_NS)
            self._check_not_closing("restart")
        if status.state == _State.DEAD:
            raise self._error_of(shard)

    def _fail_calls(self, env_ids: list[int], requests: AskedEnvs, waiter: WaitState) -> None:
        """Answer the calls of envs that are built again with an error: no other answer will come."""
        inbox = waiter.inbox
        for env_id in env_ids:
            step_id = requests.calls.get(env_id)
            if step_id is not None and not inbox.has_call(step_id):
                lost = WorkerError(f"the shard of env {env_id} was restarted before a call was answered; call again")
                locate(lost, env_ids=[env_id], op="call", step_id=step_id)
                inbox.reply_to_call(Reply(step_id, env_id, error=pack_error(lost)))
        inbox.forget_payloads(env_ids)


def _identity(env: Any) -> Any:
    return env


def _ignore(what: str) -> None:
    """Check nothing before the start."""
