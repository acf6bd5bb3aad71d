"""Videos of an evaluation: which episodes are recorded, their names, files that exist, and crashes."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest

from tests.evaluation.envs import SeedEnv, length_of
from vecenv import ConfigError, evaluate
from vecenv.envs.toys import ToyEnv

pytest.importorskip("moviepy")
imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")


class DrawnEnv(SeedEnv):
    """Frames whose grey grows with the steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, faults=None):
        super().__init__(faults, render_mode="rgb_array")

    def render(self):
        return np.full((16, 16, 3), 10 * self.elapsed_steps, np.uint8)


def zeros(obs, env_id):
    return np.zeros(len(obs), np.int64)


def frames(path):
    return imageio_ffmpeg.count_frames_and_secs(str(path))[0]


@pytest.mark.parametrize("backend", ["serial", pytest.param("process", marks=pytest.mark.extended)])
def test_videos_are_named_by_env_and_seed(tmp_path, backend):
    result = evaluate(DrawnEnv, zeros, seeds=[5, 3, 9, 4], videos=[4, 5], out=tmp_path, num_envs=2, backend=backend)
    assert result.videos == (tmp_path / "DrawnEnv-seed5.mp4", tmp_path / "DrawnEnv-seed4.mp4")
    assert sorted(tmp_path.iterdir()) == sorted(result.videos)
    assert [frames(path) for path in result.videos] == [1 + length_of(5), 1 + length_of(4)]
    assert result.returns.tolist() == evaluate(SeedEnv, zeros, seeds=[5, 3, 9, 4], backend="serial").returns.tolist()


def test_number_of_videos_takes_the_first_seeds(tmp_path):
    result = evaluate(DrawnEnv, zeros, seeds=[5, 3, 9], videos=2, out=tmp_path, backend="serial")
    assert [path.stem for path in result.videos] == ["DrawnEnv-seed5", "DrawnEnv-seed3"]


def test_video_of_an_episode_that_is_cut_is_written(tmp_path):
    result = evaluate(DrawnEnv, zeros, seeds=[9, 4], videos=2, max_steps=3, out=tmp_path, num_envs=1, backend="serial")
    assert result.cut.tolist() == ["max_steps"] * 2
    assert [frames(tmp_path / f"DrawnEnv-seed{seed}.mp4") for seed in (9, 4)] == [4, 4]
    assert len(result.videos) == 2  # the last file is written when the envs are closed


def test_existing_video_is_refused_before_the_first_step_unless_overwritten(tmp_path):
    old = tmp_path / "DrawnEnv-seed3.mp4"
    old.write_bytes(b"old")
    arguments = {"seeds": [5, 3], "videos": 2, "out": tmp_path, "backend": "serial"}
    with pytest.raises(ConfigError, match=r"DrawnEnv-seed3.mp4 exists"):
        evaluate(DrawnEnv, lambda obs, env_id: pytest.fail("the policy was called"), **arguments)
    assert old.read_bytes() == b"old" and list(tmp_path.iterdir()) == [old]
    evaluate(DrawnEnv, zeros, overwrite=True, **arguments)
    assert frames(old) == 1 + length_of(3)


def test_env_that_does_not_render_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected render_mode 'rgb_array'"):
        evaluate(ToyEnv, zeros, seeds=[1], videos=1, out=tmp_path, backend="serial")


@pytest.mark.extended
def test_env_by_id_is_made_to_render(tmp_path):
    pytest.importorskip("pygame")
    result = evaluate("CartPole-v1", zeros, seeds=[1000], videos=1, out=tmp_path / "new")
    assert result.videos == (tmp_path / "new" / "CartPole-v1-seed1000.mp4",)
    assert frames(result.videos[0]) == 1 + result.lengths[0]


def test_name_of_a_game_has_no_slash(tmp_path):
    def build():
        env = DrawnEnv()
        env.spec = gymnasium.envs.registration.EnvSpec("ALE/Pong-v5")
        return env

    result = evaluate(build, zeros, seeds=[1], videos=1, out=tmp_path, backend="serial")
    assert [path.name for path in result.videos] == ["ALE-Pong-v5-seed1.mp4"]


def kill_once(path):
    import os
    import signal

    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.extended
def test_video_survives_the_death_of_the_worker(tmp_path):
    env_fn = functools.partial(DrawnEnv, {3: functools.partial(kill_once, str(tmp_path / "killed"))})
    result = evaluate(env_fn, zeros, seeds=[5, 3, 9], videos=3, out=tmp_path / "videos", num_envs=1)
    assert (tmp_path / "killed").exists() and result.cut.tolist() == [""] * 3
    assert [frames(path) for path in result.videos] == [1 + length_of(seed) for seed in (5, 3, 9)]
    assert len(list((tmp_path / "videos").iterdir())) == 3
