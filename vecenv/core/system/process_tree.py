"""Kill a worker's processes: its session, its process group, and the processes that its envs started in other sessions.

Launchers of simulators put them into sessions of their own, or fork twice, so that neither the session nor the parent
shows where they come from. A worker therefore has a mark, a random text that its children inherit in two ways:

    the environment variable VECENV_WORKER     programs that are executed; /proc/PID/environ shows it
    the name of a mapped memory file           processes that are forked only; /proc/PID/maps shows it

A process that clears its environment and executes a program is not found. Where /proc is missing, only programs that
are executed are found.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import signal
import time

from .clock import Deadline
from .process_stat import StatField, environ_of, find_pids, stat_fields, state_of

__all__ = ["VARIABLE", "find_tree", "kill_tree", "mark_of", "new_mark", "set_mark"]

#: Contains the marks of a worker and of all workers that it descends from.
VARIABLE = "VECENV_WORKER"
#: How long killed processes may take to end, in seconds.
_END_SECONDS = 5.0
#: How long to sleep between two checks whether they have ended.
_POLL_SECONDS = 0.001
#: How often processes are searched for: the ones that were found may have started others before they were killed.
_MOST_ROUNDS = 4
#: In a worker: the mappings that show its marks.
_mappings: list[mmap.mmap] = []


def new_mark() -> str:
    """Return a mark that no other worker has."""
    return f"vecenv-{os.urandom(8).hex()}"


def set_mark(mark: str) -> None:
    """In a worker: give a mark to this process and to the processes that it starts from now on."""
    os.environ[VARIABLE] = f"{os.environ.get(VARIABLE, '')} {mark}".strip()
    # Without a descriptor, or without files in memory, forked processes are not found.
    with contextlib.suppress(OSError, AttributeError):
        fd = os.memfd_create(mark, os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            _mappings.append(mmap.mmap(fd, mmap.PAGESIZE))
        finally:
            os.close(fd)


def mark_of(pid: int) -> str:
    """Return the mark of a worker; '' if it has none, or has ended."""
    try:
        with open(f"/proc/{pid}/maps") as maps:
            found = re.findall(r"/memfd:(vecenv-[0-9a-f]{16}) ", maps.read())
    except OSError:
        return ""
    return str(found[-1]) if found else ""


def kill_tree(leader: int, mark: str = "", since: str = "0") -> None:
    """Kill a process with its session, its process group and all marked processes; wait until they have ended.

    Args:
        leader: process id of the leader of the session, for whose end this function does not wait; 0: only marked
            processes are killed.
        mark: the mark of its children; '': they have none.
        since: when `leader` started, as `started_at` returns it; older processes are not its children.
    """
    deadline = Deadline(_END_SECONDS)
    for _ in range(_MOST_ROUNDS):
        found = find_tree(leader, mark, since)
        if not found:
            break
        _end(found, leader, deadline)
    if leader > 0 and leader != os.getpgrp():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def find_tree(leader: int, mark: str, since: str) -> list[int]:
    """Return the processes in a session, and the marked ones; not this process, and none that has ended.

    `leader`, `mark` and `since` are as for `kill_tree`.
    """
    found: list[int] = []
    try:
        pids = find_pids()
    except OSError:  # no descriptor is left; the process group has most of them
        return found
    for pid in pids:
        if pid != os.getpid():
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
                fields = stat_fields(pid)
                if fields[StatField.STATE] == "Z":
                    continue
                session = int(fields[StatField.SESSION])  # 0: its leader is outside this container
                is_member = session == leader > 0
                is_younger = int(fields[StatField.STARTED]) >= int(since)
                if is_member or (mark and is_younger and _is_marked(pid, mark)):
                    found.append(pid)
    return found


def _is_marked(pid: int, mark: str) -> bool:
    """Return whether a process has the mark. Raises OSError if it belongs to another user, or has ended."""
    if mark in environ_of(pid):
        return True
    if os.readlink(f"/proc/{pid}/exe") != os.readlink("/proc/self/exe"):
        return False
    with open(f"/proc/{pid}/maps", "rb") as maps:
        return mark.encode() in maps.read()


def _end(pids: list[int], leader: int, deadline: Deadline) -> None:
    """Kill processes, and wait until all but `leader` have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    running = set(pids) - {leader}
    while running and not deadline.is_over():
        running = {pid for pid in running if state_of(pid) not in ("", "Z")}
        time.sleep(_POLL_SECONDS if running else 0.0)
