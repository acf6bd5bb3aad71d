"""The state of a process that envs change, put back for the next program that uses the process."""

from __future__ import annotations

import contextlib
import glob
import linecache
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from .log_records import LogLevels
from .process_settings import ProcessSettings, working_directory

__all__ = ["find_running", "program_kept", "state_kept"]


@contextlib.contextmanager
def program_kept() -> Iterator[None]:
    """Put back the settings of this process that a program sends to its workers; used in the main thread.

    That are the contents of the main module, the search path, the cores, and the levels of loggers.
    """
    main = vars(sys.modules["__main__"])
    path, own_main, affinity, levels = list(sys.path), dict(main), os.sched_getaffinity(0), LogLevels.now()
    try:
        yield
    finally:
        sys.path[:] = path
        main.clear()
        main.update(own_main)
        os.sched_setaffinity(0, affinity)
        levels.restore()
        linecache.clearcache()  # lines of code that was sent by value


@contextlib.contextmanager
def state_kept() -> Iterator[None]:
    """Put the state of this process back at the end of the block; used in the main thread.

    That are environment variables, working directory, umask, signal handlers, warning filters, handlers of the root
    logger, NumPy's print options, and the settings of `process_settings`.
    """
    environ, cwd, settings, handlers = dict(os.environ), working_directory(), ProcessSettings.now(), _signal_handlers()
    loggers = list(logging.root.handlers)
    mask = os.umask(0o77)
    os.umask(mask)
    try:
        with warnings.catch_warnings(), np.printoptions():
            yield
    finally:
        os.environ.clear()
        os.environ.update(environ)
        os.umask(mask)
        logging.root.handlers[:] = loggers
        for number, handler in _signal_handlers().items():
            if handler is not handlers[number] and handlers[number] is not None:  # None: it was set in C
                signal.signal(number, handlers[number])
        settings.apply()
        if not settings.torch_dtype and (torch := sys.modules.get("torch")) is not None:
            torch.set_default_dtype(torch.float32)
        if cwd is not None:
            with contextlib.suppress(OSError):  # it was removed
                os.chdir(cwd)


def _signal_handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def find_running() -> set[Any]:
    """Return the threads of Python in this process, and the ids of its children, also of those that have ended."""
    found: set[Any] = set(threading.enumerate())
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError), open(path) as children:  # the thread has just ended
            found.update(map(int, children.read().split()))
    return found
