"""Take calls of Linux away from a Python process, as on macOS or Windows, before it imports anything else.

The interpreter imports this module at its start if the folder is on PYTHONPATH; so it also does in the workers.
`VECENV_TEST_WITHOUT` lists the names of `CALLS` that are taken away. Without '/proc', files there do not exist, except
for psutil, which has other sources on other systems.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import io
import os
import select
import signal
import sys

CALLS = {
    "eventfd": [(os, "eventfd"), (os, "eventfd_read"), (os, "eventfd_write")],
    "memfd": [(os, "memfd_create")],
    "pidfd": [(os, "pidfd_open"), (signal, "pidfd_send_signal")],
    "epoll": [(select, "epoll")],
    "fork": [(os, "fork"), (os, "forkpty")],
}


def _hide_proc(module, name):
    original = getattr(module, name)

    @functools.wraps(original)
    def call(path=".", *args, **kwargs):
        is_hidden = not isinstance(path, int) and os.fspath(path) in (b"/proc", "/proc")
        is_hidden = is_hidden or (not isinstance(path, int) and os.fsdecode(path).startswith("/proc/"))
        if is_hidden and not sys._getframe(1).f_globals.get("__name__", "").startswith("psutil"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return original(path, *args, **kwargs)

    setattr(module, name, call)


def _hide_prctl():
    class Library(ctypes.CDLL):
        def __getattr__(self, name):
            if name == "prctl":
                raise AttributeError(name)
            return super().__getattr__(name)

    ctypes.CDLL = Library


for _name in os.environ.get("VECENV_TEST_WITHOUT", "").split():
    if _name == "/proc":
        for _module, _call in [(builtins, "open"), (io, "open")]:
            _hide_proc(_module, _call)
        for _call in ("open", "listdir", "stat", "lstat", "readlink", "scandir", "access"):
            _hide_proc(os, _call)
    elif _name == "prctl":
        _hide_prctl()
    else:
        for _module, _call in CALLS[_name]:
            delattr(_module, _call)
