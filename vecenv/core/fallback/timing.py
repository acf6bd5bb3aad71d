"""Times the operations of envs without C, as native/shm/timing.h does."""

from __future__ import annotations

import time
from typing import Any

from ..layout.counters import FIRST_OCTAVE, LINE, NUM_BUCKETS
from ..layout.spec import Array
from ..system.clock import now_ns
from ..system.descriptor import Descriptor
from ..system.run_delay import open_run_delay, read_run_delay

__all__ = ["NOT_TIMED", "RESET", "STEP", "SlotTimer", "TimedEnv", "bucket_of", "timed_envs"]

#: Kinds of operations.
STEP, RESET, NOT_TIMED = range(3)
_INTERVAL = 64
_LONG_NS = 1_000_000
#: Indices of the int64 words of `CountersPlan.timings`.
_NUM, _WALL_NS, _LONG_SUM_NS, _MAX_NS, _ENDED_NS, _MEASURED, _MEASURED_WORDS = 0, 2, 4, 5, 7, 8, 4
_NUM_EPISODES, _RETURN_SUM = 18, 19
_BUCKETS = 3 * LINE // 8
#: The range of a word.
_LEAST, _MOST = -(2**63), 2**63 - 1


class TimedEnv:
    """The sums of one env, and the state from which its next measurement follows.

    Args:
        sums: the words of the env in `CountersPlan.timings`.
    """

    __slots__ = ("_floats", "is_computing", "sums", "until_measured", "was_long")

    def __init__(self, sums: memoryview) -> None:
        self.sums = sums
        self._floats = sums.cast("B").cast("d")
        self.until_measured = 8
        self.was_long = [False, False]
        self.is_computing = False

    def count_episode(self, episode_return: float) -> None:
        """Count an episode that ends: first its return, then the episode."""
        self._floats[_RETURN_SUM] += episode_return
        _add(self.sums, _NUM_EPISODES, 1)


class SlotTimer:
    """The operation under way in one thread."""

    def __init__(self) -> None:
        self._is_open = False
        self._delay_file: Descriptor | None = None
        self._kind = NOT_TIMED
        # monotonic clock, CPU time, run-queue delay; None: the operation, or its delay, is not measured
        self._before: tuple[int, int, int | None] | None = None
        self._paused_ns = 0

    def open(self) -> None:
        """Prepare the timer for the calling thread; it may be repeated there.

        Without the file of its run-queue delay, nothing is measured.
        """
        if self._is_open:
            return
        self._is_open = True
        self._delay_file = open_run_delay()

    def close(self) -> None:
        """Close the file; nothing is measured until the next `open`."""
        self._is_open = False
        self._close_file()

    def _close_file(self) -> None:
        if self._delay_file is not None:
            self._delay_file.close()
            self._delay_file = None

    def begin(self, env: TimedEnv, kind: int) -> None:
        """Begin an operation of this kind."""
        self._kind, self._before, self._paused_ns = kind, None, 0
        if kind == NOT_TIMED:
            return
        env.until_measured -= 1
        if env.until_measured == 0 or env.was_long[kind]:
            self._start(env, kind)

    def _start(self, env: TimedEnv, kind: int) -> None:
        if env.until_measured == 0:
            env.until_measured = _INTERVAL
        if self._delay_file is None:
            return
        delay_ns = None
        if not env.is_computing or env.was_long[kind]:
            delay_ns = read_run_delay(self._delay_file)
            if delay_ns is None:
                return
        cpu_ns = time.thread_time_ns()
        self._before = now_ns(), cpu_ns, delay_ns

    def cancel(self) -> None:
        """Do not count the operation under way: it was dropped, or repeated others."""
        self._kind, self._before = NOT_TIMED, None

    def pause(self) -> None:
        """Pause the operation under way, if it is timed: the time until `resume` is not counted."""
        self._add_clocks(-1)

    def resume(self) -> None:
        """End a pause."""
        self._add_clocks(1)

    def _add_clocks(self, sign: int) -> None:
        """As `add_clocks` in native/shm/timing.c."""
        if self._kind == NOT_TIMED:
            return
        now = now_ns()
        self._paused_ns += sign * now
        if self._before is None:
            return
        began_ns, cpu_ns, delay_ns = self._before
        if delay_ns is not None:
            assert self._delay_file is not None
            delay = read_run_delay(self._delay_file)
            if delay is None:
                self._before = None
                return
            delay_ns += sign * delay
        self._before = began_ns + sign * now, cpu_ns + sign * time.thread_time_ns(), delay_ns

    def end(self, env: TimedEnv, took_ns: int, ended_ns: int) -> None:
        """End the operation under way. It took `took_ns`, with its pauses."""
        kind = self._kind
        if kind == NOT_TIMED:
            return
        took_ns -= self._paused_ns
        sums = env.sums
        _add(sums, _BUCKETS + kind * NUM_BUCKETS + bucket_of(took_ns), 1)
        if took_ns > sums[_MAX_NS + kind]:
            sums[_MAX_NS + kind] = took_ns
        _add(sums, _WALL_NS + kind, took_ns)
        _add(sums, _NUM + kind, 1)
        sums[_ENDED_NS] = ended_ns
        env.was_long[kind] = took_ns >= _LONG_NS
        if env.was_long[kind]:
            _add(sums, _LONG_SUM_NS, took_ns)
        if self._before is not None:
            self._stop(env, kind, ended_ns, *self._before)
        self.cancel()

    def _stop(
        self, env: TimedEnv, kind: int, ended_ns: int, began_ns: int, began_cpu_ns: int, delay_ns: int | None
    ) -> None:
        cpu_ns, wall_ns = time.thread_time_ns() - began_cpu_ns, ended_ns - began_ns
        env.is_computing = 2 * cpu_ns >= wall_ns
        delayed_ns = 0
        if delay_ns is not None:
            assert self._delay_file is not None
            delay_after = read_run_delay(self._delay_file)
            if delay_after is None:
                return
            delayed_ns = delay_after - delay_ns
        elif not env.is_computing:
            return  # the next measurement includes the delay
        at = _MEASURED + _MEASURED_WORDS * env.was_long[kind]
        for offset, value in enumerate((1, wall_ns, cpu_ns, delayed_ns)):
            _add(env.sums, at + offset, value)


def _add(sums: memoryview, at: int, value: int) -> None:
    """Add to a word. It does not overflow if an env with a wrong pointer has overwritten it."""
    sums[at] = max(_LEAST, min(_MOST, sums[at] + value))


def bucket_of(ns: int) -> int:
    """Return the bucket of a duration. The two bits below the highest one select a quarter of its octave."""
    octave = ns.bit_length() - 1
    if octave < FIRST_OCTAVE:
        return 0
    return min(NUM_BUCKETS - 1, 1 + 4 * (octave - FIRST_OCTAVE) + (ns >> (octave - 2) & 3))


def timed_envs(timings: Array) -> list[memoryview]:
    """Return the int64 words of each env in `CountersPlan.timings`."""
    data: Any = timings.view("u1")
    words = memoryview(data).cast("q")
    per_env = len(words) // len(timings)
    return [words[i * per_env : (i + 1) * per_env] for i in range(len(timings))]
