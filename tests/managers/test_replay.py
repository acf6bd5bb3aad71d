"""Videos that managers record, decoded by the tests."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from tests.managers.fakes import actors
from tests.managers.test_symptoms import BlindEnv
from vecenv import ConfigError, DependencyError
from vecenv.ding import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    BaseEnvManagerV2,
    DingEnvWrapper,
    GymVectorEnvManager,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
)
from vecenv.envs.toys import CountEnv

pytest.importorskip("moviepy")
pytest.importorskip("pygame")
imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")

MANAGERS = [
    BaseEnvManager,
    BaseEnvManagerV2,
    SyncSubprocessEnvManager,
    AsyncSubprocessEnvManager,
    SubprocessEnvManagerV2,
]
MANAGER_CLASSES = [
    BaseEnvManager,
    SyncSubprocessEnvManager,
    AsyncSubprocessEnvManager,
]  # V2 has the same code for recordings
SIZE = 64


class Painted(CountEnv):
    """An env with episodes of `length` steps; the brightness of a frame is eight times the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, length):
        super().__init__(length, render_mode="rgb_array")

    def render(self):
        return np.full((SIZE, SIZE, 3), self.elapsed_steps * 8, np.uint8)


def num_frames(path):
    return imageio_ffmpeg.count_frames_and_secs(str(path))[0]


def decode(path):
    """Return the mean brightness of each frame."""
    command = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-v",
        "error",
        "-i",
        str(path),
        "-f",
        "rawvideo",
        "-pix_fmt",
        "gray",
        "-",
    ]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(data, np.uint8).reshape(-1, SIZE * SIZE).mean(axis=1)


def cartpole(dialect, limit=4):
    make = functools.partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array", max_episode_steps=limit)
    return functools.partial(_ding, make) if dialect == "ding" else make


def _ding(make):
    return DingEnvWrapper(make())


