"""The open descriptors of another process."""

from __future__ import annotations

import os
import re
from pathlib import Path


def open_descriptors(pid: int) -> dict[int, tuple[str, str]]:
    """Return, by descriptor of a process, what it is of and the flags that it was opened with (octal digits)."""
    folder = Path(f"/proc/{pid}")
    while True:
        numbers = map(int, os.listdir(folder / "fd"))
        try:
            return {number: (os.readlink(folder / "fd" / str(number)), _flags(folder, number)) for number in numbers}
        except FileNotFoundError:  # closed meanwhile: look again, unless the process has gone
            os.stat(folder)


def _flags(folder: Path, number: int) -> str:
    (flags,) = re.findall(r"^flags:\t(\d+)$", (folder / "fdinfo" / str(number)).read_text(), re.MULTILINE)
    return str(flags)
