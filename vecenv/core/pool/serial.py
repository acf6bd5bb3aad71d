"""SerialEngine: envs in the thread of the caller, which run when it waits for them.

Layouts, rows, hosts and autoresets are those of `ProcessEngine`; only the worker processes are missing. An env that
hangs is interrupted by a timer if the pool is used in the main thread. In other threads nothing interrupts it, and a
crash of an env ends the program.

A shard may use this engine, too. Then the envs are a part of those of a driver, which restores them when they end the
process of the shard. Messages are pickled for the driver, and records are kept, as in a worker.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import DifferentSpacesError, WorkerTimeoutError
from ...own_log import own_logger
from ...statistics import EnvTimes, WorkerTimes
from ..advice.times import read_envs, read_workers
from ..host.caught import CaughtExceptions
from ..host.global_rngs import GlobalRngs, torch_imports
from ..host.host import Host, close_all
from ..host.replay import RestoreJob, Snapshotter, compare_code
from ..layout.commands import Commands
from ..layout.counters import CountersPlan
from ..layout.flags import Op
from ..layout.messages import (
    Reply,
    copy_payload,
    copy_reply,
    copy_value,
    dump_reply,
    note_place,
    pack_error,
    unpack_error,
)
from ..layout.native import implementation
from ..operations.engine import Engine, EnvSpaces, OpenedEnvs, ResumeLike
from ..operations.requests import Requests
from ..operations.waiter import Waiter
from ..options import PoolOptions
from ..parent.hub import Hub, NativeHub, Refusal
from ..parent.inbox import Listener
from ..parent.watchdog import Watchdog
from ..processes.builder import build_env, check_distinct
from ..processes.worker_main import Attach, find_difference, make_slot, properties_of
from ..recovery.policy import OUTCOMES
from ..system.clock import now_ns
from ..system.descriptor import Descriptor
from ..system.module_files import ModuleFiles, end_start, note_modules, noted_modules
from ..system.process_stat import started_at
from ..system.segment import private_segment
from ..system.signals import signals_deferred
from .monitor import WorkerTable, open_counters
from .pool import Pool
from .starting import StartProgress

__all__ = ["SerialEngine", "SerialPool"]

_LOG = own_logger()

#: Seconds to which a timer is set that should have expired already; 0 would switch it off.
_AT_ONCE_SECONDS = 1e-6


class LocalMessages:
    """Messages and payloads within one process; they need no rings, and so no waiting.

    A payload is found by the step_id of its command. One that was not read because of an interrupt is thus not taken
    for the payload of the next command.
    """

    def __init__(self) -> None:
        self.up: list[Any] = []
        self.down: dict[int, Any] = {}


class _LocalSlot:
    """A native slot whose messages stay in this process."""

    def __init__(self, slot: Any, hub: NativeHub, box: LocalMessages) -> None:
        self.serve, self.publish, self.finish = slot.serve, slot.publish, slot.finish
        self.host, self.set_seed, self.action = slot.host, slot.set_seed, slot.action
        self.current, self.set_counters = slot.current, slot.set_counters
        self.watch, self.count_step, self.touch = slot.watch, slot.count_step, slot.touch
        self.keep_records, self.records, self.resume = slot.keep_records, slot.records, slot.resume
        self.start_digest, self.add_to_digest = slot.start_digest, slot.add_to_digest
        self.present_record, self.schedule_snapshot = slot.present_record, slot.schedule_snapshot
        self.is_snapshot_due = slot.is_snapshot_due
        self.send_message = box.up.append
        self.take_payload = lambda: box.down.pop(hub.pending(0)[2])


class _LocalHub(NativeHub):
    """The parent's end for the one slot of this process."""

    def __init__(self, box: LocalMessages, *args: Any) -> None:
        super().__init__(*args)
        self._box = box

    def command(self, commands: Commands, ordered: bool) -> Refusal | None:
        """Queue commands; their payloads stay in this process."""
        under_way, _, first = self.pending(0)
        down = self._box.down
        for step_id in [one for one in down if under_way == Op.NONE or one < first]:
            del down[step_id]
        return super().command(commands, ordered)

    def _send_payloads(self, commands: Commands) -> None:
        pairs = zip(commands.table["step_id"].tolist(), commands.payloads)
        self._box.down.update((step_id, payload) for step_id, payload in pairs if payload is not None)

    def take_messages(self, slot: int) -> list[Any]:
        """Return the messages that have arrived."""
        arrived = list(self._box.up)
        self._box.up.clear()
        return arrived


