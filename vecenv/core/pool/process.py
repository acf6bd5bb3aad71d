"""ProcessEngine: envs in worker processes, which exchange rows with this process through shared memory.

    Requests -> Hub -> doorbell -> worker: Slot, Host, env.step -> row
    Waiter   <- Hub <- committed rows

This file gives each worker its envs, and lays out the arena. `WorkerStarts` starts workers, and `Supervisor` of
`death` replaces those that fail.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import ConfigError, StateError, WorkerTimeoutError
from ...statistics import time_text
from ..advice.auto import choose_options
from ..advice.sizing import Setting
from ..advice.waiting import WaitingCheck
from ..host.replay import Snapshotter
from ..layout import messages
from ..layout.arena import ArenaPlan
from ..layout.messages import Reply, note_place, unpack_error
from ..layout.native import implementation
from ..layout.spec import Array
from ..operations.engine import Engine, EnvSpaces, OpenedEnvs, ResumeLike
from ..operations.requests import Requests
from ..operations.waiter import Waiter
from ..options import AUTO, Limits, PoolOptions
from ..parent.hub import Event, Hub, NativeHub
from ..parent.inbox import Listener
from ..processes.leased_workers import LeasedWorkers
from ..processes.measure import Measurement
from ..processes.slots import SlotTable, split_evenly
from ..processes.worker import START_ERRORS, check_may_start, death_of, start_error, usable_cores
from ..processes.worker_group import WorkerGroup
from ..processes.worker_main import BuildReport
from ..recovery import reproducer
from ..recovery.journal import Journal
from ..recovery.policy import Recovery
from ..recovery.recycling import Recycler
from ..system.clock import now_ns
from ..system.module_files import ModuleFiles
from ..system.segment import Segment
from ..system.signals import signals_deferred
from ..system.start_process import standard_descriptors
from .death import Supervisor
from .monitor import WorkerTable, announce
from .pool import Pool
from .spreading import Spreading
from .waiting_constructors import room_for
from .worker_starts import WorkerStarts, compare_spaces

__all__ = ["ProcessEngine", "ProcessPool", "measure_first_env"]

_LOG = logging.getLogger("vecenv")
#: The parent spins for shorter waits than the workers do, until one of them has done its share. While it spins alone on
#: a core, two workers may stay on the other one for long: all three look busy, so the system moves none of them. On two
#: cores, 64 frames of 28 KiB took 48 us a round with a spinning parent and 35 us with a sleeping one; 8 null envs took
#: 6 us and 11 us.
_PARENT_SPIN_NS = 20_000
#: Slots in reserve for envs that get a worker of their own because they fail, or because envs wait. Each costs 128 KiB
#: of shared memory.
_MOST_ISOLATED, _MOST_ADDED = 8, 128
#: Envs that wait move to further workers if that saves more than a constructor takes within this number of seconds.
_MINUTE = 60.0
#: Seconds that the measurement of an env may take, without its constructor.
_MEASURE_SECONDS = 30.0


class ProcessEngine(Engine):
    """Builds envs in worker processes, k per worker, and replaces workers; see `Engine` for the calls.

    Args:
        env_fns: one constructor per env.
        options: of the pool.
        adapt: adapts the result of a constructor to the interface of Gymnasium.
        snapshotter: reads the state that envs carry from one episode to the next, so that they can be restored from
            there after a crash; None: they are restored from seeded resets only.
        first_env_id: number of env 0 in messages and for the global random generators, if these envs are a part of
            those of another pool. Arguments, results and the fields of errors count from 0.
        resume: as for `Engine`.
        files: the files of the modules of a predecessor, with which those of all workers are compared; None: there is
            no predecessor.
        listener: receives the reports of workers about restore points and restored envs, beside `recovery`, in the
            thread that uses the pool; None: there is no other listener.

    Attributes:
        num_workers: worker processes at the start, with those that were started because constructors wait.
        journal: requests of each env; None: failures are raised.
        recovery: decides about failures; None: they are raised.
        files: the files of the modules of the first workers.

    Raises:
        ConfigError: this process may not start workers, or an argument makes no sense.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        options: PoolOptions | None = None,
        *,
        adapt: Callable[[Any], Any] | None = None,
        snapshotter: Snapshotter | None = None,
        first_env_id: int = 0,
        resume: ResumeLike | None = None,
        files: ModuleFiles | None = None,
        listener: Listener | None = None,
    ) -> None:
        check_may_start()
        super().__init__(env_fns, options, snapshotter, resume)
        self.num_workers = self._count_workers()
        self.journal: Journal | None = None
        self._adapt = adapt or _identity
        self._first_env_id = first_env_id
        self._listener = listener
        self._group = WorkerGroup(self.options.limits.close)
        self.end_if_unclosed = self._group.end
        self._slots = SlotTable(self.num_envs)
        self._implementation = "python"
        self._has_predecessor = files is not None
        self.files = files or ModuleFiles()
        self._opened: OpenedEnvs | None = None
        self._known: dict[str, Any] = {}  # the objects of `__main__` that all workers have, by name
        self._waiter: Waiter | None = None
        self._starts: WorkerStarts | None = None
        self._supervisor: Supervisor | None = None
        self._waiting_check: WaitingCheck | None = None
        self._spreading: Spreading | None = None

    def _count_workers(self) -> int:
        given = self.options.num_workers
        return min(given if isinstance(given, int) else usable_cores(), self.num_envs)

    # ---- start -----------------------------------------------------------------------------

    def open(self, check_not_closing: Callable[[str], None]) -> OpenedEnvs:
        self._implementation = implementation()
        lease = LeasedWorkers.of(self.env_fns, check_not_closing)
        if lease is not None:
            self._open_lease(lease)
        if self.options.num_workers == AUTO:
            found = measure_first_env(
                self.env_fns,
                self.options,
                adapt=self._adapt,
                snapshotter=self.snapshotter,
                first_env_id=self._first_env_id,
                check_not_closing=check_not_closing,
            )
            self.options = choose_options(self.options, self.num_envs, found)
            self.num_workers = self._count_workers()
        self._open_recovery()
        group = self._group
        shares = split_evenly(self.num_envs, self.num_workers)
        slots = self._slots.assign(shares, self.options.threads_per_worker)
        starts = self._starts = self._make_starts(check_not_closing)
        pickled = [starts.pickle_functions(env_ids) for env_ids in shares]
        starts.prepare()
        for worker_id, functions in enumerate(pickled):
            mine, by_thread = zip(*slots[worker_id])
            starts.spawn(starts.boot(worker_id, list(by_thread), functions), list(mine))
        reports = starts.await_reports(group.workers)
        self._known = starts.known_names()
        if starts.choice:  # further workers were started
            self.num_workers = len(group.workers)
            self.options = dataclasses.replace(self.options, choice=starts.choice)
            slots = self._slots.assign([worker.env_ids for worker in group.workers], 1)
            _LOG.info("%s", starts.choice)
        spaces = EnvSpaces.of(reports[0], self.options)
        resume = self._read_resume(spaces, self._implementation)
        jobs = {} if resume is None else dict(resume.restore_jobs)
        if resume is not None and self.journal is not None:
            self.journal.restore(jobs, resume.next_step_id)
        for worker, report in sorted(zip(group.workers, reports), key=lambda pair: pair[0].env_ids):
            compare_spaces(spaces, worker, report)
            if self._has_predecessor:
                jobs |= starts.check_files(worker, report, jobs)
            else:
                self.files.add(report.files)
        with signals_deferred(), standard_descriptors():
            try:
                self._opened = opened = self._open_arena(spaces, reports[0], slots, starts.spin_ns)
            except START_ERRORS as error:
                raise start_error("the pool", error) from error
        starts.set_arena(spaces, opened.plan)
        for worker in group.workers:
            starts.attach(worker, jobs)
        for worker in starts.await_ready(group.workers, jobs):
            with signals_deferred():
                opened.hub.attach_worker(worker)
                group.watch(worker)
        group.serve(opened.hub)
        WorkerTable(opened.plan.counters, opened.counters).note_workers(group.workers, self._slots.by_env)
        if self.options.monitor and group.counters is not None:
            with signals_deferred():
                name = opened.properties["name"]
                group.keep_monitor_file(announce(opened.plan.counters, group.counters, name, "process"))
        return opened

    def _open_lease(self, lease: LeasedWorkers) -> None:
        """Get the workers of a lease, whose number the env server decides."""
        for key, default in (("threads_per_worker", 1), ("worker_init", None)):
            if getattr(self.options, key) != default:
                raise ConfigError(f"{key}: leased envs are in workers of an env server, which decides it", key=key)
        self._group.keep_lease(lease)
        lease.open()
        self.num_workers = -(-self.num_envs // lease.envs_per_worker)
        if self.options.num_workers not in (None, AUTO, self.num_workers):
            raise ConfigError(
                f"num_workers={self.options.num_workers}: the env server has {lease.envs_per_worker} envs "
                f"{lease.leased.name!r} in each worker, so {self.num_envs} envs are in {self.num_workers} workers",
                key="num_workers",
            )
        self.options = dataclasses.replace(self.options, num_workers=self.num_workers)

    def _make_starts(self, check_not_closing: Callable[[str], None]) -> WorkerStarts:
        return WorkerStarts(
            *(self.env_fns, self._adapt, self.snapshotter, self._first_env_id, self.options),
            implementation=self._implementation,
            group=self._group,
            slots=self._slots,
            files=self.files,
            num_workers=self.num_workers,
            has_predecessor=self._has_predecessor,
            recovery=self.recovery,
            check_not_closing=check_not_closing,
        )

    def _open_recovery(self) -> None:
        """Begin to decide about failures, if the policy allows it."""
        policy = self.options.failures
        if policy.recovers:
            self.journal = Journal(self.num_envs, policy.max_log_bytes, self._take_messages)
            self.recovery = Recovery(
                policy, self.journal, self.options.limits, self.reproduce, first_env_id=self._first_env_id
            )

    def measure(self, check_not_closing: Callable[[str], None]) -> Measurement:
        """Build env 0 in a worker, measure it there, close it, and end the worker; called instead of `open`.

        If the env cannot be measured, the result contains the reason.

        Raises:
            Exception: as `open`, for the constructor of this env.
        """
        self._implementation = implementation()
        self._open_recovery()
        try:
            starts = self._starts = self._make_starts(check_not_closing)
            functions = starts.pickle_functions([0])
            starts.prepare()
            worker = starts.spawn(starts.boot(0, [[0]], functions, measures=True), [0])
            starts.await_reports([worker])
            worker = self._group.workers[0]
            try:
                list(starts.await_messages([worker], _MEASURE_SECONDS))
                found: Measurement = worker.next_message()
                return found
            except EOFError:
                return Measurement(failure=str(death_of(worker, "measure")).partition("\n")[0])
            except WorkerTimeoutError:
                return Measurement(failure=f"its first steps took longer than {_MEASURE_SECONDS:g} s")
        finally:
            self._group.end(0.0)

    def _open_arena(
        self, spaces: EnvSpaces, report: BuildReport, slots: list[list[tuple[int, list[int]]]], spin_ns: int
    ) -> OpenedEnvs:
        per_slot = max(len(env_ids) for share in slots for _, env_ids in share)
        num_used = self._slots.num_used
        most = _MOST_ADDED if self._may_add_workers else _MOST_ISOLATED
        can_add = self.recovery is not None and self._group.lease is None
        num_reserved = min(most, self.num_envs - num_used) if can_add else 0
        self._slots.reserve(num_reserved)
        plan = spaces.plan_arena(self.num_envs, num_used + num_reserved, per_slot, self.options)
        try:
            segment = self._group.create_segment(plan.nbytes)
        except ConfigError:
            few = min(num_reserved, _MOST_ISOLATED)
            if not plan.leases and few == num_reserved:
                raise
            self._slots.reserve(few)
            plan = dataclasses.replace(plan, leases=0, num_slots=num_used + few)  # copies need less room
            segment = self._group.create_segment(plan.nbytes)
        plan.write_header(segment.memory)
        if self._resume is not None:
            self._resume.write_records(plan, segment.memory)
        counters = self._group.create_counters(plan.counters.nbytes)
        self._waiting_check = self._make_waiting_check(plan, counters)
        plan.counters.write_header(counters.memory, is_native=self._implementation == "native", opened_ns=now_ns())
        return OpenedEnvs(
            spaces=spaces,
            properties=report.properties,
            implementation=self._implementation,
            plan=plan,
            memory=segment.memory,
            counters=counters.memory,
            hub=self._make_hub(plan, segment, counters, spin_ns),
            slots=self._slots,
            journal=self.journal,
            listener=None if self.recovery is None else self._note_report,
            dump_payload=functools.partial(messages.dump, known=self._known),
            before_request=self._before_request,
            first_env_id=self._first_env_id,
        )

    def _note_report(self, reply: Reply, is_answered: bool) -> None:
        assert self.recovery is not None
        self.recovery.note_report(reply, is_answered)
        if self._listener is not None:
            self._listener(reply, is_answered)

    def _make_waiting_check(self, plan: ArenaPlan, counters: Segment) -> WaitingCheck | None:
        timings = plan.counters.timings(counters.memory)
        if timings is None or self.options.choice or self._slots.num_used == self.num_envs:  # all envs have a slot
            return None
        setting = Setting(self.num_workers, self.options.threads_per_worker, is_leased=self._group.lease is not None)
        return WaitingCheck(timings, self._slots, setting, usable_cores(), changes_pool=self._may_add_workers)

    @property
    def _may_add_workers(self) -> bool:
        return self.recovery is not None and self.options.num_workers is None

    def _make_hub(self, plan: ArenaPlan, segment: Segment, counters: Segment, spin_ns: int) -> Hub:
        group = self._group
        wake_event = group.create_wake_event()
        if self._implementation != "native":
            from ..fallback.socket import SocketHub

            return SocketHub(
                plan, segment.memory, counters.memory, self._slots.by_env, group.workers, wake_event.descriptor
            )
        has_own_core = self._slots.num_used < usable_cores()
        return NativeHub(
            plan,
            segment.memory,
            counters.memory,
            self._slots.by_env,
            wake_event.descriptor.number,
            group.watch_all().fileno(),
            spin_ns if has_own_core else min(spin_ns, _PARENT_SPIN_NS),
            spin_ns,
        )

    def connect(self, requests: Requests, waiter: Waiter) -> None:
        assert self._opened is not None and self._starts is not None
        self._waiter = waiter
        self._starts.connect(waiter.inbox)
        recycler, limits = None, self.options.failures.recycle_after
        if self.recovery is not None and limits:
            recycler = Recycler(limits, self._opened.plan, self._opened.memory, self.recovery.restore_seconds)
        self._supervisor = Supervisor(
            group=self._group,
            slots=self._slots,
            envs=self._opened,
            requests=requests,
            waiter=waiter,
            starts=self._starts,
            recovery=self.recovery,
            recycler=recycler,
        )
        self._take_over(requests)

    # ---- end -------------------------------------------------------------------------------

    def close(self, timeout: float | None) -> Exception | None:
        workers = self._group.workers
        try:
            self._group.end(timeout)
        except BaseException:  # raised by a signal handler: end the other workers now, not when this becomes garbage
            self._group.end()
            raise
        finally:
            self._opened = self._waiter = self._supervisor = self._starts = None
            self._waiting_check = self._spreading = None
        if self.recovery is not None:
            self.recovery.log_summary()
        for worker in workers:
            if worker.exit_report is not None and worker.exit_report.error is not None:
                env_id = worker.exit_report.env_id
                env_ids = tuple(worker.env_ids) if env_id is None else (env_id,)
                where = {"worker_id": worker.worker_id, "env_ids": env_ids, "op": "close"}
                error = unpack_error(worker.exit_report.error, first_env_id=self._first_env_id, **where)
                note_place(error, where, self._first_env_id)
                return error
        return None

    def interrupt(self) -> None:
        self._group.wake()

    # ---- while envs are there ----------------------------------------------------------------

    def handle(self, event: Event | WorkerTimeoutError) -> None:
        assert self._opened is not None
        if self._opened.hub.take_notice():
            for worker in self._group.workers:
                if self._implementation == "native" and not worker.is_dead:
                    worker.read_frames()
                worker.emit_log_records()
        self._open_supervisor.handle(event)

    def repair(self) -> None:
        self._open_supervisor.repair()

    def has_dead(self) -> bool:
        return any(worker.is_dead for worker in self._group.workers)

    def kill(self, worker_id: int) -> None:
        self._open_supervisor.kill(worker_id)

    def restart(self, worker_id: int, new_envs: Sequence[int] | None = None) -> None:
        self._open_supervisor.restart(worker_id, new_envs)

    def _before_request(self) -> bool:
        """Recycle workers, and add workers if envs wait; return whether to call this again."""
        recycles = self.recovery is not None and bool(self.options.failures.recycle_after)
        if recycles:
            self._open_supervisor.recycle()
        check = self._waiting_check
        if check is not None and check.is_due():
            self._waiting_check = None
            self._follow(check)
        if self._spreading is not None and not self._spreading.advance():
            self._spreading = None
            self.num_workers = len(self._group.workers)
        return recycles or self._waiting_check is not None or self._spreading is not None

    def _follow(self, check: WaitingCheck) -> None:
        """Begin to move envs to further workers if they wait, or say why not and what else would help."""
        found = check.find()
        if found is None:
            return
        verdict, setting = found
        assert self._opened is not None
        if not self._may_add_workers:
            check.warn(verdict)
            return
        count, reason = min(setting.num_workers - self.num_workers, self._slots.num_reserved), ""
        room, limit = room_for(self._group.workers)
        if room < count:
            count, reason = room, f"their number is limited by {limit}"
        if check.construct_seconds > _MINUTE * (1 - 1 / verdict.gain_low):
            count, reason = 0, f"a constructor takes {time_text(check.construct_seconds)}"
        elif getattr(self._opened.properties.get("spec"), "nondeterministic", False):
            count, reason = 0, "the spec of the env says that it is not deterministic"
        if count <= 0:
            check.warn(verdict, reason)
            return
        num_workers = self.num_workers + count
        text = f"{verdict.cause}; {num_workers} workers for {self.num_envs} envs{reason and f', {reason}'}"
        self.options = dataclasses.replace(self.options, choice=text)
        assert self._waiter is not None
        per_worker = -(-self.num_envs // num_workers)
        supervisor, inbox = self._open_supervisor, self._waiter.inbox
        self._spreading = Spreading(per_worker, verdict.cause, supervisor, self._opened, inbox)

    @property
    def _open_supervisor(self) -> Supervisor:
        if self._supervisor is None:
            raise StateError("the workers are not started, or closed")
        return self._supervisor

    def _take_messages(self) -> None:
        """Take the messages that have arrived: they may hold newer states of envs. Then look for long histories."""
        if self._waiter is None or self._opened is None or self.recovery is None:
            return
        self._waiter.inbox.poll()
        self.recovery.warn_of_long_histories(self._step_seconds)

    def _step_seconds(self) -> Array:
        """Return the mean duration of a step of each env, float64 (num_envs,); 0 where none was timed."""
        assert self._opened is not None
        timings = self._opened.plan.counters.timings(self._opened.counters)
        if timings is None:
            return np.zeros(self.num_envs)
        found: Array = timings["step_ns"] / (1e9 * np.maximum(1, timings["num_steps"]))
        return found

    def set_limits(self, limits: Limits) -> None:
        super().set_limits(limits)
        if self._starts is not None:
            self._starts.set_options(self.options)
        self._group.set_close_seconds(limits.close)
        if self.recovery is not None:
            self.recovery.set_limits(limits)

    def statistics(self) -> dict[str, Any]:
        found = {} if self.recovery is None else self.recovery.statistics()
        return {**found, "num_workers": self.num_workers, "threads_per_worker": self.options.threads_per_worker}

    def reproduce(self, env_id: int, op: int, step_id: int) -> reproducer.FailureContext:
        """Describe the commands of an env until its failure, so that they can be repeated elsewhere.

        Args:
            env_id, op, step_id: of the command that failed.
        """
        assert self.journal is not None and self._opened is not None
        boot = self._group.workers[self._slots.worker_of_env(env_id)].boot
        assert boot is not None
        plan = self._opened.plan
        return reproducer.failure_context(
            *(self.journal, env_id, op, step_id),
            spec=plan.action,
            records=plan.records(self._opened.memory)[env_id],
            options=self.options,
            env_fns=boot.env_fns,  # the pickle of the worker: another one might fail or differ by now
            worker_init=boot.worker_init,
            adapt=boot.adapt,
            snapshotter=boot.snapshotter,
            registrations=boot.registrations,
            path=boot.path,
            cwd=boot.cwd,
            first_env_id=self._first_env_id,
        )

    # ---- workers -----------------------------------------------------------------------------

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return tuple(worker.pid for worker in self._group.workers)

    def envs_of(self, worker_id: int) -> list[int]:
        return list(self._group.workers[worker_id].env_ids)

    def describe_worker(self, slot: int) -> str:
        return self._group.workers[self._slots.worker_of(slot)].name

    def worker_of(self, slot: int) -> int:
        return self._slots.worker_of(slot)

    def is_alive(self, slot: int) -> bool:
        return not self._group.workers[self._slots.worker_of(slot)].is_dead

    def stack_of(self, slot: int) -> str:
        worker = self._group.workers[self._slots.worker_of(slot)]
        return worker.stack.request(worker.pid)


class ProcessPool(Pool):
    """A pool with its envs in worker processes, k per worker, and results in shared memory.

    Args:
        env_fns, options: as for `ProcessEngine`.
        others: keyword arguments of `ProcessEngine`.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], options: PoolOptions | None = None, **others: Any) -> None:
        super().__init__(ProcessEngine(env_fns, options, **others))


def measure_first_env(
    env_fns: Sequence[Callable[[], Any]],
    options: PoolOptions,
    *,
    check_not_closing: Callable[[str], None] = lambda what: None,
    **others: Any,
) -> Measurement:
    """Build env 0 in a worker of its own, measure it there, close it, and end the worker.

    Args:
        env_fns, options, others: as for `ProcessEngine`.
        check_not_closing: as for `Engine.open`.

    Raises:
        Exception: the exception of the constructor of env 0.
    """
    options = dataclasses.replace(options, num_workers=1)
    return ProcessEngine(env_fns[:1], options, **others).measure(check_not_closing)


def _identity(env: Any) -> Any:
    return env
