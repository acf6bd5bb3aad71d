"""WorkerStarts: starts the workers of one pool, the first ones and their successors.

    first workers   boot -> spawn -> await_reports -> (`ProcessEngine` lays out the arena) -> attach -> await_ready
    further ones    while constructors of the first workers wait, other workers build their next envs
    a successor     start_successor: spawn -> await_reports -> attach -> await_ready

A worker that dies before it serves is started again, if the failure policy allows that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...errors import (
    ConfigError,
    DifferentSpacesError,
    ShortageError,
    WorkerDiedError,
    WorkerError,
    WorkerTimeoutError,
    describe_exit,
    warn_caller,
)
from ...gymnasium_api.registrations import pickle_registrations
from ...values.pickling import dump_with_main
from ..host.replay import RestoreJob, Snapshotter, compare_code
from ..layout.arena import ArenaPlan
from ..layout.messages import note_place, unpack_error
from ..operations.engine import EnvSpaces
from ..options import PoolOptions
from ..parent.inbox import Inbox
from ..processes.env_modules import find_env_modules
from ..processes.import_client import prepare_server
from ..processes.import_server import Surroundings
from ..processes.shared_generators import find_generator
from ..processes.slots import SlotTable
from ..processes.worker import (
    Worker,
    death_of,
    preferred_core,
    room_for_descriptors,
    start_error,
    start_worker,
    usable_cores,
)
from ..processes.worker_group import WorkerGroup
from ..processes.worker_main import Attach, Boot, BuildReport, find_difference, running_modules
from ..processes.worker_output import WorkerOutput
from ..recovery.policy import Recovery
from ..system.clock import Deadline, now_ns
from ..system.descriptor import Descriptor
from ..system.fork_server import StartFailure
from ..system.log_records import LogLevels
from ..system.module_files import ModuleFiles, note_modules
from ..system.module_paths import find_sources
from ..system.process_settings import working_directory
from ..system.process_stat import has_proc, started_at
from ..system.signals import signals_deferred
from ..system.start_process import modules_of
from ..system.worker_socket import ControlSocket, poll_briefly
from .starting import (
    ConstructReports,
    StartLimits,
    StartProgress,
    common_names,
    pickle_env_fns,
    pickle_worker_init,
    running_constructors,
)
from .waiting_constructors import ConstructorWatch, room_for

__all__ = ["WorkerStarts", "compare_spaces"]

#: Longest wait for workers that start, before their limits are checked, and whether the pool is being closed.
_START_POLL_SECONDS = 0.1


class WorkerStarts:
    """Starts the workers of one pool, and waits until they have built their envs.

    Args:
        env_fns, adapt, snapshotter, first_env_id: as for `ProcessEngine`.
        options: of the pool.
        implementation: 'native' or 'python'.
        group: gets the workers.
        slots: which envs a worker serves in which slot.
        files: the files of the modules of the first workers, with which those of successors are compared.
        num_workers: how many are started at first.
        has_predecessor: whether `files` are those of a predecessor of the pool.
        recovery: decides whether a worker that has died before it served is started again; None: it is not.
        check_not_closing: as for `Engine.open`.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        adapt: Callable[[Any], Any],
        snapshotter: Snapshotter | None,
        first_env_id: int,
        options: PoolOptions,
        *,
        implementation: str,
        group: WorkerGroup,
        slots: SlotTable,
        files: ModuleFiles,
        num_workers: int,
        has_predecessor: bool,
        recovery: Recovery | None,
        check_not_closing: Callable[[str], None],
    ) -> None:
        self._env_fns, self._adapt, self._snapshotter = env_fns, adapt, snapshotter
        self._first_env_id = first_env_id
        self._options = options
        self._implementation = implementation
        self._group = group
        self._slots = slots
        self._files = files
        self._num_workers = num_workers
        self._recovery = recovery
        self._check_not_closing = check_not_closing
        self._output = WorkerOutput(options.worker_output)
        self._has_descriptors = room_for_descriptors() >= num_workers
        self._has_predecessor = has_predecessor
        self._watch: ConstructorWatch | None = None  # until no further worker can be started
        if options.num_workers is None and options.build != "serial" and options.threads_per_worker == 1:
            self._watch = ConstructorWatch()
        self._limit = ""  # the name of the limit of further workers that was reached
        self._names: list[dict[str, Any]] = []  # see `known_names`
        self._common: dict[str, Any] = {}
        self._spaces: EnvSpaces | None = None
        self._plan: ArenaPlan | None = None
        self._inbox: Inbox | None = None
        self._code_warnings: list[str] = []  # to be shown

    def set_options(self, options: PoolOptions) -> None:
        """Change the options, of which only limits differ."""
        self._options = options

    def set_arena(self, spaces: EnvSpaces, plan: ArenaPlan) -> None:
        """Set the spaces that all workers must have, and the layout of the arena that they get."""
        self._spaces, self._plan = spaces, plan
        self._num_workers, self._watch = len(self._group.workers), None

    @property
    def choice(self) -> str:
        """The reason for further workers, see `PoolOptions.choice`; '' if there are none. Valid until `set_arena`."""
        count = len(self._group.workers)
        if count == self._num_workers:
            return ""
        limit = f", a number that is limited by {self._limit}" if self._limit else ""
        return (
            f"constructors wait: {count} workers for {len(self._env_fns)} envs{limit}, which build them at the same "
            f"time; num_workers={self._num_workers} builds them one after the other"
        )

    def connect(self, inbox: Inbox) -> None:
        """Pass warnings about changed code to an inbox from now on."""
        self._inbox = inbox
        self._show_code_warnings()

    # ---- the contents of a boot ------------------------------------------------------------

    def prepare(self) -> None:
        """Read the fields of `Boot` that all workers share; called once, before any is started.

        If workers are started by a fork server, the modules of the env factories are imported for all of them.
        """
        parent_started = started_at(os.getpid())
        if not parent_started and has_proc():
            raise start_error("worker 0", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        if not parent_started:
            raise ConfigError("/proc is not mounted, and workers need it; mount it, or use backend='serial'")
        running, sources = running_modules(), find_sources()
        common = self._common = {
            "adapt": dump_with_main(self._adapt),
            "registrations": pickle_registrations(),
            "environ": dict(os.environ),
            "cwd": working_directory(),
            "path": list(sys.path),
            "num_threads": self._options.num_threads,
            "worker_output": self._options.worker_output,
            "log_levels": LogLevels.now(),
            "parent_pid": os.getpid(),
            "parent_started": parent_started,
            "implementation": self._implementation,
            "builds_serially": self._options.build == "serial",
            "snapshotter": dump_with_main(self._snapshotter),
            "keeps_records": self._recovery is not None,
            "modules": modules_of(self._adapt, self._snapshotter),
            "imports": find_env_modules(self._env_fns, running),
            "pool_modules": running,
            "sources": sources,
            "first_env_id": self._first_env_id,
            "exception_limit": self._options.failures.exception_limit,
            "rng_entropy": self._options.rng_entropy,
            "settings": self._options.settings,
            "is_forked": self._options.context != "spawn",
            "is_leased": self._group.lease is not None,
        }
        if self._options.context == "forkserver" and self._group.lease is None:
            server = prepare_server(
                common["modules"],
                common["imports"],
                sources,
                Surroundings(common["environ"], common["cwd"], common["path"]),
                self._options.limits.construct,
                functools.partial(self._check_not_closing, "construct"),
            )
            self._group.keep_server(server)

    def known_names(self) -> dict[str, Any]:
        """Return the objects of `__main__` that all workers have, by name."""
        return common_names(self._names)

    def pickle_functions(self, env_ids: Iterable[int]) -> dict[str, Any]:
        """Return the fields of `Boot` with the functions that a worker of these envs calls."""
        # a leased worker gets descriptors over its socket, as a spawned one does
        shared = self._group.share_objects("spawn" if self._group.lease is not None else self._options.context)
        self._names.append({})
        with shared.collecting():
            return {
                "env_fns": pickle_env_fns(self._env_fns, env_ids, shared.reduce, self._names[-1]),
                "worker_init": pickle_worker_init(self._options.worker_init, shared.reduce),
                "shared": shared,
            }

    def boot(
        self, worker_id: int, env_ids_by_thread: list[list[int]], functions: dict[str, Any], **others: Any
    ) -> Boot:
        """Return the message by which a worker begins, whose threads build these envs; `others` are further fields."""
        env_ids = sorted(env_id for share in env_ids_by_thread for env_id in share)
        return Boot(
            worker_id=worker_id,
            env_ids=env_ids,
            env_ids_by_thread=env_ids_by_thread,
            reports_all_files=worker_id == 0 or self._has_predecessor,
            **functions,
            **self._common,
            **others,
        )

    # ---- processes --------------------------------------------------------------------------

    def spawn(self, boot: Boot, slots: list[int]) -> Worker:
        """Start a worker, as a further one of the group or as the successor of the last one with its worker_id."""
        if self._options.context == "fork" and self._group.lease is None:  # the worker inherits these modules
            note_modules()
            if boot.worker_id == len(self._group.workers) == 1:
                _warn_of_generators(boot.imports)
        if self._group.lease is not None:
            self._group.lease.await_worker(self._options.limits.construct)
        with signals_deferred():
            if self._group.lease is not None:
                worker = self._group.lease.take_worker(boot, slots)
            else:
                worker = start_worker(
                    boot,
                    slots,
                    self._options.context,
                    self._group.descriptors(),
                    captures_output=self._output.captures and self._has_descriptors,
                    has_tokens=self._watch is not None and len(boot.env_ids) > 1,
                    server=self._group.server,
                )
            self._group.put(worker)
        worker.send_boot()
        return worker

    def await_reports(self, workers: Sequence[Worker]) -> list[BuildReport]:
        """Wait until every worker has built its envs, and show their output; raise the first error that arrives.

        Workers that die before are replaced in the group; see `start_again`. The reports of further workers, which are
        started for constructors that wait, are the last ones.
        """
        workers = list(workers)
        has_failed = True
        try:
            reports = self._take_reports(workers)
            has_failed = False
            return reports
        finally:
            self._output.finish(self.present(workers), has_failed=has_failed)

    def _take_reports(self, workers: list[Worker]) -> list[BuildReport]:
        """Return the reports of these workers; further ones that are started are appended to `workers`."""
        reports: dict[int, BuildReport] = {}
        progress = StartProgress(sum(len(worker.env_ids) for worker in workers))
        waiting = list(workers)

        def add(further: Worker) -> None:
            workers.append(further)
            waiting.append(further)

        def look() -> None:
            for further in self._spread(waiting):
                add(further)
            progress.show(lambda: sum(_num_built(worker) for worker in self.present(workers)))

        for worker in self.await_messages(waiting, self._options.limits.construct, look):
            report: BuildReport | None = _take_message(worker)
            if report is None:
                waiting.append(self.start_again(worker))
                continue
            if report.error is not None:
                env_id, packed = report.error
                where = {"worker_id": worker.worker_id, "env_ids": (env_id,), "op": "construct"}
                error = unpack_error(packed, first_env_id=self._first_env_id, **where)
                note_place(error, where, self._first_env_id)
                raise error
            reports[worker.worker_id] = report
            if worker.tokens is not None:
                worker.tokens.close()
            if report.num_envs < len(worker.env_ids):  # it had ended before it got these envs back
                add(self._start_further([worker.remove_env() for _ in worker.env_ids[report.num_envs :]][::-1]))
        return [reports[worker.worker_id] for worker in workers]

    def present(self, workers: Iterable[Worker]) -> list[Worker]:
        """Return the workers, or successors, that now have the worker_ids of these."""
        return [self._group.workers[worker.worker_id] for worker in workers]

    def start_again(self, worker: Worker) -> Worker:
        """Start the successor of a worker that has died before it served, and return it.

        Raises:
            WorkerDiedError: the policy allows no further attempt.
            ConfigError: the process has ended by itself before it ran vecenv.
        """
        death = death_of(worker, "construct")
        if not worker.has_run() and StartFailure.is_own_end(worker.exitcode):
            failure = StartFailure(f"its process has ended: {describe_exit(worker.exitcode)}")
            raise start_error(f"worker {worker.worker_id}", failure)
        self.judge(worker, death)
        assert worker.boot is not None
        return self.spawn(dataclasses.replace(worker.boot), worker.slots)

    def judge(self, worker: Worker, error: WorkerDiedError | WorkerTimeoutError) -> None:
        """Decide whether to start another worker for one that died or hung before it served; return if so.

        Raises:
            WorkerDiedError, WorkerTimeoutError: the policy allows no further attempt. The text has the last output.
        """
        last_output = self._output.end_of(worker)
        try:
            if self._recovery is None:
                raise error
            self._recovery.judge_start(error, self._options.limits.construct)
        except WorkerError:
            if last_output:
                error.args = (f"{error}\nThe last output of {worker.name}:\n{last_output}", *error.args[1:])
            raise

    def await_messages(
        self, waiting: list[Worker], limit: float | None, look: Callable[[], None] | None = None
    ) -> Iterator[Worker]:
        """Wait for a message of each of these workers, or for its end; yield the workers as they are ready.

        Each is removed from `waiting` before it is yielded, and the caller may add others. `limit` is that of each
        constructor in seconds. `look` is called at least every 0.1 s while nothing arrives.
        """
        limits = StartLimits(limit)
        reports = ConstructReports() if limit is None else None
        while waiting:
            self._check_not_closing("construct")
            # The socket alone does not show that a worker has ended: a process that an env has forked holds it open.
            ends: list[ControlSocket | Descriptor] = []
            for worker in waiting:
                ends += (worker.control, worker.pidfd, *worker.output_ends())
            pause = Deadline(_START_POLL_SECONDS)
            began_ns, planned_ns = now_ns(), pause.at_ns
            ready = poll_briefly(ends, pause)
            stopped_ns = pause.at_ns - planned_ns
            limits.exclude(stopped_ns)
            for worker in waiting:
                worker.emit_log_records()
            self._output.take([worker for worker in waiting if not ready.isdisjoint(worker.output_ends())])
            found = [
                worker
                for worker in waiting
                if (worker.control in ready and worker.has_message()) or worker.pidfd in ready
            ]
            for worker in found:
                waiting.remove(worker)
                yield worker
            if found:  # the caller may have waited for the successor of a dead worker, so the others may be ready now
                continue
            late = [worker for worker in waiting if limits.is_over(worker)]
            if late:
                worker = min(late, key=lambda worker: worker.worker_id)
                raise self._late_start(worker, limits.of(worker))
            if reports is not None:
                for worker in waiting:
                    reports.show(worker, now_ns() - began_ns - stopped_ns)
            if look is not None:
                look()

    # ---- further workers -----------------------------------------------------------------------

    def _spread(self, waiting: Sequence[Worker]) -> Iterator[Worker]:
        """Start further workers for the next envs of those whose constructors wait; yield each of them.

        The envs are divided evenly, one for each worker if the system has room for these. Envs are taken from the end
        of the share of a worker, and only those that it has not begun to build.
        """
        if self._watch is None or not self._has_descriptors:
            return
        givers = self._watch.find_waiting(waiting)
        if not givers:
            return
        num_left = sum(worker.num_left() for worker in givers)
        room, name = room_for(givers)
        if room < num_left:
            self._watch, self._limit = None, name  # the room is measured once, so that half of it stays
            if room <= len(givers):  # these workers would take as long
                return
        for number in range(min(room, num_left), 0, -1):
            num_left = sum(worker.num_left() for worker in givers)
            taken = [self._take_env(givers) for _ in range(-(-num_left // number))]
            found = [one for one in taken if one is not None]
            if not found:
                break
            self._check_not_closing("construct")
            try:
                further = self._start_further(sorted(env_id for _, env_id in found))
            except ShortageError:
                self._watch, self._limit = None, "the system"
                for worker, env_id in reversed(found):
                    worker.give_back_env(env_id)
                break
            yield further

    def _take_env(self, givers: Sequence[Worker]) -> tuple[Worker, int] | None:
        """Take the last env of the worker that has most left; None if all are under construction."""
        for worker in sorted(givers, key=lambda worker: -len(worker.env_ids)):
            env_id = worker.take_last_env()
            if env_id is not None:
                return worker, env_id
        return None

    def _start_further(self, env_ids: list[int]) -> Worker:
        """Start a further worker for these envs, with a slot of its own.

        Raises:
            ShortageError: the system has no room for it.
        """
        worker_id = len(self._group.workers)
        try:
            return self.spawn(self.boot(worker_id, [env_ids], self.pickle_functions(env_ids)), [worker_id])
        except ShortageError:
            for worker in self._group.workers[worker_id:]:  # it has not received its envs
                worker.kill()
            del self._group.workers[worker_id:]
            raise

    def _late_start(self, worker: Worker, limit: float | None) -> WorkerTimeoutError:
        running = running_constructors(worker.notes())
        what, env_id = "construct of its envs", None
        if running:
            env_id = running[0].env_id
            seconds = (now_ns() - running[0].began_ns) / 1e9
            what = f"construct of env {self._first_env_id + env_id}, which it began {seconds:.3g} s ago,"
        stack = worker.stack.request(worker.pid)
        error = WorkerTimeoutError(
            f"{worker.name} did not finish {what} within {limit} s; it is alive. Raise timeouts={{'construct': ...}} "
            f"if constructors need longer{chr(10) if stack else ''}{stack}",
            timeout=limit,
        )
        return worker.locate(error, "construct", env_id)

    # ---- the arena --------------------------------------------------------------------------

    def start_successor(self, old: Worker, jobs: Mapping[int, RestoreJob]) -> Worker:
        """Start the successor of a worker that has been reaped; return it once it serves.

        If it dies while it builds its envs, another one is started. `jobs`: how to restore envs; {}: they are new.

        Raises:
            WorkerTimeoutError: it did not build its envs in time; see `judge`.
            Exception: as `Engine.open`.
        """
        assert old.boot is not None
        boot = dataclasses.replace(old.boot, reports_all_files=True)
        return self.attach_built([old], self.build([boot], [old.slots], jobs))[0]

    def build(
        self, boots: Sequence[Boot], slots: Sequence[list[int]], jobs: Mapping[int, RestoreJob]
    ) -> dict[int, RestoreJob]:
        """Start workers beside those that serve, and wait until they have built their envs; return their jobs.

        Args:
            boots, slots: of each worker.
            jobs: how to restore envs; {}: they are new.

        Raises:
            WorkerTimeoutError, Exception: as `start_successor`.
        """
        workers = [self.spawn(boot, mine) for boot, mine in zip(boots, slots)]
        checked: dict[int, RestoreJob] = {}
        for worker, report in zip(workers, self.await_reports(workers)):
            checked |= self._check_built(worker, report, jobs)
        return checked

    def _check_built(self, old: Worker, report: BuildReport, jobs: Mapping[int, RestoreJob]) -> dict[int, RestoreJob]:
        """Compare the worker that now has a worker_id with the first workers; return its jobs."""
        assert self._spaces is not None
        [worker] = self.present([old])
        compare_spaces(self._spaces, worker, report)
        return self.check_files(worker, report, jobs)

    def attach_built(self, workers: Sequence[Worker], jobs: Mapping[int, RestoreJob]) -> list[Worker]:
        """Hand the arena to workers that have built their envs; return them, or their successors, once they serve."""
        for worker in self.present(workers):
            self.attach(worker, jobs)
        self.await_ready(workers, jobs)
        return self.present(workers)

    def attach(self, worker: Worker, jobs: Mapping[int, RestoreJob]) -> None:
        """Hand the arena and its slots to a worker, and the way to restore its envs, by env_id."""
        segment, counters = self._group.segment, self._group.counters
        assert self._plan is not None and segment is not None and counters is not None
        descriptors = [segment.fd, counters.fd]
        if self._implementation == "native":
            assert self._group.wake_event is not None
            descriptors.append(self._group.wake_event.descriptor)
        options = self._options
        slots = [(slot, self._slots.served_by(slot, worker.env_ids)) for slot in worker.slots]
        own_jobs = {env_id: jobs[env_id] for env_id in worker.env_ids if env_id in jobs}
        core = preferred_core(worker.worker_id, self._num_workers)
        attach = Attach(self._plan, slots, options.autoreset, self.spin_ns, options.infos, own_jobs, core)
        worker.send_attach(attach, descriptors)

    @property
    def spin_ns(self) -> int:
        """For how long waits may spin: not at all where the slots outnumber the cores."""
        is_crowded = self._slots.num_used > usable_cores()
        return 0 if is_crowded else int(self._options.spin * 1e9)

    def await_ready(self, workers: Sequence[Worker], jobs: Mapping[int, RestoreJob]) -> list[Worker]:
        """Wait until every worker, or its successor, serves; return the successors of those that died before that."""
        waiting = self.present(workers)
        started: dict[int, Worker] = {}
        for worker in self.await_messages(waiting, self._options.limits.construct):
            if _take_message(worker) is None:
                report = self.await_reports([self.start_again(worker)])[0]
                [started[worker.worker_id]] = self.present([worker])
                self.attach(started[worker.worker_id], self._check_built(worker, report, jobs))
                waiting.append(started[worker.worker_id])
        if self._recovery is not None:
            self._recovery.note_built([env_id for worker in workers for env_id in worker.env_ids])
        return list(started.values())

    def check_files(self, worker: Worker, report: BuildReport, jobs: Mapping[int, RestoreJob]) -> dict[int, RestoreJob]:
        """Warn of modules that a successor has loaded from changed files; return its jobs, which then mark its rows."""
        own_jobs = {env_id: jobs[env_id] for env_id in worker.env_ids if env_id in jobs}
        what = "a worker that was started later has loaded other code than the first workers"
        own_jobs, warning = compare_code(self._files, report.files, own_jobs, what)
        if warning:
            self._code_warnings.append(warning)
        self._show_code_warnings()
        return own_jobs

    def _show_code_warnings(self) -> None:
        while self._inbox is not None and self._code_warnings:
            self._inbox.queue_warning(self._code_warnings.pop(0))


def _warn_of_generators(modules: Iterable[str]) -> None:
    """Warn if one of these modules has a random generator that all forked workers would continue from one state."""
    generators = (find_generator(sys.modules[name]) for name in modules if name in sys.modules)
    found = next(filter(None, generators), "")
    if found:
        warn_caller(
            f"{found} is a random generator. With context='fork', workers copy its state, so that envs of different "
            "workers draw the same numbers from it. Create it in the env, or use context='forkserver'",
            RuntimeWarning,
        )


def compare_spaces(spaces: EnvSpaces, worker: Worker, report: BuildReport) -> None:
    """Raise DifferentSpacesError if the spaces of an env of a worker differ from env 0's."""
    found = find_difference(spaces, report, worker.first_env_id)
    if found is not None:
        name, text = found
        raise DifferentSpacesError(f"env {worker.first_env_id + worker.env_ids[0]}: {text}", path=name)
    if report.mismatch is not None:
        env_id, name, text = report.mismatch
        raise DifferentSpacesError(f"env {worker.first_env_id + env_id}: {text}", path=name)


def _take_message(worker: Worker) -> Any:
    """Return the next message of a worker, or None if it has ended: errors about that have no EOFError as context."""
    with contextlib.suppress(EOFError):
        return worker.next_message()
    return None


def _num_built(worker: Worker) -> int:
    return sum(note.num_done for note in worker.notes() if note is not None)
