"""`RecordVideo` with the name and main arguments of Gymnasium's wrapper, for every env that `envs.adapt` accepts."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from vecenv.envs.adapt import adapt
from vecenv.envs.video import EpisodeRecorder
from vecenv.wrappers.base import GymToGymnasiumWrapper


class RecordVideo(EpisodeRecorder):
    """Record episodes to files `<video_folder>/<name_prefix>-episode-<k>.mp4`.

    Unlike Gymnasium's wrapper it does not lose frames, and a file gets its name only when it is complete. It also
    accepts envs with old calls. For a `GymToGymnasiumWrapper` the constructor returns a `GymToGymnasiumWrapper` with
    the recorder inside.
    """

    def __new__(cls, env: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(env, GymToGymnasiumWrapper):
            return env.wrap_inside(lambda inner: cls(inner, *args, **kwargs))
        return super().__new__(cls)

    def __init__(
        self,
        env: Any,
        video_folder: str | os.PathLike[str],
        episode_trigger: Callable[[int], bool] | None = None,
        name_prefix: str = "rl-video",
    ) -> None:
        """Check everything a recording needs, then wrap.

        Args:
            env: must render RGB arrays.
            video_folder: created if missing.
            episode_trigger: returns whether to record the episode of this number, from 0. None records all.
            name_prefix: beginning of the file names; existing files of the same name are replaced.

        Raises:
            ConfigError: the env does not render RGB arrays, or the folder cannot be written.
            DependencyError: moviepy or its encoder is missing.
        """
        super().__init__(adapt(env), video_folder, name_prefix)
        if episode_trigger is not None:
            self.episode_trigger = episode_trigger
