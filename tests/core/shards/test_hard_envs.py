"""Envs that are hard to restore, in shards that are killed: the stream of every env equals that of a SerialPool."""

from __future__ import annotations

import functools
import string
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.core.shards.local_pools import LocalPool
from tests.faults.traces import play, undisturbed
from vecenv.core.layout.flags import Autoreset
from vecenv.envs.toys import HugeInfo, NoisyGlobal, SpaceEnv, ToyEnv

pytestmark = pytest.mark.extended


class Unknown(ToyEnv):
    """Has state over episodes that vecenv does not know, so that only its first reset can be a restore point."""

    hidden = 0

    def step(self, action: Any) -> Any:
        self.hidden += 1
        obs, reward, *rest = super().step(action)
        return obs, reward + self.hidden, *rest


def pong() -> Any:
    return gymnasium.make("ALE/Pong-v5", max_num_frames_per_episode=240)  # repeats an action with probability 0.25


def without_layout() -> Any:
    graph = spaces.Graph(spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3))
    return SpaceEnv(spaces.Dict(text=spaces.Text(9, charset=string.ascii_letters), graph=graph), length=7)


@pytest.mark.parametrize(
    ("env", "num_rounds", "autoreset"),
    [
        (functools.partial(NoisyGlobal, 6), 16, Autoreset.SAME_STEP),
        (functools.partial(Unknown, 6), 16, Autoreset.SAME_STEP),
        (HugeInfo, 8, Autoreset.NEXT_STEP),
        (without_layout, 12, Autoreset.SAME_STEP),
        (pong, 20, Autoreset.NEXT_STEP),
    ],
    ids=["global generators", "unknown class", "huge infos", "objects", "ALE"],
)
def test_killed_shards_change_no_answer_of_a_hard_env(
    env: Callable[[], Any], num_rounds: int, autoreset: Autoreset
) -> None:
    kills: dict[int, tuple[int, ...]] = {num_rounds // 2: (0,), num_rounds - 2: (0, 1)}
    if env is pong:
        pytest.importorskip("ale_py")
        kills = {num_rounds - 2: (1,)}  # each start takes seconds

    def inject(pool: Any, number: int) -> None:
        for shard in kills.get(number, ()):
            pool.kill_shard(shard)

    with LocalPool([env] * 2, autoreset=autoreset) as pool:
        ours = play(pool, num_rounds, inject)
        assert pool.statistics().shards_replaced == sum(map(len, kills.values()))
    assert ours.rows == undisturbed([env] * 2, num_rounds, autoreset=autoreset).rows
    assert ours.marks[1]


def test_calls_are_answered_once_though_their_shard_dies() -> None:
    with LocalPool([ToyEnv] * 4) as pool:
        pool.start()
        pool.reset(seeds=range(4))
        pool.recv()
        for number in (1, 2):
            pool.send(np.ones(4, np.int64), ordered=False)
            pool.submit_calls([_add_to_sum] * 4)
            pool.kill_shard(number % 2)
            assert pool.collect_calls() == [1.5 * number] * 4, "each call is made once, after the step before it"
            while pool.outstanding():
                pool.recv(1)
        assert pool.call(_add_to_sum) == [3.5] * 4


def _add_to_sum(env: Any) -> float:
    env.unwrapped.action_sum += 0.5
    return float(env.unwrapped.action_sum)
