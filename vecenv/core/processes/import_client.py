"""The parent's end of import servers: start one, and choose the one that starts a worker.

A program has one import server at a time. Further modules are imported by a server that the present one forks, so a
module is imported once. A new server is started without that if a file of its modules, an environment variable, the
working directory, sys.path or the limit of threads has changed; `PYTEST_CURRENT_TEST`, which has another value in every
test, does not count. A pool keeps the server of its workers until it is closed: successors of these workers have the
same code, even if the files have changed. A server that is neither the present one nor that of a pool ends.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from ...own_log import own_logger
from ..system.clock import Deadline
from ..system.fork_server import ForkServer
from ..system.module_files import ModuleFile, stamp_of
from ..system.module_paths import Source, file_of
from ..system.process_stat import has_proc
from ..system.process_tree import kill_tree
from ..system.signals import signals_deferred
from ..system.start_process import disown, standard_descriptors, start_process
from .import_server import ImportOrder, ImportReport, Surroundings, serve_imports

__all__ = ["prepare_server"]

_LOG = own_logger()
#: How long the imports of one server may take, in seconds. After that, workers import the modules themselves.
_IMPORT_SECONDS = 60.0
_POLL_SECONDS = 0.1
#: Further servers that are started for a module after one has died during its import.
_MOST_RETRIES = 3


@dataclass
class _ImportServer:
    """An import server that is ready; without `server`, none is.

    Attributes:
        modules: the modules that it has imported.
        files: the files of all modules that it has loaded for that, by name.
    """

    surroundings: Surroundings
    server: ForkServer | None = None
    modules: frozenset[str] = frozenset()
    files: dict[str, ModuleFile] = field(default_factory=dict)

    def fits(self, surroundings: Surroundings) -> bool:
        """Return whether the server may stand for imports under these settings, of the files that the program has."""
        return (
            self.server is not None
            and not self.server.is_stopped
            and self.surroundings == surroundings
            and all(
                stamp_of(file.path) == file.stamp and file_of(sys.modules.get(name)) in ("", file.path)
                for name, file in self.files.items()
            )
        )


_current: _ImportServer | None = None
#: Modules that no import server may import, and the reasons.
_refused: dict[str, str] = {}
#: Held while a server is prepared. A pool of another thread does not wait for that.
_lock = threading.Lock()


def _reset_in_child() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


def prepare_server(
    modules: frozenset[str],
    imports: Collection[str],
    sources: Mapping[str, Source],
    surroundings: Surroundings,
    timeout: float | None,
    check_not_closing: Callable[[], None],
) -> ForkServer | None:
    """Return an import server that has imported these modules; start one if needed.

    Args:
        modules: modules of this package that it imports before.
        imports: modules of the env factories, as `find_env_modules` returns them.
        sources: the files of modules that the search path does not lead to, as `find_sources` returns them.
        surroundings: settings of the workers.
        timeout: seconds that the imports may take.
        check_not_closing: raises if the pool is being closed.

    Returns:
        The server. None: workers have to be started by another one and to import the modules themselves.
    """
    global _current
    if not has_proc():  # threads and files that an import leaves could not be found
        return None
    num_deaths: Counter[str] = Counter()  # keys: modules
    retries_end = Deadline(timeout)
    if not _lock.acquire(blocking=False):
        return None
    try:
        while wanted := set(imports) - _refused.keys():
            earlier = _current if _current is not None and _current.fits(surroundings) else _ImportServer(surroundings)
            missing = wanted - earlier.modules
            if not missing:
                return earlier.server
            server = _start(ImportOrder(sorted(missing), dict(sources), surroundings), modules, earlier.server)
            if server is None:
                return None
            deadline = Deadline(min(timeout or _IMPORT_SECONDS, _IMPORT_SECONDS))
            report = _await_report(server, deadline, check_not_closing)
            if report.refused:
                name, reason = report.refused
                num_deaths[name] += report.has_died
                if report.has_died and num_deaths[name] <= _MOST_RETRIES and not retries_end.is_over():
                    what = f"during the import of module {name!r}" if name else "before its first import"
                    _LOG.warning("the import server died %s; another one is started", what)
                    continue
                if not name:  # it was killed before it began
                    return None
                package = name.partition(".")[0]
                # Most others import the same parts. Each that is refused, too, would cost the imports of a server.
                others = [one for one in wanted - {name} if one.partition(".")[0] == package]
                _refused.update(dict.fromkeys([name, *others], reason))
                also = f" and {len(others)} others of its package" if others else ""
                _LOG.info("workers import module %r%s themselves: %s", name, also, reason)
                continue
            files = {**earlier.files, **report.files}
            _current = _ImportServer(surroundings, server, earlier.modules | missing, files)
            return server
        return None
    finally:
        _lock.release()


def _start(order: ImportOrder, modules: frozenset[str], earlier: ForkServer | None) -> ForkServer | None:
    """Start an import server; None if the system has no process or descriptor left: a worker's start reports that."""
    with signals_deferred(), standard_descriptors():
        try:
            ours, theirs = multiprocessing.Pipe()
            with theirs:
                name = "vecenv import server"
                process = start_process("forkserver", serve_imports, (theirs, order), name, modules, earlier)
        except (OSError, EOFError):
            return None
        disown(process)  # it ends with its connection
        return ForkServer(ours, process.pid)


def _await_report(server: ForkServer, deadline: Deadline, check_not_closing: Callable[[], None]) -> ImportReport:
    """Wait for the end of the imports of a server; the server is killed unless it can be used."""
    report, name = None, ""
    try:
        while report is None:
            check_not_closing()
            if deadline.is_over():
                report = ImportReport((name, "its import has not ended in time"))
            elif wait([server.connection], _POLL_SECONDS):
                message = server.connection.recv()
                report, name = (message, name) if isinstance(message, ImportReport) else (None, message)
    except (EOFError, ConnectionError):
        report = ImportReport((name, "the process ends during its import"), has_died=True)
    finally:
        with signals_deferred():
            if report is None or report.refused:
                kill_tree(server.pid)
                server.stop()
    return report
