"""PettingZooVectorEnv and SB3AgentVecEnv give what SuperSuit gives; BatchedVectorEnv hosts SuperSuit's vector envs."""

from __future__ import annotations

import contextlib
import functools
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box

with warnings.catch_warnings():  # the libraries that it imports warn
    warnings.simplefilter("ignore")
    supersuit = pytest.importorskip("supersuit", exc_type=ImportError)
pytest.importorskip("pettingzoo", exc_type=ImportError)

from tests.integrations.zoo import Walk
from tests.vector.comparison import assert_same
from vecenv import BatchedVectorEnv
from vecenv.integrations.pettingzoo import PettingZooVectorEnv

BOXES = functools.partial(Walk, actions=Box(-1, 1, (2,), np.float32), has_infos=True)


def spread(**kwargs):
    """Return the cooperative game of MPE in which agents spread over landmarks."""
    game = pytest.importorskip("mpe2.simple_spread_v3", exc_type=ImportError)
    return game.parallel_env(max_cycles=7, **kwargs)


def markov(env_fn):
    return supersuit.pettingzoo_env_to_vec_env_v1(env_fn())


def concatenated(env_fn, num_envs):
    return supersuit.concat_vec_envs_v1(markov(env_fn), num_envs, num_cpus=0, base_class="gymnasium")


def sampled(space, num_rows, num_steps):
    space.seed(3)
    return [np.stack([space.sample() for _ in range(num_rows)]) for _ in range(num_steps)]


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("env_fn", [functools.partial(Walk, has_infos=True), BOXES, spread])
def test_buffers_equal_those_of_supersuit(env_fn, backend):
    with (
        contextlib.closing(concatenated(env_fn, 3)) as theirs,
        PettingZooVectorEnv(env_fn, 3, infos="list", backend=backend) as ours,
    ):
        assert ours.num_envs == theirs.num_envs
        assert ours.single_observation_space == theirs.observation_space
        assert_same(ours.reset(seed=5), theirs.reset(seed=5))
        for i, action in enumerate(sampled(theirs.action_space, ours.num_envs, 25)):
            obs, rewards, terminations, truncations, infos = theirs.step(action)
            expected = obs, rewards.astype(np.float64), terminations.astype(bool), truncations.astype(bool), infos
            assert_same(ours.step(action), expected, f"step {i}")


def test_rows_of_dead_agents_equal_those_of_black_death():
    """SuperSuit does not reset the env when its last agent dies, so this is compared up to that step."""
    env_fn = functools.partial(Walk, (3, 6, 2))
    theirs = supersuit.pettingzoo_env_to_vec_env_v1(supersuit.black_death_v3(env_fn()))
    with PettingZooVectorEnv(env_fn, black_death=True, backend="serial") as ours:
        assert_same(ours.reset(seed=5)[0], theirs.reset(seed=5)[0])
        for action in sampled(theirs.action_space, 3, 5):
            obs, rewards, *_ = theirs.step(action)
            assert_same(ours.step(action)[:2], (obs, rewards.astype(np.float64)))


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("make", [markov, functools.partial(concatenated, num_envs=2)])
def test_batched_vector_env_hosts_vector_envs_of_supersuit(make, backend):
    env_fn = functools.partial(Walk, has_infos=True)
    with (
        BatchedVectorEnv([functools.partial(make, env_fn)] * 2, backend=backend) as ours,
        contextlib.closing(make(env_fn)) as first,
        contextlib.closing(make(env_fn)) as second,
    ):
        theirs, size = (first, second), first.num_envs
        assert ours.num_envs == 2 * size and ours.single_action_space == first.action_space
        obs, infos = ours.reset(seed=5)
        assert infos["start"].all()
        assert_same(obs, np.concatenate([one.reset(seed=5 + w * size)[0] for w, one in enumerate(theirs)]))
        for action in sampled(first.action_space, 2 * size, 9):
            parts = [one.step(half) for one, half in zip(theirs, np.split(action, 2))]
            expected = [np.concatenate(column) for column in list(zip(*parts))[:4]]
            *result, infos = ours.step(action)
            dtypes = (np.float32, np.float64, bool, bool)
            assert_same(result, [one.astype(dtype) for one, dtype in zip(expected, dtypes)])
            told = [info for part in parts for info in part[4]]
            assert infos["steps"].tolist() == [info["steps"] for info in told]
            lasts = [info.get("terminal_observation") for info in told]
            assert ("final_obs" in infos) == (lasts[0] is not None)
            assert_same(list(infos.get("final_obs", [None] * len(told))), lasts)


def test_sb3_vec_env_equals_that_of_supersuit():
    pytest.importorskip("stable_baselines3")
    from vecenv.integrations.sb3_agents import SB3AgentVecEnv

    theirs = supersuit.concat_vec_envs_v1(markov(Walk), 2, num_cpus=0, base_class="stable_baselines3")
    with SB3AgentVecEnv(Walk, 2) as ours:
        assert ours.num_envs == theirs.num_envs and ours.render_mode == theirs.render_mode
        ours.seed(3)
        assert_same(ours.reset(), theirs.venv.reset(seed=3)[0])
        for action in sampled(theirs.action_space, 6, 9):
            obs, rewards, dones, infos = theirs.step(action)
            assert_same(ours.step(action), (obs, rewards, dones.astype(bool), infos))
