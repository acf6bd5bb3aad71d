"""An import server: a process that imports the modules of env factories once, and forks workers that have them.

    parent        requests a process from a fork server, with an `ImportOrder`
    import server sends one message per module before its import, then an `ImportReport`; then it serves requests, too
    worker        is forked from there, and finds the modules loaded

A forked process lacks the threads of its parent and cannot use its devices. So the server looks after each import
whether the module has left anything that a worker must have for itself. If it has, the server ends, and workers import
that module themselves. The main module of a program is never imported.

A worker must not notice where a module was imported. So the server imports under the settings that the worker would
have (environment, search path, random generators), and keeps the output and the log records of the imports. Each worker
that needs these modules writes them again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import logging.handlers
import os
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from ...gymnasium_api import registrations
from ..host.global_rngs import GlobalRngs
from ..system.blas_threads import cap_environment, cap_loaded_libraries
from ..system.descriptor import Descriptor
from ..system.fork_server import serve
from ..system.log_records import LogLevels
from ..system.module_files import ModuleFile, note_modules
from ..system.module_paths import Source, import_from
from ..system.output_capture import STREAMS, OutputCapture, write_output
from ..system.process_settings import working_directory
from ..system.process_title import set_title
from ..system.start_process import live_devices
from .shared_generators import entropy_watched, has_new_generator, live_generators

__all__ = [
    "ImportOrder",
    "ImportReport",
    "Surroundings",
    "imported_registrations",
    "is_importing",
    "repeat_output",
    "serve_imports",
    "settings_after_imports",
]

#: Environment variables that may have other values in the next pool, and on whose values no import depends: pytest sets
#: the first one in every test.
_CHANGING = ("PYTEST_CURRENT_TEST", "VECENV_IMPLEMENTATION")


@dataclass
class Surroundings:
    """The settings of a process that an import may depend on.

    Attributes:
        environ, cwd, path: environment variables, working directory (None: it was removed) and sys.path.
        argv: arguments of the program.
        changing: the variables on whose values no import depends; `environ` does not contain them.
    """

    environ: dict[str, str]
    cwd: str | None
    path: list[str]
    argv: list[str] = field(default_factory=lambda: list(sys.argv))
    changing: dict[str, str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.changing = {name: value for name, value in self.environ.items() if name in _CHANGING}
        self.environ = {name: value for name, value in self.environ.items() if name not in _CHANGING}


@dataclass
class ImportOrder:
    """The modules that an import server has to import, and under which settings.

    Attributes:
        modules: the modules, in the order of their imports.
        sources: the files of modules that the search path does not lead to, as `find_sources` returns them.
        log_levels: levels of the parent's loggers.
        gymnasium_level: level of Gymnasium's logger.
    """

    modules: list[str]
    sources: dict[str, Source]
    surroundings: Surroundings
    log_levels: LogLevels = field(default_factory=LogLevels.now)
    gymnasium_level: int = field(default_factory=registrations.log_level)


@dataclass
class ImportReport:
    """The result of the imports.

    Attributes:
        refused: the module after which no worker may be forked, and the reason; () if there is none.
        has_died: whether the reason is that the server died during the import.
        files: the files of all modules that were loaded, by name.
    """

    refused: tuple[str, ...] = ()
    has_died: bool = False
    files: dict[str, ModuleFile] = field(default_factory=dict)


@dataclass
class _Step:
    """The modules of one order, with their output as (stream, bytes), and their log records."""

    modules: frozenset[str]
    output: list[tuple[int, bytes]]
    records: list[logging.LogRecord]


@dataclass
class _Imported:
    """The state of this process after the imports; workers inherit it.

    Attributes:
        pid: the import server.
        environ, cwd, path: as the modules have left them; changing variables are in `environ` only if they set them.
        specs: the specs that the modules have registered with Gymnasium, by id.
    """

    pid: int
    environ: dict[str, str]
    cwd: str | None
    path: list[str]
    specs: dict[str, Any]
    steps: list[_Step]


#: In an import server and in its workers.
_imported: _Imported | None = None
_is_importing = False


# ---- for workers ---------------------------------------------------------------------------------


def settings_after_imports(
    environ: dict[str, str], cwd: str | None, path: list[str]
) -> tuple[dict[str, str], str | None, list[str]]:
    """Return the parent's environment variables, working directory and sys.path as the imports have changed them."""
    imported = _of_this_worker()
    if imported is None:
        return environ, cwd, path
    changing = {name: environ[name] for name in _CHANGING if name in environ}
    return {**changing, **imported.environ}, imported.cwd, imported.path


def imported_registrations() -> Mapping[str, Any]:
    """Return the specs that modules have registered with Gymnasium during their import, by id."""
    imported = _of_this_worker()
    return {} if imported is None else imported.specs


