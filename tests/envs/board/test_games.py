"""The board games as envs: modes, players, rewards, and data that match their spaces."""

from __future__ import annotations

import copy
import pickle
import random
import warnings

import numpy as np
import pytest
from gymnasium import spaces

from tests.envs.board.fakes import GAMES, MODES, random_game
from tests.inside import config_of
from vecenv import ConfigError, SpaceError, StateError, check_all
from vecenv.ding import ENV_REGISTRY, Connect4Env, GomokuEnv, TicTacToeEnv, get_vec_env_setting

WIN_IN_TWO = [0, 0, 0, 0, 2, 0, 1, 1, 0]  # player 1 is to move and wins by 8


@pytest.mark.extended
@pytest.mark.parametrize("form", [{}, {"scale": True, "channel_last": True}, {"scale": False}])
@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("game", GAMES)
def test_spaces_contain_every_step_of_many_games(game, mode, form):
    """Weakness 49; all parameters together play more than 1000 games."""
    env = game({"battle_mode": mode, **form})
    env.seed(1)
    generator = random.Random(1)
    for number in range(60):
        for obs, timestep in random_game(env, generator, start_player_index=number % 2):
            assert env.observation_space.contains(obs)
            legal = env.legal_actions
            assert np.flatnonzero(obs["action_mask"]).tolist() == legal
            if timestep is not None:
                assert env.reward_space.contains(timestep.reward)
                assert type(timestep.done) is bool
                assert timestep.done == (not legal)
                assert ("eval_episode_return" in timestep.info) == timestep.done  # D20: not before the end
        assert type(timestep.info["eval_episode_return"]) is float


@pytest.mark.parametrize("game", GAMES)
def test_check_tool_passes(game):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the check tool does not use masks
        check_all(game({"battle_mode": "play_with_bot_mode"}), spawn=False)


@pytest.mark.parametrize("game", GAMES)
def test_self_play_rewards_the_deciding_move_and_scores_for_player_1(game):
    env, generator = game({"battle_mode": "self_play_mode"}), random.Random(3)
    scores = set()
    for number in range(60):
        movers = []
        for obs, timestep in random_game(env, generator, start_player_index=number % 2):
            assert obs["to_play"] == env.current_player == obs["current_player_index"] + 1
            movers.append(obs["to_play"])
            if timestep is not None and not timestep.done:
                assert timestep.reward.tolist() == [0.0]
        assert movers == [1 + (number + turn) % 2 for turn in range(len(movers))]
        score = timestep.info["eval_episode_return"]
        scores.add(score)
        assert timestep.reward.tolist() == [abs(score)]
        assert env.get_done_winner() == (True, {1.0: 1, -1.0: 2, 0.0: -1}[score])
        assert env.get_done_reward() == score
        if score:
            assert movers[-2] == (1 if score > 0 else 2)  # the player of the deciding move has won
    assert {1.0, -1.0} <= scores


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("game", GAMES)
def test_agent_is_player_1_whoever_starts(game, start):
    """Weakness 50: with start_player_index=1 the agent played as player 2, but got the score of player 1."""
    env = game({"battle_mode": "play_with_bot_mode", "bot_action_type": "random"})
    env.seed(start)
    generator = random.Random(start)
    scores = set()
    for _ in range(60):
        for obs, timestep in random_game(env, generator, start_player_index=start):
            stones = [int((obs["board"] == player).sum()) for player in (1, 2)]
            if timestep is None:
                assert stones == [0, start]  # the bot has made the first move
            if not env.get_done_winner()[0]:
                assert env.current_player == 1 and obs["to_play"] == -1
                assert stones[1] - stones[0] == start
        score = timestep.info["eval_episode_return"]
        scores.add(score)
        assert timestep.reward.tolist() == [score] == [env.get_done_reward()]
    assert {1.0, -1.0} <= scores


