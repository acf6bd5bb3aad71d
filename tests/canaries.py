"""Files of the program that take each number as soon as this process closes it, and notice every use of that number."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

__all__ = ["Canaries", "canaries"]

#: Names of functions that close descriptors, and of those that open some.
_CLOSERS = frozenset({"close", "dup2"})
_OPENERS = frozenset({"dup", "eventfd", "memfd_create", "open", "pidfd_open", "pipe", "register", "socketpair"})
#: The functions of `os` that take a number, as far as pools use them.
_CALLS = ("close", "dup", "dup2", "eventfd_read", "eventfd_write", "fstat", "pread", "read", "set_blocking", "write")
_TEXT = b"checkpoint"
#: So many files are kept; the oldest ones are checked and closed. Each start of a worker closes some 50 numbers.
_MOST = 300


class Canaries:
    """Watches every call of a C function in this process.

    Attributes:
        harm: calls so far that used foreign or closed numbers.
        on_event: called in the main thread after a function has opened or closed descriptors.
    """

    def __init__(self) -> None:
        self.harm: list[str] = []
        self.on_event: Callable[[], object] = lambda: None
        self._files: deque[tuple[int, int]] = deque()  # numbers and inodes
        self._highest = 0
        self._pid = os.getpid()
        self._system_calls = {name: getattr(os, name) for name in _CALLS}

    def install(self) -> None:
        """Watch this thread, and those that are started from now on; an exception in a profile function ends that."""
        threading.setprofile(self._look)
        sys.setprofile(self._look)

    def _look(self, frame: Any, event: str, function: Any) -> None:
        if self._pid != os.getpid():  # a forked worker
            sys.setprofile(None)
            threading.setprofile(None)
            return
        if event not in ("c_call", "c_return", "c_exception"):
            return
        name = function.__name__
        if name in _CLOSERS:
            if event == "c_call":
                self._highest = max(self._highest, *map(int, os.listdir("/proc/self/fd")))
            else:
                self._take_free_numbers()
        is_main = threading.get_ident() == threading.main_thread().ident  # `current_thread` may make an object
        if is_main and event == "c_return" and name in _CLOSERS | _OPENERS:
            self.on_event()

    def _take_free_numbers(self) -> None:
        while (number := os.memfd_create("checkpoint")) <= self._highest:
            os.write(number, _TEXT)
            self._files.append((number, os.fstat(number).st_ino))
        self._system_calls["close"](number)
        while len(self._files) > _MOST:
            self._check_and_close()

    def _check_and_close(self) -> None:
        number, inode = self._files.popleft()
        try:
            if os.fstat(number).st_ino != inode:
                self.harm.append(f"{number} was closed")
                return
        except OSError:
            self.harm.append(f"{number} was closed")
            return
        if (text := os.pread(number, 100, 0)) != _TEXT:
            self.harm.append(f"{number} was written: {text!r}")
        elif os.lseek(number, 0, os.SEEK_CUR) != len(_TEXT):
            self.harm.append(f"{number} was read")
        self._system_calls["close"](number)

    def watched_call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call of `os`, and note if its number is closed."""
        try:
            return self._system_calls[name](*args, **kwargs)
        except OSError as error:
            if error.errno == errno.EBADF and not (name == "fstat" and args[0] < 3):
                self.harm.append(f"os.{name}{args}: {error}")
            raise

    def end(self) -> None:
        """End the watch; check and close all files."""
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        while self._files:
            self._check_and_close()


@contextlib.contextmanager
def canaries() -> Iterator[Canaries]:
    """Watch this process; at the end, assert that no foreign and no closed number was used."""
    watch = Canaries()
    with contextlib.ExitStack() as stack:
        for name in _CALLS:
            call = lambda *args, _name=name, **kwargs: watch.watched_call(_name, *args, **kwargs)  # noqa: E731
            stack.enter_context(mock.patch.object(os, name, call))
        stack.callback(watch.end)
        watch.install()
        yield watch
    assert not watch.harm
