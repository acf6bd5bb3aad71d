"""Videos through managers, decoded again."""

from __future__ import annotations

import functools

import gymnasium
import pytest

from tests.managers.fakes import actors
from vecenv import BaseEnvManager, DingEnvWrapper, SyncSubprocessEnvManager

pytest.importorskip("moviepy")
pytest.importorskip("pygame")
imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")

MANAGERS = [BaseEnvManager, SyncSubprocessEnvManager]


def num_frames(path):
    return imageio_ffmpeg.count_frames_and_secs(str(path))[0]


@pytest.mark.parametrize("manager_cls", MANAGERS)
@pytest.mark.parametrize("when", ["before", "later"])
@pytest.mark.parametrize("dialect", ["gymnasium", "ding"])
def test_each_episode_is_a_video(manager_cls, when, dialect, tmp_path):
    make = functools.partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array", max_episode_steps=4)
    if dialect == "ding":
        make = functools.partial(_ding, make)
    folders = [tmp_path / "a", tmp_path / "b"]
    with manager_cls([make] * 2, {"episode_num": 2}) as manager:
        if when == "before":
            manager.enable_save_replay(folders)
        manager.launch()
        if when == "later":
            manager.enable_save_replay([str(folder) for folder in folders])
            manager.reset()
        with pytest.warns(UserWarning, match="recording"):
            manager.reset()
        while not manager.done:
            manager.step({env_id: manager.action_space.sample() for env_id in manager.ready_obs_id})
    for folder in folders:
        videos = sorted(folder.glob("*.mp4"))
        assert len(videos) == 2 and all(num_frames(video) == 5 for video in videos)


def _ding(make):
    return DingEnvWrapper(make())


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_an_env_that_cannot_be_recorded_is_named_before_the_first_step(manager_cls, tmp_path):
    manager = manager_cls(actors(2))
    manager.enable_save_replay(str(tmp_path))
    with pytest.raises(RuntimeError, match="env 0.*rgb_array"):
        manager.launch()
    assert manager.closed


def test_one_folder_per_env():
    with pytest.raises(AssertionError, match="expected 2"):
        BaseEnvManager(actors(2)).enable_save_replay(["a", "b", "c"])
