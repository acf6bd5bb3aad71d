"""The processes and the memory that the system has left for this user."""

from __future__ import annotations

import contextlib
import math
import os
import resource

import psutil

__all__ = ["memory_left", "processes_left"]


def processes_left() -> float:
    """Return how many more processes and threads this user may start; infinity where there is no limit."""
    found = [_left_in_cgroup("pids")]
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit != resource.RLIM_INFINITY and os.getuid():  # it does not hold for root
        others = psutil.process_iter(["uids", "num_threads"])
        mine = [one.info["num_threads"] for one in others if one.info["uids"] and one.info["uids"].real == os.getuid()]
        found.append(limit - sum(filter(None, mine)))
    return min(found)


def memory_left() -> float:
    """Return how many bytes of memory are available, as far as that is known."""
    cache = 0
    with contextlib.suppress(OSError), open("/sys/fs/cgroup/memory.stat") as file:
        cache = sum(int(line.split()[1]) for line in file if line.startswith("inactive_file "))
    return min(float(psutil.virtual_memory().available), _left_in_cgroup("memory") + cache)


def _left_in_cgroup(name: str) -> float:
    """Return the difference of NAME.max and NAME.current in the cgroup of this process; infinity without a limit."""
    try:
        with open(f"/sys/fs/cgroup/{name}.max") as limit, open(f"/sys/fs/cgroup/{name}.current") as current:
            return float(limit.read()) - float(current.read())
    except (OSError, ValueError):  # there is no such file, or the limit is 'max'
        return math.inf
