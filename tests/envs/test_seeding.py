"""Seeds of episodes, and the global generators of one env."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest

from vecenv import ConfigError
from vecenv.envs import seeding
from vecenv.envs.seeding import EpisodeSeeds, GlobalStreams, check_seed, episode_seed, global_positions


def test_episode_seed_is_a_pure_function():
    assert [episode_seed(5, k) for k in range(4)] == [episode_seed(5, k) for k in range(4)]


def test_episode_seeds_differ_between_episodes_and_envs():
    seeds = {episode_seed(seed, episode) for seed in range(64) for episode in range(64)}
    assert len(seeds) == 64 * 64
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_static_seed_is_the_same_for_every_episode():
    assert [episode_seed(5, k, dynamic=False) for k in range(3)] == [5, 5, 5]


def test_w2_dynamic_seeds_leave_the_global_generators_alone():
    before = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    seeds = EpisodeSeeds()
    seeds.seed(3)
    [seeds.advance() for _ in range(10)]
    assert (random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]) == before


def test_unseeded_gives_none():
    assert EpisodeSeeds().advance() is None


def test_seeding_again_starts_the_sequence_anew():
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


def draw():
    return random.random(), float(np.random.rand())


def test_global_streams_give_each_env_its_own_numbers():
    one, two = GlobalStreams.from_seed(1), GlobalStreams.from_seed(1)
    interleaved = []
    for _ in range(3):
        with one:
            interleaved.append(draw())
        with two:
            assert draw() == interleaved[-1]
    assert len(set(interleaved)) == 3


def test_global_streams_put_the_callers_back():
    random.seed(4)
    np.random.seed(4)
    expected = draw()
    random.seed(4)
    np.random.seed(4)
    with GlobalStreams.from_seed(9):
        draw()
    assert draw() == expected


def test_global_streams_put_the_callers_back_after_an_error():
    random.seed(4)
    state = random.getstate()
    with pytest.raises(ZeroDivisionError), GlobalStreams.from_seed(9):
        draw()
        raise ZeroDivisionError
    assert random.getstate() == state


def test_global_streams_state_repeats_the_draws():
    streams = GlobalStreams.from_seed(2)
    state = pickle.loads(pickle.dumps(streams.get_state()))
    with streams:
        first = draw()
    streams.set_state(state)
    with streams:
        assert draw() == first


def test_making_streams_does_not_draw():
    before = global_positions()
    GlobalStreams.from_seed(5)
    GlobalStreams()
    assert global_positions() == before


@pytest.mark.parametrize("function", [random.random, np.random.rand, lambda: np.random.randint(3)])
def test_positions_move_with_every_draw(function):
    for _ in range(700):  # past the point where the state's words are replaced
        before = global_positions()
        function()
        assert global_positions() != before


def test_positions_see_a_draw_of_a_whole_lap():
    before = global_positions()
    [random.getrandbits(32) for _ in range(624)]
    np.random.bytes(624 * 4)
    after = global_positions()
    assert after[0] != before[0] and after[1] != before[1]


def test_positions_without_a_known_layout(monkeypatch):
    peek = seeding._Peek()
    monkeypatch.setattr(peek, "_python", None)
    monkeypatch.setattr(peek, "_numpy", None)
    before = peek()
    random.random()
    middle = peek()
    np.random.rand()
    assert before[0] != middle[0] and before[1] == middle[1] and peek()[1] != middle[1]
