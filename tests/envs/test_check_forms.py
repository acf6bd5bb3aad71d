"""The check of what an env's calls give: what workers would refuse is found, and said in the words of the rule."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import Plain
from vecenv import CheckError, check_all, check_reset, check_step
from vecenv.envs.check_data import Violation


class Answers(gymnasium.Env):
    """Answers `reset` and `step` with what it was given."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    obs = np.zeros(2, np.float32)

    def __init__(self, first=None, answer=None):
        self.first = first or (self.obs, {})
        self.answer = answer or (self.obs, 1.0, True, False, {})

    def reset(self, *, seed=None, options=None):
        return self.first

    def step(self, action):
        return self.answer


def test_a_reset_that_gives_no_pair_is_named():
    """It was 'too many values to unpack', in every part of the check."""
    with pytest.raises(TypeError, match=r"expected \(obs, info\) of reset, got a tuple of 3"):
        check_reset(Answers((Answers.obs, {}, 1)))


def test_four_values_of_a_gymnasium_env_are_found():
    """They were read as an older env's, and then no worker took them."""
    with pytest.raises(TypeError, match=r"expected \(obs, reward, terminated, .* of step, got a tuple of 4"):
        check_step(Answers(answer=(Answers.obs, 1.0, True, {})))


@pytest.mark.parametrize("declared", [False, True])
def test_more_rewards_than_one_need_a_space(declared):
    """An env without one kept every rule, and no worker took its rewards."""
    env = Answers(answer=(Answers.obs, np.ones(2), True, False, {}))
    if declared:
        env.reward_space = spaces.Box(0.0, 1.0, (2,), np.float64)
        check_step(env)
        check_step(gymnasium.Wrapper(env))
    else:
        with pytest.raises(CheckError, match="expected one number, as there is no reward_space, got float64") as caught:
            check_step(env)
        assert isinstance(caught.value.violations[0], Violation) and len(caught.value.violations) == 1


class NoClose(Plain):
    close = property()  # looked up, it raises AttributeError


def test_an_env_without_close_keeps_the_rules():
    """Only `reset` and `step` are required of one that is not Gymnasium's."""
    assert not hasattr(NoClose(), "close")
    check_all(NoClose(), env_fn=NoClose)
