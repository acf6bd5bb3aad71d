"""Read the state and the start time of any process. A pid and a start time together identify a process."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["StatField", "started_at", "stat_fields", "state_of"]


class StatField(IntEnum):
    """Index of a field in the result of `stat_fields`."""

    STATE = 0  #: one letter
    SESSION = 3  #: id of the session
    STARTED = 19  #: clock ticks since boot
    ARGUMENTS_START = 45  #: address of the arguments; 0 if it is hidden
    ARGUMENTS_END = 46


def stat_fields(pid: int | str) -> list[str]:
    """Return the fields behind the name in /proc/PID/stat. Raises OSError if there is no such process.

    Args:
        pid: a process id, or 'self'.
    """
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()


def started_at(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; '' if there is no such process."""
    return _field(pid, StatField.STARTED)


def state_of(pid: int) -> str:
    """Return the state of a process as one letter, such as 'T' for stopped; '' if there is no such process."""
    return _field(pid, StatField.STATE)


def _field(pid: int, field: StatField) -> str:
    try:
        return stat_fields(pid)[field]
    except OSError:
        return ""
