"""Seeds of episodes."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest

from vecenv import ConfigError
from vecenv.envs.seeding import EpisodeSeeds, check_seed, episode_seed


def test_episode_seed_is_a_pure_function():
    assert [episode_seed(5, k) for k in range(4)] == [episode_seed(5, k) for k in range(4)]


def test_episode_seeds_differ_between_episodes_and_envs():
    seeds = {episode_seed(seed, episode) for seed in range(64) for episode in range(64)}
    assert len(seeds) == 64 * 64
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_static_seed_is_the_same_for_every_episode():
    assert [episode_seed(5, k, dynamic=False) for k in range(3)] == [5, 5, 5]


def test_w2_dynamic_seeds_leave_the_global_generators_alone():
    before = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    seeds = EpisodeSeeds()
    seeds.seed(3)
    [seeds.advance() for _ in range(10)]
    assert (random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]) == before


def test_unseeded_episode_seed_is_none():
    assert EpisodeSeeds().advance() is None


def test_seeding_again_restarts_the_sequence():
    seeds = EpisodeSeeds()
    seeds.seed(3)
    first = [seeds.advance() for _ in range(3)]
    seeds.seed(3)
    assert [seeds.advance() for _ in range(3)] == first


def test_episode_seeds_state_continues_the_sequence():
    seeds, other = EpisodeSeeds(), EpisodeSeeds()
    seeds.seed(3)
    seeds.advance()
    other.set_state(pickle.loads(pickle.dumps(seeds.get_state())))
    assert other.advance() == seeds.advance()


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None, True])
def test_bad_seeds_are_config_errors(seed):
    with pytest.raises(ConfigError, match="seed: expected an integer >= 0"):
        check_seed(seed)


def test_numpy_integers_are_seeds():
    assert type(check_seed(np.int32(4))) is int
