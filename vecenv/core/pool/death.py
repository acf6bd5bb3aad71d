"""The death or hang of a worker, from its notice to its successor.

    handle   a pidfd is readable, or an operation is over its limit
             reap -> take the last messages -> judge                   raises if the policy says so
    repair   requeue -> plan -> isolate -> start a successor -> send its commands again -> begin restoring
             raises if a dead worker that is not replaced owes an answer

`handle` only records. So several workers may fail before the first one is replaced, and a worker whose replacement was
interrupted is replaced by the next `repair`. All of this happens in the thread that waits, during the wait; no other
thread watches the workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...errors import ShortageError, WorkerDiedError, WorkerError, WorkerTimeoutError, add_notes
from ...own_log import own_logger
from ..host.host import CloseHere
from ..host.replay import RestoreJob
from ..layout.commands import Command, Commands
from ..layout.flags import Op
from ..layout.messages import unpack_error
from ..operations.engine import OpenedEnvs
from ..operations.requests import Requests
from ..operations.waiter import Waiter
from ..parent.hub import Event, SlotState
from ..processes.slots import SlotTable
from ..processes.worker import Worker, any_ready, death_of
from ..processes.worker_group import WorkerGroup
from ..processes.worker_main import Boot
from ..recovery.policy import Recovery, RestoreProgress, append_message
from ..recovery.recycling import Recycler
from ..recovery.reproducer import describe
from ..system.clock import now_ns
from ..system.signals import signals_deferred
from .monitor import WorkerTable
from .starting import is_lasting
from .worker_starts import WorkerStarts

__all__ = ["Supervisor"]

_LOG = own_logger()


@dataclass(frozen=True)
class WorkerFailure:
    """The reason for the replacement of a worker.

    Attributes:
        message: the failure in words.
        began_ns: when it was noticed, on the monotonic clock.
        is_failure: False if the worker was ended to be recycled.
    """

    message: str
    began_ns: int
    is_failure: bool = True


class Supervisor:
    """Handles the failures of the workers of one open pool.

    Args:
        group: the workers.
        slots: which env is served by which slot, and which slot belongs to which worker.
        envs: hub and arena.
        requests: the commands of the envs.
        waiter: messages that have arrived.
        starts: starts successors.
        recovery: decides about failures; None: they are raised.
        recycler: finds workers that have lived long enough; None: workers are not recycled.
    """

    def __init__(
        self,
        *,
        group: WorkerGroup,
        slots: SlotTable,
        envs: OpenedEnvs,
        requests: Requests,
        waiter: Waiter,
        starts: WorkerStarts,
        recovery: Recovery | None,
        recycler: Recycler | None,
    ) -> None:
        self._group = group
        self._slots = slots
        self._hub = envs.hub
        self._records = envs.plan.records(envs.memory)
        self._table = WorkerTable(envs.plan.counters, envs.counters)
        self._requests = requests
        self._waiter = waiter
        self._inbox = waiter.inbox
        self._starts = starts
        self._recovery = recovery
        self._recycler = recycler
        self._failed: dict[int, WorkerFailure] = {}  # workers to replace, by worker_id

    # ---- handle: reap and judge --------------------------------------------------------------

    def handle(self, event: Event | WorkerTimeoutError) -> None:
        """Record the end of a worker, or end one that is over its limit; see `Engine.handle`."""
        if isinstance(event, WorkerTimeoutError):
            self._end_overdue(event)
            return
        for worker in self._group.workers if event.kind == "descriptor" else ():
            if worker.pidfd.number == event.descriptor:
                self._waiter.request_check()
                with signals_deferred():  # else an interrupt could leave a dead worker that no wait reports again
                    worker.reap_or_kill()  # no write of the dead process can arrive after this
                    self._inbox.poll()
                    self._judge(worker, self._death_of(worker), worker.exitcode)

    def _end_overdue(self, error: WorkerTimeoutError) -> None:
        """End the worker of an operation that is over its limit, or raise the error."""
        if error.worker_id is None:
            raise error
        worker = self._group.workers[error.worker_id]
        stack = worker.stack.request(worker.pid)
        if stack:
            error.args = (f"{error}\n{stack}", *error.args[1:])
        if self._recovery is None or not self._recovery.policy.recover_hangs:
            for state in self._states(worker):
                if state.op != Op.NONE and error.env_ids == (state.env_id,):
                    self._add_last_request(error, state)
            raise error
        with signals_deferred():
            self._end(worker)
            self._judge(worker, error, None)

    def _end_stray(self) -> None:
        """End the workers whose shared memory contains values that no worker writes, and record their failure.

        An env with a wrong pointer has overwritten them: one of the same worker, or of another one.
        """
        with signals_deferred():
            found = [*self._hub.take_stray_words(), *self._find_lost_calls()]
            ended: list[Worker] = []
            for slot, word, value in found:
                if slot >= self._slots.num_used:
                    self._hub.reap(slot)  # a slot in reserve, which gets its words again
                    continue
                owners = self._group.workers if slot < 0 else [self._group.workers[self._slots.worker_of(slot)]]
                for worker in [owner for owner in owners if not owner.is_dead]:
                    worker.note_stray(f"{word} ({value})")
                    self.kill(worker.worker_id)
                    ended.append(worker)
            if any(slot < 0 for slot, _, _ in found):
                self._hub.reset_claims()
            if ended:
                self._inbox.poll()
            for worker in ended:
                self._judge(worker, self._death_of(worker), 0)  # no signal from outside

    def _find_lost_calls(self) -> list[tuple[int, str, int]]:
        """Return the calls that were made although their replies are missing, like `Hub.take_stray_words`."""
        calls, hub = self._requests.calls, self._hub
        answered = {slot for slot in range(self._slots.num_used) if hub.has_answered_all(slot)} if calls else ()
        slots = {step_id: self._slots.slot_of(env_id) for env_id, step_id in calls.items()} if answered else {}
        made = {step_id: slot for step_id, slot in slots.items() if slot in answered}
        if made:
            self._inbox.poll()
        return [
            (slot, "the reply to its call", step_id)
            for step_id, slot in made.items()
            if self._inbox.awaits_call(step_id)
        ]

    def _judge(self, worker: Worker, error: WorkerError, exitcode: int | None) -> None:
        """Register a worker for `repair` after its messages have been taken, or raise `error` if the policy says so.

        `exitcode` is that of the process; None: it hung.
        """
        if self._recovery is None:
            return
        began = now_ns()
        isolable = [env_id for env_id in worker.env_ids if self._slots.can_isolate(env_id, worker.env_ids)]
        self._recovery.judge(error, exitcode, self._states(worker), isolable)
        self._failed[worker.worker_id] = WorkerFailure(str(error).partition("\n")[0], began)

    # ---- repair: replace ---------------------------------------------------------------------

    def repair(self) -> None:
        """Replace the workers that have failed; raise if one that is dead owes an answer. See `Engine.repair`."""
        self._end_stray()
        self._replace_failed()
        workers = self._group.workers
        dead = [worker for worker in workers if worker.is_dead and self._is_asked(worker)]
        if not dead:
            return
        alive = {worker.pidfd: worker for worker in workers if not worker.is_dead and self._is_asked(worker)}
        more = any_ready(list(alive), 0.0)  # several fail in one step, and their pidfds are reported one by one
        first, *others = (self._death_of(worker) for worker in (*dead, *(alive[pidfd] for pidfd in more)))
        add_notes(first, map(str, others))
        raise first

    def _replace_failed(self) -> None:
        """Replace the workers that have failed.

        A signal handler may interrupt that, also with an exception such as the TimeoutError of an alarm. The workers
        concerned stay in `_failed` until a successor has received all their commands, so that the next call tries
        again. A worker leaves `_failed` if the start of its successor has failed for a lasting reason.

        Raises:
            WorkerError, ShortageError: the start of a successor has failed.
            Exception: the constructor of an env raised it, in a successor.
        """
        while self._failed:
            worker_id, failure = next(iter(self._failed.items()))
            self._replace(self._group.workers[worker_id], failure)

    def _replace(self, worker: Worker, failure: WorkerFailure) -> None:
        """Replace a worker by a successor, or by two of them, the second one for an env that fails repeatedly."""
        assert self._recovery is not None
        with signals_deferred():
            calls = self._inbox.unanswered_calls
            queued = Commands.listed(one for slot in worker.slots for one in self._hub.requeue(slot, calls))
            jobs = self._requests.new_jobs(worker.env_ids, queued)
            self._recovery.plan(jobs, queued, marks_recovery=failure.is_failure)
            isolated_env = self._recovery.env_to_isolate(worker.env_ids) if failure.is_failure else None
            parts = [worker]
            if isolated_env is not None and self._slots.can_isolate(isolated_env, worker.env_ids):
                parts = self._isolate(worker, isolated_env)
                self._recovery.note_worker_added()
                name = f"env {worker.first_env_id + isolated_env}"
                message = f"{failure.message}; {name} has worker {parts[1].worker_id} to itself now"
                failure = dataclasses.replace(failure, message=message)
            self._failed.update((part.worker_id, failure) for part in parts)
        for part in parts:
            try:
                self._start_successor(part, jobs, queued, failure if part is parts[-1] else None)
            except Exception as error:
                if is_lasting(error):
                    self._failed.pop(part.worker_id, None)
                raise

    def _isolate(self, worker: Worker, isolated_env: int) -> list[Worker]:
        """Divide a worker that has been reaped in two, the second one for a single env.

        The env takes its commands along to a slot in reserve, unless it has its slot to itself.
        """
        assert worker.boot is not None
        mates = [env_id for env_id in worker.env_ids if env_id != isolated_env]
        worker_id = len(self._group.workers)
        slot = self._slots.slot_of(isolated_env)
        if self._slots.shares_slot(isolated_env, worker.env_ids):
            slot = self._slots.take_reserve([isolated_env], worker_id)
            self._hub.move(isolated_env, slot)
        self._slots.give_to(slot, worker_id)
        parts = []
        for number, env_ids in ((worker.worker_id, mates), (worker_id, [isolated_env])):
            slots = [one for one in dict.fromkeys((*worker.slots, slot)) if self._slots.worker_of(one) == number]
            threads = [self._slots.served_by(one, env_ids) for one in slots]
            boot = dataclasses.replace(worker.boot, worker_id=number, env_ids=env_ids, env_ids_by_thread=threads)
            parts.append(dataclasses.replace(worker, worker_id=number, env_ids=env_ids, slots=slots, boot=boot))
        for part in parts:
            self._group.put(part)
        self._hub.attach_worker(parts[1])  # the hub must know it, even if no successor can be started
        return parts

    def _start_successor(
        self,
        old: Worker,
        jobs: dict[int, RestoreJob],
        queued: Iterable[Command] = (),
        failure: WorkerFailure | None = None,
    ) -> None:
        """Start the successor of a worker that has been reaped, and give it the commands that are not answered.

        If it dies or hangs while it builds its envs, another one is started. Unless it serves after an error, the
        worker with this worker_id is known to be dead.

        Args:
            old: the worker that it replaces.
            jobs: how to restore envs, by env_id; {}: they begin as new.
            queued: the commands.
            failure: the failure whose last successor this is; None: another one follows, or no env is restored.
        """
        serves = False
        while not serves:
            try:
                worker = self._starts.start_successor(old, jobs)
                with signals_deferred():
                    self._admit(worker)
                    for slot in worker.slots:
                        commands = [command for command in queued if self._slots.slot_of(command.env_id) == slot]
                        self._hub.resend_payloads(slot, [self._requests.payload_of(command) for command in commands])
                    if failure is not None and self._recovery is not None:
                        count = "restarts" if failure.is_failure else "recycled"
                        self._recovery.begin_restoring(failure.message, failure.began_ns, jobs, count=count)
                    serves = True
            except BaseException as error:
                if serves:
                    raise
                unfit = self._group.workers[old.worker_id]
                self._give_up(unfit, error)
                if not isinstance(error, WorkerTimeoutError):
                    raise
                self._starts.judge(unfit, error)  # raises it, or allows another attempt

    def _admit(self, worker: Worker) -> None:
        """Use a worker that serves from now on."""
        self._hub.attach_worker(worker)
        self._group.watch(worker)
        self._table.note_workers([worker], self._slots.by_env)
        if self._recycler is not None:
            self._recycler.note_worker_started(worker)
        self._failed.pop(worker.worker_id, None)

    def _give_up(self, worker: Worker, error: BaseException) -> None:
        """End a worker whose start has failed, also by a Ctrl-C.

        It is not watched. It is marked as dead, so that waits report the answers that cannot come.
        """
        worker.note_failure(f"{type(error).__name__}: {error}".partition("\n")[0])
        with signals_deferred():  # a second signal would leave it neither alive nor released
            worker.kill()
            self._inbox.poll()  # it may have answered before an interrupt came
        self._waiter.request_check()

    @property
    def has_failed(self) -> bool:
        """Whether workers wait for their replacement, which `repair` starts."""
        return bool(self._failed)

    # ---- more workers ------------------------------------------------------------------------

    def add_workers(self, groups: Sequence[list[int]], reason: str) -> RestoreProgress | None:
        """Move envs that owe nothing to new workers, one for each group; called before a request.

        Each env is closed by its old worker before the new one builds it. The new worker restores it as after a crash.
        Old workers keep at least one env for each of their slots.

        Args:
            groups: env ids; those of a group have the same worker.
            reason: for the log.

        Returns:
            The progress of restoring the envs that have moved. Some may not: their next answers need their old worker.
            None if an error was logged, and no env has moved.
        """
        assert self._recovery is not None
        began_ns, num_workers = now_ns(), len(self._group.workers)
        old = {env_id: self._group.workers[self._slots.worker_of_env(env_id)] for group in groups for env_id in group}
        progress: RestoreProgress | None = None
        try:
            closed = self._close_envs(list(old))
            if any(self._group.workers[worker.worker_id] is not worker for worker in old.values()):
                closed = set()  # its successor has built its envs again
                self._take_back(old.values(), num_workers, began_ns)
                self._replace_failed()
            groups = [mine for group in groups if (mine := [env_id for env_id in group if env_id in closed])]
            queued = Commands.listed(())
            jobs = self._requests.new_jobs([env_id for group in groups for env_id in group], queued)
            self._recovery.plan(jobs, queued, marks_recovery=False)
            boots = [
                self._boot_of(old[group[0]], worker_id, group) for worker_id, group in enumerate(groups, num_workers)
            ]
            slots = [[self._slots.num_used + number] for number in range(len(groups))]
            jobs = self._starts.build(boots, slots, jobs)
            added = self._group.workers[num_workers:]
            with signals_deferred():
                for worker in added:
                    self._hand_over(worker, old, began_ns)
                progress = self._recovery.begin_restoring(
                    f"{len(jobs)} envs were moved to {len(added)} further workers, because {reason}",
                    began_ns,
                    jobs,
                    count="workers_added",
                    number=len(added),
                    done="restored",
                )
            for worker in self._starts.attach_built(added, jobs):
                with signals_deferred():
                    self._admit(worker)
        except BaseException as error:
            if progress is None:
                self._take_back(old.values(), num_workers, began_ns)
            for worker in self._group.workers[num_workers:]:
                if worker.worker_id in self._failed:
                    self._give_up(worker, error)
            if not _is_of_start(error):
                raise
            # Only text is logged: a log record that is kept must not keep the pool alive.
            _LOG.warning("envs could not be moved to further workers: %s", str(error))
            self._replace_failed()
        return progress

    def _boot_of(self, old: Worker, worker_id: int, env_ids: list[int]) -> Boot:
        assert old.boot is not None
        return dataclasses.replace(
            old.boot, worker_id=worker_id, env_ids=env_ids, env_ids_by_thread=[env_ids], reports_all_files=True
        )

    def _hand_over(self, worker: Worker, old: Mapping[int, Worker], began_ns: int) -> None:
        """Give a new worker the envs that it has built; until it serves, it counts as failed."""
        message = f"{worker.name} has failed before it served"
        self._failed[worker.worker_id] = WorkerFailure(message, began_ns, is_failure=False)
        slot = self._slots.take_reserve(worker.env_ids, worker.worker_id)
        for env_id in worker.env_ids:
            self._hub.move(env_id, slot)
            old[env_id].drop_env(env_id)

    def _close_envs(self, env_ids: Sequence[int]) -> set[int]:
        """Close envs in their workers; return those that were closed. Exceptions that they raise are logged."""
        workers = [self._group.workers[self._slots.worker_of_env(env_id)] for env_id in env_ids]
        self._requests.submit_calls([CloseHere(worker.pid) for worker in workers], env_ids, True, None)
        try:
            replies = self._waiter.wait_for_calls(len(env_ids), None)
        finally:
            self._requests.abandon_calls()
        for reply in replies:
            if reply.error is not None:
                error = unpack_error(reply.error, env_ids=(reply.env_id,), op="close")
                name = self._group.workers[0].first_env_id + reply.env_id
                _LOG.warning("env %d raised when it was closed to be moved: %s", name, str(error))
        return {reply.env_id for reply in replies if reply.value or reply.error is not None}

    def _take_back(self, old: Iterable[Worker], num_workers: int, began_ns: int) -> None:
        """End workers that were added, and have those that their envs have left build these again."""
        with signals_deferred():
            for worker in self._group.workers[num_workers:]:
                worker.kill()
            del self._group.workers[num_workers:]
            for worker_id in {worker.worker_id for worker in old}:
                worker = self._group.workers[worker_id]
                self._end(worker)
                message = f"{worker.name} was ended to build its envs again"
                self._failed[worker_id] = WorkerFailure(message, began_ns, is_failure=False)

    # ---- the commands and errors of a worker ---------------------------------------------------

    def _is_asked(self, worker: Worker) -> bool:
        return self._owes_rows(worker) or self._is_called(worker)

    def _owes_rows(self, worker: Worker) -> bool:
        return any(self._hub.owed(env_id)[0] != Op.NONE for env_id in worker.env_ids)

    def _is_called(self, worker: Worker) -> bool:
        return not self._requests.calls.keys().isdisjoint(worker.env_ids)

    def _states(self, worker: Worker) -> list[SlotState]:
        return [self._hub.state(slot) for slot in worker.slots]

    def _death_of(self, worker: Worker) -> WorkerDiedError:
        """Return the error of a dead worker; it names the operation that ran, else the first one that waits."""
        for state in self._states(worker):
            if state.op != Op.NONE:
                error = death_of(worker, Op(state.op).name.lower(), state.env_id, state.step_id)
                if self._recovery is None:
                    self._add_last_request(error, state)
                return error
        for env_id in worker.env_ids:
            op, step_id = self._hub.owed(env_id)
            if op != Op.NONE:
                return death_of(worker, Op(op).name.lower(), env_id, step_id)
        return death_of(worker, "call" if self._is_called(worker) else "idling")

    def _add_last_request(self, error: WorkerError, state: SlotState) -> None:
        """Add the last request of the env to an error that is raised without a recovery."""
        if self._recovery is not None:
            self._recovery.append_last_actions(error, state)
            return
        error.seed, error.actions = self._requests.last_request(state)
        asked = describe(error.seed, error.actions)
        if asked:
            append_message(error, f"; {asked}")

    # ---- on request ------------------------------------------------------------------------

    def recycle(self) -> None:
        """Replace the workers that have lived long enough; called before requests."""
        assert self._recycler is not None
        workers = self._group.workers
        for worker, reason in self._recycler.due(workers, [self._owes_rows(worker) for worker in workers]):
            with signals_deferred():
                self._end(worker)
                message = f"{worker.name} was recycled {reason}"
                self._failed[worker.worker_id] = WorkerFailure(message, now_ns(), is_failure=False)
            try:
                self._replace_failed()
            except (ShortageError, WorkerDiedError):  # the wait for the answers to the request tries again, and raises
                self._waiter.request_check()
                return

    def kill(self, worker_id: int) -> None:
        """End a worker at once; see `Engine.kill`."""
        worker = self._group.workers[worker_id]
        worker.kill()
        worker.emit_log_records()
        self._waiter.request_check()

    def _end(self, worker: Worker) -> None:
        """End a worker at once, and take its last messages."""
        self.kill(worker.worker_id)
        self._inbox.poll()

    def restart(self, worker_id: int, new_envs: Sequence[int] | None) -> None:
        """Replace a worker by a new one that builds the same envs; see `Pool.restart`."""
        old = self._group.workers[worker_id]
        if new_envs is not None and self._recovery is not None:
            with signals_deferred():
                self._end(old)
                self._forget(new_envs, keeps_calls=True)
                message = f"{old.name} was ended to build env {', '.join(str(old.first_env_id + i) for i in new_envs)}"
                self._failed[worker_id] = WorkerFailure(message, now_ns())
            self._replace_failed()
            return
        self._end(old)
        for slot in old.slots:
            self._hub.reap(slot)

        def lost_call(env_id: int, step_id: int) -> WorkerError:
            name = f"env {old.first_env_id + env_id}"
            text = f"{old.name} was restarted before the answer to a call of {name} came; call again"
            return old.locate(WorkerError(text), "call", env_id, step_id)

        self._requests.fail_calls(old.env_ids, lost_call)
        self._forget(old.env_ids)
        self._failed.pop(worker_id, None)
        self._start_successor(old, {})

    def _forget(self, env_ids: Sequence[int], *, keeps_calls: bool = False) -> None:
        """Cancel the steps and resets of these envs, whose worker was ended: they begin as new."""
        self._requests.forget_envs(env_ids, keeps_calls=keeps_calls)
        self._records[env_ids] = 0  # the new envs count episodes from 0


def _is_of_start(error: BaseException) -> bool:
    """Return whether the start of a worker has raised an exception, and no signal handler."""
    return isinstance(error, Exception) and (is_lasting(error) or isinstance(error, ShortageError | WorkerDiedError))
