"""The matrix of faults as data: which cells there are, what is promised in each, and the subset that always runs.

fault x moment x face x start method -> Cell -> 'recovers' | 'raises' | 'passes', or a reason why it cannot be
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from vecenv.envs.toys import FAULTS, MOMENTS

FACES = ("sync", "async", "V2", "VectorEnv")
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


class Cell(NamedTuple):
    """One combination."""

    fault: str
    moment: str
    face: str
    start: str

    def __str__(self) -> str:
        return "-".join(self)

    @property
    def reason(self) -> str:
        """Why there is nothing to run, '' if there is."""
        return IMPOSSIBLE.get((self.fault, self.moment), "")

    @property
    def promise(self) -> str:
        """What is to happen.

        'recovers': as if nothing had happened; 'raises': an error that names the env; 'passes':
        nothing is wrong with it; 'ends': whatever close says, it ends in time.
        """
        if self.moment == "close":
            return "passes" if self.fault in HARMLESS else "ends"
        if self.moment == "construct":
            return "passes" if self.fault in ("leak", "child") else "raises"
        if self.fault in HARMLESS:
            return "passes"
        if self.fault in DEATHS or (self.fault in HANGS and self.face == "VectorEnv"):
            return "recovers"
        return "raises"


def all_cells() -> list[Cell]:
    """Return every cell, the impossible ones too."""
    return [Cell(*parts) for parts in itertools.product(FAULTS, MOMENTS, FACES, STARTS)]


def possible_cells() -> list[Cell]:
    """Return the cells that run."""
    return [cell for cell in all_cells() if not cell.reason]


def pairs_of(cell: Cell) -> Iterator[tuple[int, str, int, str]]:
    """Return the pairs of choices that a cell covers."""
    for (i, one), (j, other) in itertools.combinations(enumerate(cell), 2):
        yield i, one, j, other


def pairwise_cells() -> list[Cell]:
    """Return few cells in which every pair of choices occurs that is possible at all."""
    chosen: list[Cell] = []
    covered: set[tuple[int, str, int, str]] = set()
    by_crime: dict[tuple[str, str], list[Cell]] = {}
    for cell in possible_cells():
        by_crime.setdefault((cell.fault, cell.moment), []).append(cell)
    groups = list(by_crime.values())
    for group in groups:  # every fault at every moment, where it adds most
        best = max(group, key=lambda cell: len(set(pairs_of(cell)) - covered))
        chosen.append(best)
        covered.update(pairs_of(best))
    for cell in possible_cells():
        if not covered.issuperset(pairs_of(cell)):
            chosen.append(cell)
            covered.update(pairs_of(cell))
    return chosen
