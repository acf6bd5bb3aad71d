"""`vecenv record`: files that decode, listed on standard output."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_bench import WITHOUT_PACKAGE
from tests.programs import run_python
from vecenv.cli import main
from vecenv.errors import EXTRAS

pytest.importorskip("moviepy")
pytest.importorskip("pygame")
imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")


MODULE = """
import gymnasium

def short(render_mode=None):
    return gymnasium.make("CartPole-v1", render_mode=render_mode, max_episode_steps=4)
"""

DING = """
from vecenv.ding import DingEnvWrapper

def make():
    return DingEnvWrapper(cfg={"env_id": "CartPole-v1"})
"""

OFFERS = """
import gymnasium, numpy

played = []

class Offers(gymnasium.Env):  # its odd actions are legal
    render_mode = "rgb_array"
    observation_space = gymnasium.spaces.Box(0, 1, (1,))

    def __init__(self):
        self.action_space = gymnasium.spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        if not played or played[-1]:
            played.append([])
        return numpy.zeros(1, numpy.float32), {}

    def random_action(self):
        return self.action_space.sample() | 1

    def step(self, action):
        played[-1].append(int(action))
        return numpy.zeros(1, numpy.float32), 0.0, len(played[-1]) == 30, False, {}

    def render(self):
        return numpy.zeros((16, 16, 3), numpy.uint8)
"""

TUPLES = """
import gymnasium
from vecenv.ding import DingEnvWrapper

class Pairs(gymnasium.ActionWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.action_space = gymnasium.spaces.Tuple([env.action_space, env.action_space])

    def action(self, action):
        return int(action[0])

def make():
    return DingEnvWrapper(Pairs(gymnasium.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=4)))
"""

TERMINATED = """
import os, signal
import gymnasium

class Terminated(gymnasium.Wrapper):
    def step(self, action):
        self.env.render()
        os.kill(os.getpid(), signal.SIGTERM)
        return self.env.step(action)

def make(render_mode=None):
    return Terminated(gymnasium.make("CartPole-v1", render_mode=render_mode, max_episode_steps=4))
