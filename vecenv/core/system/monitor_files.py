"""Files by which other programs of the same user find the pools that are running.

    $XDG_RUNTIME_DIR/vecenv/PID-START-NUMBER.json      or, without that folder,
    <temporary folder>/vecenv-UID/PID-START-NUMBER.json

PID and START identify the process of the pool, NUMBER counts the pools of that process. The folder has mode 0700, a
file has mode 0600. A file is removed with its pool. If its process has ended otherwise, the next pool or the next
reader removes the file.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from ...own_log import own_logger
from .descriptor import Descriptor
from .process_stat import started_at

__all__ = ["MonitorFile", "check_private", "private_folder", "read_monitor_files"]

_LOG = own_logger()
_NAME = re.compile(r"([1-9]\d*)-(\d+)-(\d+)\.json")
_OPEN_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_OPEN_FOLDER = _OPEN_FILE | getattr(os, "O_DIRECTORY", 0)
#: Longest content that is read.
_MOST_NBYTES = 1 << 16
_numbers = itertools.count(1)
_ADVICE = "Set TMPDIR or XDG_RUNTIME_DIR to a folder of this user"
#: The warnings of this process about pools that cannot be found.
_warnings: set[str] = set()


class MonitorFile:
    """The file of one pool.

    Args:
        content: values of JSON for readers; the file also contains `pid`, `started`, `number` and `pid_namespace`.

    Attributes:
        path: of the file; '' if there is none, because the folder is missing or not safe. The log has one line then.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.path = ""
        self._owner_pid = os.getpid()
        started, number = started_at(self._owner_pid), next(_numbers)
        identity = {"pid": self._owner_pid, "started": started, "number": number, "pid_namespace": _pid_namespace()}
        self._content = {**identity, **content}
        name = f"{self._owner_pid}-{started}-{number}.json"
        try:
            folder = private_folder()
            with _opened(folder) as folder_fd:
                _remove_stale(folder_fd)
                with contextlib.suppress(FileNotFoundError):  # an earlier program of this process has left it
                    os.unlink(name, dir_fd=folder_fd)
                opener = functools.partial(_open_private, folder_fd)
                with open(name, "x", opener=opener) as stream:
                    self.path = os.path.join(folder, name)
                    json.dump(self._content, stream)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""  # without it, no temporary folder can be written
            _warn_once(f"`vecenv top` cannot find this pool: {where}{error.strerror}. {_ADVICE}")
            self.remove()

    def update(self, **content: Any) -> None:
        """Change values of the content. It must not become shorter, so that readers always find all of it."""
        self._content.update(content)
        if self.path and os.getpid() == self._owner_pid:
            opener = functools.partial(_open_private, None)
            # An OSError: the file or its folder is gone.
            with contextlib.suppress(OSError), open(self.path, "r+", opener=opener) as stream:
                json.dump(self._content, stream)

    def remove(self) -> None:
        """Remove the file; may be repeated. Does nothing in a forked child."""
        if self.path and os.getpid() == self._owner_pid:
            with contextlib.suppress(OSError):  # the file or its folder is gone
                os.unlink(self.path)
            self.path = ""


def _warn_once(text: str) -> None:
    if text not in _warnings:
        _warnings.add(text)
        _LOG.warning("%s", text)


def read_monitor_files() -> list[dict[str, Any]]:
    """Return the content of the files of all running pools, by pid and number; remove the files of ended processes.

    Files of processes in other pid namespaces, such as other containers, are left out, and so are broken ones.
    """
    found = []
    try:
        folders = _folders()
    except OSError as error:
        _warn_once(f"pools are not looked for: {error.strerror}. {_ADVICE}")
        return []
    for folder in folders:
        try:
            with _opened(folder) as folder_fd:
                _remove_stale(folder_fd)
                found += [content for name in os.listdir(folder_fd) if (content := _read(folder_fd, name))]
        except FileNotFoundError:  # there was no pool yet
            continue
        except OSError as error:
            _LOG.warning("pools are not looked for in %s: %s", folder, error.strerror)
    return sorted(found, key=lambda content: (content["pid"], content["number"]))


def private_folder() -> str:
    """Return the folder of this user for files of vecenv; it is made, if it is missing.

    Raises:
        OSError: there is no such folder, or other users have access to it.
    """
    folder = _folders()[0]
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    check_private(folder)
    return folder


def check_private(folder: str) -> None:
    """Raise OSError if a folder is missing, or if other users have access to it."""
    with _opened(folder):
        pass


def _folders() -> list[str]:
    """Return the folder for new files, and others in which a process with other variables may have its files.

    Raises:
        OSError: there is no such folder.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    found = [os.path.join(runtime, "vecenv")] if os.path.isabs(runtime) and os.path.isdir(runtime) else []
    try:
        found.append(os.path.join(tempfile.gettempdir(), f"vecenv-{os.getuid()}"))
    except FileNotFoundError:  # no temporary folder can be written
        if not found:
            raise
    return found


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    """Open a folder that no other user can write to.

    Raises:
        OSError: it is not a folder, belongs to another user, or others have access.
    """
    found = os.lstat(folder)
    reason = ""
    if not stat.S_ISDIR(found.st_mode):
        reason = "not a folder"
    elif found.st_uid != os.getuid():
        reason = f"the folder belongs to user {found.st_uid}"
    elif found.st_mode & 0o077:
        reason = f"other users have access: its mode is {stat.S_IMODE(found.st_mode):04o}, expected 0700"
    if reason:
        raise PermissionError(None, reason, folder)
    with contextlib.closing(Descriptor(os.open(folder, _OPEN_FOLDER))) as descriptor:
        if not os.path.samestat(found, os.fstat(descriptor.number)):
            raise PermissionError(None, "the folder was replaced while it was opened", folder)
        yield descriptor.number


def _open_private(folder_fd: int | None, name: str, flags: int) -> int:
    """Open a file of the folder for `open`, which owns the descriptor; links are refused, and other users."""
    return os.open(name, flags | _OPEN_FILE, 0o600, dir_fd=folder_fd)


def _remove_stale(folder_fd: int) -> None:
    for name in os.listdir(folder_fd):
        match = _NAME.fullmatch(name)
        if match is None or started_at(int(match[1])) == match[2]:
            continue
        content = _load(folder_fd, name)
        if content is None or content.get("pid_namespace") == _pid_namespace():
            with contextlib.suppress(FileNotFoundError):  # another program was faster
                os.unlink(name, dir_fd=folder_fd)


def _read(folder_fd: int, name: str) -> dict[str, Any] | None:
    match = _NAME.fullmatch(name)
    content = None if match is None else _load(folder_fd, name)
    if match is None or content is None or content.get("pid_namespace") != _pid_namespace():
        return None
    return {**content, "pid": int(match[1]), "started": match[2], "number": int(match[3])}


def _load(folder_fd: int, name: str) -> dict[str, Any] | None:
    """Return the content of a file, None if it cannot be read or is not complete."""
    try:
        with open(name, "rb", opener=functools.partial(_open_private, folder_fd)) as stream:
            content = json.loads(stream.read(_MOST_NBYTES))
    except (OSError, ValueError):  # it was removed, is no file, or is not complete
        return None
    return content if isinstance(content, dict) else None


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
