"""Successive halving: candidates are measured in short windows, the better half again in longer ones.

    rung 1: A B C D | D C B A | ...     rung 2: B D | D B | ...     rung 3: D

A busy machine slows down all candidates of a round, so speeds are compared over rounds that candidates have in common.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence

from vecenv.measurement.measure import Mode, Window
from vecenv.tuning.candidates import Candidate

__all__ = ["OpenCandidate", "Halving"]

#: Rounds of a rung. Each second round is in the reverse order.
_ROUNDS = 4
#: A window is at least as long, in seconds.
_LEAST_WINDOW = 0.01
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
        rate = other.rate(rounds)
        return self.rate(rounds) / rate if rate else math.inf


class Halving:
    """Runs the rungs. `advance` is called with a name after each window, `keep` with the better half of each rung."""

    def __init__(self, advance: Callable[[str], object], keep: Callable[[Sequence[OpenCandidate]], object]) -> None:
        self._advance = advance
        self._keep = keep
        self._num_rounds = 0

    def run(
        self, entries: Sequence[OpenCandidate], seconds: float, base: OpenCandidate | None = None
    ) -> list[OpenCandidate]:
        """Return those of the entries in the last rung, the fastest first, with the fastest one that uses `step`.

        Args:
            seconds: for all rungs together. Each entry runs for one batch per window at least, however long that takes.
            base: one of the entries, which stays to the last rung. Speeds are then compared with its speed, over the
                rounds of earlier runs, too.
        """
        first = self._num_rounds
        num_rungs = max(1, math.ceil(math.log2(len(entries))))
        left = list(entries)
        for entry in left:
            entry.mode.run(min(_LEAST_WINDOW, seconds))
            self._advance(str(entry.candidate))
        for rung in range(num_rungs):
            self._run_rung(left, seconds / num_rungs)
            left.sort(key=lambda entry: self._speed(entry, first, base) * entry.candidate.handicap, reverse=True)
            if rung < num_rungs - 1:
                lockstep = next((entry for entry in left if entry.candidate.min_count is None), left[0])
                num_kept = math.ceil(len(left) / 2)
                left = [entry for rank, entry in enumerate(left) if rank < num_kept or entry in (lockstep, base)]
                self._keep(left)
        return left

    def _speed(self, entry: OpenCandidate, first: int, base: OpenCandidate | None) -> float:
        return entry.rate(range(first, self._num_rounds)) if base is None else entry.ratio_to(base)

    def _run_rung(self, entries: Sequence[OpenCandidate], seconds: float) -> None:
        window = max(_LEAST_WINDOW, seconds / (len(entries) * _ROUNDS))
        until = time.monotonic() + _MOST_TIMES_AS_LONG * seconds
        for number in range(_ROUNDS):
            for entry in entries if number % 2 == 0 else entries[::-1]:
                entry.windows[self._num_rounds] = entry.mode.run(window)
                self._advance(str(entry.candidate))
            self._num_rounds += 1
            if time.monotonic() > until:
                return
