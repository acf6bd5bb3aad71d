"""Signals: handlers wait until the work that they would interrupt is done, and then each is heard."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from vecenv.core.signals import held, let_go


class Cut(Exception):
    pass


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals whose handlers have been called; that of SIGUSR2 raises."""
    calls: list[int] = []

    def notes(signum: int, frame: object) -> None:
        calls.append(signum)

    def raises(signum: int, frame: object) -> None:
        calls.append(signum)
        raise Cut

    before = {signum: signal.getsignal(signum) for signum in (signal.SIGUSR1, signal.SIGUSR2)}
    signal.signal(signal.SIGUSR1, notes)
    signal.signal(signal.SIGUSR2, raises)
    yield calls
    for signum, handler in before.items():
        signal.signal(signum, handler)


def handlers() -> dict[int, object]:
    return {signum: signal.getsignal(signum) for signum in signal.valid_signals()}


def test_handlers_are_called_when_the_work_is_done(heard: list[int]) -> None:
    before = handlers()
    with held():
        signal.raise_signal(signal.SIGUSR1)
        with held():
            signal.raise_signal(signal.SIGUSR1)
        assert heard == []
    assert heard == [signal.SIGUSR1] * 2 and handlers() == before


def test_all_are_heard_although_one_raises(heard: list[int]) -> None:
    before = handlers()
    done = False
    with pytest.raises(Cut), held():
        for signum in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2):
            signal.raise_signal(signum)
        done = True
    assert done and heard == [signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2] and handlers() == before


def test_ctrl_c_comes_after_an_error_of_the_work() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, held():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("of the work")
    assert isinstance(caught.value.__context__, ValueError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_without_a_handler_are_left_alone(heard: list[int]) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with held():
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_another_thread_has_nothing_to_hold(heard: list[int]) -> None:
    before = handlers()
    inside: list[bool] = []

    def work() -> None:
        with held():
            inside.append(handlers() == before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [True]


def test_a_forked_process_gives_them_back(heard: list[int]) -> None:
    before = handlers()

    def child() -> int:
        let_go()
        signal.raise_signal(signal.SIGUSR1)
        return int(handlers() != before or heard != [signal.SIGUSR1])

    with held():
        exitcode = in_a_child(child)
    assert exitcode == 0 and heard == []


def in_a_child(work: Callable[[], int]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
