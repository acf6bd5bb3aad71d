"""Deaths: how a pool hears that a worker died or hangs, and replaces it or says so.

    pidfd readable, or an operation over its limit
        -> reap -> raise                      on_failure='raise'
        -> reap -> replace -> go on waiting   on_failure='recover', see `recovery`
                -> part -> replace            an env that does it again gets a worker of its own

All of it happens in the thread that waits, while it waits: no other one watches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import select
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import VecenvError, WorkerDiedError, WorkerError, WorkerTimeoutError, add_notes, describe_exit
from ..host.replay import RestoreJob
from ..layout import messages
from ..layout.messages import Payload, Reply
from ..layout.rows import CommandFlag, Op
from ..parent.hub import SlotState
from ..processes.worker import Worker, any_ready
from ..processes.worker_group import WorkerGroup
from ..recovery.policy import Queued, append_message
from ..recovery.reproducer import describe
from ..system.clock import now_ns
from ..system.signals import signals_deferred
from .pool import Pool

__all__ = ["MortalPool"]


@dataclass(frozen=True)
class WorkerFailure:
    """A worker that is to be replaced.

    Attributes:
        message: what has become of it, in words.
        is_failure: somebody is to blame.
    """

    message: str
    began_ns: int
    is_failure: bool


class MortalPool(Pool):
    """A pool whose workers can die."""

    _group: WorkerGroup
    _worker_of_slot: list[int]
    _slot_of: list[int]

    _lost: dict[int, WorkerFailure]  # workers that are to be replaced, by worker_id

    @abstractmethod
    def _start_again(self, old: Worker, restore_jobs: dict[int, RestoreJob], then: Callable[[Worker], None]) -> None:
        """Start a worker in the place of one that has been reaped; it maps the arena and waits for work.

        `then` is called with it, uninterrupted, as soon as it serves. Whatever this raises before, the place has a
        worker then that is known to be dead.
        """

    # ---- hearing ---------------------------------------------------------------------------

    def _work(self) -> None:
        """Workers work by themselves."""

    def _interrupt(self) -> None:
        self._group.wake()

    def _has_dead(self) -> bool:
        return any(worker.is_dead for worker in self._group.workers)

    def describe_worker(self, slot: int) -> str:
        """Name a slot's worker in messages."""
        return self._group.workers[self._worker_of_slot[slot]].name

    def worker_of(self, slot: int) -> int | None:
        """Return a slot's worker_id."""
        return self._worker_of_slot[slot]

    def is_alive(self, slot: int) -> bool:
        """Tell whether a slot's worker is not known to be dead."""
        return not self._group.workers[self._worker_of_slot[slot]].is_dead

    def _hear(self, descriptor: int) -> None:
        for worker in self._group.workers:
            if worker.pidfd == descriptor:
                self._reap(worker)
                return

    def _reap(self, worker: Worker) -> None:
        """Note a death: after the reap no write of the dead process can still arrive."""
        self._attention = True
        with signals_deferred():  # else an interrupt leaves one that nobody hears of again
            self._unwatch(worker)
            worker.reap_or_kill()
            self._inbox.poll()
            if self._recovery is not None:
                self._lose(worker, self._death_of(worker), worker.exitcode)
        self._check_alive()

    def _unwatch(self, worker: Worker) -> None:
        if worker.pidfd >= 0 and self._group.epoll is not None:
            with contextlib.suppress(FileNotFoundError):  # never watched: an interrupt ended its start
                self._group.epoll.unregister(worker.pidfd)

    def _overdue(self, error: WorkerTimeoutError) -> None:
        if error.worker_id is None:
            raise error
        worker = self._group.workers[error.worker_id]
        stack = worker.stack.request(worker.pid)
        if stack:
            error.args = (f"{error}\n{stack}", *error.args[1:])
        if self._recovery is None or not self._recovery.policy.recover_hangs:
            for state in self._states(worker):
                if state.op != Op.NONE and error.env_ids == (state.env_id,):
                    self._tell_asked(error, state)
            raise error
        with signals_deferred():
            self._end_worker(worker)
            self._inbox.poll()
            self._lose(worker, error, None)
        self._check_alive()

    def _tell_asked(self, error: WorkerError, state: SlotState) -> None:
        """Have an error that is raised at once say what its env was asked last."""
        if self._recovery is not None:
            self._recovery.append_last_actions(error, state)
            return
        error.seed, error.actions = self._asked_last(state)
        asked = describe(error.seed, error.actions)
        if asked:
            append_message(error, f"; {asked}")

    @abstractmethod
    def _asked_last(self, state: SlotState) -> tuple[int | None, tuple[Any, ...]]:
        """Return the seed of an env's episode and the action under way, which is what is known without a journal."""

    def _check_alive(self) -> None:
        self._replace_lost()
        dead = [worker for worker in self._group.workers if worker.is_dead and self._is_asked(worker)]
        if not dead:
            return
        alive = {
            worker.pidfd: worker for worker in self._group.workers if not worker.is_dead and self._is_asked(worker)
        }
        more = any_ready(list(alive), 0.0)  # they fail in one step and are heard of one by one
        first, *others = (self._death_of(worker) for worker in (*dead, *(alive[pidfd] for pidfd in more)))
        add_notes(first, map(str, others))
        raise first

    def _is_asked(self, worker: Worker) -> bool:
        return self._owes_rows(worker) or self._is_called(worker)

    def _owes_rows(self, worker: Worker) -> bool:
        return any(self._hub.owed(env_id)[0] != Op.NONE for env_id in worker.env_ids)

    def _is_called(self, worker: Worker) -> bool:
        return not self._called.keys().isdisjoint(worker.env_ids)

    # ---- saying so -------------------------------------------------------------------------

    def _states(self, worker: Worker) -> list[SlotState]:
        return [self._hub.state(slot) for slot in worker.slots]

    def _death_of(self, worker: Worker) -> WorkerDiedError:
        """Name what the worker was doing: the operation under way, else the first that waits."""
        for state in self._states(worker):
            if state.op != Op.NONE:
                error = self._died(worker, Op(state.op).name.lower(), state.env_id, state.step_id)
                if self._recovery is None:
                    self._tell_asked(error, state)
                return error
        for env_id in worker.env_ids:
            op, step_id = self._hub.owed(env_id)
            if op != Op.NONE:
                return self._died(worker, Op(op).name.lower(), env_id, step_id)
        return self._died(worker, "call" if self._is_called(worker) else "idling", None)

    def _died(self, worker: Worker, op: str, env_id: int | None, step_id: int | None = None) -> WorkerDiedError:
        worker.reap_or_kill()
        exitcode = worker.exitcode
        what = worker.at_work(op)[0] if env_id is None else f"{op} of env {env_id} (command {step_id})"
        if op == "idling":
            what = "idling"
        stack = f"\n{worker.last_stack}" if worker.last_stack else ""
        told = f"{worker.name} died during {what}: {describe_exit(exitcode)}{stack}"
        if worker.start_failure:
            told = f"{worker.name} is gone, for it could not be started again: {worker.start_failure}"
        return WorkerDiedError(
            told,
            exitcode=exitcode,
            worker_id=worker.worker_id,
            env_ids=tuple(worker.env_ids) if env_id is None else (env_id,),
            op=op,
            step_id=step_id,
        )

    # ---- replacing -------------------------------------------------------------------------

    def _lose(self, worker: Worker, error: WorkerError, exitcode: int | None, *, is_failure: bool = True) -> None:
        """Note that a worker that has been reaped is to be replaced; `_replace_lost` does it.

        Args:
            error: what there would be to raise.
            exitcode: of the process; None: it hung.
            is_failure: somebody is to blame, and rows say that their env was recovered.

        Raises:
            WorkerError: `error`, when the policy says so.
        """
        assert self._recovery is not None
        began = now_ns()
        if is_failure:
            self._recovery.judge(error, exitcode, self._states(worker), functools.partial(self._can_isolate, worker))
        message = str(error).partition("\n")[0]
        self._lost[worker.worker_id] = WorkerFailure(message, began, is_failure)

    def _replace_lost(self) -> None:
        """Replace the workers that are lost and go on as if nothing had happened.

        Also those for which an interrupt has ended that, an alarm's TimeoutError too: they stay lost until a successor
        has been told all. One whose start fails does not.

        Raises:
            WorkerError: what a new worker's start raised.
        """
        while self._lost:
            worker_id, failure = next(iter(self._lost.items()))
            try:
                self._replace(self._group.workers[worker_id], failure)
            except Exception as error:
                if _is_of_a_start(error):
                    self._lost.pop(worker_id, None)
                raise

    def _replace(self, worker: Worker, failure: WorkerFailure) -> None:
        assert self._recovery is not None
        recovery = self._recovery
        with signals_deferred():
            queued: list[Queued] = []
            for slot in worker.slots:
                queued += self._hub.requeue(slot, self._inbox.payloads)
            restore_jobs = recovery.plan(
                worker.env_ids,
                queued,
                self._hub.last_delivered_obs,
                last_delivered_message=self._inbox.last_delivered_message,
                marks_recovery=failure.is_failure,
            )
            for env_id, job in restore_jobs.items():
                job.fresh_seed = secrets.randbits(31) if self._takes_seeds[env_id] else None
            isolated_env = recovery.env_to_isolate(worker.env_ids) if failure.is_failure else None
            parts = [worker] if isolated_env is None else self._isolate(worker, isolated_env)
            if len(parts) == 2:
                message = f"{failure.message}; env {isolated_env} has worker {parts[1].worker_id} to itself now"
                failure = dataclasses.replace(failure, message=message)
            self._lost.update((part.worker_id, failure) for part in parts)

        def tell(successor: Worker) -> None:
            self._note_worker_started(successor)
            for slot in successor.slots:
                commands = [command for command in queued if self._slot_of[command[1]] == slot]
                self._hub.resend_payloads(slot, [self._payload_of(*command) for command in commands])
            del self._lost[successor.worker_id]
            if successor.worker_id == parts[-1].worker_id:
                recovery.begin_restoring(failure.message, failure.began_ns, restore_jobs, is_failure=failure.is_failure)

        for part in parts:
            try:
                self._start_until_it_lives(part, {env_id: restore_jobs[env_id] for env_id in part.env_ids}, tell)
            except Exception as error:
                if _is_of_a_start(error):
                    self._lost.pop(part.worker_id, None)
                raise

    def _isolate(self, worker: Worker, isolated_env: int) -> list[Worker]:
        """Divide a worker that has been reaped in two, the second one for a single env.

        The env takes its commands along to a spare slot, unless it has its slot to itself. Without
        a spare slot the worker stays one.
        """
        assert self._recovery is not None and worker.boot is not None
        if not self._can_isolate(worker, isolated_env):
            return [worker]
        mates = [env_id for env_id in worker.env_ids if env_id != isolated_env]
        slot, worker_id = self._slot_of[isolated_env], len(self._group.workers)
        if self._shares_slot(worker, isolated_env):
            slot = len(self._worker_of_slot)
            self._hub.move(isolated_env, slot)
            self._slot_of[isolated_env] = slot
            self._worker_of_slot.append(worker_id)
            self._inbox.num_slots = self._watchdog.num_slots = slot + 1
        self._worker_of_slot[slot] = worker_id
        parts = []
        for number, env_ids in ((worker.worker_id, mates), (worker_id, [isolated_env])):
            slots = [one for one in dict.fromkeys((*worker.slots, slot)) if self._worker_of_slot[one] == number]
            threads = [[env_id for env_id in env_ids if self._slot_of[env_id] == one] for one in slots]
            boot = dataclasses.replace(worker.boot, worker_id=number, env_ids=env_ids, env_ids_by_thread=threads)
            parts.append(dataclasses.replace(worker, worker_id=number, env_ids=env_ids, slots=slots, boot=boot))
        self._group.workers[worker.worker_id] = parts[0]
        self._group.workers.append(parts[1])
        self._hub.attach_worker(parts[1])  # it has a place there even if no successor can be started
        self._recovery.note_worker_added()
        return parts

    def _can_isolate(self, worker: Worker, env_id: int) -> bool:
        has_spare = len(self._worker_of_slot) < self._plan.num_slots
        return len(worker.env_ids) > 1 and (has_spare or not self._shares_slot(worker, env_id))

    def _shares_slot(self, worker: Worker, env_id: int) -> bool:
        slot = self._slot_of[env_id]
        return any(self._slot_of[mate] == slot for mate in worker.env_ids if mate != env_id)

    def _recycle(self) -> None:
        workers = self._group.workers
        for worker, reason in self._recycler.due(workers, [self._owes_rows(worker) for worker in workers]):
            with signals_deferred():
                self._end_worker(worker)
                self._inbox.poll()
                told = WorkerError(f"{worker.name} was recycled {reason}", worker_id=worker.worker_id)
                self._lose(worker, told, None, is_failure=False)
            self._replace_lost()

    def _note_worker_started(self, worker: Worker) -> None:
        if self._recycler is not None:
            self._recycler.note_worker_started(worker)

    def _start_until_it_lives(
        self, worker: Worker, restore_jobs: dict[int, RestoreJob], then: Callable[[Worker], None]
    ) -> None:
        """Start a worker's successor; one that dies or hangs while it builds its envs has a successor too."""
        assert self._recovery is not None
        failures = 0
        while True:
            try:
                self._start_again(worker, restore_jobs, then)
                return
            except (WorkerDiedError, WorkerTimeoutError) as error:
                failures += 1
                self._recovery.judge_start(error, failures)

    def _payload_of(self, op: int, env_id: int, step_id: int, flags: int) -> bytes | None:
        if not flags & CommandFlag.PAYLOAD:
            return None
        if op == Op.CALL:
            return self._inbox.payloads[step_id][1]
        assert self._journal is not None
        # A command that is not the env's last has been superseded: what it does is no matter, but a payload must come.
        return self._journal.payload(env_id, step_id) or messages.dump(Payload())

    def kill(self, worker_id: int) -> None:
        """End a worker that does not answer, with all that its envs started; `close` need not wait for it then."""
        self._enter("kill")
        try:
            self._begin("kill")
            self._end_worker(self._group.workers[worker_id])
        finally:
            self._busy = False
            self._leave()

    def _end_worker(self, worker: Worker) -> None:
        self._unwatch(worker)
        worker.kill()
        self._attention = True

    def restart(self, worker_id: int) -> None:
        """Replace a worker, dead or alive, by a fresh one that builds the same envs.

        What its envs owe is cancelled, answers that are there but have not been received included. They must be
        reset before they are stepped. Other workers notice nothing. Calls of these envs that were posted and
        have not been answered are lost: `wait_calls` raises WorkerError for them.

        Raises:
            As `start`, for the envs of this worker.
        """
        self._enter("restart")
        try:
            self._begin("restart")
            old = self._group.workers[worker_id]
            self._end_worker(old)
            self._inbox.poll()
            self._lose_calls(old)
            for slot in old.slots:
                self._hub.reap(slot)
            for env_id in old.env_ids:
                self._inbox.forget(self._hub.owed(env_id)[1])
                self._hub.cancel(env_id)
                self._unseeded[env_id] = True
                if self._journal is not None:
                    self._journal.forget(env_id)
            self._plan.records(self._memory)[old.env_ids] = 0  # of envs that are gone: episodes count from 0
            self._lost.pop(worker_id, None)
            self._start_again(old, {}, self._note_worker_started)
        finally:
            self._busy = False
            self._leave()

    def _lose_calls(self, worker: Worker) -> None:
        """Answer the calls that a worker took with it: nobody else ever would."""
        for env_id in worker.env_ids:
            step_id = self._called.get(env_id)
            if step_id is not None and not self._inbox.has_call(step_id):
                lost = WorkerError(
                    f"{worker.name} was restarted before the answer to a call of env {env_id} came; call again",
                    worker_id=worker.worker_id,
                    env_ids=(env_id,),
                    op="call",
                    step_id=step_id,
                )
                self._inbox.reply_to_call(Reply(step_id, env_id, error=messages.pack_error(lost)))
        self._inbox.forget_payloads(worker.env_ids)

    def _watch(self, worker: Worker) -> None:
        assert self._group.epoll is not None
        self._group.epoll.register(worker.pidfd, select.EPOLLIN)


def _is_of_a_start(error: Exception) -> bool:
    """Tell what a start has raised, or its env's constructor, from what a handler of a signal has amid it."""
    return isinstance(error, VecenvError) or isinstance(error.__cause__, messages.RemoteTraceback)
