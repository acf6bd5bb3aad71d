"""Fixtures of all tests: the leak guard, start methods, implementations."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from vecenv.core.layout.native import load
from vecenv.core.parent import reports
from vecenv.core.recovery import recycling
from vecenv.core.system import fork_server, stack_dump

from . import inside
from .skips import job_of

# Every process that a test starts inherits this, so strays are known that have lost their parent.
_MARK = f"VECENV_TEST_RUN={uuid.uuid4()}"
os.environ.update([_MARK.split("=")])

# The longest wait for processes that are ending; only leftovers wait that long.
_GRACE_SECONDS = 10.0

_SHM = Path("/dev/shm")

# A socket's path has 107 characters, the last 32 of which are multiprocessing's: /pymp-xxxxxxxx/listener-xxxxxxxx
_LONGEST_FOLDER = 75

if load() is None:  # the fallback is chosen, so that programs of tests do not report it on the standard error
    os.environ.setdefault("VECENV_IMPLEMENTATION", "python")


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Redirect the system's temporary folder (reproducers above all) to pytest's.

    The programs that tests start inherit it. Fork servers have their sockets there, whose paths are short.
    """
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        if len(folder) <= _LONGEST_FOLDER:
            patch.setenv("TMPDIR", folder)
            patch.setattr(tempfile, "tempdir", None)  # found before
        yield


@pytest.fixture(params=["forkserver", "spawn", "fork"])
def start_method(request: pytest.FixtureRequest) -> str:
    """Each way to start a process; for tests where the way matters."""
    return str(request.param)


@pytest.hookimpl(tryfirst=True)  # before slow and extended tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, and the extended ones: of a parametrised test only the first parameter set is not extended.

    The same holds for a test that several classes inherit. Fault tests of the fallback are slow, except the lossless
    ones: both implementations share recovery. With the fallback in workers and with shards, further parameter sets of
    a test are slow, except those of streams and kills: the fallback makes the same rows in this process, and
    `core/shards/test_frames.py` sends each kind of row.
    """
    functions: set[object] = set()
    further: set[object] = set()
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        function = item.function if isinstance(item, pytest.Function) else item.nodeid.partition("[")[0]
        engine = _engine_of(params)
        is_fallback = "python" in engine and load() is not None
        if is_fallback and item.path.parent.name == "faults" and item.path.name != "test_lossless.py":
            item.add_marker(pytest.mark.slow)
        if engine[:1] in SHARDED or (is_fallback and "serial" not in engine and "SerialPool" not in engine):
            if (function, engine) in further and not _is_of_streams(item):
                item.add_marker(pytest.mark.slow)
            further.add((function, engine))
        if item.get_closest_marker("slow") is None:
            if function in functions or is_fallback:
                item.add_marker(pytest.mark.extended)
            else:
                functions.add(function)


def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collections: a full one takes half a second with all of them."""
    gc.collect()
    gc.freeze()


#: Engines of `contracts/test_pool.py` with shards.
SHARDED = (("sharded_pool",), ("sharded_serial_pool",))


