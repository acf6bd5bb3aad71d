"""Programs: the sources for tests of whole processes, and checks of their leftovers."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from vecenv.core.system.clock import Deadline

#: Warnings of the log, such as of a start that takes more than 5 s, would appear among errors.
LINES = """
    import logging, os, sys, signal
    from vecenv.core.options import Limits, PoolOptions
    from vecenv.core.pool.process import ProcessPool
    from vecenv.envs import toys
    import numpy as np
    logging.getLogger("vecenv").setLevel(logging.ERROR)
    def segments():
        return sum(name.startswith(f"vecenv-{os.getpid()}-") for name in os.listdir("/dev/shm"))
    def start(env_fn=toys.CountEnv, num_envs=4, context="forkserver", num_workers=2, **limits):
        options = PoolOptions(num_workers=num_workers, context=context, limits=Limits(**limits))
        pool = ProcessPool([env_fn] * num_envs, options)
        pool.start()
        pool.reset()
        pool.recv().raise_errors()
        return pool
"""


def program(body: str) -> str:
    """Return a program with pools in it."""
    return textwrap.dedent(LINES) + textwrap.dedent(body)


MORE = """
    from vecenv.core.options import PoolFailurePolicy
    def recovering(num_envs=4, env_fn=toys.CountEnv, context="forkserver", num_workers=2):
        failures = PoolFailurePolicy(on_failure="recover", max_restarts=10000)
        options = PoolOptions(num_workers=num_workers, context=context, failures=failures, limits=Limits(close=1.0))
        pool = ProcessPool([env_fn] * num_envs, options)
        pool.start()
        pool.reset()
        pool.recv().raise_errors()
        return pool
    def kill_worker(pool, worker_id):
        os.kill(pool.worker_pids[worker_id], signal.SIGKILL)
        for _ in range(3):
            pool.send(np.zeros(pool.num_envs, np.int64))
            pool.recv().raise_errors()
"""


def recovering(body: str) -> str:
    """Return a program whose pools recover their workers."""
    return program(MORE) + textwrap.dedent(body)


def run(source: str, tmp_path: Path, how: str = "file", timeout: float = 60) -> subprocess.CompletedProcess[str]:
    if how == "-c":
        command, stdin = [sys.executable, "-W", "error", "-c", source], None
    elif how == "stdin":
        command, stdin = [sys.executable, "-W", "error", "-"], source
    else:
        script = tmp_path / "script.py"
        script.write_text(source)
        command, stdin = [sys.executable, "-W", "error", str(script)], None
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, cwd=tmp_path)


def assert_gone(pids: list[int]) -> None:
    """Expect these processes to end within 30 s."""
    deadline = Deadline(30.0)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)  # readable once the process has ended
            try:
                assert multiprocessing.connection.wait([pidfd], deadline.seconds_left()), pid
            finally:
                os.close(pidfd)
