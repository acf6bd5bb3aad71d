"""Objects of `multiprocessing` in the pickles for a worker: locks, semaphores, events, queues, pipes, values, arrays.

`multiprocessing` lets such objects be pickled only while it starts a process, which then gets their descriptors.
Workers receive their constructors over a socket, so the descriptors follow there:

    parent    with shared.collecting(): the pickle has an index instead of each descriptor
              the boot message, then shared.descriptors
    worker    receive_shared(...); each load of the pickle duplicates the descriptors again

A lock of the start method 'fork' has no name by which another process could find it. A forked worker has inherited it,
so the pickle has its index among `SharedObjects.inherited`.

The parent keeps the descriptors, so that a successor of the worker receives them, too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Iterator, Sequence
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from typing import Any, cast

from .descriptor import Descriptor
from .signals import signals_deferred

__all__ = ["SharedObjects", "SharingError", "receive_shared"]

#: Types that `multiprocessing` reduces although they share nothing between processes.
_PLAIN = (types.MethodType, type(list.append), type(int.__add__), functools.partial)
#: The functions by which `multiprocessing` reduces objects, by type; its modules add some when they are imported.
_REDUCERS: dict[type, Any] = getattr(reduction.ForkingPickler, "_extra_reducers")  # noqa: B009
#: In a worker: what its parent shares with it.
_descriptors: Sequence[Descriptor] = ()
_inherited: Sequence[Any] = ()


class SharingError(Exception):
    """An object of `multiprocessing` cannot reach the process that it is sent to; the text says what to do."""


class SharedObjects:
    """The objects of `multiprocessing` that one worker and its successors share with this process.

    Args:
        context: the start method of the worker; '': it may run on another machine, and shares nothing.

    Its pickle is empty: the worker receives the descriptors after it.

    Attributes:
        descriptors: are sent to the worker after its boot message; closed by `close`.
        inherited: objects that a forked worker has from its parent.
    """

    def __init__(self, context: str = "") -> None:
        self._context = context
        self._positions: dict[int, int] = {}  # the number that the object has -> index in `descriptors`
        self.descriptors: list[Descriptor] = []
        self.inherited: list[Any] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedObjects, ()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Let this thread pickle objects of `multiprocessing`, with `reduce`; they must stay open in the context."""
        before = get_spawning_popen()
        set_spawning_popen(cast(Any, self))
        try:
            yield
        finally:
            set_spawning_popen(before)
            self._positions.clear()

    def reduce(self, value: Any) -> Any:
        """Reduce an object, as `Pickler.reducer_override` does; NotImplemented if it is an ordinary one.

        Raises:
            SharingError: the process cannot have it.
        """
        is_lock, reducer = _is_lock(value), _reducer_of(value)
        if not self._context and (is_lock or reducer is not None):
            raise SharingError(
                "a lock, queue, pipe or value of multiprocessing belongs to this machine, and a shard may run on "
                "another one; use a server that other machines reach, such as an actor of Ray"
            )
        if not is_lock or value._semlock.name is not None:
            return NotImplemented if reducer is None else reducer(value)
        if self._context != "fork":
            raise SharingError(
                "a lock or semaphore of multiprocessing (events, queues and values have some, too) was made for the "
                f"start method 'fork', and the start method of workers is {self._context!r}; make it with "
                f"multiprocessing.get_context({self._context!r}), or use context='fork'"
            )
        self.inherited.append(value)
        return _find_inherited, (len(self.inherited) - 1,)

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self.descriptors:
            descriptor.close()

    # ---- as the `Popen` of a process that starts -----------------------------------------------------

    def duplicate_for_child(self, number: int) -> int:
        """Keep a duplicate of a descriptor; return its position."""
        if number not in self._positions:
            with signals_deferred():
                self.descriptors.append(Descriptor(os.dup(number)))
            self._positions[number] = len(self.descriptors) - 1
        return self._positions[number]

    def DupFd(self, position: int) -> _Sent:  # the name is that of `Popen`
        """Return the placeholder of a descriptor in a pickle."""
        return _Sent(position)


class _Sent:
    """Stands for a descriptor in a pickle."""

    def __init__(self, position: int) -> None:
        self._position = position

    def detach(self) -> int:
        """Return a new number of the descriptor; it belongs to the caller."""
        if self._position >= len(_descriptors):  # such as a program that repeats a failure of an env
            raise SharingError("a pipe, queue or value of multiprocessing exists only in the workers of its program")
        return os.dup(_descriptors[self._position].number)


def receive_shared(descriptors: Sequence[Descriptor], inherited: Sequence[Any]) -> None:
    """Keep the objects that the parent shares with this worker, until this process ends."""
    global _descriptors, _inherited
    _descriptors, _inherited = descriptors, inherited


def _find_inherited(position: int) -> Any:
    return _inherited[position]


def _is_lock(value: Any) -> bool:
    module: Any = sys.modules.get("multiprocessing.synchronize")  # if it is not loaded, there are no locks
    return module is not None and isinstance(value, module.SemLock)


def _reducer_of(value: Any) -> Any:
    """Return the function by which `multiprocessing` reduces an object that it shares; None for other objects."""
    reducer = _REDUCERS.get(type(value))
    if reducer is None or isinstance(value, _PLAIN) or not reducer.__module__.startswith("multiprocessing."):
        return None
    is_private = reducer.__name__ == "reduce_ctype" and not hasattr(value, "_wrapper")  # its memory is private
    return None if is_private else reducer
