"""Envs that wait move to further workers in each front end: rows are those of a fixed number of workers."""

from __future__ import annotations

import pytest

from tests.faults.front_ends import FRONT_ENDS, FrontEnd, play
from tests.inside import force_spreading
from vecenv.envs.toys import ToyEnv

ROUNDS = 14
NUM_ENVS = 4
#: Those whose workers belong to shards, and one whose two batches have a worker each.
OTHERS = ("shards", "BatchedVectorEnv")


@pytest.mark.parametrize("name", [name for name in FRONT_ENDS if name not in OTHERS])
def test_moved_envs_give_the_rows_of_fixed_workers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: set[int] = set()

    def note_workers(front_end: FrontEnd, number: int) -> None:
        counts.add(len(front_end.worker_pids))

    expected = play(name, [ToyEnv] * NUM_ENVS, None, ROUNDS)
    force_spreading(monkeypatch, 3)
    assert play(name, [ToyEnv] * NUM_ENVS, note_workers, ROUNDS, num_workers=None) == expected
    assert min(counts) < max(counts) == NUM_ENVS