def _engine_of(params: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of engine, backend and implementation among the parameters of a test."""
    chosen = [params[name] for name in ("open_pool", "backend", "implementation") if name in params]
    parts = [part for one in chosen for part in (one if isinstance(one, tuple) else (one,))]
    return tuple(str(getattr(part, "__name__", part)) for part in parts)


def _is_of_streams(item: pytest.Item) -> bool:
    """Return whether a test kills workers at random moments, or compares streams."""
    names = (
        *("test_determinism.py", "test_fuzz.py", "test_lossless.py", "test_recv_envs.py"),
        "test_sharded_engine.py",
    )
    return item.path.name in names or item.path.parent.name == "isolated"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skips a test which no job runs, or which this job must run; see `skips.py`."""
    if session.exitstatus == pytest.ExitCode.OK and _wrong_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the skips that fail the run."""
    for place, reason in _wrong_skips(terminalreporter.config):
        terminalreporter.write_line(f"{place}: wrongly skipped, see tests/skips.py: {reason}", red=True)


def _wrong_skips(config: pytest.Config) -> list[tuple[str, str]]:
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None:  # this is a worker of pytest-xdist, whose reports are sent to the main process
        return []
    found = []
    for report in reporter.stats.get("skipped", ()):
        path, line, reason = report.longrepr
        if job_of(reason) in (None, os.environ.get("VECENV_TEST_JOB")):
            found.append((f"{path}:{line}", reason))
    return found


@pytest.fixture(params=["native", "python"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each implementation of the engine, C and Python; for tests of contracts that both keep."""
    if request.param == "native" and load() is None:
        pytest.skip("the extension was not built")
    monkeypatch.setenv("VECENV_IMPLEMENTATION", request.param)
    return str(request.param)


@pytest.fixture
def patient_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for the stack of a hung worker, for busy machines."""
    monkeypatch.setattr(stack_dump, "_REPLY_SECONDS", 20.0)
    monkeypatch.setattr(stack_dump, "_POLL_SECONDS", 0.2)  # it is complete when it has not grown for so long


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A main fork server of its own, which starts with the next worker and ends with the test."""
    monkeypatch.setattr(fork_server, "_main", None)
    yield
    fork_server.main_server().stop()


@pytest.fixture
def report_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the number of seconds after which an operation without a limit is reported, once."""
    return lambda seconds: monkeypatch.setattr(reports, "_REPORT_SECONDS", (seconds, 600.0))


@pytest.fixture
def recycles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for workers to recycle before each request."""
    monkeypatch.setattr(recycling, "_POLL_NS", 0)


@pytest.fixture(autouse=True)
def leak_guard() -> Iterator[None]:
    """Fail a test that leaves a process, a shared-memory entry, a descriptor or a thread."""
    before = _ProcessResources.now()
    yield
    left = before.find_leaks()
    if left:
        gc.collect()  # an exception kept by pytest.raises holds frames, and the frames hold pools
        left = before.find_leaks(grace=_GRACE_SECONDS)
    if left:
        for process in before.new_processes():  # later tests are not disturbed by it
            process.kill()
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@dataclass(frozen=True)
class _ProcessResources:
    """The resources of this process at one moment."""

    pids: frozenset[int]
    segments: frozenset[str]
    descriptors: dict[int, str]
    threads: frozenset[threading.Thread]

    @classmethod
    def now(cls) -> _ProcessResources:
        return cls(frozenset(psutil.pids()), _segments(), _descriptors(), frozenset(threading.enumerate()))

    def find_leaks(self, grace: float = 0.0) -> list[str]:
        """Describe the resources that exist now and did not exist then."""
        leaks = [f"process {_describe(process)}" for process in self.new_processes(grace)]
        for thread in set(threading.enumerate()) - self.threads:
            thread.join(grace)
            if thread.is_alive():
                leaks.append(f"thread {thread.name}")
        leaks += [f"segment {name}" for name in self.new_segments(grace)]
        for number, target in _descriptors().items():
            if self.descriptors.get(number) != target:
                leaks.append(f"descriptor {number} -> {target}")
        return leaks

    def new_processes(self, grace: float = 0.0) -> list[psutil.Process]:
        """Processes of this test that are still there after `grace` seconds."""
        fresh = set(psutil.pids()) - self.pids - _helpers()
        if not fresh:  # this is usual; a search for children takes ten times as long
            return []
        children = {child.pid for child in psutil.Process().children(recursive=True)}
        suspects = []
        for pid in fresh:
            if pid in children or _is_marked(pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    suspects.append(psutil.Process(pid))
        return psutil.wait_procs(suspects, timeout=grace)[1]

    def new_segments(self, grace: float = 0.0) -> list[str]:
        """Segments of this test that are still there after `grace` seconds.

        One that another program is about to map looks like one of ours until it does.
        """
        until = time.monotonic() + grace
        while left := [name for name in sorted(_segments() - self.segments) if not _is_foreign(name)]:
            if time.monotonic() >= until:
                break
            os.sched_yield()
        return left


def _helpers() -> set[int]:
    """Pids of the fork servers and the resource tracker, which live as long as the interpreter does."""
    ours = [server.pid for server in inside.own_fork_servers()]
    pids = (*ours, inside.program_fork_server_ids()[0], inside.resource_tracker_ids()[0])
    return {pid for pid in pids if pid is not None}


def _helper_descriptors() -> set[int]:
    """Ends of the connections to them: opened at the first start of a process, then kept."""
    ours = [server.connection.fileno() for server in inside.own_fork_servers()]
    ends = (*ours, *inside.program_fork_server_ids()[1:], inside.resource_tracker_ids()[1])
    return {end for end in ends if end is not None}


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the one that listdir itself had open
            pass
    return {number: target for number, target in found.items() if number not in _helper_descriptors()}


def _segments() -> frozenset[str]:
    return frozenset(os.listdir(_SHM)) if _SHM.is_dir() else frozenset()


def _is_marked(pid: int) -> bool:
    """Whether a test of this run started the process, directly or not."""
    try:
        return _MARK.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _is_foreign(segment: str) -> bool:
    """Whether a process that is not ours uses the segment; other programs share /dev/shm.

    Memory is compared by inode: a semaphore is mapped before it gets its name.
    """
    try:
        mapped = re.compile(rf" {os.stat(_SHM / segment).st_ino} +{_SHM}/")
    except FileNotFoundError:
        return True
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    for pid in set(psutil.pids()) - ours:
        try:
            if mapped.search(Path(f"/proc/{pid}/maps").read_text()) and not _is_marked(pid):
                return True
        except OSError:
            pass
    return not (_SHM / segment).exists()


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)
