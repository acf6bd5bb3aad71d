"""Find the workers whose constructors wait for something, such as a server, so that others can build their envs, too.

A constructor that computes gets no faster in a further process: all of them share the cores. One that waits does not
use a core, so that many of them can wait at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import psutil

from ..processes.worker import Worker, room_for_descriptors
from ..system.clock import now_ns
from ..system.process_stat import busy_ns, state_of
from ..system.process_tree import find_tree
from ..system.room import memory_left, processes_left
from .starting import running_constructors

__all__ = ["ConstructorWatch", "room_for"]

#: Envs are given to other workers if the constructors that a worker has not begun would wait for this many nanoseconds.
_LEAST_GAIN_NS = 5_000_000_000
#: Shortest time between two measurements of a worker, in nanoseconds.
_LEAST_NS = 50_000_000
#: The part of the processes and of the memory that are left which further workers may use.
_MOST_USED = 0.5


class _Times:
    """Measured times of one worker since it was seen within a constructor first.

    Args:
        worker: the worker.
        num_done: the number of envs that it has built before.

    Attributes:
        passed_ns: the time that has passed, in nanoseconds.
        waited_ns: the part in which it had no core and wanted none.
    """

    def __init__(self, worker: Worker, num_done: int) -> None:
        self.passed_ns = self.waited_ns = 0
        self._pid = worker.pid
        self._num_before = num_done
        self._at_ns = now_ns()
        self._busy_ns = busy_ns(worker.pid)

    def measure(self) -> None:
        """Add the time since the last measurement, if that was not just now."""
        now, busy = now_ns(), busy_ns(self._pid)
        passed_ns = now - self._at_ns
        if passed_ns < _LEAST_NS:
            return
        if state_of(self._pid) in ("S", "R"):  # it waits neither for a disk nor for a debugger
            self.waited_ns += max(0, passed_ns - (busy - self._busy_ns))
        self.passed_ns += passed_ns
        self._at_ns, self._busy_ns = now, busy

    def waited_per_env(self, num_done: int) -> float:
        """Return the mean time that a constructor has waited, in nanoseconds; `num_done` envs are built now."""
        return self.waited_ns / (num_done - self._num_before + 1)


class ConstructorWatch:
    """Measures how long the constructors of workers wait, without a core and without the need for one."""

    def __init__(self) -> None:
        self._times: dict[int, _Times] = {}  # keys: pid

    def find_waiting(self, workers: Iterable[Worker]) -> list[Worker]:
        """Return the workers whose constructors wait, and which have many others to run.

        A constructor waits if it has used, or wanted, a core in less than half of the time since the first call. Its
        worker is returned if the envs that it has not begun to build would wait for five seconds more. Call this
        regularly, for example every 0.1 s.
        """
        return [worker for worker in workers if worker.tokens is not None and self._waits(worker)]

    def _waits(self, worker: Worker) -> bool:
        running = running_constructors(worker.notes())
        if not running:
            return False
        num_done = running[0].num_done
        if worker.pid not in self._times:
            self._times[worker.pid] = _Times(worker, num_done)
        times = self._times[worker.pid]
        times.measure()
        gain_ns = times.waited_per_env(num_done) * worker.num_left()
        if 2 * times.waited_ns <= times.passed_ns or gain_ns < _LEAST_GAIN_NS:
            return False
        seen = _activity_of(worker)
        if _waits_for_a_child(worker):
            del self._times[worker.pid]
            return False
        # If it has run meanwhile, it may have started a process after the others were looked for.
        return seen[0] == "S" and seen == _activity_of(worker)


def _activity_of(worker: Worker) -> tuple[str, int]:
    """Return the state of a worker's process, and its CPU time in nanoseconds."""
    return state_of(worker.pid), busy_ns(worker.pid)


def _waits_for_a_child(worker: Worker) -> bool:
    """Return whether a process that the worker has started computes now, or reads from a disk."""
    found = find_tree(worker.pid, worker.mark, worker.started or "0")
    return any(state_of(pid) in ("R", "D") for pid in found if pid != worker.pid)


def room_for(workers: Sequence[Worker]) -> tuple[int, str]:
    """Return the number of further workers like these for which there is room, and the name of the limit.

    The further workers leave half of the available memory, and half of the processes that the user may still start.
    """
    num_threads, private = 1, 1
    for worker in workers:
        try:
            process = psutil.Process(worker.pid)
            num_threads = max(num_threads, process.num_threads())
            private = max(private, process.memory_full_info().uss)
        except psutil.Error:  # it has died
            continue
    room = {
        "descriptors": float(room_for_descriptors()),
        "processes": _MOST_USED * processes_left() / num_threads,
        "memory": _MOST_USED * memory_left() / private,
    }
    name = min(room, key=lambda one: room[one])
    return max(0, math.floor(min(room[name], 1e6))), name
