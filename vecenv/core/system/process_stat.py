"""Read the state and the start time of any process. A pid and a start time together identify a process."""

from __future__ import annotations

__all__ = ["started_at", "state_of"]

#: Positions behind the name in /proc/PID/stat.
_STATE, _STARTED = 0, 19


def started_at(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; '' if there is no such process."""
    return _read(pid, _STARTED)


def state_of(pid: int) -> str:
    """Return the state of a process as one letter, such as 'T' for stopped; '' if there is no such process."""
    return _read(pid, _STATE)


def _read(pid: int, position: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[position]
    except OSError:
        return ""
