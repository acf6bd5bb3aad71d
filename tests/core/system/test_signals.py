"""Deferred signals: handlers wait until the work that they would interrupt is done, and then each is called."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from vecenv.core.system.signals import _pending_signals, _restore_handlers, _set_handler, signals_deferred


class Cut(Exception):
    pass


@pytest.fixture
def delivered() -> Iterator[list[int]]:
    """The signals whose handlers were called; the handler of SIGUSR2 raises."""
    calls: list[int] = []

    def notes(signum: int, frame: object) -> None:
        assert isinstance(frame, FrameType)  # debuggers and samplers read it
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


def test_handlers_are_called_when_the_work_is_done(delivered: list[int]) -> None:
    before = handlers()
    with signals_deferred():
        signal.raise_signal(signal.SIGUSR1)
        with signals_deferred():
            signal.raise_signal(signal.SIGUSR1)
        assert delivered == []
    assert delivered == [signal.SIGUSR1] * 2 and handlers() == before


def test_handlers_are_all_called_although_one_raises(delivered: list[int]) -> None:
    before = handlers()
    done = False
    with pytest.raises(Cut), signals_deferred():
        for signum in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR1):
            signal.raise_signal(signum)
        done = True
    assert done and delivered == [signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR1] and handlers() == before


def test_ctrl_c_comes_after_an_error_of_the_work() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, signals_deferred():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("of the work")
    assert isinstance(caught.value.__context__, ValueError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_are_all_called_although_another_raises_at_release(delivered: list[int]) -> None:
    def one_more(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is _restore_handlers.__code__:
            signal.raise_signal(signal.SIGUSR2)

    try:
        with pytest.raises(Cut), signals_deferred():
            signal.raise_signal(signal.SIGUSR1)
            sys.setprofile(one_more)
    finally:
        sys.setprofile(None)
    assert delivered == [signal.SIGUSR2, signal.SIGUSR1]


@pytest.mark.parametrize("number", range(1, 13))
def test_handlers_are_restored_whenever_one_raises(number: int, delivered: list[int]) -> None:
    """The signal comes before and after each of three handlers is deferred, and before and after each is restored."""
    before, seen = handlers(), 0

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if frame.f_code is _set_handler.__code__ and event in ("call", "return"):
            seen += 1
            if seen == number:
                signal.raise_signal(signal.SIGINT)

    try:
        sys.setprofile(interrupt)
        with pytest.raises(KeyboardInterrupt), signals_deferred():
            pass
    finally:
        sys.setprofile(None)
    assert seen >= number and handlers() == before and not _pending_signals


@pytest.mark.parametrize(
    ("left_to", "ends_with"),
    # set by the first handler, so that a second Ctrl-C ends a program at once
    [(signal.SIG_DFL, -signal.SIGUSR1), (signal.SIG_IGN, 0)],
    ids=["default", "ignored"],
)
def test_signal_goes_to_the_handler_set_by_an_earlier_one(left_to: signal.Handlers, ends_with: int) -> None:
    def child() -> int:
        signal.signal(signal.SIGUSR1, lambda signum, frame: signal.signal(signum, left_to))
        with signals_deferred():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
        return 0

    assert in_a_child(child) == ends_with


def test_handlers_in_c_stay_installed(delivered: list[int], tmp_path: Path) -> None:
    with open(tmp_path / "stacks", "w+") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=False, chain=True)
        try:
            with signals_deferred():
                signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
        stacks.seek(0)
        assert stacks.read().count("most recent call first") == 2
    assert delivered == [signal.SIGUSR1] * 2


def test_siginterrupt_setting_is_kept(delivered: list[int]) -> None:
    """For example, asyncio sets it for the signals of its loops."""
    signal.siginterrupt(signal.SIGUSR1, False)
    before = action_at(signal.SIGUSR1)
    with signals_deferred():
        assert action_at(signal.SIGUSR1) == before
    assert action_at(signal.SIGUSR1) == before
    signal.siginterrupt(signal.SIGUSR1, True)
    assert action_at(signal.SIGUSR1) != before


def action_at(signum: int) -> bytes:
    """Return handler and flags of a struct sigaction: a pointer, 128 bytes of mask (partly unused), an int."""
    action = ctypes.create_string_buffer(1024)
    assert ctypes.CDLL(None).sigaction(signum, None, action) == 0
    return action.raw[:8] + action.raw[136:140]


def test_signals_without_a_handler_are_left_alone(delivered: list[int]) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with signals_deferred():
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_deferral_does_nothing_in_another_thread(delivered: list[int]) -> None:
    before = handlers()
    inside: list[bool] = []

    def work() -> None:
        with signals_deferred():
            inside.append(handlers() == before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [True]


def test_forked_process_restores_the_handlers(delivered: list[int]) -> None:
    before = handlers()

    def child() -> int:
        signal.raise_signal(signal.SIGUSR1)
        return int(handlers() != before or delivered != [signal.SIGUSR1])

    with signals_deferred():
        exitcode = in_a_child(child)
    assert exitcode == 0 and delivered == []


def test_process_forked_by_another_thread_receives_signals(delivered: list[int]) -> None:
    exitcodes: list[int] = []

    def child() -> int:
        signal.raise_signal(signal.SIGUSR1)
        with signals_deferred():
            pass
        return int(delivered != [signal.SIGUSR1])

    thread = threading.Thread(target=lambda: exitcodes.append(in_a_child(child)))
    with signals_deferred():
        signal.raise_signal(signal.SIGINT)  # only the parent gets it
        thread.start()
        thread.join()
        _pending_signals.clear()
    assert exitcodes == [0]


def in_a_child(work: Callable[[], int]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