def test_planes_are_own_opponent_and_side_to_move():
    env = Connect4Env()
    env.reset()
    env.step(3)
    obs = env.step(2).obs
    assert obs["board"][5].tolist() == [0, 0, 2, 1, 0, 0, 0] and obs["board"].sum() == 3
    own, other, side = obs["observation"]
    assert own[5].tolist() == [0, 0, 0, 1, 0, 0, 0] and other[5].tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert (side == 1).all()
    halved = Connect4Env({"scale": True, "channel_last": True})
    halved.reset()
    halved.step(3)
    shown = halved.step(2).obs["observation"]
    assert shown.shape == (6, 7, 3)
    np.testing.assert_array_equal(shown, np.moveaxis(obs["observation"], 0, -1) / 2)


@pytest.mark.parametrize("form", [{}, {"scale": True}, {"scale": False, "channel_last": True}], ids=str)
@pytest.mark.parametrize("game", GAMES)
def test_current_state_equals_the_observed_planes(game, form):
    """A search like LightZero's reads it from a copy with its own battle mode."""
    env = game({"battle_mode": "play_with_bot_mode", **form})
    cfg = config_of(env)
    with pytest.raises(StateError, match="no game yet"):
        env.current_state()
    env.seed(0)
    env.step(env.reset()["action_mask"].argmax())
    search = copy.deepcopy(env)
    search.battle_mode = "self_play_mode"
    for action in env.legal_actions[:2]:
        obs = search.step(action).obs
        planes, shown = search.current_state()
        np.testing.assert_array_equal(shown, obs["observation"])
        assert planes.dtype == shown.dtype and set(np.unique(planes)) <= {0, 1, 2}
        np.testing.assert_array_equal(planes, shown * (2 if cfg.scale else 1))
        side = planes[..., 2] if cfg.channel_last else planes[2]
        assert (side == search.current_player).all()
        planes += 1
        np.testing.assert_array_equal(search.current_state()[1], obs["observation"])


@pytest.mark.parametrize("game", GAMES)
def test_observations_have_the_dtypes_of_their_space(game):
    """Before NumPy 2 `board` was uint8, because uint8 scalars do not widen arrays there."""
    env = game()
    for obs, _ in random_game(env, random.Random(0)):
        for key in ("observation", "board", "action_mask"):
            assert obs[key].dtype == env.observation_space[key].dtype, key
        assert env.board.dtype == np.int64


def test_actions_index_columns_or_cells():
    connect4, tictactoe, gomoku = (game() for game in GAMES)
    assert (connect4.action_space.n, tictactoe.action_space.n, gomoku.action_space.n) == (7, 9, 36)
    tictactoe.reset()
    assert tictactoe.step(5).obs["board"].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert GomokuEnv({"board_size": 8}).action_space.n == 64


@pytest.mark.parametrize("action", [8, np.int64(8), np.array([8]), np.array(8)])
def test_forms_of_actions(action):
    env = TicTacToeEnv()
    env.reset(init_state=WIN_IN_TWO)
    timestep = env.step(action)
    assert timestep.done and timestep.info["eval_episode_return"] == 1.0 and "played_action" not in timestep.info


# ---- illegal and replaced actions ----------------------------------------------------------


@pytest.mark.parametrize("action", [4, 9, -1])
def test_illegal_action_is_replaced_with_a_warning_and_marked(action):
    """Weakness 46."""
    env = TicTacToeEnv()
    env.reset(init_state=WIN_IN_TWO)
    with pytest.warns(UserWarning, match=r"legal \[0, 1, 2, 3, 5, 8\]"):
        timestep = env.step(action)
    assert timestep.info["played_action"] in (0, 1, 2, 3, 5, 8)
    assert (timestep.obs["board"] != 0).sum() == 4
    env.reset(init_state=WIN_IN_TWO)
    assert "played_action" in env.step(action).info  # later replacements come without a warning


@pytest.mark.parametrize("action", [4, 9, -1])
def test_illegal_action_raises_on_request(action):
    env = TicTacToeEnv({"illegal_action": "raise"})
    env.reset(init_state=WIN_IN_TWO)
    with pytest.raises(SpaceError, match=rf"legal \[0, 1, 2, 3, 5, 8\], got {action}"):
        env.step(action)
    assert env.step(8).done  # the refused actions have not changed the game


