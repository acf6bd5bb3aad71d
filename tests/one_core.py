"""Programs on one core, where a hand-over to workers is never free: it needs switches between processes."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

__all__ = ["run_on_one_core"]

#: Runs of a program whose report depends on the load of the core.
_MOST_RUNS = 5


def run_on_one_core(body: str, expected: str) -> list[str]:
    """Run a program whose process and workers may use one core; return the lines that it prints.

    Other programs may take the core from it, and its caller then looks like a slow policy. So the program uses the core
    with the least load, and runs up to five times until it prints the expected text.
    """
    for _ in range(_MOST_RUNS):
        begin = f"import os\nos.sched_setaffinity(0, {{{_least_busy_core()}}})\n"
        done = subprocess.run([sys.executable, "-c", begin + body], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        if expected in done.stdout:
            break
    return done.stdout.splitlines()


def _least_busy_core() -> int:
    """Return the core of this process that was idle for most of the last 0.2 s."""
    idle = [times.idle for times in psutil.cpu_times_percent(interval=0.2, percpu=True)]
    return max(os.sched_getaffinity(0), key=lambda core: idle[core] if core < len(idle) else 0.0)
