"""Life: what a pool may be asked when, and by whom. Start and close stand here, once.

    made -> start -> open -> close -> closed          a failed start is closed too

A pool belongs to the process that made it and to one thread at a time; in a forked child it
is inert, and its end there touches nothing.

A signal handler runs in the middle of a call, in its thread, and may close the pool: then the call ends
soon and closes it when it leaves. So the lock lets a thread in that has it; `_busy` says that it is at
work with it. An exception that a handler raises between the two, as Ctrl-C does, locks nobody out but other threads.

When the interpreter ends, daemon threads go on for a while. One that uses a pool stays in its call, as Python
lets it stay where it is a moment later: it is to hear of no deaths that are nobody's failure, and start no workers.
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from typing import NoReturn, TypeVar

from ...errors import ClosedError, StateError, add_notes
from ..system.clock import check_timeout

__all__ = ["Life", "this_process"]

_Self = TypeVar("_Self", bound="Life")

#: A thread that stays where it is looks up once in a while; the process ends long before.
_LONG_SECONDS = 3600.0
#: Replaced in every forked child, so that comparing it costs no system call.
this_process = [object()]


def _become_another_process() -> None:
    this_process[0] = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_become_another_process)


class Life(ABC):
    """Owner, state and guard of a pool."""

    def __init__(self) -> None:
        self._owner_pid = os.getpid()
        self._lock = threading.RLock()
        self._busy = False  # written by who has the lock: a call is under way, or the pool is closed
        self._must_close = False  # `close` came amid a call, in its own thread
        self._open_in: object | None = None  # the process token while started and not closed
        self._closed = False
        self._closing = False
        self._close_timeout: float | None = None  # what `close` was told
        self._retired_by: threading.Thread | None = None  # who ends the interpreter

    @abstractmethod
    def _go(self) -> None:
        """Begin everything."""

    @abstractmethod
    def _shut_down(self) -> None:
        """End everything that `_go` began, also if it got only half way. Called once."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Make a wait in another thread, or one that a signal handler interrupts, return soon. May be repeated."""

    def start(self) -> None:
        """Build all envs and learn their spaces.

        Workers have `limits.construct` seconds for that, and as many to begin to serve; in this process nothing
        ends a constructor.

        Raises:
            ConfigError: nothing was started: memory, processes or pickling failed.
            SpaceError: an env's spaces differ from env 0's.
            WorkerTimeoutError, WorkerDiedError: a constructor hung or died.
            Exception: what a constructor raised, with the remote traceback as its cause.
        """
        if self._closed or self._owner_pid != os.getpid():
            self._explain("start")
        if self._open_in is not None:
            raise StateError("start: the pool is started already")
        self._enter("start")
        try:
            self._busy = True
            self._start_once()
        finally:
            self._busy = False
            self._leave()

    def _start_once(self) -> None:
        if self._open_in is not None or self._closed:  # by another thread, in the meantime
            self._explain("start")
        try:
            self._go()
            self._check_not_closing("start")
        except BaseException as error:
            self._closed = True
            try:
                self._shut_down()
            except Exception as other:  # of an env's close: what the start failed for is the one to be heard of
                add_notes(error, [f"closing what had been built raised {type(other).__name__}: {other}"])
            raise
        self._open_in = this_process[0]

    def close(self, timeout: float | None = None) -> None:
        """End all envs and workers; idempotent, at most `timeout` seconds and a kill.

        Args:
            timeout: seconds that workers have to end what they are doing and to close their envs;
                None: `limits.close`. With 0 they are killed, their envs not closed.

        Raises:
            ConfigError: `timeout` is no number; nothing is closed.
            Exception: what an env's `close` raised, after everything has ended.

        May be called from another thread: a waiting `recv` then raises ClosedError. Also from a signal
        handler, or an env of a `SerialPool`: amid a call of the pool it returns at once, and that call
        closes the pool and raises ClosedError. Views of batches that are valid, or were lent, stay readable.
        """
        # At the interpreter's end, in a caller's `__del__`, the names of this module may be gone; so are the workers.
        if self._closed or os is None or self._owner_pid != os.getpid():
            return
        check_timeout("timeout", timeout)
        self._closing = True
        self._close_timeout = timeout
        self._interrupt()
        with self._lock:
            if self._busy and not self._closed:  # by this very thread: else we would not be in here
                self._must_close = True
            else:
                self._close_once()

    def _close_once(self) -> None:
        if not self._closed:  # nobody else did in the meantime
            self._closed = True
            self._open_in = None
            self._busy = True  # whoever comes now is told, and need not wait
            self._shut_down()

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _enter(self, what: str) -> None:
        """Take the lock, as one thread at a time may. What follows is as in `post`: try, `_begin`, ..., `_leave`."""
        if self._busy or not self._lock.acquire(False):
            self._explain(what)

    def _begin(self, what: str) -> None:
        """Guard a call that has the lock: right process, open, started."""
        self._busy = True
        if self._open_in is not this_process[0]:
            self._explain(what)

    def _leave(self) -> None:
        """Give the lock back at the end of a call that is not `_busy` any more, and close if that was wanted.

        Calls of every round, as `step`, release the lock themselves where nothing is to be closed.
        """
        try:
            if self._must_close:
                self._close_once()
        finally:
            self._lock.release()

    def _retire(self, seconds: float) -> None:
        """At the interpreter's end: keep other threads from using the pool; waits so many seconds for one that does.

        One that closes it is waited for as well: two at once would each take away what the other one looks at.
        """
        if self._owner_pid == os.getpid():
            self._retired_by = threading.current_thread()
            if not self._closed:
                self._interrupt()
            self._lock.acquire(timeout=seconds)

    def _stay_if_retired(self) -> None:
        """Stay here for good, without the lock, in a daemon thread of an interpreter that ends."""
        if self._retired_by in (None, threading.current_thread()):
            return
        with contextlib.suppress(RuntimeError):  # it has not got the lock
            self._lock.release()
        while True:
            threading.Event().wait(_LONG_SECONDS)

    def _check_not_closing(self, what: str) -> None:
        self._stay_if_retired()
        if self._closing:
            raise ClosedError(f"{what}: the pool was closed meanwhile")

    def _explain(self, what: str) -> NoReturn:
        self._stay_if_retired()
        if self._owner_pid != os.getpid():
            raise StateError(f"{what}: this pool belongs to process {self._owner_pid}; make one in each process")
        if self._closed or self._closing:
            raise ClosedError(f"{what}: the pool is closed")
        if self._open_in is None:
            raise StateError(f"{what}: start the pool first")
        if self._lock.acquire(False):
            is_mine = self._busy  # nobody else is while we have the lock
            self._lock.release()
            if is_mine:
                raise StateError(
                    f"{what}: a call of this pool is under way in this thread; amid one, as in a signal handler, it "
                    "may be closed but not used"
                )
        raise StateError(f"{what}: another thread is using this pool; a pool belongs to one thread at a time")
