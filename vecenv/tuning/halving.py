"""Successive halving: candidates are measured in short windows, the better half again in longer ones.

    rung 1: A B C D | D C B A | ...     rung 2: B D | D B | ...     rung 3: D

A busy machine slows down all candidates of a round, so speeds are compared over rounds that candidates have in common.
A candidate whose env crashes drops out. The last rung goes on until each candidate was measured long enough for a rank.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence

from vecenv.errors import EnvError, WorkerError
from vecenv.measurement.measure import Mode, Window
from vecenv.tuning.candidates import Candidate

__all__ = ["OpenCandidate", "Halving"]

#: Rounds of a rung. Each second round is in the reverse order.
_ROUNDS = 4
#: A window is at least as long, in seconds.
_LEAST_WINDOW = 0.01
#: A candidate gets a rank if its windows take this number of seconds, and as long as this number of slow resets.
_LEAST_SECONDS, _RESETS = 1.0, 10
#: A rung ends after a round if it has taken this multiple of the planned time: windows of slow envs are long.
_MOST_TIMES_AS_LONG = 1.25


class OpenCandidate:
    """A candidate that is open, its mode, which may share the envs with others, and the window of each round."""

    def __init__(self, candidate: Candidate, mode: Mode) -> None:
        self.candidate = candidate
        self.mode = mode
        self.windows: dict[int, Window] = {}

    @property
    def seconds(self) -> float:
        """The length of all windows."""
        return sum(window.seconds for window in self.windows.values())

    def rate(self, rounds: Collection[int] | None = None) -> float:
        """Return the env steps per second over these rounds, over all by default."""
        windows = [self.windows[number] for number in (self.windows if rounds is None else rounds)]
        return sum(window.steps for window in windows) / sum(window.seconds for window in windows)

    def ratio_to(self, other: OpenCandidate) -> float:
        """Return the speed divided by that of another entry, over the rounds that both have."""
        rounds = self.windows.keys() & other.windows.keys()
        if not rounds:
            return math.nan
        rate = other.rate(rounds)
        return self.rate(rounds) / rate if rate else math.inf


class Halving:
    """Runs the rungs.

    Args:
        advance: called with a name after each window.
        keep: called with the better half of each rung.
        drop: called with a candidate whose workers have died or hung, and the error.
        reset_seconds: time of a slow reset, 0 if there are none.
    """

    def __init__(
        self,
        advance: Callable[[str], object],
        keep: Callable[[Sequence[OpenCandidate]], object],
        drop: Callable[[OpenCandidate, WorkerError], object],
        reset_seconds: float = 0.0,
    ) -> None:
        self._advance = advance
        self._keep = keep
        self._drop = drop
        self._least_window = max(_LEAST_WINDOW, reset_seconds)
        #: Least seconds of all windows of a candidate that gets a rank.
        self.least_seconds = max(_LEAST_SECONDS, _RESETS * reset_seconds)
        self._num_rounds = 0

    def run(
        self, entries: Sequence[OpenCandidate], seconds: float, base: OpenCandidate | None = None
    ) -> list[OpenCandidate]:
        """Return those of the entries in the last rung, the fastest first; [] if all have dropped out.

        The fastest one that uses `step` stays to the end, and so does the fastest one with worker processes.

        Args:
            seconds: for all rungs together. Each entry runs for one batch per window at least, however long that takes.
            base: one of the entries, which stays to the last rung. Speeds are then compared with its speed, over the
                rounds of earlier runs, too.
        """
        first = self._num_rounds
        num_rungs = max(1, math.ceil(math.log2(len(entries))))
        left = list(entries)
        for entry in (one for one in entries if one in left):
            self._run_window(left, entry, min(_LEAST_WINDOW, seconds))
        for rung in range(num_rungs):
            self._run_rung(left, seconds / num_rungs, is_last=rung == num_rungs - 1)
            if base not in left:
                base = None
            left.sort(key=lambda entry: self._speed(entry, first, base) * entry.candidate.handicap, reverse=True)
            if left and rung < num_rungs - 1:
                lockstep = next((entry for entry in left if entry.candidate.min_count is None), left[0])
                by_workers = next((entry for entry in left if entry.candidate.backend == "process"), left[0])
                kept = (lockstep, by_workers, base)
                num_kept = math.ceil(len(left) / 2)
                left = [entry for rank, entry in enumerate(left) if rank < num_kept or entry in kept]
                self._keep(left)
        return left

    def _speed(self, entry: OpenCandidate, first: int, base: OpenCandidate | None) -> float:
        return entry.rate(range(first, self._num_rounds)) if base is None else entry.ratio_to(base)

    def _run_rung(self, left: list[OpenCandidate], seconds: float, *, is_last: bool) -> None:
        """Run rounds of windows; remove candidates that fail from the list."""
        window = max(self._least_window, seconds / (max(1, len(left)) * _ROUNDS))
        until = time.monotonic() + _MOST_TIMES_AS_LONG * seconds
        number = 0
        while left:
            for entry in left[:] if number % 2 == 0 else left[::-1]:
                if entry in left:  # others with the same vector env may have failed
                    entry.windows[self._num_rounds] = self._run_window(left, entry, window)
            self._num_rounds += 1
            number += 1
            is_short = is_last and any(entry.seconds < self.least_seconds for entry in left)
            if not is_short and (number >= _ROUNDS or time.monotonic() > until):
                return

    def _run_window(self, left: list[OpenCandidate], entry: OpenCandidate, seconds: float) -> Window:
        window = Window(0, 0.0, seconds, 0.0)
        try:
            window = entry.mode.run(seconds)
        except EnvError:  # the exception of an env, not a crash
            raise
        except WorkerError as error:
            for other in [one for one in left if one.candidate.open_key == entry.candidate.open_key]:
                left.remove(other)
                self._drop(other, error)
        self._advance(str(entry.candidate))
        return window