class SerialEngine(Engine):
    """Builds and runs all envs in the thread that uses the pool; see `Engine` for the calls.

    Args:
        env_fns: one constructor per env.
        options: of the pool; those about processes and failures have no effect.
        adapt: adapts the result of a constructor to the interface of Gymnasium.
        snapshotter: compares an env before and after a call; its calls are repeated when the env is built again. It
            also captures the states of envs that are saved.
        resume: as for `Engine`.
        first_env_id, files: as for `ProcessEngine`.
        listener: receives the reports about restore points and restored envs, if these envs are a part of those of
            another pool; None: they are not.
    """

    runs_here = True

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        options: PoolOptions | None = None,
        *,
        adapt: Callable[[Any], Any] | None = None,
        snapshotter: Snapshotter | None = None,
        resume: ResumeLike | None = None,
        first_env_id: int = 0,
        files: ModuleFiles | None = None,
        listener: Listener | None = None,
    ) -> None:
        super().__init__(env_fns, options, snapshotter, resume)
        self._adapt = adapt or _identity
        self._first_env_id = first_env_id
        self._has_predecessor = files is not None
        self.files = files or ModuleFiles()
        self._listener = listener
        self._check_not_closing: Callable[[str], object] = _ignore
        self._envs: dict[int, Any] = {}
        self._built: list[Any] = []  # the results of `env_fns`, before `adapt`
        self._rngs: GlobalRngs | None = None
        self._imports = contextlib.ExitStack()
        self._hub: Hub | None = None
        self._host: Host | None = None
        self._timings: Any = None  # see `counters.timings`
        self._opened_ns = 0
        self._watchdog: Watchdog | None = None
        self._event_fd = Descriptor()
        self._epoll: select.epoll | None = None
        self._end_monitor: Callable[[], object] = _ignore

    # ---- start and end ---------------------------------------------------------------------

    def open(self, check_not_closing: Callable[[str], None]) -> OpenedEnvs:
        self._check_not_closing = check_not_closing
        options = self.options
        rngs = self._rngs = GlobalRngs(self._first_env_id, options.rng_entropy)
        self._imports.enter_context(torch_imports)
        progress = StartProgress(self.num_envs)
        with rngs:  # constructors do not touch the caller's global generators
            for env_id, env_fn in enumerate(self.env_fns):
                check_not_closing("start")
                try:
                    self._envs[env_id] = build_env(env_fn, self._keep_and_adapt, rngs.of(env_id))
                except Exception as error:
                    note_place(error, {"env_ids": [env_id], "op": "construct"}, self._first_env_id)
                    raise
                progress.show(lambda: len(self._envs))
        check_distinct(dict(enumerate(self._built)), self._first_env_id)
        spaces = EnvSpaces.of(self._envs[0], options).copy()
        check_same_spaces(self._envs, self._first_env_id)
        plan = spaces.plan_arena(self.num_envs, 1, self.num_envs, options)
        memory = private_segment(plan.nbytes)
        plan.write_header(memory)
        chosen = implementation()
        counters = self._open_counters(plan.counters, is_native=chosen == "native")
        attach = Attach(plan, [(0, list(self._envs))], options.autoreset, 0, options.infos)
        hub, slot = self._make_ends(chosen, attach, memory, counters)
        self._hub = hub
        self._host = Host(
            *(slot, self._envs, plan, options.autoreset, rngs, options.infos),
            is_callers=self._listener is None,
            dump_reply=copy_reply if self._listener is None else dump_reply,
        )
        self._timings, self._opened_ns = plan.counters.timings(counters), now_ns()
        limit = options.failures.exception_limit
        if limit is not None:
            caught = CaughtExceptions(limit, self._build_again, rngs, self._timings, self.snapshotter)
            self._host.catch_exceptions(caught, self.snapshotter)
        if self._listener is not None and options.failures.recovers:
            self._host.keep_records(self.snapshotter)
        resume = self._read_resume(spaces, chosen)
        jobs = self._compare_files({} if resume is None else resume.restore_jobs)
        if resume is not None:
            resume.write_records(plan, memory)
            if limit is not None:
                for env_id, job in jobs.items():
                    caught.note_earlier_failures(env_id, job.num_failures)
            self._host.restore(jobs, self._rebuild, self.snapshotter)
        return OpenedEnvs(
            spaces=spaces,
            properties=copy_value(properties_of(self._envs[0])),
            implementation=chosen,
            plan=plan,
            memory=memory,
            counters=counters,
            hub=hub,
            listener=self._listener or (None if resume is None else _log_outcome),
            dump_payload=copy_payload,
            first_env_id=self._first_env_id,
        )

    def _compare_files(self, jobs: dict[int, RestoreJob]) -> dict[int, RestoreJob]:
        """Return the jobs in a shard, which mark the rows if this process has loaded other code than its predecessor.

        If there is no predecessor, the modules are noted for a successor.
        """
        if self._listener is None:
            return jobs
        note_modules()
        end_start()
        files = noted_modules()
        if not self._has_predecessor:
            self.files.add(files)
            return jobs
        jobs, warning = compare_code(self.files, files, jobs, "the successor of a shard has loaded other code")
        if warning:
            _LOG.warning("%s", warning)
        return jobs

    def _open_counters(self, plan: CountersPlan, *, is_native: bool) -> Any:
        """Return the memory of the counters; announce the pool, if that is wanted."""

        def note_process(memory: Any) -> None:
            WorkerTable(plan, memory).note_slot(0, os.getpid(), started_at(os.getpid()))

        counters, _, self._end_monitor = open_counters(
            *(self, plan, properties_of(self._envs[0])["name"], "serial"),
            is_native=is_native,
            is_announced=self.options.monitor,
            prepare=note_process,
        )
        return counters

    def _build_again(self, env_id: int) -> Any:
        """Build an env again that was closed."""
        assert self._rngs is not None
        env = build_env(self.env_fns[env_id], self._keep_and_adapt, self._rngs.of(env_id))
        self._built[env_id] = self._built.pop()
        return env

    def _rebuild(self, env_id: int) -> Any:
        """Build an env once more, because it could not be restored with the first plan."""
        assert self._rngs is not None
        self._rngs.forget(env_id)
        return self._build_again(env_id)

    def _keep_and_adapt(self, env: Any) -> Any:
        self._built.append(env)
        return self._adapt(env)

    def _make_ends(self, chosen: str, attach: Attach, memory: Any, counters: Any) -> tuple[Hub, Any]:
        slots = [0] * self.num_envs
        if chosen == "native":
            with signals_deferred():
                self._event_fd = Descriptor.of_event()
                self._epoll = select.epoll()
                self._epoll.register(self._event_fd, select.EPOLLIN | select.EPOLLET)
            number = self._event_fd.number
            box = LocalMessages()
            hub = _LocalHub(box, attach.plan, memory, counters, slots, number, self._epoll.fileno(), 0)
            return hub, _LocalSlot(make_slot(attach, 0, memory, counters, number, False), hub, box)
        from ..fallback.local import make_local_pair

        return make_local_pair(attach, memory, counters, slots)

    def connect(self, requests: Requests, waiter: Waiter) -> None:
        self._watchdog = waiter.watchdog
        self._take_over(requests)

    def close(self, timeout: float | None) -> Exception | None:
        try:
            with self._rngs or GlobalRngs():
                if self._host is not None:
                    self._host.close()
                else:
                    close_all(env.close for env in self._envs.values())
        except Exception as error:
            if self._listener is not None and self._host is not None and self._host.failed_to_close is not None:
                where = {"env_ids": [self._host.failed_to_close], "op": "close"}
                error = unpack_error(pack_error(error), first_env_id=self._first_env_id, **where)
                note_place(error, where, self._first_env_id)
            return error
        finally:
            with signals_deferred():
                self._imports.close()
                self._timings = None
                self._end_monitor()
                if self._epoll is not None:
                    self._epoll.close()
                self._event_fd.close()
            self._hub = self._host = self._epoll = self._watchdog = None
            self._envs = {}
            self._check_not_closing = _ignore
        return None

    def interrupt(self) -> None:
        host, hub = self._host, self._hub
        if host is not None and hub is not None:
            host.end()
            hub.stop()

    # ---- while envs are there ----------------------------------------------------------------

    def serve(self) -> None:
        assert self._host is not None and self._hub is not None and self._rngs is not None
        try:
            with self._rngs:
                self._serve_within_limits(self._host)
            self._check_not_closing("recv")
        except KeyboardInterrupt:
            env_id = self._host.take_interrupted()
            if env_id is not None:  # no answer will come
                self._hub.cancel(env_id)
            raise

    def _serve_within_limits(self, host: Host) -> None:
        can_interrupt = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        if not self.options.limits.has_any() or not can_interrupt or self._listener is not None:
            host.serve()
            return
        began_ns = now_ns()
        seconds, interval = signal.setitimer(signal.ITIMER_REAL, 0)  # a timer of the program itself has to wait
        handler = signal.signal(signal.SIGALRM, self._check_limits)
        try:
            self._set_timer()
            host.serve()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if seconds:
                left = seconds - (now_ns() - began_ns) / 1e9
                signal.setitimer(signal.ITIMER_REAL, max(left, _AT_ONCE_SECONDS), interval)

    def _set_timer(self) -> None:
        """Set the timer to the shortest limit; its handler checks the operation that runs."""
        limits = self.options.limits
        shortest = min(limit for limit in (limits.step, limits.reset, limits.call) if limit is not None)
        signal.setitimer(signal.ITIMER_REAL, shortest, shortest / 4)

    def _check_limits(self, signum: int, frame: Any) -> None:
        assert self._watchdog is not None
        try:
            self._watchdog.check()
        except WorkerTimeoutError:  # the answer of the env; if the env catches it, the next one comes a limit later
            self._set_timer()
            raise

    def read_times(self) -> tuple[EnvTimes, WorkerTimes] | None:
        """Return the times in a shard, whose process counts as one worker; else None."""
        timings = self._timings
        if self._listener is None or timings is None:
            return None
        workers = read_workers([os.getpid()], [range(self.num_envs)], 1, timings, {}, self._opened_ns)
        return read_envs(timings, [0] * self.num_envs), workers

    def running(self) -> int:
        hub = self._hub
        state = None if hub is None else hub.state(0)
        return 0 if state is None or state.op == Op.NONE else state.step_id

    # ---- envs and workers ----------------------------------------------------------------------

    def expose(self) -> list[Any]:
        """Return the results of `env_fns`, ordered by env_id. The caller may change them from now on."""
        return list(self._built)

    def stack_of(self, slot: int) -> str:
        """Return the stack of this thread: during an operation, a timer interrupts the env to check its limits."""
        return "".join(traceback.format_stack()).rstrip()


class SerialPool(Pool):
    """A pool with all envs in this process: for debugging, for envs that step in no time, and as a reference.

    Args:
        env_fns, options: as for `SerialEngine`.
        others: keyword arguments of `SerialEngine`.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], options: PoolOptions | None = None, **others: Any) -> None:
        super().__init__(SerialEngine(env_fns, options, **others))


def check_same_spaces(envs: dict[int, Any], first_env_id: int = 0) -> None:
    """Raise DifferentSpacesError for the first env whose spaces differ from env 0's; env 0 has `first_env_id`."""
    for env_id, env in envs.items():
        found = find_difference(envs[0], env, first_env_id)
        if found is not None:
            name, text = found
            raise DifferentSpacesError(f"env {first_env_id + env_id}: {text}", path=name)


def _log_outcome(reply: Reply, is_answered: bool) -> None:
    """Log that a saved env could not be restored exactly."""
    outcome = reply.outcome
    if outcome is not None and outcome.kind in OUTCOMES:
        _LOG.warning("env %d: %s: %s", reply.env_id, OUTCOMES[outcome.kind], outcome.reason)


def _identity(env: Any) -> Any:
    return env


def _ignore(*args: object) -> None:
    """Do nothing: there is nothing to check before the start, and no monitor to end."""
