"""Run the exit functions and finalizers of a forked process, which ends without those of its interpreter.

A process that `multiprocessing` forks ends by `os._exit`: no `atexit` function runs, and no `__del__` or
`weakref.finalize` of objects that are left. Those that the process inherited belong to its parent and never run here.
"""

from __future__ import annotations

import atexit
import gc
import weakref
from typing import Any

__all__ = ["forget_inherited", "run_own"]


def forget_inherited() -> None:
    """Drop the exit functions of the parent, and keep its objects from being finalized here; after a fork."""
    atexit._clear()
    finalize: Any = weakref.finalize
    for inherited in list(finalize._registry):
        inherited.atexit = False
    finalize._registered_with_atexit = False  # the next one registers their exit function again
    gc.freeze()


def run_own() -> None:
    """Finalize the objects that nothing refers to, then run the exit functions. Exceptions are written to stderr."""
    gc.collect()
    atexit._run_exitfuncs()
