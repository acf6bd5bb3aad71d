"""The matrix of faults as data: its cells, the expected behaviour of each, and the subset that always runs.

fault x moment x front end x start method -> FaultCase -> 'recovers' | 'raises' | 'passes', or a reason why it cannot be
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from vecenv.envs.toys import FAULTS, MOMENTS

FRONT_ENDS = ("sync", "async", "V2", "VectorEnv")
STARTS = ("forkserver", "spawn", "fork")

DEATHS = ("exit", "abort", "segfault")
HANGS = ("hang", "hang in C", "stop")
RAISERS = ("raise", "raise weird", "raise unpicklable", "raise SystemExit")
HARMLESS = ("leak", "child", "huge", "wrong dtype")

_NO_OBSERVATION = "no observation is made in this call, so none can be wrong"
_NO_ANSWER = "no info and no result travels from this call"
IMPOSSIBLE = {
    **{(fault, moment): _NO_OBSERVATION for fault in ("wrong dtype", "wrong shape") for moment in ("call", "close")},
    **{(fault, moment): _NO_ANSWER for fault in ("huge", "unpicklable") for moment in ("construct", "close")},
}


class FaultCase(NamedTuple):
    """One combination."""

    fault: str
    moment: str
    front_end: str
    start: str

    def __str__(self) -> str:
        return "-".join(self)

    @property
    def reason(self) -> str:
        """The reason why this case is impossible; '' if it is possible."""
        return IMPOSSIBLE.get((self.fault, self.moment), "")

    @property
    def promise(self) -> str:
        """The expected behaviour.

        'recovers': as if nothing had happened; 'raises': an error that names the env; 'passes':
        nothing is wrong with it; 'ends': whatever close says, it ends in time.
        """
        if self.moment == "close":
            return "passes" if self.fault in HARMLESS else "ends"
        if self.moment == "construct":
            return "passes" if self.fault in ("leak", "child") else "raises"
        if self.fault in HARMLESS:
            return "passes"
        if self.fault in DEATHS or (self.fault in HANGS and self.front_end == "VectorEnv"):
            return "recovers"
        return "raises"


def all_cases() -> list[FaultCase]:
    """Return every cell, the impossible ones too."""
    return [FaultCase(*parts) for parts in itertools.product(FAULTS, MOMENTS, FRONT_ENDS, STARTS)]


def possible_cases() -> list[FaultCase]:
    """Return the cells that run."""
    return [case for case in all_cases() if not case.reason]


def pairs_of(case: FaultCase) -> Iterator[tuple[int, str, int, str]]:
    """Yield the pairs of choices that a cell covers."""
    for (i, one), (j, other) in itertools.combinations(enumerate(case), 2):
        yield i, one, j, other


def pairwise_cases() -> list[FaultCase]:
    """Return few cells that together cover every possible pair of choices."""
    chosen: list[FaultCase] = []
    covered: set[tuple[int, str, int, str]] = set()
    by_fault: dict[tuple[str, str], list[FaultCase]] = {}
    for case in possible_cases():
        by_fault.setdefault((case.fault, case.moment), []).append(case)
    groups = list(by_fault.values())
    for group in groups:  # every fault at every moment, in the cell that covers most new pairs
        best = max(group, key=lambda case: len(set(pairs_of(case)) - covered))
        chosen.append(best)
        covered.update(pairs_of(best))
    for case in possible_cases():
        if not covered.issuperset(pairs_of(case)):
            chosen.append(case)
            covered.update(pairs_of(case))
    return chosen
