"""Videos of episodes: files that decode, with a frame for the reset and one for each step."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import gymnasium
import numpy as np
import pytest

from tests.programs import run_python
from tests.scripted import numbers_env
from vecenv import ConfigError, DependencyError
from vecenv.ding import DingEnvWrapper
from vecenv.envs.video import EpisodeRecorder, Recordable

pytest.importorskip("moviepy")
imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")


def count_frames(path):
    return imageio_ffmpeg.count_frames_and_secs(str(path))[0]


class Painted(gymnasium.Wrapper):
    """Renders frames without a display."""

    render_mode = "rgb_array"
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def render(self):
        return np.full((32, 32, 3), self.env.unwrapped.step_count * 20 % 256, np.uint8)


@pytest.mark.extended
def test_video_file_per_episode_at_its_end(tmp_path):
    env = DingEnvWrapper(Painted(numbers_env(5)))
    env.enable_save_replay(str(tmp_path))
    for episode in range(2):
        env.reset()
        for _ in range(5):
            assert len(list(tmp_path.glob("*.mp4"))) == episode
            env.step(0)
        assert len(list(tmp_path.glob("*.mp4"))) == episode + 1
    env.reset()
    env.close()
    files = sorted(path for path in tmp_path.iterdir())
    assert len(files) == 2 and [count_frames(path) for path in files] == [6, 6]


@pytest.mark.extended
def test_video_module_imports_with_the_recorder_of_gymnasium_1_2():
    """`import vecenv.wrappers` failed with it."""
    program = """
        from typing import Generic, TypeVar
        from gymnasium import wrappers
        Three = Generic[TypeVar("Obs"), TypeVar("Act"), TypeVar("Frame")]
        class RecordVideo(wrappers.RecordVideo, Three):
            pass
        wrappers.RecordVideo = RecordVideo
        import vecenv.wrappers
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)


@pytest.mark.extended
@pytest.mark.parametrize("steps", range(1, 16))
def test_video_rounding_loses_no_frame(tmp_path, steps):
    env = Painted(numbers_env(steps))
    env.metadata = {"render_modes": ["rgb_array"], "render_fps": 50}
    recorder = EpisodeRecorder(env, tmp_path, "fast")
    recorder.reset()
    [recorder.step(0) for _ in range(steps)]
    assert count_frames(tmp_path / "fast-episode-0.mp4") == steps + 1


@pytest.mark.extended
def test_video_of_an_odd_size_is_playable(tmp_path):
    class Odd(Painted):
        def render(self):
            return np.zeros((33, 35, 3), np.uint8)

    recorder = EpisodeRecorder(Odd(numbers_env(2)), tmp_path, "odd")
    recorder.reset()
    recorder.step(0)
    recorder.close()
    assert count_frames(recorder.video_paths[0]) == 2


@pytest.mark.extended
def test_videos_of_two_envs_in_one_folder_do_not_collide(tmp_path):
    for _ in range(2):
        env = DingEnvWrapper(Painted(numbers_env(2)))
        env.enable_save_replay(str(tmp_path))
        env.reset()
        env.step(0)
        env.step(0)
        env.close()
    assert len(list(tmp_path.glob("*.mp4"))) == 2


@pytest.mark.extended
def test_video_of_an_unfinished_episode_is_kept(tmp_path):
    env = EpisodeRecorder(Painted(numbers_env(9)), tmp_path, "cut")
    env.reset()
    env.step(0)
    env.reset()
    env.step(0)
    env.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut-episode-0.mp4", "cut-episode-1.mp4"]
    assert env.video_paths == [str(tmp_path / "cut-episode-0.mp4"), str(tmp_path / "cut-episode-1.mp4")]


def test_enable_save_replay_of_a_running_env_starts_at_the_next_reset(tmp_path):
    pytest.importorskip("pygame")
    env = DingEnvWrapper(cfg={"env_id": "CartPole-v1"})
    env.reset()
    assert env.render_mode is None
    env.enable_save_replay(str(tmp_path))
    env.reset()
    steps = 1
    while not env.step(0).done:
        steps += 1
    env.close()
    (file,) = tmp_path.glob("CartPole-v1-*-episode-0.mp4")
    assert count_frames(file) == steps + 1


def test_default_video_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = DingEnvWrapper(Painted(numbers_env(1)))
    env.enable_save_replay()
    env.reset()
    env.step(0)
    env.close()
    assert len(list((tmp_path / "video").glob("*.mp4"))) == 1


def test_env_that_does_not_render_is_an_error_at_reset():
    env = DingEnvWrapper(numbers_env())
    env.enable_save_replay("unused")
    with pytest.raises(ConfigError, match="replay of Scripted: expected render_mode 'rgb_array', got None"):
        env.reset()


