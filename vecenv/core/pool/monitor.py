"""The parts of a pool that `vecenv top` needs: which worker serves which slot, and the file that announces the pool.

    Pool       counters and file ->  /proc/PID/fd/N, <folder>/PID-START-NUMBER.json      layout/counters
    Workers    counters          ->  the same memory                                     system/monitor_files
    top        reads both, and opens the memory for reading only

No thread and no socket is needed. While no program reads, the pool does no work for this.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..layout.counters import COUNTERS_VERSION, CountersPlan
from ..processes.worker import Worker
from ..system.clock import now_ns
from ..system.monitor_files import MonitorFile
from ..system.segment import Segment, private_segment
from ..system.signals import signals_deferred

__all__ = ["WorkerTable", "announce", "open_counters"]


class WorkerTable:
    """The words of the counters that the parent writes: the workers, and the slot of each env.

    Args:
        plan: layout of the counters.
        memory: of the counters.
    """

    def __init__(self, plan: CountersPlan, memory: Any) -> None:
        self._workers = plan.workers(memory)
        self._slot_of_env = plan.slot_of_env(memory)
        self._header = plan.header(memory)
        self._at = list(plan.words).index("num_replaced")

    def note_workers(self, workers: Iterable[Worker], slot_of_env: Sequence[int]) -> None:
        """Write that these workers serve from now on; count those whose worker_id had another process before."""
        self._slot_of_env[:] = slot_of_env
        for worker in workers:
            known = self._workers[self._workers["pid"] != 0]
            self._header[self._at] += int(worker.worker_id in known["worker_id"])
            for slot in worker.slots:
                self.note_slot(slot, worker.pid, worker.started, worker.worker_id, worker.stack.fd.number)

    def note_slot(self, slot: int, pid: int, started: str, worker_id: int = 0, stack_fd: int = -1) -> None:
        """Write which process serves a slot; see `layout.counters` for the order."""
        row = self._workers[slot]
        row["pid"] = 0
        row["started"], row["worker_id"], row["stack_fd"] = int(started or 0), worker_id, stack_fd
        row["pid"] = pid


def announce(plan: CountersPlan, counters: Segment, name: str, backend: str) -> MonitorFile:
    """Write the file of an open pool; `name` is that of the envs, `backend` 'process', 'serial' or 'shards'."""
    memory = os.fstat(counters.fd.number)
    return MonitorFile(
        {
            "layout": COUNTERS_VERSION,
            "descriptor": counters.fd.number,
            "device": memory.st_dev,
            "inode": memory.st_ino,
            "num_envs": plan.num_envs,
            "num_slots": plan.num_slots,
            "is_timed": plan.is_timed,
            "name": name,
            "backend": backend,
        }
    )


def _ignore(*args: object, **values: object) -> None:
    """Do nothing: there is nothing to prepare, or no announcement."""


def open_counters(
    owner: object,
    plan: CountersPlan,
    name: str,
    backend: str,
    *,
    is_native: bool,
    is_announced: bool,
    prepare: Callable[[Any], object] = _ignore,
) -> tuple[Any, Callable[..., object], Callable[[], object]]:
    """Return the memory of counters that only this process writes, and functions that change and end the announcement.

    Args:
        owner: the announcement ends with this object at the latest.
        plan, name, backend: as for `announce`.
        is_native: as in the header.
        is_announced: whether the pool is announced.
        prepare: called with the memory before that.

    Returns:
        The memory; `MonitorFile.update`; a function that ends the announcement.
    """
    if not is_announced:
        memory = private_segment(plan.nbytes)
        plan.write_header(memory, is_native=is_native, opened_ns=now_ns())
        prepare(memory)
        return memory, _ignore, _ignore
    with signals_deferred():
        segment = Segment.in_memory("vecenv-counters", plan.nbytes)
        plan.write_header(segment.memory, is_native=is_native, opened_ns=now_ns())
        prepare(segment.memory)
        file = announce(plan, segment, name, backend)
        return segment.memory, file.update, weakref.finalize(owner, _end, segment, file)


def _end(counters: Segment, file: MonitorFile) -> None:
    file.remove()
    counters.fd.close()
