"""The main function of a worker process: build envs, map the arena, serve commands, close the envs.

The messages over the control socket of a worker:

    parent -> worker   Boot (environment, envs to build), then the descriptors of a file for stacks and of two pipes,
                       of an event counter with tokens, and of objects of `multiprocessing`
    worker -> parent   BuildReport (spaces, or the error)
    parent -> worker   Attach, then the descriptors of both segments and, for C, of the parent's eventfd
    worker -> parent   "ready"
    ...                commands and rows through the arena (without C: through the socket)
    worker -> parent   ExitReport (the error of closing the envs)

    worker -> parent   instead of a BuildReport or "ready": SetUpFailure; or RemoteTraceback, if the worker cannot
                       import this module
    worker -> parent   at any time: log records, see `system.log_records`

A worker leads its own session, so that Ctrl-C in the terminal does not reach it and its whole process tree can be
killed. A thread that watches the parent ends the worker when the parent ends. A worker never imports the caller's
`__main__`: the objects in it that the constructors use are sent by value, and live in the `__main__` of the worker.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ...gymnasium_api import registrations
from ...gymnasium_api.reward_spaces import find_reward_space
from ...values.id_ranges import ids_text
from ...values.pickling import adopt_main, load_with_main
from ..fallback import parent_watch
from ..host.caught import CaughtExceptions
from ..host.global_rngs import GlobalRngs, torch_imports
from ..host.host import Host
from ..host.replay import RestoreJob, Snapshotter
from ..layout import messages
from ..layout.arena import ArenaPlan
from ..layout.differences import are_equal, first_difference
from ..layout.flags import Autoreset
from ..layout.info_cells import Infos
from ..layout.native import load, suppress_missing_warning
from ..layout.spec import Array
from ..system import exit_functions
from ..system.affinity import pin
from ..system.blas_threads import cap_environment, cap_loaded_libraries
from ..system.descriptor import Descriptor
from ..system.log_records import LogLevels, LogSender, clear_handlers
from ..system.module_files import ModuleFile, end_start, note_modules, noted_modules
from ..system.module_paths import Source, import_from
from ..system.output_capture import OutputCapture, silence
from ..system.process_settings import ProcessSettings
from ..system.process_stat import started_at
from ..system.process_title import set_title
from ..system.process_tree import kill_tree, set_mark
from ..system.shared_objects import SharedObjects, receive_shared
from ..system.signals import signals_deferred
from ..system.stack_dump import enable_stack_dumps, note_pause, note_phase
from ..system.tokens import Tokens
from . import import_server
from .builder import Builder, EnvThread, build_env, call_worker_init
from .measure import Measurement, measure_env

__all__ = [
    "Attach",
    "Boot",
    "ExitReport",
    "BuildReport",
    "SetUpFailure",
    "describe_envs",
    "Served",
    "find_endless_import",
    "make_slot",
    "prepare",
    "recv_descriptor",
    "running_modules",
    "send_exit",
    "serve",
    "show_title",
    "worker_main",
]

#: In a worker: the modules whose top-level code was creating its pool.
_modules_of_pool: frozenset[str] = frozenset()


@dataclass
class Boot:
    """The first message to a worker.

    Attributes:
        env_ids: ids of the envs to build.
        env_ids_by_thread: the same ids, one list per thread that will serve them.
        builds_serially: whether the threads build their envs one after the other; see `builder`.
        env_fns: pickle of {env_id: env factory}; it may contain further envs.
        worker_init: pickled function that it calls before, or None.
        shared: the objects of `multiprocessing` in these pickles; empty in the worker.
        num_shared: the number of descriptors of these objects that follow.
        adapt: pickled function that wraps the env of a factory so that it has Gymnasium's methods.
        registrations: Gymnasium's settings in the parent, as `pickle_registrations` returns them.
        environ, cwd, path: environment variables, working directory (None: it was removed) and sys.path of the parent.
        num_threads: limit for the threads of numeric libraries.
        parent_pid, parent_started: identify the parent process; see `started_at`.
        implementation: 'native' or 'python'.
        snapshotter: pickled `replay.Snapshotter` or None, as `adapt`.
        keeps_records: whether records and states are kept, so that the envs can be restored after a crash.
        worker_output: 'none' if standard output and error are dropped once the envs are built; see `PoolOptions`.
        captures_output: whether two descriptors follow, for standard output and error while the envs are built.
        has_tokens: whether the descriptor of `Tokens` follows; the worker takes one for each env but the first.
        log_levels: levels of the parent's loggers.
        modules: modules of this package that it imports to build its envs, so that a fork server can load them before.
        imports: modules of its env factories, as `find_env_modules` returns them.
        pool_modules: result of `running_modules` in the process that created the pool.
        sources: files of modules that `path` does not lead to, as `find_sources` returns them.
        reports_all_files: whether the worker reports the files of all its modules, and not only of those that it has
            loaded itself.
        measures: whether the worker only measures its env, and ends.
        first_env_id: number of env 0 in messages and for the global random generators; see `ProcessEngine`.
        exception_limit: see `PoolFailurePolicy.exception_limit`.
        rng_entropy, settings: see `PoolOptions`.
        mark: shows which processes the worker has started; see `process_tree`. `Worker.send_boot` sets it.
        is_forked: whether the worker was forked, from the parent or a fork server, and ends by `os._exit`.
        is_leased: whether the worker belongs to an env server, which gets it back; see `standby`. It keeps the settings
            and the output of its server, and its envs are not closed.
    """

    worker_id: int
    env_ids: list[int]
    env_ids_by_thread: list[list[int]]
    env_fns: bytes
    worker_init: bytes
    adapt: bytes
    registrations: bytes
    environ: dict[str, str]
    cwd: str | None
    path: list[str]
    num_threads: int
    parent_pid: int
    parent_started: str
    implementation: str
    shared: SharedObjects = field(default_factory=SharedObjects)
    num_shared: int = 0
    builds_serially: bool = False
    snapshotter: bytes = b""
    keeps_records: bool = False
    worker_output: str = "once"
    captures_output: bool = False
    has_tokens: bool = False
    log_levels: LogLevels = field(default_factory=LogLevels.now)
    modules: frozenset[str] = frozenset()
    imports: list[str] = field(default_factory=list)
    pool_modules: frozenset[str] = frozenset()
    sources: dict[str, Source] = field(default_factory=dict)
    reports_all_files: bool = False
    measures: bool = False
    first_env_id: int = 0
    exception_limit: tuple[int, float] | None = None
    rng_entropy: int = 0
    settings: ProcessSettings = field(default_factory=ProcessSettings.now)
    mark: str = ""
    is_forked: bool = False
    is_leased: bool = False


@dataclass
class BuildReport:
    """Spaces and properties of the first env of a worker, or an error.

    Attributes:
        properties: see `properties_of`.
        mismatch: the first env with other spaces, the name of a space that differs, and a text with both spaces.
        error: the env that could not be built, and its packed exception.
        files: files of the modules of the worker, by name; see `Boot.reports_all_files`.
        num_envs: how many envs it has built, the first ones of `Boot.env_ids`.
    """

    observation_space: Any = None
    action_space: Any = None
    reward_space: Any = None
    properties: dict[str, Any] = field(default_factory=dict)
    mismatch: tuple[int, str, str] | None = None
    error: tuple[int, tuple[bytes | None, str, str, str]] | None = None
    files: dict[str, ModuleFile] = field(default_factory=dict)
    num_envs: int = 0


@dataclass
class Attach:
    """The arena to serve: its plan, and one slot per thread with the envs of each.

    Attributes:
        slots: (slot, env ids) of each thread.
        spin_ns: longest time to spin before a slot sleeps, in nanoseconds.
        restore_jobs: how to restore each env of a worker that failed.
        preferred_core: the core to pin the worker to; None for no pinning.
    """

    plan: ArenaPlan
    slots: list[tuple[int, list[int]]]
    autoreset: Autoreset
    spin_ns: int
    infos: Infos = Infos.ALL
    restore_jobs: dict[int, RestoreJob] = field(default_factory=dict)
    preferred_core: int | None = None


@dataclass
class ExitReport:
    """The last message of a worker: the first exception raised by `close` of an env, and its env id, if any."""

    error: tuple[bytes | None, str, str, str] | None = None
    env_id: int | None = None


@dataclass
class SetUpFailure:
    """The packed exception of a worker that ends before it serves, and not for an exception of an env."""

    error: tuple[bytes | None, str, str, str]


@dataclass
class Served:
    """The envs of a worker while it serves a pool.

    Attributes:
        hosts: of the envs, one per thread; empty: the worker has nothing to serve, and ends.
        wake: the event counter of the pool, which the slots use as long as they exist; closed without C.
    """

    hosts: list[Host]
    wake: Descriptor = field(default_factory=Descriptor)


# ---- envs -------------------------------------------------------------------------------


def properties_of(env: Any) -> dict[str, Any]:
    """Return the attributes of an env that front ends show, as far as they can be pickled, and its `name`."""
    found: dict[str, Any] = {"name": _name_of(env)}
    for name in ("metadata", "spec", "render_mode"):
        value = getattr(env, name, None)
        try:
            pickle.dumps(value)
        except Exception:  # a spec that contains a lambda stays in the worker, for example
            continue
        found[name] = value
    return found


def _name_of(env: Any) -> str:
    """Return the id that an env was registered with, or else the class of its innermost layer."""
    env_name = getattr(getattr(env, "spec", None), "id", None)
    while env_name is None and (inner := getattr(env, "__dict__", {}).get("env")) is not None:
        env = inner
        env_name = getattr(getattr(env, "spec", None), "id", None)
    return type(env).__name__ if env_name is None else str(env_name)


def find_difference(first: Any, other: Any, first_id: int) -> tuple[str, str] | None:
    """Compare the spaces of an env with those of env `first_id`.

    Returns:
        The path of the first part of a space that differs, and a text about the difference; None if they are equal.
    """
    for name in ("observation_space", "action_space"):
        ours, theirs = getattr(first, name), getattr(other, name)
        if not are_equal(ours, theirs):
            return first_difference(theirs, ours, name, f"env {first_id}") or (name, f"{name}: {theirs}, not {ours}")
    return None


def _report_on(env_ids: list[int], envs: dict[int, Any], first_env_id: int) -> BuildReport:
    first = envs[env_ids[0]]
    report = BuildReport(
        *(first.observation_space, first.action_space, find_reward_space(first), properties_of(first)),
        num_envs=len(env_ids),
    )
    for env_id in env_ids[1:]:
        found = find_difference(first, envs[env_id], first_env_id + env_ids[0])
        if found is not None:
            report.mismatch = (env_id, *found)
            break
    return report


def _construct(
    boot: Boot, threads: list[EnvThread], rngs: GlobalRngs, tokens: Tokens | None
) -> tuple[dict[int, Any], dict[int, tuple[int, int]], BuildReport]:
    """Build the envs; return them, the wall and CPU times of their constructors, and the report for the parent."""
    try:
        note_modules(import_from(boot.sources))
        with rngs.fork_guard:  # around the import of the envs' modules, too
            if not boot.is_leased:
                registrations.apply_registrations(boot.registrations, import_server.imported_registrations())
            call_worker_init(load_with_main(boot.worker_init))
            rngs.restore_neutral()
            adapt, env_fns = load_with_main(boot.adapt), load_with_main(boot.env_fns)
            builder = Builder(threads, boot.env_ids_by_thread, env_fns, adapt, rngs, tokens)
            builder.build(serially=boot.builds_serially)
            errors = builder.errors
            if not errors:
                env_ids = sorted(builder.envs)
                return builder.envs, builder.times, _report_on(env_ids, builder.envs, boot.first_env_id)
    except BaseException as error:
        errors = {boot.env_ids[0]: error}
    env_id = min(errors)
    return {}, {}, BuildReport(error=(env_id, messages.pack_error(errors[env_id])))


# ---- the process ------------------------------------------------------------------------


def _set_up_process(boot: Boot) -> None:
    """Copy the parent's environment variables, working directory and search path, and limit library threads."""
    global _modules_of_pool
    _modules_of_pool = boot.pool_modules
    adopt_main()
    suppress_missing_warning()
    environ, cwd, path = import_server.settings_after_imports(boot.environ, boot.cwd, boot.path)
    os.environ.clear()
    os.environ.update(environ)
    set_mark(boot.mark)
    cap_environment(boot.num_threads, boot.environ)
    cap_loaded_libraries()
    sys.path[:] = path
    boot.settings.apply()
    if cwd is None:  # the parent's own was removed
        return
    try:
        os.chdir(cwd)
    except OSError:  # removed since; an env that needs it will raise its own error
        sys.stderr.write(f"vecenv: a worker found no folder {cwd}\n")