def repeat_output(modules: Collection[str]) -> None:
    """Write the output and the log records of the imports of these modules again, for this worker."""
    imported = _of_this_worker()
    for step in [] if imported is None else imported.steps:
        if not step.modules.isdisjoint(modules):
            for stream, data in step.output:
                write_output(stream, data)
            for record in step.records:
                logger = logging.getLogger(record.name)
                if logger.isEnabledFor(record.levelno):
                    logger.handle(record)


def _of_this_worker() -> _Imported | None:
    """Return the state of the import server that has forked this worker; None if another process has."""
    return _imported if _imported is not None and _imported.pid == os.getppid() else None


def is_importing() -> bool:
    """Return whether this process is an import server that is importing modules."""
    return _is_importing


# ---- the server ----------------------------------------------------------------------------------


def serve_imports(control: Connection, order: ImportOrder) -> None:
    """Run an import server until its parent ends or drops it.

    Args:
        control: for the messages to the parent, and then for its requests.
        order: the modules to import.
    """
    set_title("vecenv import server", "vecenv imports")
    try:
        report = _carry_out(order, control)
        control.send(report)
    except OSError:  # the parent has dropped this server or is gone
        return
    if not report.refused:
        requests = os.dup(control.fileno())
        control.close()
        serve(requests)


def _carry_out(order: ImportOrder, control: Connection) -> ImportReport:
    global _imported, _is_importing
    ids = set(registrations.registered_specs())
    _set_up(order.surroundings)
    note_modules(import_from(order.sources))
    registrations.ignore_overriding()
    registrations.set_log_level(order.gymnasium_level)
    records = logging.handlers.BufferingHandler(sys.maxsize)
    logging.root.handlers[:] = [records]
    order.log_levels.apply()
    _is_importing = True
    with _output_kept() as output, GlobalRngs() as rngs:
        for name in order.modules:
            control.send(name)
            reason = _import(name)
            if rngs.restore_neutral() and not reason:  # all workers of all runs would have the same values
                reason = "its import draws random values"
            if reason:
                return ImportReport((name, reason))
    _is_importing = False
    changing = order.surroundings.changing.items()
    specs = {env_id: spec for env_id, spec in registrations.registered_specs().items() if env_id not in ids}
    earlier = _imported
    _imported = _Imported(
        os.getpid(),
        {name: value for name, value in os.environ.items() if (name, value) not in changing},
        working_directory(),
        list(sys.path),
        {**({} if earlier is None else earlier.specs), **specs},
        [*([] if earlier is None else earlier.steps), _Step(frozenset(order.modules), output, records.buffer)],
    )
    return ImportReport(files=note_modules())


def _set_up(wanted: Surroundings) -> None:
    """Take over the settings of the parent; those that earlier imports have changed stay changed."""
    settings = _imported or wanted
    os.environ.clear()
    os.environ.update({**wanted.changing, **settings.environ})
    if _imported is None:
        cap_environment(1, {})  # no worker could be forked beside the threads that a library starts
        cap_loaded_libraries()
    sys.path[:] = settings.path  # `multiprocessing` has set another list
    if settings.cwd is not None:
        with contextlib.suppress(OSError):  # removed since; a worker reports that
            os.chdir(settings.cwd)


def _import(name: str) -> str:
    """Import a module; return why no worker may be forked after that, or ''."""
    descriptors, handlers, generators = _descriptors(), _signal_handlers(), live_generators()
    try:
        if importlib.util.find_spec(name.partition(".")[0]) is None:  # an optional one; its import in a worker raises
            return ""
        with entropy_watched() as takers:
            importlib.import_module(name)
    except BaseException as error:  # a worker raises it again, even a SystemExit
        return f"its import raises {type(error).__name__}"
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads > 1:
        return f"its import starts {num_threads - 1} threads"
    if live_devices():
        return f"its import initialises {live_devices()[0]}"
    if _has_children():
        return "its import starts a process"
    if _descriptors() - descriptors:
        return "its import leaves files open"
    if _signal_handlers() != handlers:
        return "its import sets a signal handler"
    if has_new_generator(generators):
        return f"{[*takers, name][0]} has a random generator"
    return f"{takers[0]} takes entropy when it is imported" if takers else ""


def _descriptors() -> set[int]:
    found = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the descriptor of the listed folder itself
            os.fstat(number)
            found.add(number)
    return found


def _signal_handlers() -> list[Any]:
    return [signal.getsignal(number) for number in sorted(signal.valid_signals())]


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@contextlib.contextmanager
def _output_kept() -> Iterator[list[tuple[int, bytes]]]:
    """Collect the standard output and error of this process, as (stream, bytes); the list is filled at the end."""
    found: list[tuple[int, bytes]] = []
    files = [open(Descriptor.of_memory("vecenv output").number, "rb") for _ in STREAMS]  # noqa: SIM115
    capture = OutputCapture([Descriptor(os.dup(file.fileno())) for file in files])
    try:
        yield found
    finally:
        capture.end()
        for stream, file in zip(STREAMS, files):
            with file:
                file.seek(0)
                data = file.read()
            if data:
                found.append((stream, data))
