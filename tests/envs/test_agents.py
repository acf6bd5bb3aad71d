"""The toys with several agents and with hybrid actions."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from vecenv import ConfigError, StateError, check_all
from vecenv.ding import ENV_REGISTRY, DingEnvWrapper, GymHybridDictActionWrapper, HybridEnv, TwoAgentEnv
from vecenv.envs.agents import FORMS

ACTIONS = {"tuple": (2, 1), "dict": {"left": 2, "right": 1}, "stack": np.array([2, 1])}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["single", "double"])
def test_toys_pass_the_check(mode, form):
    check_all(TwoAgentEnv({"mode": mode, "form": form}), spawn=False)


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_the_env_play_the_same_game(form):
    env = TwoAgentEnv({"form": form})
    env.seed(3, dynamic_seed=False)
    first = env.reset()
    rewards = []
    done = False
    while not done:
        obs, reward, done, info = env.step(ACTIONS[form])
        rewards.append(reward)
    assert env.observation_space.contains(first) and env.observation_space.contains(obs)
    assert reward.shape == (2,) and reward.dtype == np.float32
    assert info["agent_done"].tolist() == [True, False] and info["truncated"] is True
    total = np.sum(rewards, axis=0)
    assert info["eval_episode_return"] == pytest.approx(float(total.sum()), abs=1e-5)
    assert total[0] > 0 > total[1]


def test_episode_ends_when_both_agents_have_arrived():
    env = TwoAgentEnv({"size": 2})
    env.reset()
    done = False
    while not done:
        _, _, done, info = env.step((2, 2))
    assert info["terminated"] is True and info["agent_done"].all()


def test_single_mode_is_one_agents_view():
    env = TwoAgentEnv({"mode": "single"})
    assert env.reset().shape == (3,) and env.action_space == spaces.Discrete(3)
    timestep = env.step(env.random_action())
    assert timestep.reward.shape == (1,) and timestep.info["agent_done"].shape == (2,)


@pytest.mark.parametrize("form", FORMS)
def test_random_actions_are_playable(form):
    env = TwoAgentEnv({"form": form})
    env.reset()
    for _ in range(10):
        env.step(env.random_action())


def test_seeds_of_the_two_agents():
    env = TwoAgentEnv({"form": "stack", "size": 1000})
    env.seed(1)
    episodes = [env.reset().tolist() for _ in range(5)]
    env.seed(1)
    assert [env.reset().tolist() for _ in range(5)] == episodes
    assert episodes[0] != episodes[1]
    env.seed(1, dynamic_seed=False)
    assert env.reset().tolist() == env.reset().tolist()


@pytest.mark.parametrize("cfg", [{"mode": "triple"}, {"form": "graph"}, {"size": 1}])
def test_bad_configs_are_refused(cfg):
    with pytest.raises(ConfigError, match=next(iter(cfg))):
        TwoAgentEnv(cfg)


def test_step_before_reset_is_an_error():
    env = TwoAgentEnv()
    with pytest.raises(StateError):
        env.step((0, 0))
    env.reset()
    env.close()
    with pytest.raises(StateError):
        env.step((0, 0))


def test_two_agents_are_registered():
    assert ENV_REGISTRY.get("two_agents") is TwoAgentEnv


@pytest.mark.extended
def test_hybrid_toy_passes_the_check():
    check_all(HybridEnv(), spawn=False)
    check_all(DingEnvWrapper(HybridEnv(), {"env_wrapper": "gym_hybrid_default"}), spawn=False)


def test_hybrid_choices_use_their_parameters():
    env = HybridEnv()
    start, _ = env.reset(seed=0)
    faster = env.step((0, np.array([1.0, 1.0], np.float32)))[0]
    assert faster[2] > start[2] and np.allclose(faster[3:], start[3:])
    turned = env.step((1, np.array([1.0, 1.0], np.float32)))[0]
    assert not np.allclose(turned[3:], faster[3:]) and turned[2] == faster[2]
    assert env.step((2, np.zeros(2, np.float32)))[0][2] < turned[2]


def test_hybrid_arrival_terminates():
    env = HybridEnv(max_steps=1000)
    env.reset(seed=0)
    terminated = truncated = False
    while not (terminated or truncated):
        x, y = env._place
        error = np.arctan2(-y, -x) - env._heading
        turn = np.clip(2 * np.arctan2(np.sin(error), np.cos(error)), -1, 1)
        choice = 1 if abs(turn) > 0.1 else 0
        _, reward, terminated, truncated, _ = env.step((choice, np.array([0.5, turn], np.float32)))
    assert terminated and reward > 0.9


def test_hybrid_action_is_a_dict_outside_and_a_tuple_inside():
    inner = GymHybridDictActionWrapper(HybridEnv())
    env = DingEnvWrapper(inner)
    env.seed(2)
    env.reset()
    action = env.random_action()
    assert set(action) == {"type", "mask", "args"}
    assert env.step(action).reward.shape == (1,)