def running_modules() -> frozenset[str]:
    """Return the modules whose top-level code this thread is running; in a worker, only those that it imports."""
    return registrations.running_modules(until=worker_main.__code__)  # the frames below belong to a forked parent


def find_endless_import() -> str:
    """Return a module that this worker is importing and whose import created its pool; '' if there is none."""
    return min(_modules_of_pool & running_modules(), default="")


def _watch_parent(boot: Boot, control: Connection) -> None:
    """End this worker when the parent dies or executes another program.

    If the parent is already dead, and its pid free or in use by another process, kill the worker at once.
    """
    try:
        pidfd = Descriptor.of_process(boot.parent_pid).number
    except ProcessLookupError:  # silently, as at any other end of the parent
        os.killpg(0, signal.SIGKILL)
    if started_at(boot.parent_pid) != boot.parent_started:
        os.killpg(0, signal.SIGKILL)
    watch_parent = load().watch_parent if boot.implementation == "native" else parent_watch.watch_parent
    # both numbers belong to the watcher until this process ends
    watch_parent(boot.parent_pid, pidfd, os.dup(control.fileno()), boot.mark)


def recv_descriptor(control: Connection) -> Descriptor:
    """Receive the next descriptor that the other end of a socket has sent."""
    return Descriptor(reduction.recv_handle(control))


