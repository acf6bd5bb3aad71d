"""Games of PettingZoo: chess shows that one class with the name of the game is enough."""

from __future__ import annotations

import copy
import functools
import pickle
import random

import numpy as np
import pytest

from tests.envs.board.fakes import random_game
from vecenv import ConfigError, StateError
from vecenv.ding import ENV_REGISTRY, SyncSubprocessEnvManager

pytest.importorskip("pettingzoo")
pytest.importorskip("chess")
pytest.importorskip("pygame")

from pettingzoo.classic.chess import chess_utils

from vecenv.envs.board.library import ChessEnv, LibraryEnv

FOOLS_MATE = ["f2f3", "e7e5", "g2g4", "d8h4"]


class OtherTicTacToe(LibraryEnv):
    library_module = "pettingzoo.classic.tictactoe.tictactoe"


def action_of(env, move):
    """Return the action of a move such as e2e4."""
    board = env.position.game.board
    seat = len(env.position.history) % 2
    moves = {action: chess_utils.action_to_move(board, action, seat).uci() for action in env.legal_actions}
    return next(action for action, uci in moves.items() if uci == move)


@pytest.mark.parametrize("start", [0, 1])
def test_fools_mate_is_won_by_the_second_player(start):
    env = ChessEnv()
    obs = env.reset(start_player_index=start)
    players = [obs["to_play"]]
    for move in FOOLS_MATE:
        timestep = env.step(action_of(env, move))
        assert env.observation_space.contains(timestep.obs)
        players.append(timestep.obs["to_play"])
    assert players == [1 + (start + turn) % 2 for turn in range(5)]
    assert timestep.done and timestep.reward.tolist() == [1.0]
    assert timestep.info["eval_episode_return"] == (-1.0 if start == 0 else 1.0)
    assert not timestep.obs["action_mask"].any() and env.legal_actions == []


def test_positions_are_deep_copied():
    """PettingZoo's own copies start again from the initial position."""
    env = ChessEnv()
    env.reset()
    for move in FOOLS_MATE[:2]:
        env.step(action_of(env, move))
    action = action_of(env, "g2g4")
    other = env.simulate_action(action)
    assert env.position.game.board.fen().split()[1] == "w" and other.position.game.board.fen().split()[1] == "b"
    assert other.position.history == [*env.position.history, action]
    clone = copy.deepcopy(env)
    assert clone.position.game.board.fen() == env.position.game.board.fen()
    clone.step(clone.legal_actions[0])
    assert len(env.position.history) == 2
    again = ChessEnv()
    again.reset(init_state=env.position.history)
    assert np.array_equal(again.position.observe(), env.position.observe())


def test_history_is_a_start_state():
    env = ChessEnv({"battle_mode": "play_with_bot_mode"})
    env.reset(init_state=_history(FOOLS_MATE[:2]))
    assert env.current_player == 1 and len(env.position.history) == 2
    env.reset(init_state=_history(FOOLS_MATE[:3]))
    assert env.current_player == 1 and len(env.legal_actions) == 30  # player 1 makes the second move here
    assert env.simulate_action(action_of(env, "d8h4")).get_done_winner() == (True, 1)


def _history(moves):
    env = ChessEnv()
    env.reset()
    for move in moves:
        env.step(action_of(env, move))
    return env.position.history


def test_impossible_histories_are_refused():
    with pytest.raises(ConfigError, match="index 1"):
        ChessEnv().reset(init_state=[*_history(FOOLS_MATE[:1]), 0])


@pytest.mark.extended
def test_rendering_follows_the_game(capsys, tmp_path):
    env = ChessEnv({"render_mode": "image_savefile_mode", "replay_path": str(tmp_path)})
    env.reset()
    for number, move in enumerate(FOOLS_MATE):
        assert len(env.frames) == number + 1
        env.step(action_of(env, move))
    assert env.saved_path is not None and env.frames == []
    mated = env.render("rgb_array")
    assert mated.shape == (800, 800, 3) and mated.dtype == np.uint8
    env.render("state_realtime_mode")
    assert ". . . . . . P q" in capsys.readouterr().out
    env.reset()
    start = env.render("rgb_array")
    assert not np.array_equal(start, mated) and np.array_equal(start, env.frames[0])
    env.close()


@pytest.mark.extended
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_of_a_rendered_game_render_alike(copied):
    env = ChessEnv({"render_mode": "image_savefile_mode"})
    env.reset()
    for move in FOOLS_MATE[:2]:
        env.step(action_of(env, move))
    clone = copied(env)
    assert np.array_equal(clone.render("rgb_array"), env.render("rgb_array"))
    action = action_of(env, "g2g4")
    for game in (env, clone):
        game.step(action)
    assert np.array_equal(clone.frames[-1], env.frames[-1])


@pytest.mark.extended
def test_other_games_need_one_class():
    env = OtherTicTacToe({"battle_mode": "play_with_bot_mode", "bot_action_type": "mcts", "num_simulation": 60})
    env.seed(0)
    generator = random.Random(0)
    scores = []
    for number in range(4):
        for obs, _ in random_game(env, generator, start_player_index=number % 2):
            assert env.observation_space.contains(obs) and obs["to_play"] == -1
        scores.append(env.get_done_reward())
    assert sum(scores) <= -2  # the search beats random moves


def test_unfit_games_are_refused():
    class RockPaperScissors(LibraryEnv):
        library_module = "pettingzoo.classic.rps.rps"

    with pytest.raises(ConfigError, match="two agents and an action mask"):
        RockPaperScissors()


def test_missing_library_is_named():
    class Missing(LibraryEnv):
        library_module = "no_such_library.game"

    with pytest.raises(ImportError, match=r'pip install "pygame-ce>=2.4"'):
        Missing()


def test_text_rendering_is_refused_without_library_support():
    class Go(LibraryEnv):
        library_module = "pettingzoo.classic.connect_four.connect_four"

    env = Go()
    env.reset()
    with pytest.raises(StateError, match="no text"):
        env.render("state_realtime_mode")


@pytest.mark.extended
def test_chess_runs_in_workers_by_its_registered_name():
    env_fn = functools.partial(ENV_REGISTRY.get("chess"), {"battle_mode": "play_with_bot_mode"})
    generator = np.random.default_rng(0)
    with SyncSubprocessEnvManager([env_fn] * 2, {"num_workers": 2}) as manager:
        manager.seed(0)
        manager.launch()
        for _ in range(6):
            actions = {
                env_id: int(generator.choice(np.flatnonzero(obs["action_mask"])))
                for env_id, obs in manager.ready_obs.items()
            }
            for timestep in manager.step(actions).values():
                assert timestep.obs["observation"].shape == (8, 8, 111) and int(timestep.obs["to_play"]) == -1
                assert timestep.obs["action_mask"].dtype == np.int8
