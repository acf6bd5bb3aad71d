"""The run-queue delay of a thread: for how long it could have run and had to wait for a core."""

from __future__ import annotations

import os

from .descriptor import Descriptor

__all__ = ["open_run_delay", "read_run_delay"]


def open_run_delay() -> Descriptor | None:
    """Return a descriptor from which `read_run_delay` reads the delay of this thread; None if it is not counted here.

    The caller closes it.
    """
    try:
        file = Descriptor(os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return None
    if read_run_delay(file) is not None:
        return file
    file.close()
    return None


def read_run_delay(file: Descriptor) -> int | None:
    """Return the run-queue delay of a thread since its start, in nanoseconds; None if the system does not count it."""
    numbers = os.pread(file.number, 96, 0).split()
    return int(numbers[1]) if len(numbers) >= 2 and int(numbers[0]) else None
