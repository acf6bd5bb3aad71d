"""Read the state, the start and the CPU time of any process. A pid and a start time together identify a process.

Where /proc is missing, psutil knows a part of that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

__all__ = [
    "StatField",
    "busy_ns",
    "environ_of",
    "find_pids",
    "has_proc",
    "is_ending",
    "run_delay_ns",
    "started_at",
    "stat_fields",
    "state_of",
]

#: The states of /proc, by their names in psutil.
_STATES = {"running": "R", "stopped": "T", "tracing-stop": "t", "disk-sleep": "D", "zombie": "Z"}
#: Flag of the kernel for a process that ends.
_PF_EXITING = 4


class StatField(IntEnum):
    """Index of a field in the result of `stat_fields`."""

    STATE = 0  #: one letter
    SESSION = 3  #: id of the session
    FLAGS = 6  #: bits of the kernel
    CPU_TICKS = 11  #: the first of four numbers: user and system time, the same of children that have ended
    STARTED = 19  #: clock ticks since boot
    ARGUMENTS_START = 45  #: address of the arguments; 0 if it is hidden
    ARGUMENTS_END = 46


def has_proc() -> bool:
    """Return whether /proc is there now."""
    return os.path.exists("/proc/self/stat")


def stat_fields(pid: int | str) -> list[str]:
    """Return the fields behind the name in /proc/PID/stat. Raises OSError if there is no such process.

    Without /proc, fields that are unknown are '0'.

    Args:
        pid: a process id, or 'self'.
    """
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()
    except FileNotFoundError:
        if has_proc():
            raise
    pid = os.getpid() if pid == "self" else int(pid)
    fields = ["0"] * (1 + max(StatField))
    with _process(pid) as process:
        fields[StatField.STATE] = _STATES.get(process.status(), "S")
        fields[StatField.SESSION] = str(os.getsid(pid))
        fields[StatField.STARTED] = str(round(process.create_time() * 100))
    return fields


def find_pids() -> list[int]:
    """Return the ids of all processes. Raises OSError if no descriptor is left."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        import psutil

        return list(psutil.pids())


def environ_of(pid: int) -> str:
    """Return the environment variables with which a process was started, as one text.

    Raises:
        OSError: it has ended, or belongs to another user.
    """
    try:
        with open(f"/proc/{pid}/environ", errors="replace") as environ:
            return environ.read()
    except FileNotFoundError:
        if has_proc():
            raise
    with _process(pid) as process:
        return str(process.environ())


@contextlib.contextmanager
def _process(pid: int) -> Iterator[Any]:
    """Give a process to the block as psutil sees it; raise its errors as OSError."""
    import psutil  # only systems without /proc take the time of this import

    try:
        yield psutil.Process(pid)
    except psutil.Error as error:
        raise ProcessLookupError(str(error)) from error


def started_at(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; '' if there is no such process."""
    return _field(pid, StatField.STARTED)


def state_of(pid: int) -> str:
    """Return the state of a process as one letter, such as 'T' for stopped; '' if there is no such process."""
    return _field(pid, StatField.STATE)


def is_ending(pid: int) -> bool:
    """Return whether a process has begun to end, or has ended; False without /proc."""
    flags = _field(pid, StatField.FLAGS)
    return not flags or bool(int(flags) & _PF_EXITING)


def busy_ns(pid: int) -> int:
    """Return for how long a process, with its children that have ended, has had a core or waited for one.

    Returns:
        Nanoseconds, in steps of 10 ms; 0 if there is no such process.
    """
    try:
        ticks = stat_fields(pid)[StatField.CPU_TICKS :][:4]
        delay_ns = sum(run_delay_ns(f"{pid}/task/{thread}") for thread in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0
    return sum(map(int, ticks)) * 1_000_000_000 // os.sysconf("SC_CLK_TCK") + delay_ns


def run_delay_ns(thread: int | str) -> int:
    """Return for how long a thread has waited for a core, in nanoseconds; 0 if it has ended or that is not counted.

    Args:
        thread: a process id, for the main thread, or a path below /proc.
    """
    try:
        with open(f"/proc/{thread}/schedstat") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError):
        return 0


def _field(pid: int, field: StatField) -> str:
    try:
        return stat_fields(pid)[field]
    except OSError:
        return ""
