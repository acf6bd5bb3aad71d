"""Snapshots within episodes in each front end: after a kill, rows are those of a run without one."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from tests.faults.front_ends import FrontEnd, play
from tests.inside import pool_of
from vecenv import VectorEnv
from vecenv.core.host.snapshots import snapshot_now
from vecenv.envs.toys import ToyEnv
from vecenv.wrappers import DelayRewardWrapper, FrameStackWrapper, TimeLimitWrapper

ROUNDS = 24
#: Rounds within the second and the third episode, of 7 steps, in front ends with and without a round for each reset.
KILLS = (11, 18)


def short() -> Any:
    return ToyEnv(5)


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


@pytest.mark.parametrize("num_steps", [0, 1, 3])
@pytest.mark.parametrize("implementation", ["native", "python"], indirect=True)
def test_killed_env_continues_from_a_snapshot_after_the_end_of_its_episode(num_steps: int, implementation: str) -> None:
    """In NEXT_STEP mode the step after the end resets the env; it is killed `num_steps` steps after the snapshot."""

    def run(*, kills: bool) -> list[Any]:
        rows = []
        with VectorEnv([short] * 2, num_workers=1) as envs:
            envs.reset(seed=3)
            for number in range(1, 20):
                *arrays, infos = envs.step([0, 1])
                rows.append([array.tolist() for array in arrays])
                assert "recovered" not in infos or infos["recovered"][0] == "replayed"
                if number % 6 == 5 and kills:
                    assert arrays[2].all()
                    envs.pool.call(snapshot_now, pure=True)
                if number % 6 == (5 + num_steps) % 6 and kills:
                    os.kill(envs.worker_pids[0], signal.SIGKILL)
        return rows

    assert run(kills=True) == run(kills=False)
