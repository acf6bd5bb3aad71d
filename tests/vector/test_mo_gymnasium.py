"""Envs of MO-Gymnasium, as `mo_gymnasium.make` gives them: compared with its own vector class and its statistics."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import numpy as np
import pytest

from vecenv import BatchedVectorEnv, VectorEnv, evaluate

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting to float32:UserWarning")  # its spaces

ENVS = ["deep-sea-treasure-v0", "resource-gathering-v0", "fruit-tree-v0", "four-room-v0"]
NUM_ENVS, NUM_STEPS = 3, 120


def equal(theirs: Any, ours: Any) -> bool:
    """Return whether nested results are equal, dtypes of the rewards aside; "t" is time."""
    if isinstance(theirs, dict):
        return theirs.keys() == ours.keys() and all(key == "t" or equal(theirs[key], ours[key]) for key in theirs)
    return np.array_equal(theirs, ours)


def make(mo_gymnasium: Any, name: str) -> Any:
    return functools.partial(mo_gymnasium.make, name)


@pytest.mark.parametrize("name", ENVS)
def test_mo_gymnasium_envs_equal_their_own_vector_class(name: str, backend: str) -> None:
    mo_gymnasium = pytest.importorskip("mo_gymnasium")
    vector = mo_gymnasium.wrappers.vector
    env_fns = [make(mo_gymnasium, name)] * NUM_ENVS
    with VectorEnv(env_fns, backend=backend) as envs, VectorEnv(env_fns, episode_statistics=True) as counted:
        theirs = vector.MORecordEpisodeStatistics(vector.MOSyncVectorEnv(env_fns))
        ours = vector.MORecordEpisodeStatistics(envs)
        assert envs.reward_space == theirs.unwrapped.reward_space
        assert all(map(equal, theirs.reset(seed=1), ours.reset(seed=1)))
        counted.reset(seed=1)
        theirs.action_space.seed(1)
        num_ended = 0
        for number in range(NUM_STEPS):
            if number in (20, 50) and backend == "process":
                os.kill(envs.worker_pids[0], signal.SIGKILL)
            actions = theirs.action_space.sample()
            expected, found, infos = theirs.step(actions), ours.step(actions), counted.step(actions)[4]
            found[4].pop("recovered", None), found[4].pop("_recovered", None)
            assert all(map(equal, expected, found))
            if "episode" in expected[4]:
                num_ended += 1
                their_episode, episode = expected[4]["episode"], infos["episode"]
                assert np.allclose(episode["r"], their_episode["r"], rtol=1e-6)
                assert equal(episode["l"], their_episode["l"])
        theirs.close()
    assert num_ended > 5 or name == "four-room-v0"


def test_mo_gymnasium_linear_reward_gives_one_number(backend: str) -> None:
    mo_gymnasium = pytest.importorskip("mo_gymnasium")

    def weighted() -> Any:
        return mo_gymnasium.wrappers.LinearReward(mo_gymnasium.make(ENVS[0]), np.array([0.0, 1.0]))

    with VectorEnv([weighted] * 2, backend=backend, episode_statistics=True) as envs:
        envs.reset(seed=0)
        _, rewards, _, _, infos = envs.step([1, 1])
        assert envs.reward_space is None
        assert rewards.tolist() == [-1.0, -1.0]
        assert infos["vector_reward"].shape == (2, 2)


def test_mo_gymnasium_clip_reward_keeps_all_numbers(backend: str) -> None:
    mo_gymnasium = pytest.importorskip("mo_gymnasium")

    def clipped() -> Any:
        return mo_gymnasium.wrappers.MOClipReward(mo_gymnasium.make(ENVS[0]), 1, -0.5, 0.5)

    with VectorEnv([clipped] * 2, backend=backend) as envs:
        envs.reset(seed=0)
        assert envs.step([1, 1])[1][:, 1].tolist() == [-0.5, -0.5]


def test_mo_gymnasium_vector_class_in_workers() -> None:
    mo_gymnasium = pytest.importorskip("mo_gymnasium")
    make_one = make(mo_gymnasium, ENVS[0])

    def make_pair() -> Any:
        return mo_gymnasium.wrappers.vector.MOSyncVectorEnv([make_one] * 2)

    with BatchedVectorEnv([make_pair] * 2) as envs, VectorEnv([make_one] * 4, backend="serial") as expected:
        assert envs.reward_space == expected.reward_space
        envs.reset(seed=[1, 2, 3, 4]), expected.reset(seed=[1, 2, 3, 4])
        envs.action_space.seed(0)
        for _ in range(20):
            actions = envs.action_space.sample()
            assert all(map(equal, expected.step(actions)[:4], envs.step(actions)[:4]))


def test_mo_gymnasium_evaluate_has_a_return_for_each_number() -> None:
    mo_gymnasium = pytest.importorskip("mo_gymnasium")

    def down(obs: Any, env_id: Any) -> Any:
        return np.ones(len(env_id), np.int64)

    result = evaluate(make(mo_gymnasium, ENVS[0]), down, seeds=range(3), num_envs=2)
    assert result.returns.shape == (3, 2)
    assert result.returns[:, 1].tolist() == (-result.lengths).tolist()