def make_slot(attach: Attach, slot: int, memory: Any, counters: Any, event_fd: int, waits: bool) -> Any:
    """Return the native end of one slot over a mapped arena and its counters."""
    native: Any = load()
    plan = attach.plan
    final = plan.obs.describe(plan.final_offsets) if plan.has_final else None
    return native.Slot(
        memory,
        counters,
        slot,
        event_fd,
        plan.obs.describe(plan.obs_offsets),
        final,
        plan.action.describe(plan.action_offsets, scratch=True),
        int(attach.autoreset),
        attach.spin_ns,
        waits,
        np.generic,
        np.ndarray,
        int(attach.infos),
    )


def _make_hosts(
    boot: Boot,
    attach: Attach,
    envs: dict[int, Any],
    rngs: GlobalRngs,
    control: Connection,
    log: LogSender,
    times: dict[int, tuple[int, int]],
) -> Served:
    memory, counters = (_map_segment(control, nbytes) for nbytes in (attach.plan.nbytes, attach.plan.counters.nbytes))
    timings = attach.plan.counters.timings(counters)
    if timings is not None:
        for env_id, (wall_ns, cpu_ns) in times.items():
            timings[env_id]["construct_ns"], timings[env_id]["construct_cpu_ns"] = wall_ns, cpu_ns
    wake = Descriptor()
    if boot.implementation == "native":
        wake = recv_descriptor(control)
        event_fd = wake.number
        log.notify = functools.partial(_set_notice, attach.plan.notice(memory), event_fd)
        slots = [make_slot(attach, slot, memory, counters, event_fd, True) for slot, _ in attach.slots]
        if attach.preferred_core is not None:
            pin(attach.preferred_core, slots)
    else:
        from ..fallback.socket import make_socket_slots

        slots = make_socket_slots(attach, memory, counters, control)
    hosts = [
        Host(slot, {env_id: envs[env_id] for env_id in env_ids}, attach.plan, attach.autoreset, rngs, attach.infos)
        for slot, (_, env_ids) in zip(slots, attach.slots)
    ]
    if boot.exception_limit is not None:
        _catch_exceptions(hosts, boot.exception_limit, boot, attach, rngs, timings)
    if boot.keeps_records or attach.restore_jobs:
        _enable_recovery(hosts, boot, attach, rngs)
    return Served(hosts, wake)


