"""SerialPool: the cases that only envs in the caller's process have."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import wait_until
from vecenv.core.options import Limits, PoolOptions
from vecenv.core.pool.serial import SerialPool
from vecenv.envs import toys
from vecenv.errors import ClosedError, WorkerTimeoutError


class _GrumblesAtEnd(toys.CountEnv):
    closed: list[int] = []

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        if number == 3:
            raise ZeroDivisionError("cannot be built")

    def close(self) -> None:
        self.closed.append(self.number)
        if self.number < 2:
            raise ValueError(f"{self.number} does not want to end")


def test_failed_start_closes_the_built_envs_and_raises_the_reason() -> None:
    _GrumblesAtEnd.closed.clear()
    pool = SerialPool([lambda number=number: _GrumblesAtEnd(number) for number in range(5)])
    with pytest.raises(ZeroDivisionError) as caught:
        pool.start()
    assert str(caught.value) == "cannot be built"
    assert "closing what had been built raised ValueError: 0 does not want to end" in caught.value.__notes__
    assert _GrumblesAtEnd.closed == [0, 1, 2]
    with pytest.raises(ClosedError):
        pool.reset()


@pytest.mark.parametrize("seconds", [30.0, 0.001])
def test_timer_of_the_program_continues(seconds: float) -> None:
    """Limits of envs need the timer. If the program's timer was due during that time, it fires afterwards."""
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: came.append(1))
    try:
        with SerialPool([toys.CountEnv], PoolOptions(limits=Limits(step=20.0))) as pool:
            pool.start()
            pool.reset()
            pool.recv()
            pool.send(np.zeros(1, np.int64))
            signal.setitimer(signal.ITIMER_REAL, seconds)
            pool.recv().raise_errors()
            if seconds > 1:
                assert 20.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= seconds and not came
        wait_until(lambda: seconds > 1 or bool(came))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _CatchesTimeouts(toys.CountEnv):
    """Its step hangs, catches the first error of the limit, and hangs again."""

    caught: list[float] = []

    def step(self, action: Any) -> Any:
        for _ in range(2):
            try:
                threading.Event().wait()
            except WorkerTimeoutError as error:
                self.caught.append(time.monotonic())
                last = error
        raise last


def test_env_that_catches_the_timeout_has_the_whole_limit_again() -> None:
    """A second error must not come while the first one becomes the answer of the env."""
    _CatchesTimeouts.caught.clear()
    with SerialPool([_CatchesTimeouts], PoolOptions(limits=Limits(step=0.2))) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        pool.send(np.zeros(1, np.int64))
        with pytest.raises(WorkerTimeoutError):
            pool.recv().raise_errors()
    first, second = _CatchesTimeouts.caught
    assert second - first >= 0.2
