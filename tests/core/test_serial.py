"""SerialPool: what only envs in the caller's process can show."""

from __future__ import annotations

import pytest

from vecenv.core.serial import SerialPool
from vecenv.envs import toys
from vecenv.errors import ClosedError


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


def test_a_failed_start_closes_all_that_was_built_and_says_why_it_failed() -> None:
    _GrumblesAtEnd.closed.clear()
    pool = SerialPool([lambda number=number: _GrumblesAtEnd(number) for number in range(5)])
    with pytest.raises(ZeroDivisionError) as caught:
        pool.start()
    assert str(caught.value) == "cannot be built"
    assert "closing what had been built raised ValueError: 0 does not want to end" in caught.value.__notes__
    assert _GrumblesAtEnd.closed == [0, 1, 2]
    with pytest.raises(ClosedError):
        pool.reset()
