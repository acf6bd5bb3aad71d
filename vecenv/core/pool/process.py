"""ProcessPool: the waist over worker processes and shared memory.

    caller -> Pool.send -> Hub -> doorbell -> worker: Slot, Host, env.step -> row
    caller <- Batch <- Hub <- committed rows           one wait: rows, mail, deaths, deadlines

Starts the workers and hands each its envs and the arena. How their ends are heard and made good is
in `deaths`.
"""

from __future__ import annotations

import dataclasses
import os
import select
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.util import Finalize
from typing import Any

import cloudpickle

from ...errors import ConfigError, SpaceError, WorkerTimeoutError, add_notes
from ..fallback.values import load_action
from ..host.replay import RestoreJob
from ..layout.commands import RestorePlan, RestorePoint
from ..layout.messages import unpack_error
from ..layout.native import implementation
from ..layout.rows import Form, Op
from ..parent.hub import NativeHub, SlotState
from ..processes.registrations import pickle_registrations
from ..processes.worker import Worker, check_may_start, preferred_core, start_worker, usable_cores
from ..processes.worker_group import WorkerGroup
from ..processes.worker_main import Attach, Boot, Report, find_difference, running_modules, started_at
from ..recovery import reproducer
from ..recovery.journal import Journal
from ..recovery.policy import Recovery
from ..recovery.recycling import Recycler
from ..system.clock import Deadline
from ..system.module_paths import find_sources
from ..system.segment import Segment
from ..system.signals import signals_deferred
from ..system.start_process import modules_of, standard_descriptors
from ..system.worker_socket import poll_briefly
from .supervisor import MortalPool

__all__ = ["ProcessPool"]

#: The parent spins for shorter waits than the workers do, until one of them has done its share. While
#: it spins alone on a core, two workers may stay on the other one for good: all three look busy, so
#: nobody is moved. On two cores, 64 frames of 28 KiB took 48 us a round with a spinning parent and
#: 35 us with a sleeping one; 8 null envs 6 us and 11 us.
_PARENT_SPIN_NS = 20_000
#: Slots kept for envs that get a worker of their own; one costs 128 KiB of shared memory.
_MOST_SPARES = 8
#: Pools end before what their envs may use, such as a `multiprocessing.Manager`, which has 0.
_EXIT_PRIORITY = 100


