"""The time of a switch from one process to another on one core: the unit of round trips.

Three processes on two cores do little else in a round of null envs, so a row in microseconds says as much about the
machine as about the library.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

__all__ = ["switch_us"]

_YIELD = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: os.sched_yield()"
_NUM_YIELDS = 5000


def switch_us() -> float:
    """Return the median time of a switch in microseconds: half of the time of a yield to another process."""
    core = min(os.sched_getaffinity(0))
    times = []
    with _yielding_on(core):
        now = time.perf_counter()
        for _ in range(_NUM_YIELDS):
            os.sched_yield()
            before, now = now, time.perf_counter()
            times.append(now - before)
    return 1e6 * statistics.median(times) / 2


@contextlib.contextmanager
def _yielding_on(core: int) -> Iterator[None]:
    """Share this core with a process that does nothing but yield."""
    other = subprocess.Popen([sys.executable, "-c", _YIELD, str(core)], stdout=subprocess.PIPE)
    before = os.sched_getaffinity(0)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        os.sched_setaffinity(0, {core})
        yield
    finally:
        os.sched_setaffinity(0, before)
        other.kill()
        other.communicate()
