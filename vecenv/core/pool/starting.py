"""Pickle the constructors of envs; time limits and log lines while the envs of a pool are built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...errors import ConfigError, RemoteTraceback, VecenvError, WorkerDiedError
from ...own_log import own_logger
from ...values.pickling import dump_with_main
from ..parent.reports import ReportSchedule, report
from ..processes.worker import Worker, is_shortage
from ..system.clock import now_ns
from ..system.process_stat import run_delay_ns
from ..system.shared_objects import SharingError
from ..system.stack_dump import PhaseNote

__all__ = [
    "ConstructReports",
    "StartProgress",
    "StartLimits",
    "common_names",
    "is_lasting",
    "pickle_env_fns",
    "pickle_worker_init",
    "running_constructors",
]

_LOG = own_logger()
#: Seconds until the first line of the log about the progress; each further line comes after twice the time.
_FIRST_LINE_SECONDS = 5.0


def pickle_env_fns(
    env_fns: Sequence[Callable[[], Any]],
    env_ids: Iterable[int],
    reduce: Callable[[Any], Any],
    names: dict[str, Any] | None = None,
) -> bytes:
    """Return the pickle of {env_id: constructor} of these envs, as `pickling.dump_with_main` makes it.

    Args:
        env_fns: all constructors.
        env_ids: the envs.
        reduce: reduces objects of `multiprocessing`; see `shared_objects`.
        names: receives the classes and functions of `__main__` in the pickle, by name.

    Raises:
        ConfigError: a constructor cannot be pickled.
    """
    fns = {env_id: env_fns[env_id] for env_id in env_ids}
    try:
        return dump_with_main(fns, names, reduce)
    except Exception:  # find out which one it is
        for env_id, env_fn in fns.items():
            try:
                dump_with_main(env_fn, None, reduce)
            except Exception as error:
                advice = ". Build the env inside the function, from values that pickle"
                raise ConfigError(
                    f"env_fns[{env_id}] cannot be sent to a worker: {error}"
                    f"{'' if isinstance(error, SharingError) else advice}",
                    key="env_fns",
                ) from error
        raise


def pickle_worker_init(worker_init: Callable[[], object] | None, reduce: Callable[[Any], Any]) -> bytes:
    """Return the pickle of the function that workers call first, or of None; `reduce` as for `pickle_env_fns`.

    Raises:
        ConfigError: it cannot be pickled.
    """
    try:
        return dump_with_main(worker_init, None, reduce)
    except Exception as error:
        raise ConfigError(f"worker_init cannot be sent to a worker: {error}", key="worker_init") from error


def common_names(names: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the objects that have the same name everywhere.

    Args:
        names: objects by their names, for each process; see `pickle_env_fns`.
    """
    return {name: value for name, value in names[0].items() if all(one.get(name) is value for one in names)}


def is_lasting(error: Exception) -> bool:
    """Return whether no other attempt to start a successor is made after this exception, until `Pool.restart`.

    Exceptions of constructors, other spaces and hangs are lasting. Deaths, shortages (also in a constructor) and
    exceptions of signal handlers are not: the next call tries again.
    """
    if isinstance(error, WorkerDiedError) or is_shortage(error):
        return False
    return isinstance(error, VecenvError) or isinstance(error.__cause__, RemoteTraceback)


class StartProgress:
    """Shows in the log how far a start is, if that takes long: after 5 s, 10 s, 20 s and so on.

    Args:
        total: number of parts that are started.
        what: names them in the line, such as 'envs are built'.
        is_regular: whether a line is written every 5 s instead.
    """

    def __init__(self, total: int, what: str = "envs are built", *, is_regular: bool = False) -> None:
        self._total = total
        self._what = what
        self._is_regular = is_regular
        self._began_ns = now_ns()
        self._next_seconds = _FIRST_LINE_SECONDS

    def show(self, count: Callable[[], int], describe: Callable[[], str] = str) -> None:
        """Write a line if one is due; `count` returns how many parts are ready, `describe` the end of the line."""
        seconds = (now_ns() - self._began_ns) / 1e9
        if seconds < self._next_seconds:
            return
        while self._next_seconds <= seconds:
            self._next_seconds += _FIRST_LINE_SECONDS if self._is_regular else self._next_seconds
        _LOG.warning("%d of %d %s after %.0f s%s", count(), self._total, self._what, seconds, describe())


class ConstructReports:
    """Reports constructors that have no limit: after 10 s, after 60 s, and then every 10 minutes."""

    def __init__(self) -> None:
        self._schedules: dict[tuple[int, int], ReportSchedule] = {}  # keys: worker_id and env_id

    def show(self, worker: Worker, more_ns: int) -> None:
        """Report the oldest constructor of a worker if that is due, `more_ns` nanoseconds after the last call."""
        running = running_constructors(worker.notes())
        if not running:
            return
        env_id = running[0].env_id
        schedule = self._schedules.setdefault((worker.worker_id, env_id), ReportSchedule())
        if schedule.is_due(more_ns):
            stack = worker.stack.request(worker.pid)
            report(
                f"{worker.name}: construct of env {worker.first_env_id + env_id} has been running for "
                f"{schedule.counted_ns / 1e9:.1f} s and has no limit. Set timeouts={{'construct': ...}}, in "
                "seconds: a longer start then raises TimeoutError"
                f"{chr(10) if stack else ''}{stack}"
            )


def running_constructors(notes: Iterable[PhaseNote | None]) -> list[PhaseNote]:
    """Return the notes of the constructors that run at present, of those of a worker's threads, the oldest first."""
    running = [note for note in notes if note is not None and note.phase == "construct"]
    return sorted(running, key=lambda note: note.began_ns)


class StartLimits:
    """The time limits of workers that build their envs: each constructor has its own.

    The start of a process has the same limit until its first constructor begins, and so has the time between its last
    constructor and its report. A worker without a file for notes has one limit, multiplied by the number of its envs.
    The time for which a worker waits for a core does not count: many workers may build their envs at the same time.

    Args:
        limit: seconds; None for no limit.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._began_ns: dict[int, int] = {}  # begin of the wait for a worker, by pid
        self._stops: list[tuple[int, int]] = []  # (end, length) of the times in which this process was stopped

    def of(self, worker: Worker) -> float | None:
        """Return the limit in seconds that holds for this worker at present; None for no limit."""
        has_notes = not worker.stack.fd.closed
        return self._limit if self._limit is None or has_notes else self._limit * len(worker.env_ids)

    def exclude(self, stopped_ns: int) -> None:
        """Do not count the last `stopped_ns` nanoseconds, in which this process was stopped."""
        if stopped_ns:
            self._stops.append((now_ns(), stopped_ns))

    def is_over(self, worker: Worker) -> bool:
        """Return whether a constructor of this worker, or its start, has taken longer than the limit."""
        limit = self.of(worker)
        if limit is None:
            return False
        notes = [note for note in worker.notes() if note is not None]
        running = running_constructors(notes)
        began_ns = running[0].began_ns if running else max((note.began_ns for note in notes), default=0)
        began_ns = max(began_ns, self._began_ns.setdefault(worker.pid, now_ns()))
        stopped_ns = sum(min(length, end - began_ns) for end, length in self._stops if end > began_ns)
        passed_ns = now_ns() - began_ns - stopped_ns
        return passed_ns >= limit * 1e9 and passed_ns - run_delay_ns(worker.pid) >= limit * 1e9
