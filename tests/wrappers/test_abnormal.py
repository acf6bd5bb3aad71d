"""Abnormal timesteps, whose observation and reward are None, through every wrapper that may receive one."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from vecenv.ding import (
    ActionRepeatWrapper,
    AllinObsWrapper,
    BaseEnv,
    BaseEnvTimestep,
    ClipRewardWrapper,
    DelayRewardWrapper,
    DingEnvWrapper,
    EvalEpisodeReturnWrapper,
    FrameStackWrapper,
    LightZeroEnvWrapper,
    MaxAndSkipWrapper,
    ObsNormWrapper,
    ObsPlusPrevActRewWrapper,
    RamWrapper,
    RewardNormWrapper,
    ScaledFloatFrameWrapper,
    StaticObsNormWrapper,
    TimeLimitWrapper,
    TransposeWrapper,
)

ABNORMAL = 2  # the number of the abnormal step in an episode


class AbnormalAtStep(BaseEnv):
    """Observes its step count with reward 1; one step is abnormal."""

    def __init__(self, reward=None):
        self.observation_space = spaces.Box(0.0, 99.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.reward_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.reward = reward  # the reward of the abnormal step
        self.steps = 0

    def reset(self):
        self.steps = 0
        return np.zeros(2, np.float32)

    def step(self, action):
        self.steps += 1
        if self.steps == ABNORMAL:
            return BaseEnvTimestep(None, self.reward, False, {"abnormal": True})
        return BaseEnvTimestep(np.full(2, self.steps, np.float32), np.ones(1, np.float32), False, {})

    def close(self):
        pass


WRAPPERS = {
    "clip": ClipRewardWrapper,
    "delay": lambda env: DelayRewardWrapper(env, 3),
    "return": EvalEpisodeReturnWrapper,
    "stack": FrameStackWrapper,
    "lightzero": lambda env: LightZeroEnvWrapper(env, {"is_train": True}),
    "norm": ObsNormWrapper,
    "previous": ObsPlusPrevActRewWrapper,
    "ram": RamWrapper,
    "reward_norm": lambda env: RewardNormWrapper(env, 0.9),
    "scaled": ScaledFloatFrameWrapper,
    "static_norm": lambda env: StaticObsNormWrapper(env, 0.0, 1.0),
    "limit": lambda env: TimeLimitWrapper(env, 9),
    "transpose": TransposeWrapper,
}


def steps_of(env, count):
    env.reset()
    return [env.step(0) for _ in range(count)]


@pytest.mark.parametrize("name", WRAPPERS)
def test_none_observation_passes_through_and_the_next_step_works(name):
    env = WRAPPERS[name](AbnormalAtStep())
    _, (obs, reward, _, _, info), (after, *_) = steps_of(env, 3)
    assert (obs, reward) == (None, None) and info["abnormal"] is True
    assert env.observation_space.contains(after)


@pytest.mark.parametrize("reward", [None, np.ones(1, np.float32)], ids=["none", "one"])
def test_all_in_obs_passes_none_through(reward):
    env = AllinObsWrapper(AbnormalAtStep(reward))
    _, abnormal, after = steps_of(env, 3)
    assert abnormal.obs is None and abnormal.info["abnormal"] is True
    assert abnormal.reward is None if reward is None else abnormal.reward.tolist() == [1.0]
    assert env.observation_space.contains(after.obs)


@pytest.mark.parametrize("name", WRAPPERS)
def test_none_observation_passes_through_a_ding_env_wrapper(name):
    _, abnormal, after = steps_of(DingEnvWrapper(AbnormalAtStep(), {"env_wrapper": [WRAPPERS[name]]}), 3)
    assert (abnormal.obs, abnormal.reward) == (None, None) and after.obs is not None


@pytest.mark.parametrize("wrap", [ActionRepeatWrapper, MaxAndSkipWrapper])
def test_repeats_stop_at_an_abnormal_timestep(wrap):
    inner = AbnormalAtStep()
    (obs, reward, _, _, info), (after, *_) = steps_of(wrap(inner, 3), 2)
    assert (obs, reward.tolist(), info["abnormal"]) == (None, [1.0], True)
    assert inner.steps == ABNORMAL + 3 and after.tolist() == [5.0, 5.0]


def test_none_observation_is_not_stacked():
    steps = steps_of(FrameStackWrapper(AbnormalAtStep(), 3), 3)
    assert steps[2][0][:, 0].tolist() == [0.0, 1.0, 3.0]


def test_none_observation_is_not_in_statistics():
    norm, rewards = ObsNormWrapper(AbnormalAtStep()), RewardNormWrapper(AbnormalAtStep(), 0.9)
    steps_of(norm, 3)
    steps_of(rewards, 3)
    assert norm.data_count == rewards.data_count == 2
    assert norm.rms.mean.round(2).tolist() == [2.0, 2.0] and rewards.cum_reward.tolist() == [1.9]


def test_none_reward_is_not_delayed():
    rewards = [step[1] for step in steps_of(DelayRewardWrapper(AbnormalAtStep(), 2), 4)]
    assert [reward if reward is None else float(reward[0]) for reward in rewards] == [0.0, None, 2.0, 0.0]


def test_none_reward_becomes_a_previous_reward_of_zero():
    env = ObsPlusPrevActRewWrapper(AbnormalAtStep())
    steps_of(env, ABNORMAL)
    assert (env.prev_action, env.prev_reward_extrinsic) == (0, 0.0)
