"""Snapshots within episodes in each front end: after a kill, rows are those of a run without one."""

from __future__ import annotations

from typing import Any

import pytest
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from tests.faults.front_ends import FrontEnd, play
from tests.inside import pool_of
from vecenv.core.host.snapshots import snapshot_now
from vecenv.envs.toys import ToyEnv
from vecenv.wrappers import DelayRewardWrapper, FrameStackWrapper, TimeLimitWrapper

ROUNDS = 24
#: Rounds within the second and the third episode, of 7 steps, in front ends with and without a round for each reset.
KILLS = (11, 18)


def wrapped() -> Any:
    limited = TimeLimitWrapper(TimeLimit(ToyEnv(20), 9), 7)
    return RecordEpisodeStatistics(DelayRewardWrapper(FrameStackWrapper(limited, 3), 2))


def kill_after_a_snapshot(front_end: FrontEnd, number: int) -> None:
    if number + 1 in KILLS:
        pool_of(front_end.pool_owner).call(snapshot_now, pure=True)
    if number in KILLS:
        front_end.kill(1)


@pytest.mark.parametrize("name", ["VectorEnv", "sync", "V2", "gym_vector", "BatchedVectorEnv", "SB3VecEnv", "ALF"])
def test_killed_env_continues_from_a_snapshot_within_an_episode(name: str) -> None:
    killed = play(name, [wrapped] * 4, kill_after_a_snapshot, ROUNDS)
    assert killed == play(name, [wrapped] * 4, None, ROUNDS)