def play(manager):
    """Step all ready envs until every env is DONE."""
    while not manager.done:
        manager.ready_obs  # noqa: B018  # the asynchronous one waits here for its resets
        manager.step({env_id: manager.action_space.sample() for env_id in manager.ready_obs_id})


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", MANAGERS)
@pytest.mark.parametrize("when", ["before", "later"])
@pytest.mark.parametrize("dialect", ["gymnasium", "ding"])
def test_enable_save_replay_writes_a_video_per_episode(manager_cls, when, dialect, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    with manager_cls([cartpole(dialect)] * 2, {"episode_num": 2}) as manager:
        if when == "before":
            manager.enable_save_replay(folders)
        manager.launch()
        if when == "later":
            manager.enable_save_replay([str(folder) for folder in folders])
            manager.reset()
        with pytest.warns(UserWarning, match="recording"):
            manager.reset()
        play(manager)
        complete = [sorted(folder.glob("*.mp4")) for folder in folders]  # before the envs are closed
    for folder, videos in zip(folders, complete):
        assert sorted(folder.iterdir()) == videos  # no incomplete files
        assert len(videos) == 2 and [num_frames(video) for video in videos] == [5, 5]


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_video_has_the_frames_of_the_episode(manager_cls, tmp_path):
    lengths = [3, 7]
    with manager_cls([functools.partial(Painted, length) for length in lengths], {"episode_num": 2}) as manager:
        manager.enable_save_replay([tmp_path / str(length) for length in lengths])
        manager.launch()
        play(manager)
    for length in lengths:
        videos = sorted((tmp_path / str(length)).iterdir())
        assert len(videos) == 2
        for video in videos:
            levels = decode(video)
            assert len(levels) == length + 1
            assert np.allclose(levels, [8 * step for step in range(length + 1)], atol=3), levels


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", MANAGER_CLASSES)
def test_videos_in_a_shared_folder_are_not_overwritten(manager_cls, tmp_path):
    with manager_cls([functools.partial(Painted, 2)] * 3, {"episode_num": 2}) as manager:
        manager.enable_save_replay(str(tmp_path))
        manager.launch()
        play(manager)
    videos = sorted(tmp_path.iterdir())
    assert len(videos) == 6 and all(num_frames(video) == 3 for video in videos)
    prefixes = {re.fullmatch(r"(.*)-episode-[01]\.mp4", video.name)[1] for video in videos}
    assert len(prefixes) == 3


@pytest.mark.parametrize("manager_cls", MANAGER_CLASSES)
def test_enable_save_replay_applies_from_each_envs_next_reset(manager_cls, tmp_path):
    with manager_cls([functools.partial(Painted, 3)] * 2, {"episode_num": 3, "auto_reset": False}) as manager:
        manager.launch()
        manager.step(dict.fromkeys(manager.ready_obs_id, 0))
        manager.enable_save_replay(str(tmp_path))
        for _ in range(2):
            manager.step(dict.fromkeys(manager.ready_obs_id, 0))
        assert list(tmp_path.iterdir()) == []  # the episode that was running is not recorded
        manager.reset({1: None})
        for _ in range(3):
            manager.step({1: 0})
        (video,) = tmp_path.iterdir()  # only env 1 is recorded
        assert num_frames(video) == 4


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_replay_path_applies_to_later_launches(manager_cls, tmp_path):
    manager = manager_cls([functools.partial(Painted, 2)] * 2, {"episode_num": 1})
    manager.enable_save_replay(str(tmp_path))
    for launches in (1, 2):
        with manager:
            manager.launch()
            play(manager)
        assert len(list(tmp_path.iterdir())) == 2 * launches


@pytest.mark.parametrize("manager_cls", MANAGER_CLASSES)
def test_close_during_an_episode_keeps_its_frames(manager_cls, tmp_path):
    with manager_cls([functools.partial(Painted, 9)] * 2) as manager:
        manager.enable_save_replay(str(tmp_path))
        manager.launch()
        manager.step({0: 0, 1: 0})
        assert list(tmp_path.glob("*.mp4")) == []
    videos = list(tmp_path.iterdir())
    assert [num_frames(video) for video in videos] == [2, 2]


@pytest.mark.parametrize("manager_cls", MANAGERS)
@pytest.mark.parametrize("when", ["before", "later"])
def test_recording_of_an_env_without_frames_raises_at_launch(manager_cls, when, tmp_path):
    manager = manager_cls(actors(2))
    if when == "later":
        manager.launch()
    manager.enable_save_replay(str(tmp_path))
    with pytest.raises(RuntimeError, match=r"env \d.*rgb_array") as caught:
        manager.reset() if when == "later" else manager.launch()
    assert manager.closed and isinstance(caught.value.__cause__, ConfigError)


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_replay_path_that_cannot_be_written_raises_with_the_env(manager_cls, tmp_path):
    (tmp_path / "file").write_text("")
    manager = manager_cls([functools.partial(Painted, 2)] * 2)
    manager.enable_save_replay([tmp_path / "fine", tmp_path / "file" / "below"])
    with pytest.raises(RuntimeError, match=r"env 1.*cannot make folder"):
        manager.launch()
    assert manager.closed


@pytest.mark.parametrize("manager_cls", MANAGER_CLASSES)
@pytest.mark.parametrize("retry_type", ["reset", "renew"])
def test_recording_that_failed_is_tried_again(manager_cls, retry_type, tmp_path):
    """Regression: the second attempt succeeded without a video."""
    (tmp_path / "file").write_text("")
    cfg = {"max_retry": 3, "retry_waiting_time": 0, "retry_type": retry_type}
    manager = manager_cls([functools.partial(Painted, 2)], cfg)
    manager.enable_save_replay(tmp_path / "file" / "below")
    with pytest.raises(RuntimeError, match=r"3 attempts.*cannot make folder"):
        manager.launch()
    assert manager.closed


@pytest.mark.parametrize("manager_cls", [BaseEnvManager, SyncSubprocessEnvManager])
def test_missing_encoder_raises_with_the_install_command(manager_cls, tmp_path):
    manager = manager_cls([functools.partial(_without_moviepy)] * 1)
    manager.enable_save_replay(str(tmp_path))
    with pytest.raises(RuntimeError, match=r"env 0.*pip install .*\"moviepy>=1.0.3\"") as caught:
        manager.launch()
    assert isinstance(caught.value.__cause__, DependencyError)
    if manager_cls is BaseEnvManager:
        sys.modules.pop("moviepy", None)


def _without_moviepy():
    sys.modules["moviepy"] = None
    return Painted(2)


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_folders_by_env_gives_each_env_a_folder(manager_cls):
    with pytest.raises(AssertionError, match="expected 2"):
        manager_cls(actors(2)).enable_save_replay(["a", "b", "c"])


@pytest.mark.extended
def test_relative_folders_are_those_of_the_caller(tmp_path, monkeypatch):
    """A relative path is in the caller's working directory at the time of the call."""
    monkeypatch.chdir(tmp_path)
    with SyncSubprocessEnvManager([functools.partial(Painted, 1)], {"episode_num": 1}) as manager:
        manager.enable_save_replay("videos")
        os.mkdir(tmp_path / "elsewhere")
        monkeypatch.chdir(tmp_path / "elsewhere")
        manager.launch()
        play(manager)
    assert len(list((tmp_path / "videos").iterdir())) == 1


@pytest.mark.extended
@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("when", ["before", "later"])
def test_gym_vector_records_videos(backend, when, tmp_path):
    cfg = {"episode_num": 2, "backend": backend}
    with GymVectorEnvManager([functools.partial(Painted, length) for length in (2, 4)], cfg) as manager:
        if when == "later":
            manager.reset()
            manager.step({0: 0, 1: 0})
        manager.enable_save_replay([tmp_path / "0", tmp_path / "1"])
        manager.reset()
        play(manager)
        assert manager.elapsed_steps is not None and manager.env_ref.length == 2
    for env_id, length in enumerate((2, 4)):
        videos = [video for video in (tmp_path / str(env_id)).iterdir() if num_frames(video) == length + 1]
        assert len(videos) >= 2  # there are also the steps of an env that is DONE while the other one is not


def test_gym_vector_env_with_its_own_recording(tmp_path):
    env_fn = functools.partial(DingEnvWrapper, None, {"env_id": "CartPole-v1"})  # a new env, for rendering
    with GymVectorEnvManager([env_fn], {"episode_num": 1, "backend": "serial"}) as manager:
        manager.enable_save_replay(str(tmp_path))
        manager.reset()
        play(manager)
    assert [num_frames(video) > 5 for video in tmp_path.glob("*-episode-0.mp4")] == [True]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_gym_vector_recording_that_failed_is_tried_again(backend, tmp_path):
    """Regression: the second reset succeeded without a video."""
    obstacle = tmp_path / "videos"
    obstacle.write_text("")
    cfg = {"episode_num": 1, "backend": backend}
    with GymVectorEnvManager([functools.partial(Painted, 2)], cfg) as manager:
        manager.enable_save_replay(obstacle / "below")
        for _ in range(2):
            with pytest.raises(ConfigError, match="cannot make folder"):
                manager.reset()
        obstacle.unlink()
        manager.reset()
        play(manager)
    assert [num_frames(video) for video in (obstacle / "below").glob("*-episode-0.mp4")] == [3]


def test_gym_vector_that_was_passed_in_cannot_record(tmp_path):
    with GymVectorEnvManager([BlindEnv], {"backend": "serial"}) as manager:
        with pytest.raises(AssertionError, match="expected 1"):
            manager.enable_save_replay(["a", "b"])
        manager.enable_save_replay(str(tmp_path))
        with pytest.raises(ConfigError, match="replay of BlindEnv: expected render_mode 'rgb_array'"):
            manager.reset()
    passed_in = gymnasium.make_vec("CartPole-v1", 1, "sync")
    with GymVectorEnvManager(passed_in) as manager, pytest.raises(AssertionError, match="RecordVideo"):
        manager.enable_save_replay(str(tmp_path))