def _map_segment(control: Connection, nbytes: int) -> mmap.mmap:
    with contextlib.closing(recv_descriptor(control)) as descriptor:
        return mmap.mmap(descriptor.number, nbytes)


def _set_notice(notice: Array, event_fd: int) -> None:
    """Have the parent read the socket of this worker."""
    if not notice[0]:  # otherwise the parent was woken before, and has not read the socket since
        notice[0] = 1
        os.eventfd_write(event_fd, 1)


def _build(boot: Boot, rngs: GlobalRngs, env_id: int) -> Any:
    return build_env(load_with_main(boot.env_fns)[env_id], load_with_main(boot.adapt), rngs.of(env_id))


def _catch_exceptions(
    hosts: list[Host],
    limit: tuple[int, float],
    boot: Boot,
    attach: Attach,
    rngs: GlobalRngs,
    timings: Array | None,
) -> None:
    snapshotter: Snapshotter | None = load_with_main(boot.snapshotter)
    for host in hosts:
        caught = CaughtExceptions(limit, functools.partial(_build, boot, rngs), rngs, timings, snapshotter)
        for env_id, job in attach.restore_jobs.items():
            caught.note_earlier_failures(env_id, job.num_failures)
        host.catch_exceptions(caught, snapshotter)


def _enable_recovery(hosts: list[Host], boot: Boot, attach: Attach, rngs: GlobalRngs) -> None:
    snapshotter: Snapshotter | None = load_with_main(boot.snapshotter)

    def rebuild(env_id: int) -> Any:
        rngs.forget(env_id)
        return _build(boot, rngs, env_id)

    for host in hosts:
        if boot.keeps_records:
            host.keep_records(snapshotter)
        if attach.restore_jobs:
            host.restore(attach.restore_jobs, rebuild, snapshotter)


