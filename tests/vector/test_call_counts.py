"""The number of Python calls that the caller makes in one round of a row of `benchmarks.against`; no time is measured.

Each call takes about 0.1 us of a step of 10 to 40 us. So a bound finds a call or a layer that a change adds to the
path of every step, and that the noise of timed runs hides.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from benchmarks import one_revision
from vecenv.core.layout.native import load

#: Python calls of one round; a change may add 5 %, which is less than one call in most rows. In async rounds there are
#: 29 to 31, since an open journal page of requests to all envs and a late worker add one each.
CALLS = {"infos-null-64": 10, "pool-null-8": 6, "cartpole-async-64": 31, "cheetah-32": 10, "null-64": 6}
NUM_ROUNDS, SECONDS = 300, 60.0


def calls_of(one_round: Callable[[], int]) -> Counter[str]:
    """Return how often each Python function was called in a round, by name, without those of the row itself."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename != one_revision.__file__:
            calls[frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        one_round()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.skipif(load() is None, reason="the extension was not built")
@pytest.mark.filterwarnings("ignore::vecenv.errors.PerformanceWarning")
@pytest.mark.parametrize("row", CALLS)
def test_python_calls_of_a_round_stay_within_their_bound(row: str) -> None:
    if row.startswith("cheetah") and importlib.util.find_spec("mujoco") is None:
        pytest.skip("needs mujoco")
    with one_revision.ROWS[row]() as one_round:
        deadline = time.monotonic() + SECONDS
        # The check of waiting envs ends after some steps, and info keys and pages are new in the first ones.
        while "is_due" in calls_of(one_round) and time.monotonic() < deadline:
            pass
        rounds = [calls_of(one_round) for _ in range(NUM_ROUNDS)]
    # The median, since some rounds begin a page of the journal, end many episodes, or have a late worker.
    median = statistics.median(sum(calls.values()) for calls in rounds)
    usual = [calls for calls in rounds if sum(calls.values()) == median][:1]
    assert median <= 1.05 * CALLS[row], f"{median} calls: {usual}"
