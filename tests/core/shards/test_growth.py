"""The work of the driver grows with the number of shards, and not with its square."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest

from tests.core.shards.canned_carrier import CannedCarrier
from vecenv.core.options import RECOVERING, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.shards.sharded_engine import ShardedEngine
from vecenv.envs.toys import ToyEnv

ENVS_PER_SHARD = 4


def count_calls(function: Callable[[], object]) -> int:
    """Return how many functions of Python a function calls."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def calls_of_a_round(num_shards: int, is_lockstep: bool) -> int:
    options = PoolOptions(num_workers=1, failures=RECOVERING)
    env_fns = [ToyEnv] * (ENVS_PER_SHARD * num_shards)
    pool = Pool(ShardedEngine(env_fns, options, carrier=CannedCarrier(options), num_shards=num_shards))
    actions = np.zeros(len(env_fns), np.int64)

    def play_round() -> None:
        pool.send(actions, ordered=is_lockstep)
        while pool.outstanding():
            pool.recv(None if is_lockstep else ENVS_PER_SHARD)

    with pool:
        pool.start()
        pool.reset(seeds=[1] * len(env_fns))
        pool.recv()
        for _ in range(3):
            play_round()
        found = count_calls(play_round)
        pool.close(0.0)  # no worker answers
    return found


@pytest.mark.parametrize("is_lockstep", [True, False])
def test_calls_of_a_round_grow_with_the_shards_and_not_faster(is_lockstep: bool) -> None:
    few, many = (calls_of_a_round(num_shards, is_lockstep) for num_shards in (50, 200))
    assert math.log(many / few, 4) < 1.15, f"{few} calls with 50 shards, {many} with 200"
