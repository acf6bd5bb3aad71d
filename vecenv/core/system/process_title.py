"""Set the title of this process, which `ps` and `top` show."""

from __future__ import annotations

import contextlib
import os

from .process_stat import StatField, stat_fields

__all__ = ["set_title"]

#: Most bytes of the name of a thread; the kernel cuts it.
_NAME_NBYTES = 15


def set_title(title: str, name: str) -> None:
    """Show `title` as the arguments of this process, and `name` as the name of its main thread.

    Both are cut to the room that they have: the title to the length of the arguments with which the process was
    started. Where the system does not allow a change, the old text stays.

    Args:
        title: for `ps -f`.
        name: for `top` and `ps -e`, at most 15 bytes.
    """
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb", 0) as file:  # the same as prctl(PR_SET_NAME)
        file.write(os.fsencode(name)[:_NAME_NBYTES])
    with contextlib.suppress(OSError):
        fields = stat_fields("self")
        start, end = int(fields[StatField.ARGUMENTS_START]), int(fields[StatField.ARGUMENTS_END])
        room = end - start
        if room > 1:  # otherwise the addresses are hidden; the last byte stays 0
            with open("/proc/self/mem", "r+b", 0) as memory:
                memory.seek(start)
                memory.write(os.fsencode(title)[: room - 1].ljust(room, b"\0"))
