"""Self-play: every board plays its share of games, results count for player 1, and a seed repeats a run."""

from __future__ import annotations

import numpy as np
import pytest

from vecenv.examples.self_play import main, make_games, play, random_policy


@pytest.mark.parametrize("against", ["self", "bot"])
def test_self_play_results_and_moves_match_the_games(against: str):
    envs = make_games("tictactoe", 4, against, num_workers=2)
    try:
        played = play(envs, random_policy(np.random.default_rng(0)), 30, seed=0)
    finally:
        envs.close()
    assert sum(played.results.values()) == 30 and set(played.results) <= {1, -1, 0}
    shortest, longest = (5, 9) if against == "self" else (2, 5)
    assert 30 * shortest <= played.moves <= 30 * longest
    assert played.results[1] > played.results[-1] if against == "self" else played.results[-1] > 15


def test_self_play_policy_plays_legal_actions_only():
    mask = np.zeros((500, 7), np.int8)
    mask[:, 2] = mask[:, 5] = 1
    assert set(random_policy(np.random.default_rng(0))({"action_mask": mask}).tolist()) == {2, 5}


@pytest.mark.extended
def test_self_play_seed_repeats_the_run(capsys: pytest.CaptureFixture[str]):
    outputs = []
    for _ in range(2):
        main(["--envs", "6", "--games", "20", "--workers", "2", "--seed", "3"])
        outputs.append(capsys.readouterr().out.splitlines())
    assert outputs[0][:2] == outputs[1][:2]
    assert outputs[0][0] == "connect4: 20 games of a random policy against itself on 6 boards"
    assert outputs[0][1].startswith("player 1 wins ")
    assert "games per second" in outputs[0][2]
