"""The strength of the bots, with fixed seeds; tests with many games are marked slow."""

from __future__ import annotations

import random

import pytest

from tests.envs.board.fakes import match
from vecenv import ConfigError, StateError
from vecenv.ding import (
    AlphaBetaBot,
    Connect4Env,
    Connect4RuleBot,
    GomokuEnv,
    GomokuRuleBotV0,
    GomokuRuleBotV1,
    MCTSBot,
    TicTacToeEnv,
    TicTacToeRuleBot,
)

BOTS = [
    (game, name) for game in (Connect4Env, TicTacToeEnv, GomokuEnv) for name in sorted(game.bots) if name != "random"
]


@pytest.mark.extended
def test_mcts_never_loses_tictactoe_as_the_first_player():
    results = match(TicTacToeEnv({"bot_action_type": "mcts", "num_simulation": 200}), 100, seed=0, seats=(0,))
    assert results[-1] == 0 and results[1] >= 85


@pytest.mark.parametrize("seat", [0, 1])
def test_alpha_beta_never_loses_tictactoe_against_any_line(seat):
    env = TicTacToeEnv({"bot_action_type": "alpha_beta_pruning"})
    generator = random.Random(seat)
    results = {1: 0, 0: 0, -1: 0}

    def follow(position):
        if position.is_over:
            results[0 if position.winner is None else 1 if position.winner == seat else -1] += 1
        elif position.player == seat:
            follow(position.play(env.bot.choose(position, generator)))
        else:
            for action in position.legal_actions():
                follow(position.play(action))

    follow(env.rules.start(0))
    assert results[-1] == 0 and results[1] > 50 and sum(results.values()) > 60


@pytest.mark.extended
def test_connect4_rule_bot_beats_random():
    assert match(Connect4Env({"bot_action_type": "rule"}), 100, seed=0)[1] >= 90


@pytest.mark.extended
def test_gomoku_v1_beats_random():
    assert match(GomokuEnv({"bot_action_type": "v1"}), 100, seed=0)[1] >= 80


@pytest.mark.extended
def test_gomoku_alpha_beta_beats_random():
    assert match(GomokuEnv({"bot_action_type": "alpha_beta_pruning"}), 100, seed=0)[1] >= 90


@pytest.mark.extended
def test_other_bots_beat_random():
    assert match(TicTacToeEnv({"bot_action_type": "v0"}), 100, seed=0)[1] >= 75
    assert match(GomokuEnv({"bot_action_type": "v0"}), 50, seed=0)[-1] <= 2
    assert match(Connect4Env({"bot_action_type": "mcts"}), 20, seed=0)[1] >= 18
    assert match(Connect4Env({"bot_action_type": "alpha_beta_pruning"}), 10, seed=0)[1] >= 9


@pytest.mark.slow
@pytest.mark.parametrize("game, name", BOTS)
def test_bots_play_legally_over_many_seeds(game, name):
    results = match(game({"bot_action_type": name, "num_simulation": 200}), 200, seed=7)
    assert results[-1] <= 4


@pytest.mark.parametrize("game, name", BOTS)
def test_bots_see_a_win_and_a_threat(game, name):
    boards = {
        Connect4Env: ([0] * 35 + [1, 1, 1, 0, 2, 2, 0], 3),
        TicTacToeEnv: ([0, 0, 0, 1, 1, 0, 2, 0, 0], 5),
        GomokuEnv: ([0] * 12 + [1, 1, 1, 1, 0, 2] + [2, 2, 0, 0, 2, 0] + [0] * 12, 16),
    }
    board, action = boards[game]
    bot = game({"bot_action_type": name, "num_simulation": 400}).bot
    bot._generator = random.Random(1)  # MCTS with random entropy would sometimes miss the threat
    assert bot.get_actions(board, player_index=0) == action
    assert bot.get_rule_bot_action(board, player=2) == action


def test_bots_with_equal_generators_choose_alike():
    for game, name in BOTS:
        env = game({"bot_action_type": name})
        position = env.rules.start(0).play(3)
        assert len({env.bot.choose(position, random.Random(4)) for _ in range(3)}) == 1


