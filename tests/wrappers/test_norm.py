"""Normalising wrappers and their statistics."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import Scripted, numbers_env
from vecenv import ConfigError, SpaceError
from vecenv.ding import ObsNormWrapper, RewardNormWrapper, RunningMeanStd, StaticObsNormWrapper
from vecenv.wrappers.norm import WindowMeanStd


def test_running_statistics_equal_numpys():
    data = np.random.default_rng(0).normal(5.0, 3.0, (1000, 2))
    rms = RunningMeanStd(shape=(2,))
    for part in np.split(data, 10):
        rms.update(part)
    assert np.allclose(rms.mean, data.mean(axis=0), atol=1e-3) and np.allclose(rms.std, data.std(axis=0), atol=1e-2)


def test_running_statistics_reset_and_scalars():
    rms = RunningMeanStd()
    rms.update(np.array([1.0, 3.0]))
    assert rms.mean == pytest.approx(2.0, abs=1e-3)
    rms.reset()
    assert rms.mean == 0.0 and rms.std == pytest.approx(1.0001)


def test_running_statistics_start_with_epsilon_samples():
    rms = RunningMeanStd(epsilon=1.0)
    rms.update(np.array([3.0]))
    seen = np.array([-1.0, 1.0, 3.0, 3.0])  # mean 0 and variance 1, then 3 twice
    assert rms.mean == seen.mean() and rms.std == pytest.approx(seen.std() + 1.0)


def test_std_has_epsilon_added():
    assert RunningMeanStd(epsilon=0.5).std == 1.5


def test_w39_single_observation_is_not_averaged_over_its_features():
    rms = RunningMeanStd(shape=(2,))
    rms.update(np.array([[1.0, 100.0]]))
    assert np.allclose(rms.mean, [1.0, 100.0], rtol=1e-3)
    frames = [np.array([1.0, 100.0], np.float32)] * 40
    env = ObsNormWrapper(Scripted(frames))
    env.reset()
    env.step(0)
    assert np.allclose(env.rms.mean, [1.0, 100.0], rtol=1e-3)


@pytest.mark.parametrize("window", [2, 7, 50])
def test_window_holds_the_last_samples(window):
    data = np.random.default_rng(0).normal(1000.0, 0.5, (237, 3))
    rms = WindowMeanStd(window, shape=(3,))
    for index, sample in enumerate(data):
        rms.update(sample[np.newaxis])
        seen = data[max(0, index + 1 - window) : index + 1]
        assert np.allclose(rms.mean, seen.mean(axis=0)) and np.allclose(rms.std, seen.std(axis=0) + 1e-4, atol=1e-5)


def test_variance_in_a_window_is_never_below_zero():
    rms = WindowMeanStd(3)
    for sample in (1e8, 0.1, 0.1, 0.1):  # when the first sample leaves the window, rounding leaves a variance of -1
        rms.update(np.array([sample]))
    assert rms.std == 1e-4


def noise(count=200, scale=2.0, offset=50.0):
    rng = np.random.default_rng(1)
    return [np.array([offset + scale * rng.normal(), rng.normal()], np.float32) for _ in range(count)]


def test_obs_are_raw_until_more_than_thirty_steps():
    frames = noise()
    env = ObsNormWrapper(Scripted(frames))
    assert np.array_equal(env.reset()[0], frames[0])
    for step in range(1, 31):
        assert np.array_equal(env.step(0)[0], frames[step])
    obs = env.step(0)[0]
    assert obs.dtype == np.float32 and np.abs(obs).max() <= 3
    assert env.data_count == 31 and env.clip_range == (-3, 3)
    expected = (frames[31] - np.mean(frames[1:32], axis=0)) / np.std(frames[1:32], axis=0)
    assert np.allclose(obs, np.clip(expected, -3, 3), atol=2e-2)


def test_obs_statistics_are_cleared_at_reset_without_a_window():
    env = ObsNormWrapper(Scripted(noise()))
    env.reset()
    [env.step(0) for _ in range(40)]
    env.reset()
    assert env.data_count == 0 and np.array_equal(env.rms.mean, [0, 0])


def test_obs_statistics_of_a_window_span_episodes():
    env = ObsNormWrapper(Scripted(noise()), window=50)
    env.reset()
    [env.step(0) for _ in range(40)]
    obs, _ = env.reset()
    assert env.data_count == 40 and np.abs(obs).max() <= 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_obs_norm_space_holds_raw_and_normalised(dtype):
    space = spaces.Box(0, 1, (2,), dtype)
    env = ObsNormWrapper(Scripted([np.zeros(2, dtype)] * 60, space=space))
    obs, _ = env.reset()
    for _ in range(50):
        assert env.observation_space.contains(obs)
        obs = env.step(0)[0]


def test_obs_norm_of_one_number():
    numbers = [np.array(number, np.float32) for number in np.linspace(0, 1, 60)]
    env = ObsNormWrapper(Scripted(numbers, space=spaces.Box(0, 1, (), np.float32)))
    assert env.observation_space.shape == ()
    seen = [env.reset()[0], *(env.step(0)[0] for _ in range(50))]
    assert all(map(env.observation_space.contains, seen)) and abs(seen[-1]) > 1


def test_obs_norm_needs_a_box():
    with pytest.raises(SpaceError):
        ObsNormWrapper(Scripted([0], space=spaces.Discrete(2)))


def test_static_obs_norm():
    frames = [np.array([1.0, 100.0], np.float32)] * 3
    env = StaticObsNormWrapper(Scripted(frames), mean=[0.0, 0.0], std=[2.0, 2.0])
    obs, _ = env.reset()
    assert obs.tolist() == [0.5, 3.0] and env.observation_space.contains(obs)
    with pytest.raises(ConfigError, match="above 0"):
        StaticObsNormWrapper(Scripted(frames), [0.0], [0.0])


@pytest.mark.parametrize(
    ("mean", "std", "wrong"), [("x", 1, "mean"), (0, [1, 2, 3], "std"), (None, 1, "mean"), ([[1], [1, 2]], 1, "mean")]
)
def test_static_obs_norm_needs_fitting_numbers(mean, std, wrong):
    with pytest.raises(ConfigError, match=rf"^{wrong}: expected numbers that broadcast to \(2,\), got "):
        StaticObsNormWrapper(Scripted([np.zeros(2, np.float32)]), mean, std)


def test_reward_norm():
    rewards = np.random.default_rng(2).normal(3.0, 2.0, 100).tolist()
    env = RewardNormWrapper(numbers_env(99, rewards=rewards), reward_discount=0.9)
    env.reset()
    cumulative, history = 0.0, []
    for step in range(60):
        reward = env.step(0)[1]
        cumulative = cumulative * 0.9 + rewards[step]
        history.append(cumulative)
        assert type(reward) is float
        expected = rewards[step] if step < 30 else rewards[step] / np.std(history)
        assert reward == pytest.approx(expected, rel=1e-2)
    assert env.cum_reward.shape == (1,) and env.cum_reward[0] == pytest.approx(cumulative)
    env.reset()
    assert env.cum_reward[0] == 0 and env.data_count == 0


def test_reward_norm_with_a_window_keeps_its_statistics():
    env = RewardNormWrapper(numbers_env(99, rewards=[1.0, 2.0] * 50), 0.9, window=20)
    env.reset()
    [env.step(0) for _ in range(40)]
    env.reset()
    assert env.cum_reward[0] == 0 and env.data_count == 40


class TwoRewards(Scripted):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, np.zeros(2, np.float32), *rest


def test_reward_norm_of_several_rewards_is_an_error():
    """It raised a bare ValueError of reshape at the first step."""
    env = TwoRewards(noise())
    says = r"RewardNormWrapper: reward: expected one number per step, got an array \(2,\)"
    undeclared = RewardNormWrapper(env, 0.9)
    undeclared.reset()
    with pytest.raises(SpaceError, match=says):
        undeclared.step(0)
    env.reward_space = spaces.Box(-1, 1, (2,), np.float32)
    with pytest.raises(SpaceError, match=says) as caught:
        RewardNormWrapper(env, 0.9)
    assert caught.value.path == "reward"


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_reward_norm_accepts_one_reward_of_any_shape(shape):
    env = numbers_env(99, rewards=[np.full(shape, 2.0)] * 50)
    env.reward_space = spaces.Box(-3, 3, shape, np.float32)
    wrapped = RewardNormWrapper(env, 0.9)
    wrapped.reset()
    assert wrapped.step(0)[1] == 2.0


def test_window_that_is_too_small_is_refused():
    with pytest.raises(ConfigError, match="window"):
        ObsNormWrapper(Scripted(noise()), window=1)


@pytest.mark.parametrize("window", [None, 40])
def test_state_moves_to_another_instance(window):
    one, two = (ObsNormWrapper(Scripted(noise()), window=window) for _ in range(2))
    one.reset()
    [one.step(0) for _ in range(45)]
    two.reset()
    two.set_state(one.get_state())
    assert np.array_equal(two.observation(noise()[0]), one.observation(noise()[0]))
    one.step(0)
    assert two.data_count == 45
