"""`RecordVideo` under its usual name and with its usual arguments, for envs of any dialect."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from vecenv.envs.adapt import adapt
from vecenv.envs.video import EpisodeRecorder
from vecenv.wrappers.base import GymToGymnasiumWrapper


class RecordVideo(EpisodeRecorder):
    """Episodes as files `<video_folder>/<name_prefix>-episode-<k>.mp4`.

    Unlike Gymnasium's it loses no frame, names a file only when it is complete, and goes around an env with old
    calls too: of a `GymToGymnasiumWrapper` it gives that old face again, recording inside.
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
            video_folder: made if missing.
            episode_trigger: tells of an episode, counted from 0, whether to record it; None for all.
            name_prefix: a file of the same name is replaced.

        Raises:
            ConfigError: the env does not render RGB arrays, or the folder cannot be written; names the env.
            DependencyError: moviepy or its encoder is missing.
        """
        super().__init__(adapt(env), video_folder, name_prefix)
        if episode_trigger is not None:
            self.episode_trigger = episode_trigger
