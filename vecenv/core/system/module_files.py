"""The files from which this process has loaded its modules, so that the modules of two processes can be compared.

A process that is forked inherits the notes of its parent together with the loaded modules. So a note describes the
file as it was when the module was loaded, even if the file has changed before the fork.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .module_paths import file_of, installed_folders

__all__ = [
    "ModuleFile",
    "ModuleFiles",
    "end_start",
    "late_modules_newer_than",
    "note_modules",
    "noted_modules",
    "stamp_of",
]

#: Time of the last change in nanoseconds, and size in bytes; None: there is no such file.
FileStamp = tuple[int, int] | None

#: Largest file that is read, in bytes: extension modules may be large.
_MOST_BYTES = 4_000_000


class ModuleFile(NamedTuple):
    """The file of a module when it was loaded.

    Attributes:
        path: absolute.
        stamp: see `FileStamp`.
        digest: of its content; b'' for an installed package or a large file.
    """

    path: str
    stamp: FileStamp
    digest: bytes = b""

    def is_like(self, other: ModuleFile) -> bool:
        """Return whether both have the same code, as far as that is known."""
        if self.digest and other.digest:
            return self.digest == other.digest
        return self.stamp == other.stamp


#: Files of the modules of this process, by name of the module; see `note_modules`.
_noted: dict[str, ModuleFile] = {}
#: The name in `sys.modules` that was the last one when it was searched.
_newest = ""
#: Number of modules that were noted before the end of the start of this process.
_num_at_start = 0


def note_modules(replaced: Iterable[str] = ()) -> dict[str, ModuleFile]:
    """Note the files of the modules that were loaded since the last call; return these.

    Modules without a file are left out, such as those of a zip archive.

    Args:
        replaced: modules that were loaded again since the last call.
    """
    global _newest
    for name in replaced:
        _noted.pop(name, None)
    # Older names are not looked at: a forked process would get a copy of each page of memory with one of them.
    names = list(itertools.takewhile(_newest.__ne__, reversed(sys.modules)))
    _newest = names[0] if names else _newest
    new = {}
    for name in names:
        if name not in _noted and (path := file_of(sys.modules.get(name))):
            stamp = stamp_of(path)
            _noted[name] = new[name] = ModuleFile(path, stamp, _digest_of(path, stamp))
    return new


def noted_modules() -> dict[str, ModuleFile]:
    """Return the files that this process and its parents have noted."""
    return dict(_noted)


def end_start() -> None:
    """Have the modules that are noted from now on count as late ones."""
    global _num_at_start
    _num_at_start = len(_noted)


def late_modules_newer_than(time_ns: int) -> list[str]:
    """Return the late modules, as 'name (file)', whose files were changed after this time since the epoch.

    The first process may have imported them late, too, so its files are unknown.
    """
    note_modules()
    late = itertools.islice(_noted.items(), _num_at_start, None)
    return sorted(f"{name} ({file.path})" for name, file in late if file.stamp and file.stamp[0] > time_ns)


def stamp_of(path: str) -> FileStamp:
    """Return the stamp of a file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _digest_of(path: str, stamp: FileStamp) -> bytes:
    if stamp is None or stamp[1] > _MOST_BYTES or path.startswith(installed_folders()):
        return b""
    try:
        with open(path, "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=16).digest()
    except OSError:  # it was removed since
        return b""


class ModuleFiles:
    """The files from which the first processes of a pool have loaded their modules; successors are compared with them.

    Processes may have different files for one name, each in a folder of its own.

    Attributes:
        began_ns: time since the epoch before the first process was started.
    """

    def __init__(self) -> None:
        self.began_ns = time.time_ns()
        self._known: dict[str, list[ModuleFile]] = {}
        self._reported: set[str] = set()

    def add(self, files: Mapping[str, ModuleFile]) -> None:
        """Add the modules of one of the first processes."""
        for name, file in files.items():
            known = self._known.setdefault(name, [])
            if file not in known:
                known.append(file)

    def changed(self, files: Mapping[str, ModuleFile]) -> list[str]:
        """Return the modules of a successor whose files differ, and add those that are new."""
        found = []
        for name, file in files.items():
            known = self._known.setdefault(name, [file])
            if not any(file.is_like(one) for one in known):
                found.append(name)
        return sorted(found)

    def describe_new(self, changed: Iterable[str]) -> str:
        """Name the modules of this list that no earlier call has named, with their files; '' if there are none."""
        new = [name for name in changed if name not in self._reported]
        self._reported.update(new)
        return ", ".join(f"{name} ({self._known[name][0].path})" for name in new)
