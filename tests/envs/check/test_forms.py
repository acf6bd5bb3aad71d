"""The check of the results of an env's calls: it finds everything that workers would refuse."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import Plain
from vecenv import CheckError, check_all
from vecenv.ding import BaseEnvManager, check_reset, check_step
from vecenv.envs.check.data import Violation


class Answers(gymnasium.Env):
    """Returns the given values from `reset` and `step`."""

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


def test_reset_without_a_pair_is_named():
    """The error was 'too many values to unpack', in every part of the check."""
    with pytest.raises(TypeError, match=r"expected \(obs, info\) of reset, got a tuple of 3"):
        check_reset(Answers((Answers.obs, {}, 1)))


def test_step_of_four_values_is_found_in_a_gymnasium_env():
    """They were read as those of an old env, and workers refused them later."""
    with pytest.raises(TypeError, match=r"expected \(obs, reward, terminated, .* of step, got a tuple of 4"):
        check_step(Answers(answer=(Answers.obs, 1.0, True, {})))


@pytest.mark.parametrize("declared", [False, True])
def test_reward_vector_needs_a_space(declared):
    """An env without a reward space passed, and workers refused its rewards later."""
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
    close = property()  # reading it raises AttributeError


@pytest.mark.extended
def test_env_without_close_passes():
    """An env outside Gymnasium needs `reset` and `step` only."""
    assert not hasattr(NoClose(), "close")
    check_all(NoClose(), env_fn=NoClose)


class Agents:
    """Two agents in an env of the old API: a reward, a flag and an info for each."""

    observation_space = spaces.Tuple([spaces.Box(-1.0, 1.0, (2,), np.float32)] * 2)
    action_space = spaces.Tuple([spaces.Discrete(2)] * 2)
    reward_space = spaces.Box(0.0, 2.0, (2,), np.float64)
    answer = ([1.0, 2.0], [True, True], [{}, {}])

    def reset(self):
        return np.zeros(2, np.float32), np.zeros(2, np.float32)

    def step(self, action):
        return self.reset(), *self.answer


@pytest.mark.extended
@pytest.mark.parametrize("form", [list, tuple, np.array])
def test_per_agent_values_of_plain_envs_pass(form):
    """The check reported three violations of an env that every manager accepts."""
    env = Agents()
    env.answer = (form([1.0, 2.0]), form([True, True]), [{}, {}])
    check_all(env, env_fn=Agents)
    with BaseEnvManager([lambda: env]) as manager:
        manager.launch()
        timestep = manager.step({0: (0, 0)})[0]
    assert timestep.reward.tolist() == [1.0, 2.0] and timestep.done and timestep.info[0] is not None


@pytest.mark.parametrize(
    "answer, says",
    [
        (([1.0, 2.0, 0.0], [True, True], [{}, {}]), r"shape: reward: expected float64 \(2,\), got float64 \(3,\)"),
        (([1.0, 3.0], [True, True], [{}, {}]), "bounds: reward: expected values between 0 and 2, got 1 to 3"),
        ((["a", "b"], [True, True], [{}, {}]), "reward: reward: expected a number or an array, got a list of 2"),
        (({"a": 1.0}, {"a": True}, {"a": {}}), "reward: reward: expected a number or an array, got a dict of"),
        (([1.0, np.nan], [True, True], [{}, {}]), "nan: reward: expected numbers, got NaN"),
    ],
)
def test_misfit_agent_rewards_are_found(answer, says):
    env = Agents()
    env.answer = answer
    with pytest.raises(CheckError, match=says) as caught:
        check_step(env)
    assert len(caught.value.violations) == 1


def test_agent_rewards_need_a_space():
    env = Agents()
    env.reward_space = None
    with pytest.raises(CheckError, match="expected one number, as there is no reward_space, got float64"):
        check_step(env)


@pytest.mark.parametrize("reward", [float("nan"), np.float32("nan"), np.array([np.nan])])
def test_reward_of_wrong_type_is_named(reward):
    """It was 'Deterministic step rewards are not equivalent', because NaN differs from itself."""
    with pytest.raises(CheckError) as caught:
        check_all(Answers(answer=(Answers.obs, reward, True, False, {})), spawn=False)
    assert [violation.rule for violation in caught.value.violations if violation.rule != "aliasing"] == ["nan"]


@pytest.mark.parametrize("name", ["observation_space", "action_space", "reward_space"])
@pytest.mark.parametrize("make", [Answers, Plain])
def test_wrong_space_is_named_once(make, name):
    """Every part of the check failed because of it, with errors that did not name the space."""
    env = make()
    setattr(env, name, "box")
    with pytest.raises(CheckError) as caught:
        check_all(env, spawn=False)
    assert caught.value.violations == (Violation("spaces", f"{name}: expected a Gymnasium space, got str 'box'"),)


def test_violation_is_one_line():
    class Raises(Answers):
        def step(self, action):
            raise ValueError("one\n  two")

    with pytest.raises(CheckError) as caught:
        check_all(Raises(), spawn=False)
    assert str(caught.value.violations[0]) == "step: ValueError raised: one two"
    assert len(str(caught.value).splitlines()) == 1 + len(caught.value.violations)
