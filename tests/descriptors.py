"""The open descriptors of another process."""

from __future__ import annotations

import os
import re
from pathlib import Path


def open_descriptors(pid: int) -> dict[int, tuple[str, str]]:
    """Return the target and the flags (octal digits) of each descriptor of a process."""
    folder = Path(f"/proc/{pid}")
    while True:
        numbers = map(int, os.listdir(folder / "fd"))
        try:
            return {number: (os.readlink(folder / "fd" / str(number)), _flags(folder, number)) for number in numbers}
        except FileNotFoundError:  # one was closed during the loop: look again, unless the process has gone
            os.stat(folder)


def _flags(folder: Path, number: int) -> str:
    (flags,) = re.findall(r"^flags:\t(\d+)$", (folder / "fdinfo" / str(number)).read_text(), re.MULTILINE)
    return str(flags)