def test_random_and_expert_agents_replace_actions():
    env = TicTacToeEnv({"prob_expert_agent": 1.0, "bot_action_type": "alpha_beta_pruning"})
    env.reset(init_state=WIN_IN_TWO)
    timestep = env.step(0)
    assert timestep.info["played_action"] == 8 and timestep.reward == 1.0
    env = Connect4Env({"prob_random_agent": 0.5})
    env.seed(0)
    replaced = 0
    for _ in range(20):
        env.reset()
        replaced += "played_action" in env.step(0).info
    assert 0 < replaced < 20
    with pytest.raises(ConfigError, match="only one"):
        Connect4Env({"prob_random_agent": 0.5, "prob_expert_agent": 0.1})


def test_replacement_options_are_for_self_play_only():
    env = TicTacToeEnv({"prob_expert_agent": 1.0, "battle_mode": "eval_mode"})
    env.reset(init_state=WIN_IN_TWO)
    assert env.step(0).obs["board"][0, 0] == 1


def test_bot_plays_at_random_with_a_probability():
    env = TicTacToeEnv({"bot_action_type": "alpha_beta_pruning", "prob_random_action_in_bot": 0.5})
    env.seed(0)
    env.reset(init_state=WIN_IN_TWO)
    actions = [env.bot_action() for _ in range(40)]
    assert 15 < actions.count(8) < 40 and len(set(actions)) > 2
    assert len({env.random_action() for _ in range(200)}) == 6


# ---- seeds, copies, configs ----------------------------------------------------------------


@pytest.mark.parametrize("game, dynamic", [(Connect4Env, True), (TicTacToeEnv, False), (GomokuEnv, True)])
def test_seeds_repeat_games_and_leave_global_generators_alone(game, dynamic):
    def boards(env):
        env.seed(11, dynamic_seed=dynamic)
        for _ in range(3):
            env.reset()
            while not env.get_done_winner()[0]:
                obs = env.step(env.random_action()).obs
            yield obs["board"].tolist()

    before = random.getstate(), np.random.get_state()[1].tolist()
    env = game({"battle_mode": "play_with_bot_mode", "bot_action_type": "random"})
    first, second = list(boards(env)), list(boards(game(config_of(env))))
    assert first == second == list(boards(env))
    assert (first[0] == first[1] == first[2]) == (not dynamic)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.parametrize("game, mode", list(zip(GAMES, MODES)))
def test_simulate_action_leaves_the_game_alone(game, mode):
    env = game({"battle_mode": mode})
    env.seed(0)
    env.reset()
    before = env.board.copy()
    other = env.simulate_action(3)
    assert np.array_equal(env.board, before) and (other.board != 0).sum() == 1
    assert other.battle_mode == "self_play_mode" and other.current_player == 2
    action = other.legal_actions[0]
    timestep = other.step(action)
    assert other.observation_space.contains(timestep.obs) and timestep.obs["to_play"] == 1
    assert np.array_equal(env.board, before) and env.battle_mode == mode
    with pytest.raises(ValueError, match="legal"):
        env.simulate_action(99)


@pytest.mark.parametrize("game", GAMES)
def test_copies_play_alike(game):
    env = game({"battle_mode": "play_with_bot_mode"})
    env.seed(5)
    env.reset()
    env.step(env.random_action())
    others = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    while not env.get_done_winner()[0]:
        action = env.random_action()
        board = env.step(action).obs["board"]
        for other in others:
            assert other.random_action() == action
            assert np.array_equal(other.step(action).obs["board"], board)


@pytest.mark.parametrize("name", ["connect4", "tictactoe", "gomoku"])
def test_configs_may_leave_keys_out(name):
    """Weakness 48: a missing key was an AttributeError."""
    cfg = {"type": name, "import_names": ["vecenv.envs.board"], "collector_env_num": 2, "evaluator_env_num": 1}
    env_cls, collector_cfgs, evaluator_cfgs = get_vec_env_setting(cfg)
    assert env_cls is ENV_REGISTRY.get(name)
    env, evaluator = env_cls(collector_cfgs[0]), env_cls(evaluator_cfgs[0])
    assert (env.battle_mode, evaluator.battle_mode) == ("self_play_mode", "eval_mode")
    assert env_cls.default_config()["battle_mode_in_simulation_env"] == "self_play_mode"
    assert env_cls(None).reset()["action_mask"].all()


