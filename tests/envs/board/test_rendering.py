"""Boards as text, in a window and in files; moves entered in the terminal."""

from __future__ import annotations

import functools
import io
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.envs.board.fakes import GAMES
from tests.inside import config_of
from tests.programs import run_python
from vecenv import StateError, VectorEnv
from vecenv.ding import BaseEnvManager, Connect4Env, GomokuEnv, SyncSubprocessEnvManager, TicTacToeEnv
from vecenv.gymnasium_api.replaying import replaying

iio = pytest.importorskip("imageio.v3")
imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")

SAVING = {"render_mode": "image_savefile_mode", "screen_scaling": 2}
ROOT = Path(__file__).parents[3]


def play_out(env, actions):
    for action in actions:
        timestep = env.step(action)
    assert timestep.done
    return timestep


# ---- text ----------------------------------------------------------------------------------


def test_text_of_each_game(capsys):
    connect4, tictactoe, gomoku = (game({"render_mode": "state_realtime_mode"}) for game in GAMES)
    connect4.reset(init_state=[0] * 37 + [1, 2, 0, 0, 0])
    assert capsys.readouterr().out.splitlines() == ["1 2 3 4 5 6 7", *[". . . . . . ."] * 5, ". . X O . . ."]
    tictactoe.reset()
    tictactoe.step(5)
    shown = capsys.readouterr().out.splitlines()
    assert shown[4:] == ["   1 2 3", " 1 . . .", " 2 . . X", " 3 . . ."]
    gomoku.reset()
    assert capsys.readouterr().out.startswith("   1 2 3 4 5 6\n 1 . . .")
    assert connect4.action_to_string(6) == "7" and gomoku.action_to_string(7) == "2 2"


def test_render_without_a_mode_shows_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = TicTacToeEnv()
    env.reset()
    play_out(env, [0, 3, 1, 4, 2])
    assert capsys.readouterr().out == "" and env.frames == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("game", GAMES)
def test_unknown_mode_draws_nothing(game):
    """Weaknesses 51 and 52: tictactoe had other modes, and an unknown mode drew the board."""
    env = game()
    env.reset()
    for mode in ("human", "ansi", "x"):
        with pytest.raises(ValueError, match="mode: expected one of .*'image_savefile_mode'"):
            env.render(mode)
    assert env.frames == []


# ---- pictures ------------------------------------------------------------------------------