"""


@pytest.fixture
def record(capfd):
    def record(*argv):
        code = main(["record", *map(str, argv)])
        captured = capfd.readouterr()
        return code, captured.out.splitlines(), captured.err

    return record


def frames(paths):
    return [imageio_ffmpeg.count_frames_and_secs(str(path))[0] for path in paths]


@pytest.mark.extended
def test_record_writes_one_file_per_episode_in_order(record, tmp_path):
    code, files, _ = record("CartPole-v1", "--episodes", 3, "--out", tmp_path / "new" / "folder", "--seed", 1)
    assert code == 0 and len(files) == 3
    assert sorted(map(Path, files)) == sorted((tmp_path / "new" / "folder").iterdir())
    assert [Path(file).stem[-9:] for file in files] == ["episode-0", "episode-1", "episode-2"]
    assert len(set(frames(files))) > 1


@pytest.mark.extended
def test_seed_repeats_the_videos(record, tmp_path):
    runs = [record("CartPole-v1", "--episodes", 2, "--out", tmp_path, "--seed", seed)[1] for seed in (4, 4, 5)]
    assert frames(runs[0]) == frames(runs[1]) and len({*runs[0], *runs[1], *runs[2]}) == 6
    contents = [[Path(file).read_bytes() for file in files] for files in runs]
    assert contents[0] == contents[1] != contents[2]


@pytest.mark.extended
def test_record_of_a_users_env(record, tmp_path, monkeypatch):
    (tmp_path / "recorded_envs.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, files, _ = record("recorded_envs:short", "--episodes", 2)
    assert code == 0 and frames(files) == [5, 5] and Path(files[0]).parent.name == "video"
    sys.modules.pop("recorded_envs")


@pytest.mark.extended
def test_base_env_records_with_its_own_method(record, tmp_path, monkeypatch):
    (tmp_path / "recorded_ding.py").write_text(DING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, files, _ = record("recorded_ding:make", "--seed", 3, "--out", "here")
    assert code == 0 and len(files) == 1 and frames(files)[0] > 5
    sys.modules.pop("recorded_ding")


@pytest.mark.extended
@pytest.mark.parametrize("game", ["TicTacToeEnv", "Connect4Env", "GomokuEnv"])
def test_record_plays_legal_moves_only(record, tmp_path, game):
    code, files, err = record(f"vecenv.ding:{game}", "--episodes", 3, "--seed", 1, "--out", tmp_path)
    assert code == 0 and len(files) == 3 and "legal" not in err  # a warning would be an error


@pytest.mark.extended
def test_seed_repeats_actions_offered_by_the_env(record, tmp_path, monkeypatch):
    (tmp_path / "recorded_offers.py").write_text(OFFERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for seed in (4, 4, 5):
        assert record("recorded_offers:Offers", "--seed", seed, "--out", "here")[0] == 0
    first, again, other = sys.modules.pop("recorded_offers").played
    assert first == again != other and len(first) == 30 and set(first) == {1, 3}


def test_actions_without_array_form_are_sampled(record, tmp_path, monkeypatch):
    (tmp_path / "recorded_tuples.py").write_text(TUPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, files, err = record("recorded_tuples:make", "--out", "here")
    assert code == 0 and len(files) == 1, err
    sys.modules.pop("recorded_tuples")


@pytest.mark.parametrize(
    "env, says",
    [
        ("vecenv.envs.toys:ToyEnv", "replay of ToyEnv: it has no render()"),
        ("vecenv.envs.agents:HybridEnv", "expected render_mode 'rgb_array', got None"),
        ("NoSuch-v0", "NoSuch"),
        ("json:dumps", "makes no single env"),
        ("gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv", "makes no single env but a vector env"),
    ],
)
def test_unrecordable_env_is_one_line_before_the_first_step(record, tmp_path, env, says):
    code, files, err = record(env, "--out", tmp_path / "out")
    assert code == 2 and files == [] and says in err and err.count("\n") == 1


def test_files_of_other_formats_are_listed(record, tmp_path):
    code, files, _ = record("vecenv.ding:TicTacToeEnv", "--out", tmp_path)
    assert code == 0 and len(files) == 1 and files[0].endswith(".gif")
    assert files == [str(path) for path in tmp_path.iterdir()]


def test_folder_that_cannot_be_created_is_one_line(record, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = record("CartPole-v1", "--out", tmp_path / "file" / "below")
    assert code == 2 and "cannot make folder" in err


@pytest.mark.extended
@pytest.mark.parametrize("package, extra", [("rich", "video"), ("moviepy", "video"), ("pygame", None)])
def test_missing_package_is_named(package, extra, tmp_path):
    program = WITHOUT_PACKAGE.format(package=package, argv=["record", "CartPole-v1", "--out", str(tmp_path)])
    done = run_python("-c", program)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    assert package in done.stderr and "pip install" in done.stderr
    if extra:
        assert done.returncode == 2 and f'pip install "{EXTRAS[extra][0]}"' in done.stderr


@pytest.mark.extended
def test_sigterm_ends_a_recording_with_sdl(tmp_path):
    (tmp_path / "terminated.py").write_text(TERMINATED)
    command = [sys.executable, "-m", "vecenv", "record", "terminated:make"]
    done = subprocess.run(command, capture_output=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGTERM


@pytest.mark.extended
def test_relative_folder_without_a_working_directory_is_refused(tmp_path, monkeypatch, capsys):
    """It printed a traceback."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["record", "CartPole-v1"]) == 2
    said = capsys.readouterr().err
    assert "the working directory has been removed" in said and len(said.splitlines()) == 1
    assert main(["record", "CartPole-v1", "--out", str(tmp_path)]) == 0
