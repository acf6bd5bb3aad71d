"""Wrappers of actions."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from tests.scripted import Scripted, numbers_env
from vecenv import ConfigError, SpaceError
from vecenv.ding import ActionRepeatWrapper, GymHybridDictActionWrapper, HybridEnv, MaxAndSkipWrapper


@pytest.mark.parametrize("wrap", [ActionRepeatWrapper, MaxAndSkipWrapper])
def test_repeat_sums_rewards(wrap):
    inner = numbers_env(6, rewards=[1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    env = wrap(inner, 4)
    env.reset()
    obs, reward, terminated, truncated, _ = env.step(5)
    assert (obs.tolist(), reward, terminated, truncated) == ([4.0], 15.0, False, False)
    assert inner.actions == [5] * 4


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("wrap", [ActionRepeatWrapper, MaxAndSkipWrapper])
def test_repeat_stops_at_the_end(wrap, truncate):
    inner = numbers_env(2, truncate=truncate)
    env = wrap(inner, 4)
    env.reset()
    _, reward, terminated, truncated, _ = env.step(0)
    assert reward == 2.0 and (terminated, truncated) == (not truncate, truncate)
    assert len(inner.actions) == 2


def test_none_reward_counts_as_zero():
    env = ActionRepeatWrapper(numbers_env(rewards=[None, 3.0] + [0.0] * 9), 2)
    env.reset()
    assert env.step(0)[1] == 3.0


def test_repeat_of_one_changes_nothing():
    env = ActionRepeatWrapper(numbers_env())
    env.reset()
    assert env.step(0)[0].tolist() == [1.0] and env.action_repeat == 1


def test_maximum_of_the_last_two_frames():
    frames = [np.array(pair, np.float32) for pair in ((0, 0), (9, 9), (1, 5), (4, 2), (0, 0))]
    env = MaxAndSkipWrapper(Scripted(frames), 3)
    env.reset()
    assert env.step(0)[0].tolist() == [4.0, 5.0] and env.skip == 3


def test_maximum_of_a_single_frame():
    env = MaxAndSkipWrapper(numbers_env(), 1)
    env.reset()
    assert env.step(0)[0].tolist() == [1.0]


def test_reward_bounds_grow():
    inner = numbers_env()
    inner.reward_range = (-1, 2)
    assert MaxAndSkipWrapper(inner, 4).reward_range == (-4.0, 8.0)
    inner.reward_range = (1, 2)
    assert MaxAndSkipWrapper(inner, 4).reward_range == (1.0, 8.0)  # an episode may end at the first of the four


@pytest.mark.parametrize("wrap", [ActionRepeatWrapper, MaxAndSkipWrapper])
def test_reward_space_declared_by_the_env_grows(wrap):
    def space_over(low, high, shape=(1,), dtype=np.float32, repeats=4):
        inner = numbers_env()
        inner.reward_space = spaces.Box(low, high, shape, dtype)
        return wrap(inner, repeats).reward_space

    assert space_over(0.0, 1.0) == spaces.Box(0.0, 4.0, (1,), np.float32)
    assert space_over(-1.0, 2.0, (2,)) == spaces.Box(-4.0, 8.0, (2,), np.float32)
    assert space_over(1.0, 2.0) == spaces.Box(1.0, 8.0, (1,), np.float32)
    assert space_over(0.0, 1.0, repeats=1) == spaces.Box(0.0, 1.0, (1,), np.float32)
    assert space_over(0, 200, dtype=np.uint8) == spaces.Box(0, 800, (1,), np.float64)
    assert space_over(-3e38, np.inf) == spaces.Box(-np.inf, np.inf, (1,), np.float32)


@pytest.mark.parametrize("declared", [None, spaces.Discrete(3)])
def test_reward_sums_without_bounds_have_no_space(declared):
    inner = numbers_env()
    inner.reward_space = declared
    assert MaxAndSkipWrapper(inner, 4).reward_space is None


def test_frames_drawn_into_one_array_are_copied():
    class Redraws(Scripted):
        frame = np.zeros(2, np.float32)

        def step(self, action):
            obs, *rest = super().step(action)
            self.frame[:] = obs
            return (self.frame, *rest)

    env = MaxAndSkipWrapper(Redraws([np.array(pair, np.float32) for pair in ((0, 0), (1, 5), (4, 2), (0, 0))]), 2)
    env.reset()
    assert env.step(0)[0].tolist() == [4.0, 5.0]


@pytest.mark.parametrize("wrap", [ActionRepeatWrapper, MaxAndSkipWrapper])
def test_repeat_must_be_at_least_one(wrap):
    for count in (0, "2", 1.5):
        with pytest.raises(ConfigError, match=f"at least 1, got {count!r}"):
            wrap(numbers_env(), count)


def test_hybrid_spaces():
    env = GymHybridDictActionWrapper(HybridEnv())
    assert env.action_space["type"] == spaces.Discrete(3)
    assert env.action_space["mask"] == spaces.Box(0, 1, (2,), np.int64)
    assert env.action_space["args"].low.tolist() == [0, -1] and env.action_space["args"].high.tolist() == [1, 1]


@pytest.mark.parametrize("choice", [1, np.int64(1), np.array(1), np.array([1])])
def test_hybrid_actions_reach_the_env_as_a_pair(choice):
    inner = numbers_env(actions=HybridEnv().action_space)
    env = GymHybridDictActionWrapper(inner)
    env.reset()
    args = np.array([0.5, 0.5], np.float32)
    env.step({"type": choice, "mask": np.array([0, 1]), "args": args})
    ((sent, parameters),) = inner.actions
    assert sent == 1 and type(sent) is int and parameters is args


def test_hybrid_needs_a_choice_with_parameters():
    with pytest.raises(SpaceError, match="Tuple"):
        GymHybridDictActionWrapper(numbers_env())


def test_maximum_of_dicts_and_tuples_of_frames():
    """It raised a TypeError about '>=' during an episode, or returned one array instead of a tuple."""
    left, right = spaces.Box(0, 255, (2,), np.uint8), spaces.Box(0, 255, (3,), np.uint8)
    space = spaces.Dict(eyes=spaces.Tuple([left, right]), text=spaces.Text(9))

    def see(*values):
        eyes = np.array(values[:2], np.uint8), np.array(values[2:], np.uint8)
        return {"eyes": eyes, "text": "abcdefghi"[: values[0]]}

    env = MaxAndSkipWrapper(Scripted([see(9, 9, 9, 9, 9), see(1, 5, 7, 0, 2), see(4, 2, 6, 1, 2)], space=space), 2)
    env.reset()
    obs = env.step(0)[0]
    assert space.contains(obs) and obs["text"] == "abcd"
    assert [part.tolist() for part in obs["eyes"]] == [[4, 5], [7, 1, 2]]


def test_maximum_of_lists_is_an_array():
    """It was a tuple of numbers."""
    space = spaces.Dict(place=spaces.Box(0, 9, (2,), np.float64), text=spaces.Text(9))
    seen = [{"place": place, "text": np.str_("ab")} for place in ([0.0, 0.0], [1.0, 5.0], [4.0, 2.0])]
    env = MaxAndSkipWrapper(Scripted(seen, space=space), 2)
    env.reset()
    obs = env.step(0)[0]
    assert space.contains(obs) and obs["place"].tolist() == [4.0, 5.0]
