"""Replaying: how an env's code can tell that it only repeats what it has done before.

Each thread has a mark of its own, because the envs of one worker may live in several threads, of
which one repeats while another already goes on. The process environment is a hint for what cannot
ask: it is set while any thread repeats.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["is_replaying"]

#: In the process environment while an env of this process repeats what it did in a worker that died.
REPLAYING = "VECENV_REPLAYING"

_thread_state = threading.local()
_lock = threading.Lock()
_num_threads = 0


def is_replaying() -> bool:
    """Tell whether the env in this thread only repeats what it did before its worker died.

    For envs with effects beyond their answers, such as files: those have happened already.

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
    """A forked child has one thread, whose mark goes on."""
    global _lock, _num_threads
    _lock = threading.Lock()
    _num_threads = int(is_replaying())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
