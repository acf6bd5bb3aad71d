"""Replaying: the code of an env can find out that it only repeats earlier steps after a crash.

Each thread has a mark of its own, because the envs of one worker may live in several threads: one of them
repeats while another one already continues. The process environment is a hint for code that cannot
call `is_replaying`: it is set while any thread repeats.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["is_replaying"]

#: Set in the process environment while an env of this process repeats its steps in a worker that died.
REPLAYING = "VECENV_REPLAYING"

_thread_state = threading.local()
_lock = threading.Lock()
_num_threads = 0


def is_replaying() -> bool:
    """Return whether the env in this thread only repeats its steps before the death of its worker.

    This is for envs with side effects, such as files: these effects have happened already.

    >>> is_replaying()
    False
    """
    return getattr(_thread_state, "depth", 0) > 0


@contextmanager
def replaying() -> Iterator[None]:
    """Let envs in this thread see that they only repeat."""
    depth = getattr(_thread_state, "depth", 0)
    _thread_state.depth = depth + 1
    if not depth:
        _count(1)
    try:
        yield
    finally:
        _thread_state.depth = depth
        if not depth:
            _count(-1)


def _count(change: int) -> None:
    global _num_threads
    with _lock:
        _num_threads += change
        if _num_threads:
            os.environ[REPLAYING] = "1"
        else:
            os.environ.pop(REPLAYING, None)


def _reset_in_child() -> None:
    """Keep the mark of the thread that has forked, the only one of the child."""
    global _lock, _num_threads
    _lock = threading.Lock()
    _num_threads = int(is_replaying())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
