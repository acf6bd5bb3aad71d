"""The parts of a pool that `vecenv top` needs: which worker serves which slot, and the file that announces the pool.

    Pool       counters and file ->  /proc/PID/fd/N, <folder>/PID-START-NUMBER.json      layout/counters
    Workers    counters          ->  the same memory                                     system/monitor_files
    top        reads both, and opens the memory for reading only

No thread and no socket is needed. While no program reads, the pool does no work for this.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from ..layout.counters import COUNTERS_VERSION, CountersPlan
from ..processes.worker import Worker
from ..system.monitor_files import MonitorFile
from ..system.segment import Segment

__all__ = ["WorkerTable", "announce", "end_monitor"]


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


def end_monitor(counters: Segment, file: MonitorFile) -> None:
    """Remove the file of a pool whose process owns the counters, and close their descriptor."""
    file.remove()
    counters.fd.close()