@pytest.mark.parametrize(
    "frame, says", [(None, "got NoneType"), ("text", "got str"), (NotImplementedError, "no render")]
)
def test_env_that_renders_nothing_despite_its_mode_is_an_error(frame, says, tmp_path):
    class Blind(Painted):
        def render(self):
            if frame is NotImplementedError:
                raise frame
            return frame

    recorder = EpisodeRecorder(Blind(numbers_env()), tmp_path)
    with pytest.raises(ConfigError, match=f"replay of Scripted: .*{says}"):
        recorder.reset()
    recorder.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(32, 32), (32, 32, 1), (32, 32, 4)], ids=str)
def test_frames_in_grey_and_with_alpha(shape, tmp_path):
    class Grey(Painted):
        def render(self):
            return np.full(shape, self.env.unwrapped.step_count * 20 % 256, np.uint8)

    recorder = EpisodeRecorder(Grey(numbers_env(3)), tmp_path)
    recorder.reset()
    [recorder.step(0) for _ in range(3)]
    recorder.close()
    assert [count_frames(path) for path in tmp_path.iterdir()] == [4]


@pytest.mark.parametrize(
    "frame", [np.zeros((32, 32, 3), np.float32), np.zeros((32, 32, 2), np.uint8), np.zeros(4, np.uint8)]
)
def test_frames_of_wrong_shape_are_errors(frame, tmp_path):
    class Odd(Painted):
        def render(self):
            return frame

    recorder = EpisodeRecorder(Odd(numbers_env()), tmp_path)
    with pytest.raises(ConfigError, match="replay of Scripted: expected frames of whole numbers"):
        recorder.reset()
    recorder.close()


def test_frames_that_change_size_are_errors(tmp_path):
    class Growing(Painted):
        def render(self):
            return np.zeros((32 + self.env.unwrapped.step_count, 32, 3), np.uint8)

    recorder = EpisodeRecorder(Growing(numbers_env(3)), tmp_path)
    recorder.reset()
    with pytest.raises(ConfigError, match=r"a frame of shape \(33, 32, 3\) after one of \(32, 32, 3\)"):
        recorder.step(0)
    recorder.close()


@pytest.mark.extended
def test_unwritable_video_is_reported_and_leaves_no_file(tmp_path):
    """This simulates a full disk: no file of this process or its encoder may exceed 1 kB."""
    program = """
        import resource, signal, sys, warnings
        import numpy as np
        from tests.envs.test_video import EpisodeRecorder, Painted, numbers_env
        recorder = EpisodeRecorder(Painted(numbers_env(3)), sys.argv[1])
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        recorder.reset()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            [recorder.step(0) for _ in range(3)]
        print(*(str(warning.message) for warning in caught if warning.category is RuntimeWarning))
        recorder.close()
    """
    done = run_python("-c", textwrap.dedent(program), str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "could not be written: 0 of 4 frames were written; is the disk full?" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_frames_may_be_lists(tmp_path):
    class Listed(Painted):
        render_mode = "rgb_array_list"

        def render(self):
            return [super().render()]

    recorder = EpisodeRecorder(Listed(numbers_env(3)), tmp_path)
    recorder.reset()
    [recorder.step(0) for _ in range(3)]
    recorder.close()
    assert [count_frames(path) for path in tmp_path.iterdir()] == [4]


def test_unwritable_path_is_an_error_naming_the_env(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="replay of Scripted: cannot make folder"):
        EpisodeRecorder(Painted(numbers_env()), tmp_path / "file" / "below")


def test_recovered_env_records_under_the_same_name():
    class Records(gymnasium.Wrapper):
        def enable_save_replay(self, replay_path, token):
            self.told = replay_path, token

    env, twin = (Recordable(Records(numbers_env()), "token") for _ in range(2))
    for folder in ("one", "two"):
        env.video_folder = folder
        env.reset()
    twin.set_state(env.get_state())
    assert twin.env.told == env.env.told == ("two", "token-2")


def test_missing_encoder_error_has_the_pip_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moviepy", None)
    with pytest.raises(DependencyError, match=r"pip install .*\"moviepy>=1.0.3\""):
        EpisodeRecorder(Painted(numbers_env()), tmp_path)
    monkeypatch.undo()

    def no_encoder():
        raise RuntimeError("none")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", no_encoder)
    with pytest.raises(DependencyError, match="no video encoder"):
        EpisodeRecorder(Painted(numbers_env()), tmp_path)


class InterruptsTheEncoder(np.ndarray):
    def __getitem__(self, key):
        signal.raise_signal(signal.SIGINT)
        return super().__getitem__(key)


def test_ctrl_c_during_a_write_leaves_no_partial_file(tmp_path):
    """Each interrupted `vecenv record` left a hidden file in the folder."""
    recorder = EpisodeRecorder(Painted(numbers_env(5)), tmp_path)
    recorder.reset()
    recorder.step(0)
    recorder.recorded_frames[1] = recorder.recorded_frames[1].view(InterruptsTheEncoder)
    with pytest.raises(KeyboardInterrupt):
        recorder.stop_recording()
    assert list(tmp_path.iterdir()) == []
    recorder.close()