def _serve(threads: list[EnvThread], hosts: list[Host]) -> None:
    """Serve every host in its thread until the pool stops."""
    if len(hosts) > 1:
        # Envs that sleep share the GIL, and a short switch interval lets the next one run soon. It is not shorter,
        # because a
        # thread that waits for the GIL wakes up at every interval: 32 sleeping envs were 10 % slower with 0.1 ms.
        sys.setswitchinterval(1e-3)
    running = [thread.submit(host.serve) for thread, host in zip(threads[::-1], hosts[::-1])]
    for wait in running[::-1]:  # the main thread's call first, which runs only now
        wait()


def _close(threads: list[EnvThread], hosts: list[Host]) -> ExitReport:
    exit_report = ExitReport()
    for thread, host in zip(threads, hosts):
        try:
            thread.submit(host.close)()
        except BaseException as error:  # sent to the parent; the other envs are closed as well
            if exit_report.error is None:
                exit_report.error, exit_report.env_id = messages.pack_error(error), host.failed_to_close
    return exit_report


def describe_envs(env_ids: Sequence[int], first_env_id: int = 0) -> str:
    """Return, for a message, env ids in increasing order, such as 'envs 0-1899, 1901-1999'.

    Args:
        env_ids: ids within the pool.
        first_env_id: number of env 0 in messages.
    """
    env_ids = [first_env_id + env_id for env_id in env_ids]
    return f"env{'s' if len(env_ids) > 1 else ''} {ids_text(env_ids)}"