def test_mcts_is_called_with_a_state_and_a_player_index():
    """Weakness 47: the env omitted an argument that the bot required, and the bot returned three values."""
    env = Connect4Env({"bot_action_type": "mcts"})
    env.reset()
    action = MCTSBot(env, "a bot", num_simulation=30, seed=1).get_actions(env.board, player_index=0)
    assert type(action) is int and action in env.legal_actions
    env.step(env.bot_action())
    assert (env.board != 0).sum() == 1


def test_connect4_rules_come_in_order():
    bot = Connect4RuleBot(Connect4Env(), seed=0)
    threes = [0] * 28 + [2, 0, 0, 0, 0, 0, 0] + [2, 2, 2, 0, 1, 1, 1]  # both players could complete a row in column 3
    assert bot.get_rule_bot_action(threes, player=1) == 3
    # A stone of player 1 in column 3 would let player 2 complete its row above it.
    over = [0] * 28 + [2, 2, 2, 0, 0, 0, 1] + [1, 1, 2, 0, 1, 2, 1]
    assert all(bot.get_rule_bot_action(over, player=1) != 3 for _ in range(20))
    # Player 2 could make an open row of three at the bottom: two threats at once.
    fork = [0] * 37 + [2, 2, 0, 0, 0]
    assert {bot.get_rule_bot_action(fork, player=1) for _ in range(40)} <= {1, 4}
    # No win, block or threat exists, so it makes a row of three.
    build = [0] * 28 + [1, 0, 0, 0, 0, 0, 2] + [1, 0, 2, 0, 0, 2, 2]
    assert bot.get_rule_bot_action(build, player=1) == 0


def test_tictactoe_rules_take_the_middle_then_corners():
    bot = TicTacToeRuleBot(TicTacToeEnv(), seed=0)
    assert bot.get_rule_bot_action([0] * 9, player=1) == 4
    assert bot.get_rule_bot_action([0, 0, 0, 0, 1, 0, 0, 0, 0], player=2) in (0, 2, 6, 8)


def test_gomoku_rules_stay_near_the_stones():
    board = [0] * 81
    board[40] = 1
    env = GomokuEnv({"board_size": 9})
    near = {30, 31, 32, 39, 41, 48, 49, 50}
    for bot in (GomokuRuleBotV0(env, seed=0), GomokuRuleBotV1(env, seed=0)):
        assert bot.get_rule_bot_action(board, player=2) in near
    assert GomokuRuleBotV1(env, seed=0).get_rule_bot_action([0] * 81, player=1) == 40


def test_alpha_beta_prefers_the_nearest_win_and_equals_minimax():
    env, generator = TicTacToeEnv(), random.Random(0)
    bot = AlphaBetaBot(env)

    def minimax(position, depth):
        if position.is_over:
            if position.winner is None:
                return 0.0
            return (1.0 + depth / 1000) * (1 if position.winner == position.player else -1)
        return max(-minimax(position.play(action), depth - 1) for action in position.legal_actions())

    compared = 0
    for _ in range(60):
        position = env.rules.start(0)
        for _ in range(generator.randrange(3, 7)):
            if not position.is_over:
                position = position.play(generator.choice(position.legal_actions()))
        if position.is_over:
            continue
        values = {a: -minimax(position.play(a), bot.depth - 1) for a in position.legal_actions()}
        chosen = bot.choose(position, generator)
        assert values[chosen] == pytest.approx(max(values.values()))
        compared += 1
    assert compared > 30


def test_wrong_calls_are_refused():
    env = TicTacToeEnv()
    with pytest.raises(ConfigError, match="num_simulation"):
        MCTSBot(env, num_simulation=0)
    with pytest.raises(ConfigError, match="depth"):
        AlphaBetaBot(env, depth=0)
    bot = TicTacToeRuleBot(env)
    with pytest.raises(ConfigError, match="player"):
        bot.get_rule_bot_action([0] * 9, player=0)
    with pytest.raises(StateError, match="over"):
        bot.get_actions([1, 1, 1, 2, 2, 0, 0, 0, 0], 1)
