"""Programs on one core, where a hand-over to workers is never free: it needs switches between processes."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["run_on_one_core"]


def run_on_one_core(body: str) -> list[str]:
    """Run a program whose process and workers may use one core; return the lines that it prints."""
    begin = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    done = subprocess.run([sys.executable, "-c", begin + body], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.splitlines()
