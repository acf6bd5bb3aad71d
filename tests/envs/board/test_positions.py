"""Bitboards against the rules written out cell by cell."""

from __future__ import annotations

import random

import numpy as np
import pytest

from vecenv import ConfigError
from vecenv.envs.board.positions import GridRules

RULES = {
    "connect4": GridRules(6, 7, 4, gravity=True),
    "tictactoe": GridRules(3, 3, 3),
    "gomoku": GridRules(6, 6, 5),
    "wide": GridRules(2, 9, 4),
    "tall": GridRules(9, 2, 4, gravity=True),
}


def winner_of(board, length):
    """Search every line in every direction; return 1, 2 or 0."""
    height, width = board.shape
    for row in range(height):
        for column in range(width):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + i * down, column + i * right) for i in range(length)]
                if all(0 <= r < height and 0 <= c < width for r, c in cells):
                    values = {int(board[cell]) for cell in cells}
                    if values in ({1}, {2}):
                        return values.pop()
    return 0


def legal_on(board, rules):
    free = board == 0
    return np.flatnonzero(free.any(axis=0) if rules.gravity else free).tolist()


@pytest.mark.extended
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("starter", [0, 1])
def test_random_games_follow_the_rules(name, starter):
    rules = RULES[name]
    generator = random.Random(name)
    winners = set()
    for _ in range(20):
        board = np.zeros((rules.height, rules.width), int)
        position = rules.start(starter)
        player = starter
        while not position.is_over:
            assert position.player == player
            assert position.legal_actions() == legal_on(board, rules)
            action = generator.choice(position.legal_actions())
            if rules.gravity:
                row = int(np.flatnonzero(board[:, action] == 0)[-1])
                board[row, action] = player + 1
            else:
                board[divmod(action, rules.width)] = player + 1
            position = position.play(action)
            player = 1 - player
            own, other = rules.planes(position)
            assert np.array_equal(own, board == player + 1) and np.array_equal(other, board == 2 - player)
            found = winner_of(board, rules.length)
            assert position.winner == (found - 1 if found else None)
            assert position.is_over == bool(found or board.all())
            again = rules.restore(board, player)
            assert (again.key, again.player, again.winner) == (position.key, position.player, position.winner)
        assert position.legal_actions() == []
        winners.add(position.winner)
    assert len(winners) >= 2


def test_line_does_not_wrap_to_the_next_row():
    board = np.zeros((6, 7), int)
    board[4, 5:] = board[5, :2] = 1
    board[5, 5:] = 2
    assert RULES["connect4"].restore(board, 1).winner is None


def test_six_in_a_row_win_at_gomoku():
    board = np.zeros((6, 6), int)
    board[2] = [1, 1, 1, 0, 1, 1]
    assert RULES["gomoku"].restore(board, 0).play(2 * 6 + 3).winner == 0


@pytest.mark.parametrize("name", RULES)
def test_rollouts_end_as_random_games_do(name):
    rules, generator = RULES[name], random.Random(5)
    results = {rules.start(0).rollout(generator) for _ in range(300)}
    assert {0, 1} <= results <= {0, 1, None}


def test_rollout_of_a_finished_game_is_its_result():
    position = RULES["tictactoe"].restore([1, 1, 1, 2, 2, 0, 0, 0, 0], 1)
    assert position.rollout(random.Random(0)) == 0


@pytest.mark.parametrize("name", RULES)
def test_winning_actions_win(name):
    rules, generator = RULES[name], random.Random(1)
    seen = 0
    for _ in range(60):
        position = rules.start(0)
        while not position.is_over:
            expected = [a for a in position.legal_actions() if position.play(a).winner == position.player]
            assert position.winning_actions() == expected
            seen += len(expected)
            position = position.play(generator.choice(position.legal_actions()))
    assert seen


@pytest.mark.parametrize("name", RULES)
def test_estimates_mirror_each_other(name):
    rules, generator = RULES[name], random.Random(2)
    position = rules.start(0)
    while not position.is_over:
        assert -1 < position.evaluate() < 1 and position.evaluate() == -position.passed().evaluate()
        position = position.play(generator.choice(position.legal_actions()))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ([0] * 41, "6 x 7"),
        ([3] + [0] * 41, "0, 1 and 2"),
        ([1] + [0] * 41, "an empty cell below it"),
        ([0] * 28 + [2] * 4 + [0] * 3 + [1] * 4 + [0] * 3, "both players"),
    ],
)
def test_impossible_boards_are_refused(state, says):
    with pytest.raises(ConfigError, match=says):
        RULES["connect4"].restore(state, 0)


def test_row_length_must_fit_the_board():
    with pytest.raises(ConfigError, match="4 in a row"):
        GridRules(3, 3, 4)
