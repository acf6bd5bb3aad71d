"""ShardedEngine: envs in shards, which a carrier starts somewhere; a shard has workers, or steps its envs itself.

    ShardedEngine -> ShardStarts, ShardSupervisor -> Carrier    processes of shards
                  -> ShardHub -> ShardLink -> Carrier           commands, rows and messages

The engine makes these parts, and sums up what all shards have counted. `ShardStarts` starts processes of shards, and
`ShardSupervisor` replaces shards that are lost.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import StateError, WorkerTimeoutError
from ...statistics import EnvTimes, ShardInfo, Shards, WorkerTimes
from ..advice.sizing import Setting
from ..host.replay import Snapshotter
from ..layout import messages
from ..layout.counters import CountersPlan
from ..layout.spec import Spec
from ..operations.engine import Engine, EnvSpaces, OpenedEnvs, ResumeLike
from ..operations.requests import Requests
from ..operations.waiter import Waiter
from ..options import Limits, PoolOptions
from ..parent.hub import Event
from ..pool.monitor import open_counters
from ..processes.slots import split_evenly
from ..recovery.journal import Journal
from ..recovery.policy import Recovery
from ..recovery.reproducer import FailureContext, failure_context
from ..system.clock import MOST_SECONDS, NEVER_NS, limit_of, now_ns
from ..system.process_settings import working_directory
from ..system.segment import private_segment
from .carrier import Carrier, ShardPlace
from .requests import ReadTimes, SetLimits
from .shard_hub import ShardHub
from .shard_link import PATIENCE_SECONDS, POLL_NS
from .shard_log_records import ShardLogRecords
from .shard_starts import ShardStarts
from .shard_status import ShardState, ShardStatus
from .shard_supervisor import ShardSupervisor
from .shard_table import ShardTable
from .shard_times import ShardTimes

__all__ = ["ShardedEngine"]

_NS = 1_000_000_000
#: Longest wait for the times of shards: one that waits for rows answers within a heartbeat.
_TIMES_NS = 2 * int(PATIENCE_SECONDS * _NS)


class ShardedEngine(Engine):
    """Runs envs in shards, and replaces shards that are lost; see `Engine` for the calls.

    In `kill`, `restart` and `envs_of`, a worker is a shard.

    Args:
        env_fns: one constructor per env.
        options: of the pool, and of the pools of the shards; `num_workers` is the number of workers of each shard.
        carrier: starts shards; it serves this engine alone.
        num_shards: how many; at most one per env.
        adapt, snapshotter, resume: as for `ProcessEngine`.
        shard_timeout: seconds without any reply, also no heartbeat, after which a shard counts as lost.
        replace_timeout: seconds within which the successor of a lost shard must be placed.
        num_cpus: CPUs of a shard. If they are given, each shard measures one of its envs and chooses workers for these
            CPUs, or steps its envs in its own process; `num_workers` is not used. None: `options` say it.
        setting: the workers of every shard at the start, instead of a measurement; None: there is no such choice.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        options: PoolOptions | None = None,
        *,
        carrier: Carrier,
        num_shards: int,
        adapt: Callable[[Any], Any] | None = None,
        snapshotter: Snapshotter | None = None,
        resume: ResumeLike | None = None,
        shard_timeout: float = 30.0,
        replace_timeout: float = 300.0,
        num_cpus: int | None = None,
        setting: Setting | None = None,
    ) -> None:
        super().__init__(env_fns, options, snapshotter, resume)
        self.end_if_unclosed = carrier.end_if_unclosed
        self._carrier = carrier
        self._adapt = adapt or _identity
        self._shares = split_evenly(self.num_envs, min(num_shards, self.num_envs))
        self._shards = [ShardStatus(shard, share, setting=setting) for shard, share in enumerate(self._shares)]
        self._action_spec: Spec | None = None
        self._last_counts: dict[str, Any] = {}  # the counts at the end
        self._times = ShardTimes(self._shares)
        shard_timeout = min(shard_timeout, MOST_SECONDS)  # it may be infinite
        self._log_records = ShardLogRecords(carrier)
        self._starts = ShardStarts(
            self.env_fns,
            self._adapt,
            snapshotter,
            self.options,
            carrier=carrier,
            shards=self._shards,
            log_records=self._log_records,
            shard_timeout=shard_timeout,
            replace_timeout=replace_timeout,
            num_cpus=num_cpus,
        )
        self._hub: ShardHub | None = None
        self._table: ShardTable | None = None
        self._end_monitor: Callable[[], object] = _ignore
        self._supervisor: ShardSupervisor | None = None
        self._check_not_closing: Callable[[str], None] | None = None

    # ---- start -----------------------------------------------------------------------------

    def open(self, check_not_closing: Callable[[str], None]) -> OpenedEnvs:
        """Start all shards at once, and wait until they have built their envs."""
        counters_plan = CountersPlan(self.num_envs, self.num_envs, self.options.timings, has_shards=True)
        counters, update_monitor, self._end_monitor = open_counters(
            *(self, counters_plan, "", "shards"),  # the envs have no name before they are built
            is_native=True,
            is_announced=self.options.monitor,
        )
        table = self._table = ShardTable(counters_plan, counters, self._shares)
        try:
            first = self._starts.start_all(check_not_closing, table, self._read_resume(None, ""))
        finally:
            self._log_records.emit()
        spaces = EnvSpaces.of(first, self.options)
        resume = self._read_resume(spaces, first.implementation)
        options = dataclasses.replace(self.options, leases=0, timings=False)
        plan = spaces.plan_arena(self.num_envs, len(self._shards), max(map(len, self._shares)), options)
        memory, is_native = private_segment(plan.nbytes), first.implementation == "native"
        self._action_spec = plan.action
        plan.write_header(memory)
        update_monitor(name=first.properties["name"])
        recovery = self.recovery = self._make_recovery() if self.options.failures.recovers else None
        if resume is not None:
            resume.write_records(plan, memory)
            if recovery is not None:
                recovery.journal.restore(resume.restore_jobs, resume.next_step_id)
        hub = ShardHub(
            plan,
            memory,
            self._shares,
            self._carrier,
            None if recovery is None else recovery.journal,
            self._log_records,
            table,
            has_cells=is_native,
            is_timed=self.options.timings,
        )
        self._hub, self._check_not_closing = hub, check_not_closing
        return OpenedEnvs(
            spaces=spaces,
            properties=first.properties,
            implementation=first.implementation,
            plan=plan,
            memory=memory,
            counters=counters,
            hub=hub,
            journal=None if recovery is None else recovery.journal,
            listener=None if recovery is None else recovery.note_report,
            dump_payload=functools.partial(messages.dump, known=self._starts.known),
        )

    def _make_recovery(self) -> Recovery:
        policy = self.options.failures
        journal = Journal(self.num_envs, policy.max_log_bytes)
        return Recovery(policy, journal, self.options.limits, self._reproduce, logs_outcomes=False)

    def _reproduce(self, env_id: int, op: int, step_id: int) -> FailureContext:
        """Describe the commands of an env until it ended its shard."""
        assert self._action_spec is not None and self._hub is not None and self.recovery is not None
        (shard,) = (status.shard for status in self._shards if env_id in status.env_ids)
        return failure_context(
            *(self.recovery.journal, env_id, op, step_id),
            spec=self._action_spec,
            records=self._hub.store.records[env_id],
            options=self.options,
            path=list(sys.path),
            cwd=working_directory(),
            **self._starts.pickles_of(shard),
        )

    def connect(self, requests: Requests, waiter: Waiter) -> None:
        """Begin to send requests, and to handle losses of shards."""
        hub = self._hub
        assert hub is not None and self._table is not None and self._check_not_closing is not None
        self._supervisor = hub.supervisor = ShardSupervisor(
            hub,
            self.recovery,
            requests,
            waiter,
            starts=self._starts,
            times=self._times,
            table=self._table,
            check_not_closing=self._check_not_closing,
        )
        self._take_over(requests)
        for shard, status in enumerate(self._shards):
            status.state = ShardState.SERVING
            self._table.note(status, self._carrier.place_of(shard))
            hub.serve(shard)

    # ---- end -------------------------------------------------------------------------------

    def close(self, timeout: float | None) -> Exception | None:
        """Have all shards close their envs at the same time, then end them."""
        self._last_counts = self.statistics()
        if self.recovery is not None:
            self.recovery.log_summary()
        hub = self._hub
        limit = self.options.limits.close if timeout is None else limit_of(timeout)
        error = None
        try:
            if hub is not None and self._supervisor is not None and (limit is None or limit > 0):
                until_ns = NEVER_NS if limit is None else now_ns() + int((limit + PATIENCE_SECONDS) * _NS)
                kept = [status.shard for status in self._shards if status.state != ShardState.LOST]
                error = hub.close_envs(kept, limit, until_ns)
        finally:
            self._carrier.close()
            self._end_monitor()
            self._log_records.emit()
            self._hub = self.recovery = self._supervisor = self._check_not_closing = None
            for status in self._shards:
                status.state = ShardState.DEAD
        return error

    @property
    def _open_supervisor(self) -> ShardSupervisor:
        assert self._supervisor is not None
        return self._supervisor

    def interrupt(self) -> None:
        """Wake up the wait of the pool."""
        self._carrier.interrupt()

    # ---- while envs are there ----------------------------------------------------------------

    def handle(self, event: Event | WorkerTimeoutError) -> None:
        """Pass the log records of shards to the loggers of this process; each names its shard.

        `ShardSupervisor.handle` has recorded losses of shards, during the wait.
        """
        self._log_records.emit()
        super().handle(event)

    def repair(self) -> None:
        """Raise if a shard that is not replaced owes an answer, or is called."""
        self._open_supervisor.raise_dead()

    def has_dead(self) -> bool:
        """Return whether a shard is lost and not replaced."""
        return any(status.state == ShardState.DEAD for status in self._shards)

    def set_limits(self, limits: Limits) -> None:
        """Change the limits of operations, in all shards."""
        super().set_limits(limits)
        self._starts.set_limits(self.options.limits)
        if self.recovery is not None:
            self.recovery.set_limits(limits)
        if self._hub is not None:
            for shard in range(len(self._shards)):
                self._hub.tell(shard, SetLimits(limits))

    def statistics(self) -> dict[str, Any]:
        """Return the counts of failures of all shards, and of replaced shards, and the workers of each shard."""
        hub, recovery = self._hub, self.recovery
        if hub is None:
            return self._last_counts
        found = {} if recovery is None else recovery.statistics()
        for status in self._shards:
            for counts in (status.counts, status.counts_before):
                for name, count in counts.items():
                    found[name] = found.get(name, 0) + count
        found["shards_replaced"] = sum(status.num_replaced for status in self._shards)
        found["shard_calls"] = sum(link.num_calls for link in hub.links)
        found["bytes_up"] = sum(link.bytes_up for link in hub.links)
        found["bytes_down"] = sum(link.bytes_down for link in hub.links)
        settings = [status.setting for status in self._shards if status.setting is not None]
        if settings:
            found["num_workers"] = sum(setting.num_workers for setting in settings)
            found["threads_per_worker"] = max(setting.threads_per_worker for setting in settings)
            found["choice"] = self._describe_choices()
            return found
        if isinstance(self.options.num_workers, int):  # else each shard decides for itself
            found["num_workers"] = sum(min(self.options.num_workers, len(share)) for share in self._shares)
        found["threads_per_worker"] = self.options.threads_per_worker
        return found

    def _describe_choices(self) -> str:
        """Return the reason of the choice of workers; if shards differ, one for each setting."""
        first_of: dict[Setting | None, ShardStatus] = {}
        for status in self._shards:
            first_of.setdefault(status.setting, status)
        if len(first_of) == 1:
            return self._shards[0].choice
        found = []
        for setting, first in first_of.items():
            shards = [str(status.shard) for status in self._shards if status.setting == setting]
            found.append(f"shard{'s' if len(shards) > 1 else ''} {', '.join(shards)}: {first.choice}")
        return "; ".join(found)

    def read_times(self) -> tuple[EnvTimes, WorkerTimes] | None:
        """Return the times that all shards have sent last; None until each one has."""
        return self._times.join()

    def ask_times(self, must_end: Callable[[], bool]) -> None:
        """Ask all shards for their times, and wait a short time for the answers; see `Engine`."""
        if not self.options.timings:
            return
        hub, until_ns = self._hub, now_ns() + _TIMES_NS
        assert hub is not None
        asked = [shard for shard, status in enumerate(self._shards) if status.state == ShardState.SERVING]
        question = ReadTimes(self._times.await_from(asked))
        for shard in asked:
            hub.tell(shard, question)
        while self._times.is_awaited() and now_ns() < until_ns and not hub.has_errors() and not must_end():
            hub.wait_briefly(min(until_ns, now_ns() + POLL_NS))

    def shards(self) -> Shards:
        """Return the state of every shard, and where it runs."""
        found = Shards()
        for shard, status in enumerate(self._shards):
            place = self._carrier.place_of(shard)
            where = place or ShardPlace(0)
            env_ids, state = tuple(status.env_ids), status.state_text(place)
            found.append(ShardInfo(shard, *where, env_ids, state, status.num_replaced))
        return found

    # ---- shards as workers -------------------------------------------------------------------

    def envs_of(self, worker_id: int) -> list[int]:
        """Return the ids of the envs of a shard."""
        return list(self._shares[worker_id])

    def describe_worker(self, slot: int) -> str:
        """Name a shard, for messages."""
        return self._shards[slot].name

    def worker_of(self, slot: int) -> int:
        """Return the number of the shard."""
        return slot

    def is_alive(self, slot: int) -> bool:
        """Return whether a shard is not known to be dead."""
        return self._shards[slot].state != ShardState.DEAD

    def kill(self, worker_id: int) -> None:
        """End a shard at once."""
        self._open_supervisor.kill(worker_id)

    def restart(self, worker_id: int, new_envs: Sequence[int] | None = None) -> None:
        """Replace a shard, dead or alive, by a new one that builds the same envs; see `Pool.restart`.

        Raises:
            StateError: `new_envs` was given. A shard has several workers and replaces them itself.
        """
        if new_envs is not None:
            raise StateError("restart: all envs of a shard begin as new; leave out new_envs")
        self._open_supervisor.restart(worker_id)


def _ignore() -> None:
    """Do nothing: there is no monitor to end."""


def _identity(env: Any) -> Any:
    return env
