"""SB3AgentVecEnv: Stable-Baselines3 trains one policy for all agents of PettingZoo's envs."""

from __future__ import annotations

import contextlib
import functools
import pickle

import numpy as np
import pytest

pytest.importorskip("pettingzoo", exc_type=ImportError)
pytest.importorskip("stable_baselines3")

from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecMonitor

from tests.integrations.zoo import Count, Walk
from tests.vector.comparison import assert_same
from vecenv import ConfigError, StateError
from vecenv.integrations.pettingzoo import JointEnv, PettingZooVectorEnv, TurnEnv
from vecenv.integrations.sb3 import SB3VecEnv
from vecenv.integrations.sb3_agents import SB3AgentVecEnv

pytestmark = pytest.mark.sb3


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_steps_equal_those_of_the_vector_env(backend):
    env_fn = functools.partial(Walk, (3, 2), has_infos=True)
    with (
        SB3AgentVecEnv(env_fn, 2, black_death=True, backend=backend) as ours,
        PettingZooVectorEnv(env_fn, 2, black_death=True, infos="list", backend="serial") as plain,
    ):
        assert ours.num_envs == 4 and ours.observation_space == plain.single_observation_space
        assert ours.seed(7) == [7, 7, 8, 8]
        expected, infos = plain.reset(seed=7)
        assert_same(ours.reset(), expected)
        assert ours.reset_infos == infos
        for _ in range(7):
            obs, rewards, terminations, truncations, infos = plain.step([0, 1, 2, 0])
            expected = obs, rewards.astype(np.float32), terminations | truncations, infos
            assert_same(ours.step(np.array([0, 1, 2, 0])), expected)


def test_calls_reach_each_env_once():
    with SB3AgentVecEnv(Walk, 2, backend="serial") as envs:
        assert envs.render_mode == "rgb_array" and envs.metadata["name"] == "walk_v0"
        envs.set_attr("gravity", 2.0, indices=[3, 4])
        assert envs.get_attr("gravity") == [1.0] * 3 + [2.0] * 3
        assert envs.get_attr("gravity", [-1, 0]) == [2.0, 1.0] and envs.get_attr("gravity", 2) == [1.0]
        assert envs.has_attr("possible_agents") and not envs.has_attr("levity")
        envs.reset()
        envs.step([1, 0, 0, 2, 0, 0])
        assert envs.env_method("place_of", "walker_0", indices=[0, 1, 5]) == [1.0, 1.0, 2.0]
        assert envs.env_is_wrapped(VecMonitor, [0]) == [False]
        envs.set_options({"level": 3})
        envs.reset()
        assert envs.get_attr("options", 5) == [{"level": 3}]
        assert envs.get_images()[1].shape == (2, 2, 3) and len(envs.get_images()) == 2
        envs.step_async([0] * 6)
        envs.reset()
        with pytest.raises(StateError, match="step_async first"):
            envs.step_wait()
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(envs)


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="infos"):
        SB3AgentVecEnv(Walk, infos="list")
    with (
        PettingZooVectorEnv(Walk, backend="serial") as envs,
        pytest.raises(ConfigError, match="SB3AgentVecEnv"),
    ):
        SB3VecEnv(envs)


@pytest.mark.extended
def test_ppo_learns_over_rows_joint_envs_and_turns():
    joint = functools.partial(lambda: JointEnv(Walk((5, 5)), form="stack"))
    kinds = [
        (SB3AgentVecEnv(Walk, 2, backend="serial", episode_statistics=True), "MlpPolicy", 6),
        (SB3VecEnv([joint] * 2, backend="serial", episode_statistics=True), "MlpPolicy", 2),
        (SB3VecEnv([lambda: TurnEnv(Count())] * 2, backend="serial"), "MultiInputPolicy", 2),
    ]
    for envs, policy, num_rows in kinds:
        with contextlib.closing(envs):
            model = PPO(policy, envs, n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu").learn(16 * num_rows)
            assert model.rollout_buffer.observations is not None and model.num_timesteps == 16 * num_rows
            if num_rows == 6:
                assert {episode["l"] for episode in model.ep_info_buffer} == {4}