def worker_main(control: Connection, inherited: Sequence[Any] = (), shared: Sequence[Any] = ()) -> None:
    """Run one worker from its `Boot` message to its `ExitReport`.

    Args:
        control: the worker's end of the control socket.
        inherited: copies of the owners of the parent's descriptors, which are closed.
        shared: see `SharedObjects.inherited`.
    """
    with signals_deferred():  # once for all
        for owner in inherited:
            owner.close()
    mark = ""
    is_serving = False
    try:
        boot: Boot = control.recv()
        mark = boot.mark
        if boot.is_forked:
            exit_functions.forget_inherited()
        show_title(boot, boot.env_ids)
        enable_stack_dumps(recv_descriptor(control).number)
        note_pause()  # it shows that the process has come this far
        capture = OutputCapture([recv_descriptor(control) for _ in range(2)]) if boot.captures_output else None
        tokens = Tokens(recv_descriptor(control)) if boot.has_tokens else None
        receive_shared([recv_descriptor(control) for _ in range(boot.num_shared)], shared)
        _watch_parent(boot, control)
        _set_up_process(boot)
        log = LogSender(control)
        clear_handlers()
        log.install(boot.log_levels)
        import_server.repeat_output(boot.imports)
        threads = [EnvThread(number, boot.settings) for number in range(len(boot.env_ids_by_thread))]
        with GlobalRngs(boot.first_env_id, boot.rng_entropy) as rngs, torch_imports:
            rngs.fork_guard.install()
            served = prepare(boot, threads, rngs, control, log, capture, tokens)
            is_serving = True
            if served.hosts:
                serve(threads, served.hosts, control, log)
                send_exit(_close(threads, served.hosts), control, log)
        if boot.is_forked:
            for thread in threads:
                thread.end()
            del threads, served, rngs, log
            exit_functions.run_own()
    except (EOFError, ConnectionError, BrokenPipeError):
        # The parent has dropped this worker or is gone, and perhaps only this worker can end its processes.
        kill_tree(0, mark)
    except Exception as error:
        if is_serving:
            raise
        with contextlib.suppress(OSError):  # the parent has dropped this worker
            control.send_bytes(messages.dump(SetUpFailure(messages.pack_error(error))))


def show_title(boot: Boot, env_ids: Sequence[int]) -> None:
    """Show the number of the worker and its envs as the title of this process."""
    short = f"vecenv worker {boot.worker_id}"
    envs = describe_envs(env_ids, boot.first_env_id)
    set_title(f"{short}: {envs}", short if len(short) < 16 else f"vecenv w{boot.worker_id}")


def _measure(env_id: int, envs: dict[int, Any], rngs: GlobalRngs, times: dict[int, tuple[int, int]]) -> Measurement:
    """Measure an env and close it."""
    note_phase("measure", env_id)
    found: Measurement = rngs.call_swapped(env_id, measure_env, envs[env_id])
    found.construct_ns, found.draws = times[env_id][0], rngs.has_drawn(env_id)
    return found


def prepare(
    boot: Boot,
    threads: list[EnvThread],
    rngs: GlobalRngs,
    control: Connection,
    log: LogSender,
    capture: OutputCapture | None = None,
    tokens: Tokens | None = None,
) -> Served:
    """Build the envs of a pool, report on them, and map its arena.

    Args:
        boot: the first message of the pool.
        threads: that build and serve the envs.
        rngs: the RNG states of the envs.
        control: the socket to the pool.
        log: sends log records to the pool.
        capture: ends once the envs are built; None: the output is not captured.
        tokens: as for `Builder`.
    """
    envs, times, report = _construct(boot, threads, rngs, tokens)
    if tokens is not None:
        tokens.close()
    if report.num_envs < len(boot.env_ids) and report.error is None:
        show_title(boot, sorted(envs))
    if capture is not None:
        capture.end()
    if boot.worker_output == "none" and not boot.is_leased:  # later programs may want the output
        silence()
    report.files = note_modules()
    if boot.reports_all_files:
        report.files = noted_modules()
    end_start()
    with log.socket_lock:
        control.send_bytes(messages.dump(report))
    if report.error is not None:
        return Served([])
    if boot.measures:
        found = messages.dump(_measure(boot.env_ids[0], envs, rngs, times))
        with log.socket_lock:
            control.send_bytes(found)
        return Served([])
    if len(threads) > 1:
        rngs.disable_swapping(boot.env_ids[0])
    attach: Attach = control.recv()
    return _make_hosts(boot, attach, envs, rngs, control, log, times)


def serve(threads: list[EnvThread], hosts: list[Host], control: Connection, log: LogSender) -> None:
    """Serve the commands of a pool until it stops."""
    with log.socket_lock:
        control.send("ready")
    _serve(threads, hosts)


def send_exit(exit_report: ExitReport, control: Connection, log: LogSender) -> None:
    """Send the last message of a worker to its pool."""
    log.report_dropped()
    with log.socket_lock:
        control.send(exit_report)
