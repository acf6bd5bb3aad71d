"""The machine that a benchmark runs on: its cores, CPU clocks, signals, and what to print next to a number."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from vecenv.core.processes.worker import usable_cores

__all__ = ["StealMeter", "cpu_seconds", "describe_machine", "no_interrupts", "usable_cores"]

_CPUCLOCK_SCHED = 2


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used in all its threads, in seconds; 0.0 if it is gone."""
    try:
        if platform.system() == "Linux":
            # Every process has a CPU clock, to the nanosecond; its id is made from the pid (clock_getcpuclockid(3)).
            # /proc counts in 10 ms, too coarse for short windows and for workers that idle.
            return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    except (OSError, psutil.Error):
        return 0.0


class StealMeter:
    """How much of the cores' time the machine below a virtual one has taken since this was made."""

    def __init__(self) -> None:
        self._began, self._stolen = time.monotonic(), _stolen_seconds()

    def share(self) -> float:
        """Return the share of the time of all cores, 0 to 1; 0.0 where the system does not count it."""
        elapsed = (time.monotonic() - self._began) * (psutil.cpu_count() or 1)
        return min(1.0, max(0.0, _stolen_seconds() - self._stolen) / elapsed) if elapsed > 0 else 0.0


def _stolen_seconds() -> float:
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


@contextlib.contextmanager
def no_interrupts(later: Iterable[int] = ()) -> Iterator[None]:
    """Start processes under this, and Ctrl-C reaches none of them: their parent closes them and they print nothing.

    Args:
        later: further signals, which the processes must unblock themselves. Python drops the exception of a signal
            handler that runs right after a fork.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # A blocked signal stays blocked in the children; here it is only late.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *later})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def describe_machine() -> dict[str, Any]:
    """Return the processor, cores, system and versions, ready for JSON."""
    versions = {}
    for package in ("vecenv", "numpy", "gymnasium"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "processor": _processor(),
        "usable_cores": usable_cores(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
