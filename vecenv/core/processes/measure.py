"""Measure one env in a worker: its constructor, its resets and some random steps."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..host.shortcut import Shortcut
from ..system.clock import now_ns
from ..system.run_delay import open_run_delay, read_run_delay

__all__ = ["Measurement", "measure_env"]

#: Random steps; the first ones load and compile code, and are not counted.
_STEPS, _WARM_UP = 100, 10
#: Steps end after this time, in nanoseconds.
_MOST_NS = 2_000_000_000
#: Resets per step of an env whose episode did not end.
_RARE_RESETS = 1 / 1000


@dataclass
class Times:
    """Sums in nanoseconds: wall time without waits for a core, and CPU time."""

    num: int = 0
    wall_ns: float = 0.0
    cpu_ns: float = 0.0

    def add(self, before: tuple[int, int], after: tuple[int, int], num: int = 1) -> None:
        """Add the time between two readings of a `_Stopwatch`."""
        self.num += num
        self.wall_ns += after[0] - before[0]
        self.cpu_ns += after[1] - before[1]

    def means(self) -> tuple[float, float]:
        """Return the mean wall time and the mean CPU time, or zeros."""
        return self.wall_ns / max(1, self.num), self.cpu_ns / max(1, self.num)


@dataclass
class Measurement:
    """The cost of one env.

    Attributes:
        construct_ns: wall time of its constructor, in nanoseconds.
        first_reset: time of its first reset.
        steps, resets: times of its steps, and of the resets between them.
        draws: whether it drew from the global random generators, or may have done so.
        failure: the exception that ended the measurement early; '' if none did.
    """

    construct_ns: int = 0
    first_reset: Times = field(default_factory=Times)
    resets: Times = field(default_factory=Times)
    steps: Times = field(default_factory=Times)
    draws: bool = False
    failure: str = ""

    def per_step(self) -> tuple[float, float] | None:
        """Return wall and CPU time of a step, its share of the resets included; None if no step was measured."""
        if not self.steps.num:
            return None
        resets, share = self.resets, self.resets.num / self.steps.num
        if not resets.num:
            resets, share = self.first_reset, _RARE_RESETS
        wall_ns, cpu_ns = (step + share * reset for step, reset in zip(self.steps.means(), resets.means()))
        return wall_ns, min(wall_ns, cpu_ns)


class _Stopwatch:
    """Reads (wall time less run-queue delay, CPU time) of this thread; equal where the delay is not counted."""

    def __init__(self) -> None:
        self._delay_file = open_run_delay()

    def read(self) -> tuple[int, int]:
        wall_ns = now_ns()
        delay_ns = None if self._delay_file is None else read_run_delay(self._delay_file)
        return (wall_ns, wall_ns) if delay_ns is None else (wall_ns - delay_ns, time.thread_time_ns())

    def close(self) -> None:
        if self._delay_file is not None:
            self._delay_file.close()


def measure_env(env: Any) -> Measurement:
    """Reset an env, make random steps, and close it.

    An env whose `reset` needs a request of its front end has a method `measured_reset`. An exception of the env ends
    the measurement, and is noted in the result.
    """
    found = Measurement()
    stopwatch = _Stopwatch()
    try:
        try:
            _run(env, stopwatch, found)
        finally:
            env.close()
    except Exception as error:  # such as that of an illegal move; the run itself raises its own errors
        found.failure = f"{type(error).__name__}: {error}".partition("\n")[0]
    finally:
        stopwatch.close()
    return found


def _run(env: Any, stopwatch: _Stopwatch, found: Measurement) -> None:
    actions = [env.action_space.sample() for _ in range(_STEPS)]
    until_ns = now_ns() + _MOST_NS
    _reset(env, stopwatch, found.first_reset)
    callee = Shortcut.to(env)  # a slot steps the env through it, too
    step = callee.step
    before = stopwatch.read()
    num = 0  # steps since then
    for i, action in enumerate(actions):
        if i == _WARM_UP:
            found.steps, found.resets, num = Times(), Times(), 0
            step = callee.step
            before = stopwatch.read()
        result = step(action)
        num += 1
        is_over = _is_true(result[2]) or _is_true(result[3])
        is_late = now_ns() > until_ns
        if is_over or is_late or i == _STEPS - 1:
            found.steps.add(before, stopwatch.read(), num)
            if is_late:
                return
            if is_over:
                _reset(env, stopwatch, found.resets)
                step = callee.step
            before, num = stopwatch.read(), 0


def _is_true(flag: Any) -> bool:
    return flag is not False and bool(np.any(flag))


def _reset(env: Any, stopwatch: _Stopwatch, times: Times) -> None:
    before = stopwatch.read()
    getattr(env, "measured_reset", env.reset)()
    times.add(before, stopwatch.read())
