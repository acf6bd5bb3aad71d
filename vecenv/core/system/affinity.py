"""Home: the core that a worker wakes up on, or its threads stay on; `native/shm/affinity.h` says why."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["pin"]

#: Events of Python's that come before a process is started, in the thread that starts it.
_START_EVENTS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn", "subprocess.Popen"})


def pin(core: int, slots: Sequence[Any]) -> None:
    """Give the threads of this worker that serve these slots (`_native.Slot`) a home.

    With several of them this process cannot go back: what its threads start, such as a game server amid a step, is
    not to inherit their home, so each start is listened for.
    """
    allowed = os.sched_getaffinity(0)
    for slot in slots:
        slot.set_preferred_core(core, len(slots))

    def unpin(event: str, _: object) -> None:
        if event in _START_EVENTS and os.sched_getaffinity(0) == {core}:
            with contextlib.suppress(OSError):  # the system has taken some of these cores away meanwhile
                os.sched_setaffinity(0, allowed)

    if len(slots) > 1 and allowed != {core}:
        sys.addaudithook(unpin)
