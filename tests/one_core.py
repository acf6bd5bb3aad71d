"""Programs on one core, where a hand-over to workers is never free: it needs switches between processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

__all__ = ["run_on_one_core"]

#: Seconds in which a program may run again, as its report depends on the load of the core.
_MOST_SECONDS = 60


def run_on_one_core(body: str, expected: str) -> list[str]:
    """Run a program whose process and workers may use one core; return the lines that it prints.

    Other programs may take the core from it, and its caller then looks like a slow policy. So the program uses the core
    with the least load, and runs again for up to a minute until it prints the expected text.
    """
    end = time.monotonic() + _MOST_SECONDS
    while True:
        begin = f"import os\nos.sched_setaffinity(0, {{{_least_busy_core()}}})\n"
        done = subprocess.run([sys.executable, "-c", begin + body], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        if expected in done.stdout or time.monotonic() > end:
            return done.stdout.splitlines()


def _least_busy_core() -> int:
    """Return the core of this process that was idle for most of the last 0.2 s."""
    idle = [times.idle for times in psutil.cpu_times_percent(interval=0.2, percpu=True)]
    return max(os.sched_getaffinity(0), key=lambda core: idle[core] if core < len(idle) else 0.0)
