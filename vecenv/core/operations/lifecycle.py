"""Lifecycle: which calls of a pool are allowed when, and from which process and thread.

    made -> start -> open -> close -> closed          a pool whose start failed is closed, too

A pool belongs to the process that made it, and to one thread at a time. A forked child inherits the object, but its
calls raise StateError there, and closing or deleting it has no effect.

A signal handler runs in the middle of a call, in the thread of that call, and may close the pool. The call then ends
soon, closes the pool as it returns, and raises ClosedError. For this the lock is reentrant, and a flag beside it marks
a call under way.

A thread that only reads, such as one that serves metrics, may need the pool for a moment while no call is under way.
A call that begins during a read waits for the end of the read instead of raising an error.

Daemon threads continue for a while after the interpreter has begun to exit. A daemon thread that uses a pool then
waits inside its call until the process ends, so that it neither raises errors for workers that are being stopped nor
starts new ones.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import Any, NoReturn, TypeVar

from ...errors import ClosedError, StateError, add_notes
from ..system.clock import check_timeout, now_ns

__all__ = ["Lifecycle"]

_Result = TypeVar("_Result")

#: The call that needs a pool which is not open yet.
_START = "start"
#: Seconds of each wait of a thread for the end of the process, which comes long before.
_LONG_SECONDS = 3600.0
#: Nanoseconds that a call waits for the end of a read in another thread, which takes less; and seconds of each wait.
_READ_NS, _READ_PAUSE = 10_000_000_000, 0.01
#: Seconds that the interpreter's exit waits for a call of a pool in another thread.
_RETIRE_SECONDS = 5.0
#: Unclosed pools end before things that envs may use, such as a `multiprocessing.Manager`, whose priority is 0.
_EXIT_PRIORITY = 100
#: Replaced in every forked child. Comparing it needs no system call.
_this_process = [object()]


def _become_another_process() -> None:
    _this_process[0] = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_become_another_process)


class Lifecycle:
    """Owner process, lock and state of one pool.

    Args:
        interrupt: makes a wait return soon. It is called from other threads and from signal handlers, at any time, and
            possibly repeatedly.
        end_if_unclosed: ends processes and memory of a pool that was not closed, once the pool is garbage or when the
            interpreter exits. It must hold a reference neither to the pool nor to its engine. None: there is nothing
            to end.
    """

    def __init__(self, interrupt: Callable[[], None], end_if_unclosed: Callable[[], None] | None = None) -> None:
        self._interrupt = interrupt
        self._owner_pid = os.getpid()
        self._lock = threading.RLock()
        self._read_lock = threading.RLock()  # a thread that reads has both; this one is acquired first
        self._is_awaited = False  # a call waits for the end of a read
        self._is_busy = False  # written by the thread that has the lock: a call is under way, or the pool is closed
        self._must_close = False  # `close` was called during a call, in the thread of that call
        self._open_in: object | None = None  # the token of the process, from a successful start until the close
        self._is_closed = False
        self._is_closing = False
        self._close_timeout: float | None = None  # the argument of `close`
        self._retired_by: threading.Thread | None = None  # the thread in which the interpreter exits
        self._shut_down: Callable[[float | None], Exception | None] = lambda timeout: None
        self._finalizer: Finalize | None = None
        if end_if_unclosed is not None:
            # Not `weakref.finalize`: `multiprocessing` waits for all processes when its own exit function runs. That
            # is after the functions of `weakref.finalize` only if none of these was registered before the import of
            # `multiprocessing`; and children of `multiprocessing` do not run them at all.
            args = (weakref.WeakMethod(self._retire), end_if_unclosed)
            self._finalizer = Finalize(self, _end_unclosed, args, exitpriority=_EXIT_PRIORITY)

    # ---- state -----------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the pool is closed: by `close`, or by a start that failed."""
        return self._is_closed

    @property
    def is_started(self) -> bool:
        """Whether the pool has been started and is not closed, in this process or in the parent it was forked from."""
        return self._open_in is not None

    @property
    def is_open(self) -> bool:
        """Whether the pool has been started and is not closed, in this process."""
        return self._open_in is _this_process[0]

    def check_open(self, what: str) -> None:
        """Raise unless the pool is open; error messages begin with `what`, the name of the call.

        Raises:
            StateError: the pool is not started, or belongs to another process.
            ClosedError: the pool is closed.
        """
        if self._open_in is not _this_process[0]:
            self._refuse(what)

    def check_not_closing(self, what: str = "") -> None:
        """Raise ClosedError if `close` was called during the call; waits call this whenever they wake up.

        It does not return in a daemon thread of an interpreter that exits.
        """
        self._stay_if_retired()
        if self._is_closing:
            raise ClosedError(f"{what}: the pool was closed meanwhile" if what else "the pool was closed during a wait")

    # ---- calls -----------------------------------------------------------------------------

    def guard(
        self, what: str, work: Callable[[Any, Any, Any, Any], Any], then: Callable[[], Any] | None = None
    ) -> Callable[[Any, Any, Any, Any], Any]:
        """Make a call of the pool from a function of four arguments.

        All calls pass through such a function; no other code takes the lock. It is no context manager,
        because Python 3.10 runs signal handlers between any two instructions: an exception of a handler between the end
        of `__enter__` and the `with` block would leave the pool marked as busy forever. Here it may leave the lock
        taken, which excludes other threads only.

        Args:
            what: name of the call, which error messages begin with.
            work: runs inside the guard. Four arguments are what `send` and `recv` need; `*args` would cost each of them
                40 ns more.
            then: runs after `work`, inside the same guard.

        Returns:
            A function that returns the result of `work`, or of `then` if there is one. It raises StateError if the
            pool is not started, belongs to another process, or another call is under way, and ClosedError if the pool
            is closed, or was closed during the call.
        """
        acquire, release = self._lock.acquire, self._lock.release

        def guarded(first: Any, second: Any, third: Any, fourth: Any) -> Any:
            if self._is_busy or not acquire(False):
                self._acquire_after_read(what)
            try:
                self._is_busy = True
                if self._open_in is not _this_process[0] and what != _START:
                    self._refuse(what)
                result = work(first, second, third, fourth)
                if then is not None:
                    result = then()
            finally:
                self._is_busy = False
                if self._must_close:
                    self._close_and_release()
                else:
                    release()
            if self._is_closed:
                self._refuse(what)
            return result

        return guarded

    def call(self, what: str, work: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
        """Return work(*args, **kwargs), guarded as a call of the pool."""
        result: _Result = self.guard(what, _apply)(work, args, kwargs, None)
        return result

    def read_if_idle(self, what: str, read: Callable[[Callable[[], bool]], object]) -> None:
        """Call read(must_end) as a call of the pool; do nothing if the pool is not open, or not idle.

        Args:
            what: name of the call, which error messages begin with.
            read: takes a function, and returns soon after that function has returned True: another thread wants to use
                or close the pool.
        """
        if self._is_busy or not self._read_lock.acquire(False):
            return
        try:
            if self._lock.acquire(False):
                try:  # the lock is reentrant
                    if self.is_open and not self._is_busy:
                        self.call(what, read, lambda: self._is_awaited or self._is_closing)
                finally:
                    self._lock.release()
        finally:
            self._read_lock.release()

    def _acquire_after_read(self, what: str) -> None:
        """Take the lock for a call as soon as no thread reads; raise if another call is under way."""
        if self._owner_pid != os.getpid():  # the thread that had the locks at the fork is not in this process
            self._refuse(what)
        has_read_lock = has_lock = False
        until_ns = now_ns() + _READ_NS
        try:
            while not has_read_lock and now_ns() < until_ns:
                self._is_awaited = True  # another call that waits may have set it to False
                has_read_lock = self._read_lock.acquire(timeout=_READ_PAUSE)
            if has_read_lock:  # no thread reads now, so a lock that is taken means a call
                has_lock = self._lock.acquire(False)
        finally:
            self._is_awaited = False
            if has_read_lock:
                self._read_lock.release()
        if has_lock and self._is_busy:  # the pool is closed, or a call is under way in this thread
            self._lock.release()
            has_lock = False
        if not has_lock:
            self._refuse(what)

    def start(self, open_all: Callable[[], None], shut_down: Callable[[float | None], Exception | None]) -> None:
        """Start the pool.

        Args:
            open_all: builds everything.
            shut_down: ends everything that `open_all` has begun, even if that failed half-way. It is called once, with
                the timeout of `close`, and returns the exception to raise when everything has ended, or None.

        Raises:
            StateError: the pool is started already, or belongs to another process.
            ClosedError: the pool is closed, or was closed during the start.
            BaseException: the exception of `open_all`; the pool is closed then.
        """
        if self._is_closed or self._owner_pid != os.getpid():
            self._refuse(_START)
        if self._open_in is not None:
            raise StateError("start: the pool is started already")
        self.guard(_START, self._start_once)(open_all, shut_down, None, None)

    def _start_once(self, open_all: Callable[[], None], shut_down: Callable[..., Any], *_: None) -> None:
        if self._open_in is not None or self._is_closed:  # another thread was faster
            self._refuse(_START)
        self._shut_down = shut_down
        try:
            open_all()
            self.check_not_closing(_START)
        except BaseException as error:
            self._is_closed = True
            try:
                other = self._end()
            except Exception as raised:
                other = raised
            if other is not None:  # such as the exception of an env's `close`; the one of the start is more important
                add_notes(error, [f"closing what had been built raised {type(other).__name__}: {other}"])
            raise
        self._open_in = _this_process[0]

    # ---- end -------------------------------------------------------------------------------

    def close(self, timeout: float | None) -> None:
        """Close the pool; see `Pool.close`.

        Args:
            timeout: passed on to the function that shuts everything down.
        """
        # A caller's `__del__` may come here when the interpreter exits and the names of this module are gone. The
        # workers are gone then, too.
        if self._is_closed or os is None or self._owner_pid != os.getpid():
            return
        check_timeout("timeout", timeout)
        self._is_closing = True
        self._close_timeout = timeout
        self._interrupt()
        with self._lock:
            if self._is_busy and not self._is_closed:  # a call of this same thread is under way: no other has the lock
                self._must_close = True
            else:
                self._close_once()

    def _close_once(self) -> None:
        if not self._is_closed:  # else another thread was faster
            self._is_closed = True
            self._open_in = None
            self._is_busy = True  # later calls are refused at once, without waiting for the lock
            error = self._end()
            if error is not None:
                raise error

    def _end(self) -> Exception | None:
        shut_down, self._shut_down = self._shut_down, lambda timeout: None  # it may refer to the memory of the pool
        error = shut_down(self._close_timeout)
        if self._finalizer is not None:  # stays if a signal handler has raised above: it ends the other parts later
            self._finalizer.cancel()
        return error

    def _close_and_release(self) -> None:
        """Close the pool at the end of a call during which `close` was called, and release the lock."""
        try:
            self._close_once()
        finally:
            self._lock.release()

    def _retire(self, seconds: float) -> None:
        """Stop other threads from using the pool when the interpreter exits; wait that many seconds for a call.

        A call of `close` is waited for, too: two threads must not close one pool at the same time.
        """
        if self._owner_pid == os.getpid():
            self._retired_by = threading.current_thread()
            if not self._is_closed:
                self._interrupt()
            self._lock.acquire(timeout=seconds)

    def _stay_if_retired(self) -> None:
        """Never return in a daemon thread of an interpreter that exits; the lock is released before."""
        if self._retired_by in (None, threading.current_thread()):
            return
        with contextlib.suppress(RuntimeError):  # this thread does not have the lock
            self._lock.release()
        while True:
            threading.Event().wait(_LONG_SECONDS)

    def _refuse(self, what: str) -> NoReturn:
        """Raise the error that says why a call is not allowed."""
        self._stay_if_retired()
        if self._owner_pid != os.getpid():
            raise StateError(f"{what}: this pool belongs to process {self._owner_pid}; make one in each process")
        if self._is_closed or self._is_closing:
            raise ClosedError(f"{what}: the pool is closed")
        if self._open_in is None:
            raise StateError(f"{what}: start the pool first")
        if self._lock.acquire(False):
            is_mine = self._is_busy  # no other thread has the lock now
            self._lock.release()
            if is_mine:
                raise StateError(
                    f"{what}: a call of this pool is under way in this thread; during a call, as in a signal handler, "
                    "the pool may be closed but not used"
                )
        raise StateError(f"{what}: another thread is using this pool; a pool belongs to one thread at a time")


def _apply(work: Callable[..., Any], args: Any, kwargs: Any, _: None) -> Any:
    return work(*args, **kwargs)


def _end_unclosed(find_retire: Callable[[], Callable[[float], None] | None], end: Callable[[], None]) -> None:
    """End a pool that was not closed, as it is garbage or the interpreter exits, after `Lifecycle._retire`."""
    try:
        retire = find_retire()
        if retire is not None:
            retire(_RETIRE_SECONDS)
    finally:  # a Ctrl-C above ends the wait only
        end()