class ProcessPool(MortalPool):
    """Envs in worker processes, k per worker, with results in shared memory."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], *args: Any, **kwargs: Any) -> None:
        check_may_start()
        super().__init__(env_fns, *args, **kwargs)
        self._group = WorkerGroup()
        self._group.close_seconds = self.options.limits.close
        # `multiprocessing` waits for all processes when its own end comes, which is after `weakref.finalize` only if
        # nobody has used that before `multiprocessing` was imported, and without it in a child of `multiprocessing`.
        end, retire = self._group.end_if_unclosed, weakref.WeakMethod(self._retire)
        self._finalizer = Finalize(self, end, (retire,), exitpriority=_EXIT_PRIORITY)
        wanted = self.options.num_workers or usable_cores()
        self.num_workers = min(wanted, self.num_envs)
        self._worker_of_slot: list[int] = []
        self._lost = {}

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker, by worker_id; an env that gets a worker of its own adds one behind the others."""
        return tuple(worker.pid for worker in self._group.workers)

    def envs_of(self, worker_id: int) -> list[int]:
        """Return the ids of the envs that a worker hosts."""
        return list(self._group.workers[worker_id].env_ids)

    # ---- start ---------------------------------------------------------------------------

    def _start(self) -> None:
        self.implementation = implementation()
        policy = self.options.failures
        if policy.recovers:
            self._journal = Journal(self.num_envs, policy.max_log_bytes)
            self._recovery = Recovery(policy, self._journal, self.options.limits, self._reproduce)
        group = self._group
        shares = split_evenly(self.num_envs, self.num_workers)
        slots = self._assign_slots(shares)
        pickled = [self._pickle_env_fns(env_ids) for env_ids in shares]
        common = self._common_boot()
        for worker_id, env_ids in enumerate(shares):
            mine, by_thread = zip(*slots[worker_id])
            boot = Boot(
                worker_id=worker_id,
                env_ids=env_ids,
                env_ids_by_thread=list(by_thread),
                env_fns=pickled[worker_id],
                **common,
            )
            self._spawn(boot, list(mine))
        reports = self._await_reports(group.workers)
        self._adopt_report(reports[0])
        for worker, report in zip(group.workers, reports):
            self._compare(worker, report)
        with signals_deferred(), standard_descriptors():
            self._open_arena(slots)
        for worker in group.workers:
            self._attach(worker, slots[worker.worker_id])
        self._await_ready(group.workers)
        group.hub = self._hub

    def _assign_slots(self, shares: list[list[int]]) -> list[list[tuple[int, list[int]]]]:
        """Give each worker its slots, one per thread, each with a run of the worker's envs."""
        slots = []
        self._slot_of = [0] * self.num_envs
        for worker_id, env_ids in enumerate(shares):
            threads = min(self.options.threads_per_worker, len(env_ids))
            mine = []
            for part in split_evenly(len(env_ids), threads):
                slot = len(self._worker_of_slot)
                self._worker_of_slot.append(worker_id)
                mine.append((slot, [env_ids[i] for i in part]))
                for i in part:
                    self._slot_of[env_ids[i]] = slot
            slots.append(mine)
        return slots

    def _pickle_env_fns(self, env_ids: list[int]) -> bytes:
        fns = {env_id: self.env_fns[env_id] for env_id in env_ids}
        try:
            data: bytes = cloudpickle.dumps(fns, protocol=5)
            return data
        except Exception:  # find out which one it is
            for env_id in env_ids:
                try:
                    cloudpickle.dumps(self.env_fns[env_id], protocol=5)
                except Exception as error:
                    raise ConfigError(
                        f"env_fns[{env_id}] cannot be sent to a worker: {error}. Build the env inside the function, "
                        "from values that pickle",
                        key="env_fns",
                    ) from error
            raise

    def _common_boot(self) -> dict[str, Any]:
        import sys

        return {
            "adapt": cloudpickle.dumps(self._adapt, protocol=5),
            "registrations": pickle_registrations(),
            "environ": dict(os.environ),
            "cwd": _working_directory(),
            "path": list(sys.path),
            "num_threads": self.options.num_threads,
            "parent_pid": os.getpid(),
            "parent_started": started_at(os.getpid()),
            "implementation": self.implementation,
            "snapshotter": cloudpickle.dumps(self._snapshotter, protocol=5),
            "keeps_records": self._recovery is not None,
            "modules": modules_of(self._adapt, self._snapshotter),
            "pool_modules": running_modules(),
            "sources": find_sources(),
        }

    def _spawn(self, boot: Boot, slots: list[int]) -> Worker:
        """Start a worker, as a new one of the crew or in the place of its last one."""
        siblings = [worker.control.fileno() for worker in self._group.workers if not worker.control.closed]
        siblings += [worker.pidfd for worker in self._group.workers if worker.pidfd >= 0]
        if self._group.epoll is not None:
            siblings.append(self._group.epoll.fileno())
        with signals_deferred():
            worker = start_worker(boot, slots, self.options.context, tuple(siblings))
            self._group.workers[boot.worker_id : boot.worker_id + 1] = [worker]
        worker.send_boot()
        return worker

    def _await_reports(self, workers: list[Worker]) -> list[Report]:
        """Wait until every worker has built its envs; raise the first error by worker_id."""
        self._await(workers, "construct", self.options.limits.construct)
        reports = []
        for worker in workers:
            try:
                report: Report = worker.next_message()
            except EOFError:
                raise self._died(worker, "construct", None) from None
            if report.error is not None:
                env_id, packed = report.error
                error = unpack_error(packed, worker_id=worker.worker_id, env_ids=(env_id,), op="construct")
                add_notes(error, [f"raised by the constructor of env {env_id} in {worker.name}"])
                raise error
            reports.append(report)
        return reports

    def _await(self, workers: list[Worker], op: str, limit: float | None) -> None:
        """Wait until each of these workers has sent a word or ended."""
        deadline = Deadline(limit)
        waiting = workers
        while waiting:
            self._check_not_closing(op)
            # The socket alone does not tell of an end: what an env has forked holds it open.
            ends = [end for worker in waiting for end in (worker.control, worker.pidfd)]
            ready = poll_briefly(ends, deadline)
            heard = [worker for worker in waiting if worker.control in ready and worker.has_message()]
            waiting = [worker for worker in waiting if worker not in heard and worker.pidfd not in ready]
            if waiting and deadline.is_over():
                raise self._late_start(min(waiting, key=lambda late: late.worker_id), op, limit)

    def _late_start(self, worker: Worker, op: str, limit: float | None) -> WorkerTimeoutError:
        what, age = worker.at_work(op)
        since = f", which it began {age:.3g} s ago," if age else ""
        stack = worker.stack.request(worker.pid)
        return WorkerTimeoutError(
            f"{worker.name} did not finish {what}{since} within {limit} s; it is alive. Raise {op}_timeout "
            f"if they need longer{chr(10) if stack else ''}{stack}",
            timeout=limit,
            worker_id=worker.worker_id,
            env_ids=tuple(worker.env_ids),
            op=op,
        )

    def _adopt_report(self, report: Report) -> None:
        self._adopt_spaces(report.observation_space, report.action_space, report.reward_space)
        self.properties = report.properties

    def _compare(self, worker: Worker, report: Report) -> None:
        """Raise SpaceError if an env's spaces differ from env 0's."""
        found = find_difference(self, report, 0)
        if found is not None:
            name, text = found
            raise SpaceError(f"env {worker.env_ids[0]}: {text}", path=name)
        if report.mismatch is not None:
            env_id, name, text = report.mismatch
            raise SpaceError(f"env {env_id}: {text}", path=name)

    def _open_arena(self, slots: list[list[tuple[int, list[int]]]]) -> None:
        group = self._group
        per_slot = max(len(env_ids) for share in slots for _, env_ids in share)
        num_used = len(self._worker_of_slot)
        self._num_spares = 0 if self._recovery is None else min(_MOST_SPARES, self.num_envs - num_used)
        self._plan = self._make_plan(num_used + self._num_spares, per_slot)
        try:
            segment = group.segment = Segment.create(self._plan.nbytes)
        except ConfigError:
            if not self._plan.leases:
                raise
            self._plan = dataclasses.replace(self._plan, leases=0)  # copies need less room
            segment = group.segment = Segment.create(self._plan.nbytes)
        self._memory = segment.memory
        self._plan.write_header(self._memory)
        group.epoll = select.epoll()
        for worker in group.workers:
            group.epoll.register(worker.pidfd, select.EPOLLIN)
        group.event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        if self.implementation == "native":
            group.epoll.register(group.event_fd, select.EPOLLIN | select.EPOLLET)
            has_own_core = len(self._worker_of_slot) < usable_cores()
            soon_spin_ns = self._spin_ns()
            self._hub = NativeHub(
                self._plan,
                segment.memory,
                self._slot_of,
                group.event_fd,
                group.epoll.fileno(),
                soon_spin_ns if has_own_core else min(soon_spin_ns, _PARENT_SPIN_NS),
                soon_spin_ns,
            )
        else:
            from ..fallback.socket import SocketHub

            self._hub = SocketHub(self._plan, segment.memory, self._slot_of, group.workers, group.event_fd)
        if self._recovery is not None and self.options.failures.recycle_after:
            limits, back = self.options.failures.recycle_after, self._recovery.restore_seconds
            self._recycler = Recycler(limits, self._plan, segment.memory, back)

    def _spin_ns(self) -> int:
        """Spin only while the runnable processes do not crowd each other out."""
        crowded = len(self._worker_of_slot) > usable_cores()
        return 0 if crowded else int(self.options.spin * 1e9)

    def _attach(
        self, worker: Worker, slots: list[tuple[int, list[int]]], restore_jobs: dict[int, RestoreJob] | None = None
    ) -> None:
        assert self._group.segment is not None
        descriptors = [self._group.segment.fd]
        if self.implementation == "native":
            descriptors.append(self._group.event_fd)
        options = self.options
        core = preferred_core(worker.worker_id, self.num_workers)
        attach = Attach(self._plan, slots, options.autoreset, self._spin_ns(), options.infos, restore_jobs or {}, core)
        worker.send_attach(attach, descriptors)

    def _await_ready(self, workers: list[Worker]) -> None:
        self._await(workers, "construct", self.options.limits.construct)
        for worker in workers:
            try:
                worker.next_message()
            except EOFError:
                raise self._died(worker, "construct", None) from None

    def _start_again(self, old: Worker, restore_jobs: dict[int, RestoreJob], then: Callable[[Worker], None]) -> None:
        assert old.boot is not None
        serves = False
        try:
            worker = self._spawn(old.boot, old.slots)
            self._compare(worker, self._await_reports([worker])[0])
            slots = [(slot, [i for i in old.env_ids if self._slot_of[i] == slot]) for slot in old.slots]
            self._attach(worker, slots, restore_jobs)
            self._await_ready([worker])
            with signals_deferred():
                self._hub.attach_worker(worker)
                self._watch(worker)
                then(worker)
                serves = True
        except BaseException as error:
            if serves:  # only then it was heard
                raise
            # No wait hears of a process that is half started: it is to be dead, so that waits say whose answers
            # cannot come. Also after a Ctrl-C.
            unfit = self._group.workers[old.worker_id]
            unfit.start_failure = f"{type(error).__name__}: {error}".partition("\n")[0]
            with signals_deferred():  # a second one would leave it neither alive nor released
                unfit.kill()
            self._attention = True
            raise

    def _asked_last(self, state: SlotState) -> tuple[int | None, tuple[Any, ...]]:
        """Return the seed of an env's episode and the action under way, which is what is known without a journal."""
        if state.op == Op.RESET:
            return self._asked_seeds.get(state.env_id), ()
        actions: tuple[Any, ...] = ()
        if state.op == Op.STEP and not self._steps_by_letter:
            rows = [column[state.env_id : state.env_id + 1].copy() for column in self._plan.actions(self._memory)]
            actions = (load_action(self._plan.action.root, rows, 0, Form.NATIVE),)
        return self._hub.last_delivered_seed(state.env_id, state.step_id), actions

    def _reproduce(self, env_id: int, op: int, step_id: int) -> reproducer.FailureContext:
        """Tell what an env was asked until it failed."""
        assert self._journal is not None
        history = self._journal.history(env_id, ())
        boot = self._group.workers[self._worker_of_slot[self._slot_of[env_id]]].boot
        assert boot is not None
        none = RestorePlan(RestorePoint(0), [], history.persistent_calls)
        restore_point, entries, persistent_calls = history.attempts[0] if history.attempts else none
        episode = reproducer.Reproducer(
            env_fns=boot.env_fns,  # as the workers got them: pickled anew, they might fail or differ by now
            adapt=boot.adapt,
            snapshotter=boot.snapshotter,
            registrations=boot.registrations,
            autoreset=self.options.autoreset,
            env_id=env_id,
            step_id=step_id,
            why="",
            restore_point=restore_point,
            entries=entries,
            persistent_calls=persistent_calls,
            path=boot.path,
            cwd=boot.cwd,
        )
        records = self._plan.records(self._memory)[env_id]
        folder = self.options.failures.reproducer_dir
        return reproducer.failure_context(episode, op, self._plan.action, records, folder)

    # ---- end -----------------------------------------------------------------------------

    def _shut_down(self) -> None:
        """Raise what an env's close raised, after everything has been ended."""
        workers = self._group.workers
        if self._close_timeout is not None:
            self._group.close_seconds = self._close_timeout
        try:
            self._group.end()
        except BaseException:  # of a handler: what is left ends now, not as garbage amid whatever comes then
            self._group.end()
            raise
        self._finalizer.cancel()  # a second interrupt above leaves what is left to it
        self._forget()
        for worker in workers:
            if worker.exit_report is not None and worker.exit_report.error is not None:
                env_id = worker.exit_report.env_id
                env_ids = tuple(worker.env_ids) if env_id is None else (env_id,)
                raise unpack_error(worker.exit_report.error, worker_id=worker.worker_id, env_ids=env_ids, op="close")


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it has been removed, which most envs need not mind
        return None


def split_evenly(count: int, parts: int) -> list[list[int]]:
    """Cut 0 .. count - 1 into `parts` runs whose lengths differ by at most one."""
    base, extra = divmod(count, parts)
    runs = []
    start = 0
    for part in range(parts):
        stop = start + base + (part < extra)
        runs.append(list(range(start, stop)))
        start = stop
    return runs
