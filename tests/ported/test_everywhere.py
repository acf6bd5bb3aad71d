"""Envs of every API and of every unusual space, in all six managers and in VectorEnv, with and without workers."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest

from tests.scripted import Ding, Plain
from vecenv import VectorEnv
from vecenv.ding import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BaseEnvManagerV2,
    DingEnvWrapper,
    EnvState,
    GymVectorEnvManager,
    HybridEnv,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
    TreeArray,
    TwoAgentEnv,
)

NUM_ENVS = 3
TRACKED_EPISODES = 2
MANAGERS = {
    "base": (BaseEnvManager, {}),
    "base_v2": (BaseEnvManagerV2, {}),
    "subprocess": (SyncSubprocessEnvManager, {"num_workers": 2}),
    "subprocess_v2": (SubprocessEnvManagerV2, {"num_workers": 2}),
    "async_subprocess": (AsyncSubprocessEnvManager, {"num_workers": 2}),
    "gym_vector": (GymVectorEnvManager, {"num_workers": 2}),
    "gym_vector, serial": (GymVectorEnvManager, {"backend": "serial"}),
}


def hybrid_dict():
    return DingEnvWrapper(HybridEnv(max_steps=6), {"env_wrapper": "gym_hybrid_default"})


def agents(mode, form):
    return functools.partial(TwoAgentEnv, {"mode": mode, "form": form, "max_steps": 6})


ENVS = {
    "two agents, single": agents("single", "tuple"),
    "two agents, tuple": agents("double", "tuple"),
    "two agents, dict": agents("double", "dict"),
    "two agents, stack": agents("double", "stack"),
    "hybrid, tuple": functools.partial(HybridEnv, 6),
    "hybrid, dict": hybrid_dict,
    "gymnasium": functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=6),
    "continuous": functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=6),
    "ding, lazy": functools.partial(DingEnvWrapper, None, {"env_id": "CartPole-v1"}),
    "base env": Ding,
    "old gym": Plain,
}


def leaves(value):
    if isinstance(value, TreeArray):
        value = value.json()
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves(value[key])]
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in leaves(part)]
    return [np.asarray(value)]


def shapes(space):
    return [leaf.shape for leaf in leaves(space.sample())]


def timesteps_of(found):
    if isinstance(found, dict):
        return list(found.items())
    return [(tree.env_id.item(), tree) for tree in found]


def reward_shape_of(env_name):
    """Return the reward shape: one reward per agent, or () for the single number of Gymnasium's envs."""
    if "two agents" in env_name:
        return (1,) if "single" in env_name else (2,)
    return (1,) if env_name in ("ding, lazy", "base env", "hybrid, dict") else ()


@pytest.mark.parametrize("name", MANAGERS)
@pytest.mark.parametrize("env_name", ENVS)
def test_ported_env_in_managers(name, env_name):
    manager_cls, cfg = MANAGERS[name]
    with manager_cls([ENVS[env_name]] * NUM_ENVS, {"episode_num": TRACKED_EPISODES, **cfg}) as manager:
        manager.seed(3)
        manager.launch()
        expected = shapes(manager.observation_space)
        ended = dict.fromkeys(range(NUM_ENVS), 0)
        reward_shape = reward_shape_of(env_name) or (1,)
        while not manager.done:
            obs = manager.ready_obs
            if not isinstance(obs, dict) and len(manager.ready_obs_id):
                assert [leaf.shape[1:] for leaf in leaves(obs)] == expected
            for env_id, timestep in timesteps_of(manager.step(manager.random_action())):
                assert [leaf.shape for leaf in leaves(timestep.obs)] == expected
                assert timestep.reward.shape == reward_shape
                if "two agents" in env_name:
                    assert np.shape(timestep.info["agent_done"]) == (2,)
                ended[env_id] += bool(timestep.done)
        assert ended == dict.fromkeys(range(NUM_ENVS), TRACKED_EPISODES) == manager.env_episode_count
        assert set(manager.env_states.values()) == {EnvState.DONE}


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("env_name", ENVS)
def test_ported_env_in_vector_env(backend, env_name):
    envs = VectorEnv(
        [ENVS[env_name]] * NUM_ENVS, backend=backend, **({"num_workers": 2} if backend == "process" else {})
    )
    try:
        obs, _ = envs.reset(seed=3)
        envs.action_space.seed(3)
        expected = [(NUM_ENVS, *shape) for shape in shapes(envs.single_observation_space)]
        ends = 0
        for _ in range(60):
            assert [leaf.shape for leaf in leaves(obs)] == expected
            obs, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
            per_agent = reward_shape_of(env_name) == (2,)
            assert rewards.shape == ((NUM_ENVS, 2) if per_agent else (NUM_ENVS,))
            if "two agents" in env_name and "agent_done" in infos:
                assert infos["agent_done"].shape == (NUM_ENVS, 2)
            ends += int((terminated | truncated).sum())
        assert ends >= NUM_ENVS
    finally:
        envs.close()
