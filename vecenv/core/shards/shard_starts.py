"""ShardStarts: starts the processes of shards, limits the time that they take, and reads their reports.

    start -> the process is placed -> its envs are built -> report, compared with that of shard 0

A process is placed as soon as the carrier has the resources for it.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ConfigError, DifferentSpacesError, WorkerTimeoutError, add_notes, locate
from ...gymnasium_api.registrations import pickle_registrations
from ...own_log import own_logger
from ...values.pickling import dump_with_main
from ..host.replay import Snapshotter
from ..layout.messages import unpack_error
from ..options import Limits, PoolOptions
from ..pool.starting import StartProgress, common_names, pickle_env_fns, pickle_worker_init
from ..processes.worker_main import find_difference
from ..recovery.policy import StartFailures
from ..recovery.resume import Resume
from ..system.clock import NEVER_NS, now_ns
from ..system.log_records import LogLevels
from ..system.module_files import ModuleFiles
from ..system.module_paths import find_sources
from ..system.shared_objects import SharedObjects
from .carrier import Carrier, Lost, Replied
from .frames import Frame, FrameKind, unpack_bare
from .requests import ShardBoot, ShardReport
from .shard_link import POLL_NS
from .shard_log_records import ShardLogRecords
from .shard_status import ShardState, ShardStatus, death_of
from .shard_table import ShardTable

__all__ = ["ShardStarts"]

_LOG = own_logger()
_NS = 1_000_000_000


class ShardStarts:
    """Starts the shards of one engine, and their successors.

    Args:
        env_fns: one constructor per env.
        adapt, snapshotter: as for `ProcessEngine`.
        options: of the pool of the driver.
        carrier: starts processes.
        shards: the state of each shard.
        log_records: gets the log records of reports.
        shard_timeout, replace_timeout, num_cpus: as for `ShardedEngine`.

    Attributes:
        carrier, shards, log_records, shard_timeout, replace_timeout, num_cpus: as given.
        known: the objects of `__main__` that all shards have, by name; see `pickling.dump_message`.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        adapt: Callable[[Any], Any],
        snapshotter: Snapshotter | None,
        options: PoolOptions,
        *,
        carrier: Carrier,
        shards: Sequence[ShardStatus],
        log_records: ShardLogRecords,
        shard_timeout: float,
        replace_timeout: float,
        num_cpus: int | None,
    ) -> None:
        self._env_fns = env_fns
        self._adapt = adapt
        self._snapshotter = snapshotter
        self._options = options
        self.carrier = carrier
        self.shards = shards
        self.log_records = log_records
        self.shard_timeout, self.replace_timeout, self.num_cpus = shard_timeout, replace_timeout, num_cpus
        self._report: ShardReport | None = None  # report of shard 0
        self._files: dict[int, ModuleFiles] = {}  # module files of each shard's first process
        self._pickled: dict[str, bytes] = {}  # parts of the plan for all shards, with which successors start, too
        self._env_fns_of: list[bytes] = []
        self._failures = StartFailures()
        # By shard, until all have opened: their parts of the state of another pool.
        self._parts: list[Resume | None] = [None] * len(shards)
        self._progress: StartProgress | None = None  # lines about shards that start; None: none does
        self.known: dict[str, Any] = {}

    def set_limits(self, limits: Limits) -> None:
        """Change the limits of operations for the processes that are started from now on."""
        self._options = dataclasses.replace(self._options, limits=limits)

    # ---- start -----------------------------------------------------------------------------

    def start_all(
        self, check_not_closing: Callable[[str], None], table: ShardTable, resume: Resume | None = None
    ) -> ShardReport:
        """Start all shards at once, and wait until they have built their envs; return the report of shard 0.

        Args:
            check_not_closing: see `Engine.open`.
            table: gets the state of each shard.
            resume: the state of all envs in another pool; None: the envs are new. The driver sends `queued` itself.

        Raises:
            Exception: see `Engine.open`.
        """
        names: list[dict[str, Any]] = [{} for _ in self.shards]
        shared = SharedObjects()
        with shared.collecting():
            self._env_fns_of = [
                pickle_env_fns(self._env_fns, status.env_ids, shared.reduce, one)
                for status, one in zip(self.shards, names)
            ]
            worker_init = pickle_worker_init(self._options.worker_init, shared.reduce)
        self.known = common_names(names)
        self._pickled = {
            "worker_init": worker_init,
            "adapt": dump_with_main(self._adapt),
            "snapshotter": dump_with_main(self._snapshotter),
            "registrations": pickle_registrations(),
        }
        if resume is not None:
            self._parts = [resume.part(status.env_ids) for status in self.shards]
        for shard, part in enumerate(self._parts):
            self.start(shard, resume=part)
        reports = self._await_reports(check_not_closing, table)
        self._parts = [None] * len(self.shards)
        first = self._report = reports[0]
        for shard, report in enumerate(reports):
            self._compare(shard, report)
            self._failures.forget(self.shards[shard].env_ids)
            self._files[shard] = report.files
            status = self.shards[shard]
            status.setting, status.choice, status.step_seconds = report.setting, report.choice, report.step_seconds
        return first

    def pickles_of(self, shard: int) -> dict[str, Any]:
        """Return the constructors and settings of a shard as its first process got them, by field of `ShardBoot`."""
        return {"env_fns": self._env_fns_of[shard], **self._pickled}

    def start(
        self,
        shard: int,
        info_keys: Sequence[str] = (),
        resume: Resume | None = None,
        *,
        state: ShardState = ShardState.OPENING,
    ) -> None:
        """Start a process for a shard that has none.

        Args:
            shard: number of the shard.
            info_keys: the info keys that have cells so far.
            resume: the state of the envs in its predecessor, or in another pool; None: the envs are new.
            state: BUILDING for the successor of a process that has served.
        """
        status = self.shards[shard]
        self.carrier.start(shard, self._boot(shard, info_keys, resume))
        status.state = state
        place_seconds = self._place_seconds(shard)
        status.is_placed = False
        status.due_ns = NEVER_NS if place_seconds is None else now_ns() + int(place_seconds * _NS)

    def start_again(self, event: Lost, info_keys: Sequence[str] = ()) -> None:
        """Start another process for a shard with new envs whose process was lost while it built them.

        Args:
            event: the loss.
            info_keys: as for `start`.

        Raises:
            WorkerDiedError: the policy allows no further attempt.
        """
        shard, status = event.shard, self.shards[event.shard]
        text = f"died while it built its envs: {event.text}"
        error = death_of(status, self.carrier.describe(shard), text, event)
        if not self._options.failures.recovers:
            raise error
        self._failures.judge(error, self._options.limits.construct)
        _LOG.warning("%s; another one is started", str(error))
        self.carrier.kill(shard)
        self.start(shard, info_keys, self._parts[shard])

    def _boot(self, shard: int, info_keys: Sequence[str], resume: Resume | None) -> bytes:
        """Return the pickled `ShardBoot` of a shard."""
        status, failures = self.shards[shard], self._options.failures
        failures = dataclasses.replace(failures, max_log_bytes=failures.max_log_bytes // len(self.shards))
        options = dataclasses.replace(
            self._options,
            depth=2,
            leases=0,
            debug=False,
            warns_of_views=False,
            monitor=False,
            failures=failures,
            worker_init=None,  # sent by value
        )
        boot = ShardBoot(
            **self.pickles_of(shard),
            options=options,
            first_env_id=status.env_ids[0],
            log_levels=LogLevels.now(),
            info_keys=list(info_keys),
            sources=find_sources(),
            files=self._files.get(shard),
            resume=resume,
            is_one_by_one=status.is_one_by_one,
            num_cpus=self.num_cpus,
            setting=status.setting,
            sends_counters=self._options.monitor,
        )
        return pickle.dumps(boot, protocol=5)

    # ---- limits ----------------------------------------------------------------------------

    def is_late(self, shard: int, now: int) -> bool:
        """Return whether a process that is being started is not placed in time, or does not build its envs in time.

        The shard itself has `limits.construct` seconds for its constructors, and again until its workers serve. It
        reports if these are over, unless its process is stopped.
        """
        status = self.shards[shard]
        if not status.is_placed and self.carrier.place_of(shard) is not None:
            status.is_placed = True
            limit = self._start_seconds
            status.due_ns = NEVER_NS if limit is None else now + int(limit * _NS)
        return now >= status.due_ns

    def why_late(self, shard: int) -> str:
        """Say, for a message, which limit is over."""
        if self.shards[shard].is_placed:
            return f"did not build its envs within {self._start_seconds:g} s, and it does not answer; it may be stopped"
        seconds = self._place_seconds(shard)
        return f"found no place within {seconds:g} s; it waits for {self.carrier.waiting_for(shard)}"

    def _place_seconds(self, shard: int) -> float | None:
        """Return the seconds within which a process that is being started must be placed; None: no limit."""
        is_new = self.shards[shard].state == ShardState.OPENING
        return self._options.limits.construct if is_new else self.replace_timeout

    @property
    def _start_seconds(self) -> float | None:
        """Seconds within which a placed process must report that its envs are built."""
        limit = self._options.limits.construct
        return None if limit is None else 2 * limit + self.shard_timeout

    # ---- reports ---------------------------------------------------------------------------

    def _await_reports(self, check_not_closing: Callable[[str], None], table: ShardTable) -> list[ShardReport]:
        reports: dict[int, ShardReport] = {}
        while len(reports) < len(self.shards):
            check_not_closing("construct")
            for shard in range(len(self.shards)):
                if shard not in reports and self.is_late(shard, now_ns()):
                    error = self._late_start(shard)
                    self.carrier.kill(shard)
                    raise error
            for status in self.shards:
                table.note(status, self.carrier.place_of(status.shard))
            self.show_progress()
            for event in self.carrier.wait(now_ns() + POLL_NS):
                if isinstance(event, Lost):
                    reports.pop(event.shard, None)
                    self.start_again(event)
                if isinstance(event, Replied):
                    reports[event.shard] = self._read_report(event.shard, unpack_bare(event.data))
                    self.shards[event.shard].state = ShardState.READY
        return [reports[shard] for shard in range(len(reports))]

    def show_progress(self) -> None:
        """Log the number of ready shards, and the needs of the others, every 5 s while shards are started."""
        states = [status.state for status in self.shards]
        if not {ShardState.OPENING, ShardState.LOST, ShardState.BUILDING}.intersection(states):
            self._progress = None
            return
        if self._progress is None:
            self._progress = StartProgress(len(states), "shards are ready", is_regular=True)
        self._progress.show(
            lambda: states.count(ShardState.READY) + states.count(ShardState.SERVING), self._describe_missing
        )

    def _describe_missing(self) -> str:
        """Return the end of a log line: what each shard waits for that is being started."""
        stages: dict[bool, list[ShardStatus]] = {}
        for status in self.shards:
            if status.is_starting:
                stages.setdefault(self.carrier.place_of(status.shard) is not None, []).append(status)
        text = ""
        for is_placed, (first, *others) in sorted(stages.items()):
            why = self.carrier.describe(first.shard) if is_placed else self.carrier.waiting_for(first.shard)
            stage = f"builds its envs ({why})" if is_placed else f"waits for {why or 'a process'}"
            more = f", and so do {len(others)} others" if len(others) > 1 else ", and so does another" if others else ""
            text += f"; {first.name} {stage}{more}"
        return text

    def _late_start(self, shard: int) -> Exception:
        status = self.shards[shard]
        text = f"{status.name} {self.why_late(shard)}"
        if not status.is_placed:
            return ConfigError(text)
        error = WorkerTimeoutError(f"{text} ({self.carrier.describe(shard)})", timeout=self._start_seconds)
        return locate(error, worker_id=shard, env_ids=status.env_ids, op="construct")

    def check_report(self, shard: int, frame: Frame) -> None:
        """Read the report of a successor.

        Args:
            shard: number of the shard.
            frame: its first reply.

        Raises:
            DifferentSpacesError, ConfigError: its envs are not like those of shard 0.
            Exception: building its envs has raised it.
        """
        self._compare(shard, self._read_report(shard, frame))
        self._failures.forget(self.shards[shard].env_ids)

    def _read_report(self, shard: int, frame: Frame) -> ShardReport:
        """Return the report of a shard; raise the exception that building its envs has raised."""
        if frame.kind == FrameKind.OPENED:
            report: ShardReport = pickle.loads(frame.attachment)
            self.log_records.keep(shard, report.log_frames)
            return report
        error = unpack_error(pickle.loads(frame.attachment))
        add_notes(error, [f"raised in {self.shards[shard].name}, {self.carrier.describe(shard)}"])
        raise error

    def _compare(self, shard: int, report: ShardReport) -> None:
        """Raise an error unless the envs of a shard are like those of the first one."""
        assert self._report is not None
        status = self.shards[shard]
        found = find_difference(self._report, report, 0)
        if found is not None:
            name, text = found
            raise DifferentSpacesError(f"env {status.env_ids[0]}: {text}", path=name)
        if report.implementation != self._report.implementation:
            raise ConfigError(
                f"{status.name}, {self.carrier.describe(shard)}, uses the implementation "
                f"{report.implementation!r}, and others {self._report.implementation!r}; install the same build of "
                "vecenv everywhere"
            )