@pytest.mark.parametrize(
    "cfg",
    [
        {"battle_mode": "self_play"},
        {"illegal_action": "ignore"},
        {"render_mode": "human"},
        {"replay_format": "avi"},
        {"prob_random_agent": 1.5},
        {"prob_expert_agent": "often"},
    ],
)
def test_wrong_config_values_are_refused_at_once(cfg):
    with pytest.raises(AssertionError, match=next(iter(cfg))):
        Connect4Env(cfg)


def test_unknown_bot_is_refused_and_misspelt_key_warned():
    with pytest.raises(NotImplementedError, match=r"'alpha_beta_pruning', 'mcts', 'random', 'v0', 'v1'"):
        GomokuEnv({"bot_action_type": "rule"})
    with pytest.warns(UserWarning, match="battle_mode"):
        Connect4Env({"batle_mode": "eval_mode"})


@pytest.mark.parametrize("size", [0, 4, 6.5, "6", None])
def test_impossible_boards_are_refused(size):
    with pytest.raises(ConfigError, match="board that 5 in a row fit on"):
        GomokuEnv({"board_size": size})


@pytest.mark.parametrize("action", [np.array([0, 1]), np.array([0.5]), {"column": 1}], ids=repr)
def test_wrong_action_is_refused_and_not_played(action):
    env = Connect4Env()
    env.reset()
    with pytest.raises(SpaceError, match="one element"):
        env.step(action)
    assert not env.board.any()


def test_calls_at_the_wrong_moment_are_refused():
    env = TicTacToeEnv()
    for call in (lambda: env.step(0), lambda: env.legal_actions, lambda: env.render()):
        with pytest.raises(StateError, match="reset"):
            call()
    with pytest.raises(ConfigError, match="over"):
        env.reset(init_state=[1, 1, 1, 2, 2, 0, 0, 0, 0])
    with pytest.raises(ConfigError, match="0 or 1"):
        env.reset(start_player_index=2)
    env.reset(init_state=WIN_IN_TWO)
    assert env.get_done_reward() is None and env.get_done_winner() == (False, -1)
    env.step(8)
    for call in (lambda: env.step(0), env.random_action):
        with pytest.raises(StateError, match="over|end of the game"):
            call()
    env.close()
    env.close()
    assert env.reset()["board"].sum() == 0


def test_to_play_space_contains_possible_players_only():
    self_play, bot = Connect4Env(), Connect4Env({"battle_mode": "eval_mode"})
    assert self_play.observation_space["to_play"] == spaces.Discrete(2, start=1)
    assert bot.observation_space["to_play"] == spaces.Discrete(1, start=-1)
    assert self_play.reward_space.low == 0.0 and bot.reward_space.low == -1.0


@pytest.mark.parametrize("mode", MODES[1:])
def test_board_that_player_2_ends_at_once_is_refused(mode):
    """The game was over before the learner's first move, and no step could report that."""
    env = TicTacToeEnv({"battle_mode": mode})
    env.seed(0)
    with pytest.raises(ConfigError, match="init_state: player 2's first move ends the game") as caught:
        env.reset(1, init_state=[2, 2, 0, 1, 1, 0, 0, 0, 0])
    assert caught.value.key == "init_state"
    obs = env.reset(1, init_state=[2, 0, 0, 1, 0, 0, 0, 0, 0])
    assert env.legal_actions and env.observation_space.contains(obs), "it goes on with another board"


def test_board_where_player_2_would_win_is_allowed_if_player_1_moves_first():
    env = TicTacToeEnv({"battle_mode": "play_with_bot_mode"})
    env.reset(0, init_state=[2, 2, 0, 1, 1, 0, 0, 0, 0])
    assert env.step(5).done, "by the row of player 1"
