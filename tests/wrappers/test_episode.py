"""Wrappers that start and end episodes."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest

from tests.scripted import Scripted, numbers_env
from vecenv import ConfigError
from vecenv.ding import EpisodicLifeWrapper, FireResetWrapper, NoopResetWrapper, TimeLimitWrapper
from vecenv.wrappers import create_env_wrapper


class TestNoopReset:
    def test_noop_count_is_between_one_and_noop_max(self):
        inner = numbers_env(40)
        env = NoopResetWrapper(inner, 5)
        counts = set()
        for seed in range(60):
            inner.actions.clear()
            obs, _ = env.reset(seed=seed)
            assert obs[0] == len(inner.actions) and set(inner.actions) == {0}
            counts.add(len(inner.actions))
        assert counts == {1, 2, 3, 4, 5} and env.noop_max == 5

    def test_noop_count_is_a_function_of_the_seed(self):
        first, second = (NoopResetWrapper(numbers_env(40)) for _ in range(2))
        assert [first.reset(seed=s)[0][0] for s in range(9)] == [second.reset(seed=s)[0][0] for s in range(9)]

    def test_noop_reset_does_not_use_global_generators(self):
        state, words = random.getstate(), np.random.get_state()[1].copy()
        NoopResetWrapper(numbers_env(40)).reset(seed=1)
        assert random.getstate() == state and np.array_equal(np.random.get_state()[1], words)

    def test_game_that_ends_is_reset_again(self):
        inner = numbers_env(1)
        obs, _ = NoopResetWrapper(inner).reset(seed=3, options={"a": 1})
        assert obs[0] == 0 and inner.seeds[0] == 3 and set(inner.seeds[1:]) == {None}
        assert all(options == {"a": 1} for options in inner.options)

    def test_state_repeats_the_draws(self):
        env = NoopResetWrapper(numbers_env(40))
        state = pickle.loads(pickle.dumps(env.get_state()))
        first = [env.reset()[0][0] for _ in range(5)]
        env.set_state(state)
        assert [env.reset()[0][0] for _ in range(5)] == first

    @pytest.mark.parametrize("meanings", [["FIRE", "NOOP"], []])
    def test_action_zero_must_be_noop(self, meanings):
        inner = numbers_env()
        inner.meanings = meanings
        with pytest.raises(AssertionError, match="NOOP"):
            NoopResetWrapper(inner)

    def test_env_without_action_meanings_is_refused(self):
        class Nameless(Scripted):
            get_action_meanings = None

        with pytest.raises(ConfigError, match="get_action_meanings"):
            NoopResetWrapper(Nameless([np.zeros(1)] * 2))

    def test_noop_max_must_be_positive(self):
        for count in (0, "2", 1.5):
            with pytest.raises(ConfigError, match="noop_max"):
                NoopResetWrapper(numbers_env(), count)


class TestFireReset:
    def test_fire_reset_fires_once(self):
        inner = numbers_env()
        obs, _ = FireResetWrapper(inner).reset(seed=3)
        assert obs[0] == 1 and inner.actions == [1] and inner.seeds == [3]

    def test_game_that_firing_ends_is_reset_again(self):
        inner = numbers_env(1)
        obs, _ = FireResetWrapper(inner).reset(seed=3)
        assert obs[0] == 0 and inner.seeds == [3, None]  # the game would end again with the same seed

    @pytest.mark.parametrize("meanings", [["NOOP", "LEFT", "RIGHT"], ["NOOP", "FIRE"]])
    def test_action_one_must_be_fire_of_three(self, meanings):
        with pytest.raises(AssertionError):
            FireResetWrapper(numbers_env(meanings=meanings))


class Lives(Scripted):
    """Loses a life at the steps in `losses`; its attribute `lives` has the remaining ones."""

    def __init__(self, losses, length=10, start=3):
        super().__init__([np.array([float(i)], np.float32) for i in range(length + 1)])
        self.losses, self.start, self.lives = losses, start, start

    def reset(self, **kwargs):
        self.lives = self.start
        return super().reset(**kwargs)

    def step(self, action):
        result = super().step(action)
        self.lives -= self.step_count in self.losses
        return result


class TestEpisodicLife:
    def test_lost_life_terminates_and_the_game_continues(self):
        inner = Lives([2])
        env = EpisodicLifeWrapper(inner)
        env.reset()
        assert env.lives == 3 and env.step(5)[2] is False
        _, _, terminated, truncated, _ = env.step(5)
        assert (terminated, truncated, env.was_real_done, env.lives) == (True, False, False, 2)
        obs, _ = env.reset(seed=8)
        assert obs[0] == 3 and inner.actions == [5, 5, 0] and inner.seeds == [None]
        assert env.step(5)[2] is False

    def test_game_over_resets_the_env(self):
        inner = Lives([], length=2)
        env = EpisodicLifeWrapper(inner)
        env.reset()
        env.step(0)
        assert env.step(0)[2] is True and env.was_real_done is True
        assert env.reset(seed=8)[0][0] == 0 and inner.seeds == [None, 8]

    def test_last_life_does_not_terminate_yet(self):
        env = EpisodicLifeWrapper(Lives([1], start=1))
        env.reset()
        assert env.step(0)[2] is False

    def test_game_end_in_the_step_without_action_resets_the_env(self):
        inner = Lives([2], length=3)
        env = EpisodicLifeWrapper(inner)
        env.reset()
        env.step(0)
        env.step(0)
        assert env.reset()[0][0] == 0 and len(inner.seeds) == 2

    def test_truncated_life_stays_truncated(self):
        inner = Lives([1], length=1)
        inner.truncate = True
        env = EpisodicLifeWrapper(inner)
        env.reset()
        _, _, terminated, truncated, _ = env.step(0)
        assert terminated and truncated and env.was_real_done

    def test_lives_from_info_or_ale(self):
        class ByInfo(Scripted):
            def step(self, action):
                *rest, _ = super().step(action)
                return (*rest, {"lives": 5})

        env = EpisodicLifeWrapper(ByInfo([np.zeros(1)] * 4))
        env.reset()
        env.step(0)
        assert env.lives == 5

        inner = numbers_env()
        inner.ale = type("Ale", (), {"lives": staticmethod(lambda: 7)})()
        env = EpisodicLifeWrapper(inner)
        env.reset()
        assert env.lives == 7

    @pytest.mark.extended
    def test_real_atari_lives(self):
        pytest.importorskip("ale_py")
        from vecenv.wrappers.ding import make_env

        env = EpisodicLifeWrapper(make_env("BreakoutNoFrameskip-v4"))
        env.reset(seed=0)
        assert env.lives == 5
        for _ in range(3000):
            if env.step(1)[2]:
                break
        assert env.lives == 4 and env.was_real_done is False
        env.close()


class TestTimeLimit:
    def test_time_limit_truncates(self):
        env = TimeLimitWrapper(numbers_env(), 2)
        env.reset()
        *_, truncated, info = env.step(0)
        assert truncated is False and info == {"time_limit": False, "time_count": 1}
        _, _, terminated, truncated, info = env.step(0)
        assert (terminated, truncated) == (False, True) and info == {"time_limit": True, "time_count": 2}
        env.reset()
        assert env.step(0)[3] is False

    def test_w41_time_limit_is_registered(self):
        env = create_env_wrapper(numbers_env(), {"type": "time_limit", "kwargs": {"max_limit": 7}})
        assert isinstance(env, TimeLimitWrapper) and env.max_limit == 7

    def test_time_limit_must_be_at_least_one(self):
        for count in (0, "2", 1.5):
            with pytest.raises(ConfigError, match="max_limit"):
                TimeLimitWrapper(numbers_env(), count)
