"""The recovery check: it plays an env to find out which state survives a crash."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import Ding, Plain, numbers_env
from vecenv import ConfigError
from vecenv.ding import DingEnvWrapper, TwoAgentEnv
from vecenv.envs.check.recovery import check_recovery


class Walk(gymnasium.Env):
    """A random walk with lives; its hook carries all its state."""

    def __init__(self):
        self.observation_space = spaces.Box(-100.0, 100.0, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.lives, self.place, self.count = 0, 0.0, 0

    def get_state(self):
        return {"lives": self.lives, "place": self.place, "count": self.count}

    def set_state(self, state):
        vars(self).update(state)

    def observe(self):
        return np.float32(self.np_random.uniform(0.0, 9.0, 3) + self.place)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lives, self.place, self.count = 3, float(self.np_random.uniform(0, 9)), 0
        return self.observe(), {}

    def step(self, action):
        self.count += 1
        self.place += float(self.np_random.normal())
        self.lives -= bool(self.np_random.random() < 0.05)
        return self.observe(), self.place, self.lives <= 0, self.count >= 60, {}


@pytest.mark.extended
@pytest.mark.parametrize(
    "env_fn",
    [
        Walk,
        numbers_env,
        Plain,
        Ding,
        TwoAgentEnv,
        lambda: gymnasium.wrappers.NormalizeObservation(gymnasium.make("Acrobot-v1", max_episode_steps=50)),
        lambda: DingEnvWrapper(
            cfg={"env_id": "CartPole-v1", "env_wrapper": [{"type": "obs_norm", "kwargs": {"window": 9}}]}
        ),
    ],
)
def test_good_envs_are_recoverable(env_fn):
    report = check_recovery(env_fn)
    assert report.verdict == "any episode" and not report.draws_globally


class Entropic(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None)


class Counting(Walk):
    """Its second episode differs from the first, and its hook does not carry that state."""

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


class Refuses(Walk):
    def set_state(self, state):
        raise ZeroDivisionError("no")


class GlobalDraws(Walk):
    def observe(self):
        return super().observe() + np.float32(np.random.random())


class GlobalDrawUnderASeed(Walk):
    def reset(self, *, seed=None, options=None):
        if seed is not None:
            np.random.random()
        return super().reset(seed=seed)


@pytest.mark.extended
def test_env_that_ignores_its_seed_cannot_be_recovered():
    report = check_recovery(Entropic)
    assert report.verdict == "none" and "seeded episode differs, observation of its reset" in report.seeded


def test_lost_state_is_named():
    report = check_recovery(Unhooked)
    assert report.seeded is None and len(report.uncovered) == 1 and "Unhooked" in report.uncovered[0]
    assert report.verdict == "from the last seeded reset"
    assert "observation of its reset" in report.carried


def test_incomplete_hook_is_found():
    report = check_recovery(Counting)
    assert report.carried is not None and report.verdict == "from the last seeded reset"


def test_state_refused_by_a_new_env_is_found():
    report = check_recovery(Refuses)
    assert report.seeded is None and report.verdict == "from the last seeded reset"
    assert report.carried == "its state cannot be restored in a new env: ZeroDivisionError: no"


@pytest.mark.parametrize("env_fn", [GlobalDraws, GlobalDrawUnderASeed])
def test_global_generator_draws_are_found_and_leave_the_generators_unchanged(env_fn):
    before = np.random.get_state()[2]
    report = check_recovery(env_fn)
    assert report.draws_globally and report.verdict == "any episode"
    assert np.random.get_state()[2] == before
    assert any("global" in line for line in report.lines())


def test_envs_are_closed_when_they_raise():
    closed = []

    class Raises(Walk):
        def step(self, action):
            raise ZeroDivisionError

        def close(self):
            closed.append(self)

    with pytest.raises(ZeroDivisionError):
        check_recovery(Raises)
    assert len(closed) == 3


def test_env_fn_of_wrong_type_is_refused():
    with pytest.raises(ConfigError, match="^env_fn: expected a callable, got 5$"):
        check_recovery(5)
