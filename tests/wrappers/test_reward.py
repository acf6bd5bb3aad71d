"""Wrappers of rewards."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import numbers_env
from vecenv import ConfigError
from vecenv.ding import ClipRewardWrapper, DelayRewardWrapper, EvalEpisodeReturnWrapper


def rewards_of(env, steps):
    env.reset()
    return [env.step(0)[1] for _ in range(steps)]


def test_clip_is_the_sign():
    env = ClipRewardWrapper(numbers_env(3, rewards=[-7.5, 0.0, 0.1, 0.0]))
    rewards = rewards_of(env, 3)
    assert rewards == [-1.0, 0.0, 1.0] and all(type(reward) is float for reward in rewards)
    assert env.reward_range == (-1, 1) and env.reward_space == spaces.Box(-1.0, 1.0, (1,), np.float32)


def test_clip_of_arrays():
    env = ClipRewardWrapper(numbers_env(rewards=[np.array([-2.0, 3.0])] * 11))
    assert rewards_of(env, 1)[0].tolist() == [-1.0, 1.0]


def test_clip_of_arrays_fits_the_space_it_declares():
    inner = numbers_env(rewards=[np.array([-2, 3])] * 11)
    inner.reward_space = spaces.Box(-9, 9, (2,), np.int64)
    env = ClipRewardWrapper(inner)
    assert env.reward_space == spaces.Box(-1.0, 1.0, (2,), np.float32)
    assert env.reward_space.contains(rewards_of(env, 1)[0])


@pytest.mark.parametrize("shape", [(), (1,)])
def test_clip_of_numbers_is_declared_as_one(shape):
    inner = numbers_env()
    inner.reward_space = spaces.Box(0.0, 9.0, shape, np.float32)
    assert ClipRewardWrapper(inner).reward_space == spaces.Box(-1.0, 1.0, (1,), np.float32)


@pytest.mark.parametrize("steps", [0, 1])
def test_delay_of_zero_changes_nothing(steps):
    assert rewards_of(DelayRewardWrapper(numbers_env(3, rewards=[1.0, 2.0, 3.0, 0]), steps), 3) == [1.0, 2.0, 3.0]


def test_delay_gives_the_sum_every_k_steps_and_at_the_end():
    env = DelayRewardWrapper(numbers_env(5, rewards=[1.0, 2.0, 4.0, 8.0, 16.0, 0]), 2)
    assert rewards_of(env, 5) == [0.0, 3.0, 0.0, 12.0, 16.0]


def test_delay_restarts_at_a_reset():
    env = DelayRewardWrapper(numbers_env(9), 3)
    rewards_of(env, 2)
    assert rewards_of(env, 3) == [0.0, 0.0, 3.0]


def test_delay_of_arrays_and_its_bounds():
    inner = numbers_env(rewards=[np.ones(2)] * 11)
    inner.reward_range = (-1, 2)
    env = DelayRewardWrapper(inner, 2)
    first, second = rewards_of(env, 2)
    assert first.tolist() == [0, 0] and second.tolist() == [2, 2]
    assert env.reward_range == (-2.0, 4.0)


def test_delay_declares_a_space_that_contains_the_sums():
    inner = numbers_env(5, rewards=[np.array([3], np.int64)] * 6)
    inner.reward_space = spaces.Box(2, 3, (1,), np.int64)
    env = DelayRewardWrapper(inner, 3)
    assert env.reward_space == spaces.Box(0.0, 9.0, (1,), np.float64)
    rewards = rewards_of(env, 5)
    assert [reward.tolist() for reward in rewards] == [[0.0], [0.0], [9.0], [0.0], [6.0]]
    assert all(env.reward_space.contains(reward) for reward in rewards[1:])
    assert DelayRewardWrapper(inner, 1).reward_space == inner.reward_space


def test_negative_delay_is_refused():
    for count in (-1, "2", 1.5):
        with pytest.raises(ConfigError, match="delay_reward_step"):
            DelayRewardWrapper(numbers_env(), count)


def last_info(env, steps):
    env.reset()
    infos = [env.step(0)[4] for _ in range(steps)]
    assert all("eval_episode_return" not in info for info in infos[:-1])
    return infos[-1]


@pytest.mark.parametrize("reward", [2.0, np.float32(2), np.array([2.0], np.float32)])
def test_score_is_a_python_float(reward):
    env = EvalEpisodeReturnWrapper(numbers_env(3, rewards=[reward] * 4))
    for _ in range(2):
        score = last_info(env, 3)["eval_episode_return"]
        assert score == 6.0 and type(score) is float


def test_score_as_array():
    env = EvalEpisodeReturnWrapper(numbers_env(3), array=True)
    score = last_info(env, 3)["eval_episode_return"]
    assert score.dtype == np.float32 and score.tolist() == [3.0]


def test_score_at_truncation_and_of_vectors():
    env = EvalEpisodeReturnWrapper(numbers_env(2, rewards=[np.array([1.0, 2.0])] * 3, truncate=True))
    assert last_info(env, 2)["eval_episode_return"] == 6.0


def test_reward_kept_by_the_env_is_not_modified():
    reward = np.ones(2)
    last_info(EvalEpisodeReturnWrapper(numbers_env(2, rewards=[reward] * 3), array=True), 2)
    assert reward.tolist() == [1.0, 1.0]
