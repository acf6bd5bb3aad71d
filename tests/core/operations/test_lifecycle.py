"""When, and by which thread, a pool may be used, started and closed; without envs and workers."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from vecenv.core.operations.lifecycle import Lifecycle
from vecenv.errors import ClosedError, ConfigError, StateError


def nothing() -> None:
    """Do nothing; the default of `at_start` and `at_end`."""


def refuse() -> None:
    raise LookupError("of the start")


class Bare:
    """A pool with only a lifecycle. It records its starts and ends, and calls `at_start` and `at_end` in them."""

    def __init__(
        self,
        at_start: Callable[[], object] = nothing,
        at_end: Callable[[], object] = nothing,
        kind: type[Lifecycle] = Lifecycle,
    ) -> None:
        self.at_start, self.at_end = at_start, at_end
        self.events: list[str] = []
        self.interrupted = threading.Event()
        self.lifecycle = kind(self.interrupted.set)

    @property
    def closed(self) -> bool:
        return self.lifecycle.is_closed

    def start(self) -> None:
        self.lifecycle.start(self._open, self._shut_down)

    def _open(self) -> None:
        self.events.append("start")
        self.at_start()

    def close(self, timeout: float | None = None) -> None:
        self.lifecycle.close(timeout)

    def _shut_down(self, timeout: float | None) -> None:
        self.events.append("end")
        self.at_end()

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def use(self, work: Callable[[], object] = nothing) -> None:
        """Run a function as the calls of pools do."""
        self.lifecycle.call("use", self._use, work)

    def _use(self, work: Callable[[], object]) -> None:
        work()
        self.lifecycle.check_not_closing("use")


def started(at_end: Callable[[], object] = nothing) -> Bare:
    life = Bare(at_end=at_end)
    life.start()
    return life


def elsewhere(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_pool_closed_by_another_thread_during_start_is_not_open() -> None:
    closers = []

    def close() -> None:
        closers.append(elsewhere(life.close))
        life.interrupted.wait()

    life = Bare(at_start=close)
    with pytest.raises(ClosedError, match="start: the pool was closed meanwhile"):
        life.start()
    closers[0].join()
    assert life.closed and life.events == ["start", "end"]


@pytest.mark.parametrize("end", ["start", "use"])
def test_close_error_is_a_note_on_the_start_error(end: str) -> None:
    def fail() -> None:
        raise ValueError("of the end")

    life = Bare(at_start=refuse if end == "start" else nothing, at_end=fail)
    if end == "start":
        with pytest.raises(LookupError) as caught:
            life.start()
        assert caught.value.__notes__ == ["closing what had been built raised ValueError: of the end"]
    else:
        life.start()
        with pytest.raises(ValueError, match="of the end"):
            life.use(life.close)
    assert life.closed and life.events == ["start", "end"]
    with pytest.raises(ClosedError):
        life.start()
    is_free: list[bool] = []
    elsewhere(lambda: is_free.append(life.lifecycle._lock.acquire(False))).join()
    assert is_free == [True]


def test_threads_start_a_pool_once() -> None:
    class Raced(Lifecycle):
        def guard(self, *args: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                elsewhere(try_start).join()  # after the first look at the state
            return super().guard(*args)

    def try_start() -> None:
        with contextlib.suppress(LookupError):
            life.start()

    life = Bare(kind=Raced)
    with pytest.raises(StateError):
        life.start()
    assert life.events == ["start"] and not life.closed
    life.close()
    life = Bare(at_start=refuse, kind=Raced)
    with pytest.raises(ClosedError):
        life.start()
    assert life.events == ["start", "end"]


def test_call_during_a_waiting_close_raises() -> None:
    errors: list[Exception] = []

    def come() -> None:
        try:
            life.use()
        except StateError as error:
            errors.append(error)

    def wait() -> None:
        elsewhere(come).join()
        closers.append(elsewhere(life.close))
        life.interrupted.wait()
        elsewhere(come).join()

    life, closers = started(), list[threading.Thread]()
    with pytest.raises(ClosedError, match="use: the pool was closed meanwhile"):
        life.use(wait)
    closers[0].join()
    before, after = errors
    assert "another thread is using this pool" in str(before) and not isinstance(before, ClosedError)
    assert isinstance(after, ClosedError)
    assert life.events == ["start", "end"]


def test_thread_of_a_running_call_may_only_close() -> None:
    def close() -> None:
        for call in (life.use, life.start):
            with pytest.raises(StateError, match="under way in this thread|started already"):
                call()
        with pytest.raises(ConfigError):
            life.close("soon")  # type: ignore[arg-type]
        life.lifecycle.check_not_closing()
        life.close(2.5)
        life.close()
        assert life.events == ["start"] and not life.closed

    life = started()
    with pytest.raises(ClosedError):
        life.use(close)
    assert life.events == ["start", "end"] and life.closed
    life.close()


def test_thread_of_a_running_start_may_close() -> None:
    life = Bare(at_start=lambda: life.close())
    with pytest.raises(ClosedError):
        life.start()
    assert life.events == ["start", "end"] and life.closed


def test_close_may_be_called_during_a_close() -> None:
    life = started(at_end=lambda: (life.close(), elsewhere(life.close).join()))
    with life:
        life.use()
    assert life.events == ["start", "end"]


def begin_read(life: Bare) -> threading.Thread:
    """Return a thread that has begun a read, which ends as soon as it must."""

    def read(must_end: Callable[[], bool]) -> None:
        life.events.append("read")
        reads.set()
        while not must_end():
            os.sched_yield()
        life.events.append("read ends")

    reads = threading.Event()
    thread = elsewhere(lambda: life.lifecycle.read_if_idle("read", read))
    reads.wait()
    return thread


def test_call_during_a_read_of_another_thread_waits_for_its_end() -> None:
    life = started()
    reader = begin_read(life)
    life.lifecycle.read_if_idle("read", lambda must_end: life.events.append("second read"))
    life.use(lambda: life.events.append("use"))
    reader.join()
    assert life.events == ["start", "read", "read ends", "use"]
    life.lifecycle.read_if_idle("read", lambda must_end: life.events.append(f"must end: {must_end()}"))
    assert life.events[4:] == ["must end: False"]
    life.close()


def test_close_during_a_read_of_another_thread_waits_for_its_end() -> None:
    life = started()
    reader = begin_read(life)
    life.close()
    reader.join()
    life.lifecycle.read_if_idle("read", lambda must_end: life.events.append("late read"))
    assert life.events == ["start", "read", "read ends", "end"]


def test_no_read_begins_during_a_call() -> None:
    def read() -> None:
        life.lifecycle.read_if_idle("read", lambda must_end: life.events.append("read"))

    life = started()
    life.use(lambda: (read(), elsewhere(read).join()))
    assert life.events == ["start"]
    life.close()


def test_child_that_was_forked_during_a_read_has_no_pool() -> None:
    life = started()
    reader = begin_read(life)
    pid = os.fork()
    if pid == 0:
        try:
            life.use()
        except StateError as error:
            os._exit(0 if f"belongs to process {os.getppid()}" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    life.close()
    reader.join()


def test_forked_child_has_no_pool() -> None:
    life = started()
    pid = os.fork()
    if pid == 0:
        said = []
        for call in (life.use, life.start, Bare().start, life.close):
            try:
                call()
            except StateError as error:
                said.append(f"belongs to process {os.getppid()}" in str(error))
        os._exit(0 if said == [True] * 2 and life.events == ["start"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    made = Bare()
    pid = os.fork()
    if pid == 0:
        try:
            made.start()
        except StateError:
            os._exit(0 if made.events == [] else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    life.close()
