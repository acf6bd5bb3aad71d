"""Successive halving: candidates are measured by turns in short windows, the better half again in longer ones.

    rung 1: A B C D D C B A ...     rung 2: B D D B ...     rung 3: D

A busy neighbour slows down all candidates of a turn, so speeds are compared over turns that candidates have in common.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence

from vecenv.measurement.measure import Mode, Window
from vecenv.tuning.candidates import Candidate

__all__ = ["OpenCandidate", "Halving"]

#: Turns of a rung. Each second turn is in the reverse order.
_TURNS = 4
#: A window is at least as long, in seconds.
_LEAST_WINDOW = 0.01
#: A rung ends after a turn if it has taken this multiple of the planned time: windows of slow envs are long.
_MOST_TIMES_AS_LONG = 1.25


class OpenCandidate:
    """A candidate that is open, its mode, which may share the envs with others, and the window of each turn."""

    def __init__(self, candidate: Candidate, mode: Mode) -> None:
        self.candidate = candidate
        self.mode = mode
        self.windows: dict[int, Window] = {}

    def rate(self, turns: Collection[int] | None = None) -> float:
        """Return the env steps per second over these turns, over all by default."""
        windows = [self.windows[turn] for turn in (self.windows if turns is None else turns)]
        return sum(window.steps for window in windows) / sum(window.seconds for window in windows)

    def ratio_to(self, other: OpenCandidate) -> float:
        """Return the speed divided by that of another entry, over the turns that both have."""
        turns = self.windows.keys() & other.windows.keys()
        rate = other.rate(turns)
        return self.rate(turns) / rate if rate else math.inf


class Halving:
    """Runs the rungs.

    Args:
        advance: called with the name of the candidate after each window.
        drop: called with the entries that are left after each rung.
    """

    def __init__(self, advance: Callable[[str], object], drop: Callable[[Sequence[OpenCandidate]], object]) -> None:
        self._advance = advance
        self._drop = drop
        self._turn = 0

    def run(
        self, entries: Sequence[OpenCandidate], seconds: float, base: OpenCandidate | None = None
    ) -> list[OpenCandidate]:
        """Return the entries of the last rung, the fastest first; the fastest one that uses `step` is among them.

        Args:
            entries: at least one.
            seconds: for all rungs together. Each entry runs for one batch per window at least, however long that takes.
            base: one of the entries, which stays to the last rung. Speeds are then compared with its speed, over the
                turns of earlier runs, too.
        """
        first = self._turn
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
                left = [entry for place, entry in enumerate(left) if place < num_kept or entry in (lockstep, base)]
                self._drop(left)
        return left

    def _speed(self, entry: OpenCandidate, first: int, base: OpenCandidate | None) -> float:
        return entry.rate(range(first, self._turn)) if base is None else entry.ratio_to(base)

    def _run_rung(self, entries: Sequence[OpenCandidate], seconds: float) -> None:
        window = max(_LEAST_WINDOW, seconds / (len(entries) * _TURNS))
        until = time.monotonic() + _MOST_TIMES_AS_LONG * seconds
        for turn in range(_TURNS):
            for entry in entries if turn % 2 == 0 else entries[::-1]:
                entry.windows[self._turn] = entry.mode.run(window)
                self._advance(str(entry.candidate))
            self._turn += 1
            if time.monotonic() > until:
                return
