"""Pin a worker to its preferred core; `native/shm/affinity.h` gives the reasons."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["pin"]

#: Audit events that Python raises before it starts a process, in the thread that starts it.
_START_EVENTS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn", "subprocess.Popen"})


def pin(core: int, slots: Sequence[Any]) -> None:
    """Set the preferred core of the threads of this worker that serve these slots (`_native.Slot`).

    With several slots the threads stay pinned. A process that such a thread starts, for example a game server during
    a step, must not inherit the pinning. So an audit hook removes it before each start.
    """
    allowed = os.sched_getaffinity(0)
    for slot in slots:
        slot.set_preferred_core(core, len(slots))

    def unpin(event: str, _: object) -> None:
        if event in _START_EVENTS and os.sched_getaffinity(0) == {core}:
            with contextlib.suppress(OSError):  # the system may have taken away some of these cores
                os.sched_setaffinity(0, allowed)

    if len(slots) > 1 and allowed != {core}:
        sys.addaudithook(unpin)
