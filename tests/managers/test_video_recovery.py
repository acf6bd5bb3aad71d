"""Videos of envs whose worker is killed: one file per episode, with each frame once."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

import numpy as np
import pytest

for module in ("moviepy", "pygame", "imageio_ffmpeg"):
    pytest.importorskip(module)

from tests.inside import engine_of  # noqa: E402
from tests.managers.test_replay import Painted, decode, num_frames  # noqa: E402
from vecenv import VectorEnv  # noqa: E402
from vecenv.core.layout.flags import Op  # noqa: E402
from vecenv.core.recovery import reproducer  # noqa: E402
from vecenv.ding import (  # noqa: E402
    AsyncSubprocessEnvManager,
    DingEnvWrapper,
    GymVectorEnvManager,
    SubprocessEnvManagerV2,
    SyncSubprocessEnvManager,
)
from vecenv.envs.video import EpisodeRecorder  # noqa: E402

LENGTH, EPISODES = 5, 3


class DiesOnce(Painted):
    """An env that kills its process once, at a moment of its second episode."""

    def __init__(self, moment: str, mark: str) -> None:
        super().__init__(LENGTH)
        self.moment, self.mark = moment, Path(mark)

    def inject(self, moment: str) -> None:
        if moment == self.moment and self.episode == 2 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def step(self, action):
        if self.elapsed_steps == 3:
            self.inject("amid the episode")
        return super().step(action)

    def reset(self, **kwargs):
        if self.elapsed_steps == LENGTH:
            self.inject("after the file was written")
        return super().reset(**kwargs)

    def render(self):
        if self.elapsed_steps == LENGTH:
            self.inject("before the last frame")
        return super().render()


def ding(env_fn):
    return DingEnvWrapper(env_fn())


def play(manager, inject=lambda: None):
    steps = 0
    while not manager.done:
        manager.ready_obs  # noqa: B018  # the asynchronous one waits here for its resets
        manager.step(dict.fromkeys(manager.ready_obs_id, 0))
        steps += 1
        if steps == 8:
            inject()


def check(folder, num_envs):
    """Assert that the folder has one file per episode of each env, with the frames of the episode in order."""
    files = sorted(folder.iterdir())
    assert len(files) == num_envs * EPISODES and all(file.suffix == ".mp4" for file in files), files
    for file in files:
        assert num_frames(file) == LENGTH + 1
        assert np.allclose(decode(file), [8 * step for step in range(LENGTH + 1)], atol=3), file


@pytest.mark.extended
@pytest.mark.parametrize("dialect", ["gymnasium", "ding"])
@pytest.mark.parametrize(
    "manager_cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager, SubprocessEnvManagerV2, GymVectorEnvManager]
)
def test_killed_worker_neither_loses_nor_doubles_a_video(manager_cls, dialect, tmp_path):
    env_fn = functools.partial(Painted, LENGTH)
    env_fns = [functools.partial(ding, env_fn) if dialect == "ding" else env_fn] * 2
    with manager_cls(env_fns, {"episode_num": EPISODES, "num_workers": 1}) as manager:
        manager.enable_save_replay(tmp_path)
        manager.launch()
        play(manager, lambda: os.kill(manager.worker_pids[0], signal.SIGKILL))
    check(tmp_path, 2)


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["amid the episode", "before the last frame", "after the file was written"])
@pytest.mark.parametrize("dialect", ["gymnasium", "ding"])
def test_killed_worker_at_any_moment_leaves_one_video(dialect, moment, tmp_path):
    env_fn = functools.partial(DiesOnce, moment, str(tmp_path / "mark"))
    env_fns = [functools.partial(ding, env_fn) if dialect == "ding" else env_fn]
    with SyncSubprocessEnvManager(env_fns, {"episode_num": EPISODES}) as manager:
        manager.enable_save_replay(tmp_path / "videos")
        manager.launch()
        play(manager)
    assert (tmp_path / "mark").exists()
    check(tmp_path / "videos", 1)


@pytest.mark.extended
def test_second_folder_replaces_the_first(tmp_path):
    for dialect in ("gymnasium", "ding"):
        env_fn = functools.partial(Painted, LENGTH)
        env_fns = [functools.partial(ding, env_fn) if dialect == "ding" else env_fn]
        first, second = tmp_path / dialect / "first", tmp_path / dialect / "second"
        with SyncSubprocessEnvManager(env_fns, {"episode_num": 3, "auto_reset": False}) as manager:
            manager.enable_save_replay(first)
            manager.launch()
            for _ in range(LENGTH):
                manager.step({0: 0})
            manager.enable_save_replay(second)
            manager.reset()
            for _ in range(LENGTH):
                manager.step({0: 0})
        assert [len(list(folder.iterdir())) for folder in (first, second)] == [1, 1], dialect


def recorded(folder, name=None):
    return EpisodeRecorder(Painted(LENGTH), folder, name)


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_recorder_with_a_new_name_per_worker_doubles_no_video(mode, tmp_path):
    """Regression: each repeated episode got a second file."""
    env_fns = [functools.partial(recorded, tmp_path)] * 2
    with VectorEnv(env_fns, num_workers=1, autoreset_mode=mode) as envs:
        envs.reset(seed=1)
        ends = 0
        for step in range(100):
            if step == LENGTH + 3:
                os.kill(envs.worker_pids[0], signal.SIGKILL)
            ends += envs.step([0, 0])[2].any()
            if ends == EPISODES:
                break
    check(tmp_path, 2)


def test_reproducer_leaves_the_video_of_its_episode(tmp_path):
    """Regression: the env's close replaced the video by the part that had been repeated."""
    folder = tmp_path / "videos"
    with VectorEnv([functools.partial(recorded, folder, "mine")], failures={"reproducer_dir": tmp_path}) as envs:
        envs.reset(seed=1)
        for _ in range(LENGTH - 1):
            envs.step([0])
        file = engine_of(envs.pool).reproduce(0, Op.STEP, 999).save("because")
    (video,) = folder.iterdir()
    assert num_frames(video) == LENGTH
    episode = reproducer.load(file)
    assert len(list(episode.run(until=episode.entries[-1].step_id))) == LENGTH - 1
    assert list(folder.iterdir()) == [video] and num_frames(video) == LENGTH
    video.unlink()
    list(episode.run())
    assert list(folder.iterdir()) == []
