"""What can be recovered after a crash, told by playing it."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.envs.test_state import Lazy, Walk
from tests.scripted import Ding, Plain, numbers_env
from vecenv import DingEnvWrapper, TwoAgentEnv
from vecenv.envs.check_recovery import check_recovery


@pytest.mark.parametrize(
    "env_fn",
    [
        Walk,
        numbers_env,
        Plain,
        Ding,
        Lazy,
        TwoAgentEnv,
        lambda: gymnasium.wrappers.NormalizeObservation(gymnasium.make("Acrobot-v1", max_episode_steps=50)),
        lambda: DingEnvWrapper(
            cfg={"env_id": "CartPole-v1", "env_wrapper": [{"type": "obs_norm", "kwargs": {"window": 9}}]}
        ),
    ],
)
def test_good_envs(env_fn):
    report = check_recovery(env_fn)
    assert report.verdict == "any episode" and report.lost == () and not report.draws_globally


class Entropic(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


class Counting(Walk):
    """Its second episode differs from the first, and its state is in no hook."""

    def get_state(self):
        return {}

    def observe(self):
        return super().observe() + self.episodes

    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed)


class Unhooked(gymnasium.Env):
    observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return np.array([self.episodes], np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}


class GlobalDraws(Walk):
    def observe(self):
        return super().observe() + np.float32(np.random.random())


def test_an_env_that_ignores_its_seed_cannot_be_recovered():
    report = check_recovery(Entropic)
    assert report.verdict == "none" and "seeded episode differs, observation of its reset" in report.seeded


def test_state_that_nobody_carries_is_named():
    report = check_recovery(Unhooked)
    assert report.seeded is None and report.lost == ("Unhooked.episodes",)
    assert report.verdict == "from the last seeded reset"
    assert "observation of its reset" in report.carried


def test_a_hook_that_forgets_something():
    report = check_recovery(Counting)
    assert report.carried is not None and report.verdict == "from the last seeded reset"


def test_draws_from_the_global_generators_are_noticed_and_leave_them_alone():
    before = np.random.get_state()[2]
    report = check_recovery(GlobalDraws)
    assert report.draws_globally and report.verdict == "any episode"
    assert np.random.get_state()[2] == before
    assert any("global" in line for line in report.lines())


def test_envs_are_closed_also_when_they_raise():
    closed = []

    class Raises(Walk):
        def step(self, action):
            raise ZeroDivisionError

        def close(self):
            closed.append(self)

    with pytest.raises(ZeroDivisionError):
        check_recovery(Raises)
    assert len(closed) == 3