def colours(picture, row, column, cell):
    """Return the colour in the middle of a cell."""
    return tuple(picture[row * cell + cell // 2, column * cell + cell // 2].tolist())


@pytest.mark.parametrize("game", GAMES)
def test_pictures_show_each_stone_in_its_cell(game):
    env = game({"screen_scaling": 3})
    env.seed(0)
    env.reset()
    height, width = env.board.shape
    empty = env.render()
    assert empty.shape == (height * 24, width * 24, 3) and empty.dtype == np.uint8
    while not env.get_done_winner()[0]:
        env.step(env.random_action())
    picture, board = env.render("rgb_array"), env.board
    for row in range(height):
        for column in range(width):
            cells = [p[row * 24 : row * 24 + 24, column * 24 : column * 24 + 24] for p in (empty, picture)]
            assert np.array_equal(*cells) == (board[row, column] == 0)
    looks = {
        player: {picture[r * 24 : r * 24 + 24, c * 24 : c * 24 + 24].tobytes() for r, c in np.argwhere(board == player)}
        for player in (1, 2)
    }
    assert not looks[1] & looks[2]


def test_disc_and_hole_colours():
    env = Connect4Env({"screen_scaling": 3})
    env.reset(init_state=[0] * 40 + [1, 2])
    picture = env.render()
    red, yellow, hole = (colours(picture, 5, 5, 24), colours(picture, 5, 6, 24), colours(picture, 0, 0, 24))
    assert red[0] > 180 > red[1] and min(yellow[:2]) > 180 > yellow[2] and min(hole) > 240


# ---- files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "game, format", [(Connect4Env, "gif"), (Connect4Env, "mp4"), (TicTacToeEnv, "mp4"), (GomokuEnv, "gif")]
)
def test_each_game_has_its_own_file(game, format, tmp_path):
    """Weakness 52: each game overwrote the file of the game before."""
    env = game({**SAVING, "replay_path": str(tmp_path / "new" / "folder"), "replay_format": format})
    env.seed(0)
    lengths = []
    for _ in range(2):
        env.reset()
        done, moves = False, 0
        while not done:
            done = env.step(env.random_action()).done
            moves += 1
        assert env.frames == [] and Path(env.saved_path).exists()
        lengths.append((Path(env.saved_path), moves + 1))
    files = sorted((tmp_path / "new" / "folder").iterdir())
    assert files == sorted(path for path, _ in lengths) and len(files) == 2
    height, width = (side * 16 for side in env.board.shape)
    for path, frames in lengths:
        assert path.name.startswith(f"{config_of(env).env_id}-") and path.suffix == f".{format}"
        if format == "gif":
            pictures = iio.imread(path, index=None)
            assert pictures.shape[1:3] == (height, width) and 2 <= len(pictures) <= frames
        else:
            assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == frames


def test_gif_shows_the_game_from_the_empty_board_to_the_last_move(tmp_path):
    env = TicTacToeEnv({**SAVING, "replay_path": str(tmp_path)})
    empty = env.draw() if env.reset() else None
    play_out(env, [0, 3, 1, 4, 2])
    pictures = iio.imread(env.saved_path, index=None)[..., :3].astype(int)
    assert len(pictures) == 6
    assert abs(pictures[0] - empty).max() < 32 and abs(pictures[-1] - env.render("rgb_array")).max() < 32


def test_frames_of_an_unfinished_game_are_dropped(tmp_path):
    """Weakness 52: they were saved with the next game's frames."""
    env = TicTacToeEnv({**SAVING, "replay_path": str(tmp_path)})
    env.reset()
    env.step(0)
    assert len(env.frames) == 2
    env.reset()
    assert len(env.frames) == 1
    play_out(env, [0, 3, 1, 4, 2])
    assert len(iio.imread(env.saved_path, index=None)) == 6


def test_replay_without_a_path_uses_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = GomokuEnv(SAVING)
    env.reset()
    path = env.save_render_output(replay_name_suffix="opening")
    assert [file.name for file in tmp_path.iterdir()] == [os.path.basename(path)] and "opening" in path
    assert env.frames == []
    with pytest.raises(StateError, match="no frames"):
        env.save_render_output()


def test_other_formats_and_impossible_folders_are_refused(tmp_path):
    env = TicTacToeEnv(SAVING)
    env.reset()
    with pytest.raises(ValueError, match="'gif' or 'mp4', got 'avi'"):
        env.save_render_output(format="avi")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot make folder"):
        env.save_render_output(replay_path=str(tmp_path / "file" / "folder"))
    assert len(env.frames) == 1


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_managers_save_replays_and_render(manager_cls, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    with manager_cls([_fast_tictactoe] * 2, {"episode_num": 1}) as manager:
        manager.enable_save_replay(folders)
        manager.seed(0)
        manager.launch()
        while not manager.done:
            manager.step({env_id: int(np.argmax(obs["action_mask"])) for env_id, obs in manager.ready_obs.items()})
    assert [len(list(folder.glob("TicTacToe-*.gif"))) for folder in folders] == [1, 1]
    with manager_cls([_fast_tictactoe] * 2) as manager:
        manager.launch()
        pictures = manager.render()
        assert [picture.shape for picture in pictures.values()] == [(48, 48, 3)] * 2


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_ready_imgs_work_while_games_are_saved(manager_cls, tmp_path):
    with manager_cls([_fast_tictactoe]) as manager:
        manager.enable_save_replay(str(tmp_path))
        manager.launch()
        assert [picture.shape for picture in manager.ready_imgs.values()] == [(48, 48, 3)]
        for action in (0, 3, 1, 4, 2):
            manager.step({0: action})
        (path,) = manager.saved_path
    assert imageio_frames(path) == 6  # the frames of ready_imgs are not in the file


def imageio_frames(path):
    return len(iio.imread(path, index=None))


def test_replay_begins_with_the_next_game(tmp_path):
    env = _fast_tictactoe()
    env.reset()
    env.step(0)
    env.enable_save_replay(str(tmp_path))
    env.step(3)
    assert env.frames == [] and env.render_mode is None
    play_out(env, [1, 4, 2])
    assert env.saved_path is None and not any(tmp_path.iterdir())
    env.reset()
    play_out(env, [0, 3, 1, 4, 2])
    assert [Path(env.saved_path)] == list(tmp_path.iterdir()) and imageio_frames(env.saved_path) == 6


def test_new_folder_applies_to_the_next_game(tmp_path):
    env = _fast_tictactoe()
    env.enable_save_replay(str(tmp_path / "a"))
    env.reset()
    env.enable_save_replay(str(tmp_path / "b"))
    for folder in "ab":
        play_out(env, [0, 3, 1, 4, 2])
        assert Path(env.saved_path).parent == tmp_path / folder
        env.reset()


@pytest.mark.extended
def test_game_replayed_after_a_crash_is_saved_once(tmp_path, caplog):
    make = functools.partial(TicTacToeEnv, {**SAVING, "replay_path": str(tmp_path)})
    with VectorEnv([make], num_workers=1) as envs:
        envs.reset(seed=0)
        for action in (0, 3, 1, 4, 2):
            _, _, terminated, _, _ = envs.step([action])
        assert terminated.all()
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.step([0])
    assert "nothing was lost" in caplog.text and len(list(tmp_path.iterdir())) == 1


def test_replayed_moves_are_not_shown_again(capsys):
    env = TicTacToeEnv({"render_mode": "state_realtime_mode"})
    with replaying():
        env.reset()
        env.step(0)
    assert capsys.readouterr().out == ""
    env.step(1)
    assert capsys.readouterr().out.endswith(" 1 X O .\n 2 . . .\n 3 . . .\n")


def test_replay_of_the_next_game_ignores_simulated_games(tmp_path):
    env = _fast_tictactoe()
    env.reset()
    env.enable_save_replay(str(tmp_path))
    other = env.simulate_action(0)
    other.reset()
    play_out(other, [0, 3, 1, 4, 2])
    assert not any(tmp_path.iterdir())


def _fast_tictactoe():
    return TicTacToeEnv({"screen_scaling": 2})


# ---- a window, and a human -----------------------------------------------------------------

WINDOW = """
import copy, pickle, pygame
from vecenv.ding import Connect4Env
env = Connect4Env({"render_mode": "image_realtime_mode", "screen_scaling": 2})
env.reset()
env.step(3)
shown = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
assert (shown == env.render("rgb_array")).all(), "the window shows something else"
print(shown.shape, pygame.display.get_caption()[0])
env.close()
assert not pygame.display.get_init()
env.reset()
other = Connect4Env({"render_mode": "image_realtime_mode"})
other.reset()
env.close()
other.step(0)
assert pygame.display.get_surface().get_size() == (504, 432)
for clone in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
    clone.step(1)
    other.close()
    clone.step(2)
    assert pygame.display.get_surface() is not None
    clone.close()
"""


@pytest.mark.extended
def test_human_mode_opens_a_window():
    pytest.importorskip("pygame")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "SDL_VIDEODRIVER": "dummy"}
    done = run_python("-c", WINDOW, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(96, 112, 3) Connect4Env(self_play_mode)\n"


def test_human_is_asked_until_the_move_is_legal(monkeypatch, capsys):
    env = TicTacToeEnv({"battle_mode": "eval_mode", "agent_vs_human": True})
    env.reset()
    answers = ["", "middle", "0 1", "4 4", "1 1", "2", "3 3"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(answers) + "\n"))
    board = env.step(0).obs["board"]
    assert board.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 2]]
    shown = capsys.readouterr().out
    assert shown.startswith("   1 2 3\n 1 X . .\n") and shown.count("player 2, row and column: ") == len(answers)
    assert "'1 1' is not a legal action; the legal ones are 1 2, 1 3" in shown and "'4 4'" in shown
    monkeypatch.setattr("sys.stdin", io.StringIO("1,2\n"))
    assert env.step(4).obs["board"][0].tolist() == [1, 2, 0]


def test_human_may_open_and_win_connect4(monkeypatch):
    env = Connect4Env({"battle_mode": "eval_mode", "agent_vs_human": True})
    monkeypatch.setattr("sys.stdin", io.StringIO("3\n3\n8\n3\n3\n"))
    assert env.reset(start_player_index=1)["board"][5, 2] == 2
    timesteps = [env.step(action) for action in (0, 1, 0)]
    assert timesteps[-1].done and timesteps[-1].reward.tolist() == [-1.0]
    assert timesteps[-1].info["eval_episode_return"] == -1.0


def test_human_player_needs_a_terminal(monkeypatch):
    env = TicTacToeEnv({"battle_mode": "eval_mode", "agent_vs_human": True, "render_mode": "rgb_array"})
    env.reset()
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(StateError, match="terminal"):
        env.step(0)
