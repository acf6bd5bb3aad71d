"""Recording of episodes as video files, one per episode, in the worker of the env; based on Gymnasium's RecordVideo."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import sys
import uuid
import warnings
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.wrappers import RecordVideo
from numpy.typing import NDArray

from vecenv.envs.adapt import original, reward_space_of
from vecenv.errors import ConfigError, DependencyError, require, warn_caller
from vecenv.gymnasium_api.replaying import is_replaying
from vecenv.values.signatures import parameters_of

DEFAULT_FOLDER = "./video"


if TYPE_CHECKING:
    _RecordVideo = RecordVideo[Any, Any]
else:  # it has three type parameters in Gymnasium 1.2
    _RecordVideo = RecordVideo


class EpisodeRecorder(_RecordVideo):
    """Record every episode of an env to `<folder>/<name>-episode-<k>.mp4`: one frame for the reset and each step.

    A file gets its name only when its episode has ended and it is complete. While it is being written it is a hidden
    `.partial` file. Closing or resetting the env during an episode writes the frames so far. An episode without a
    step leaves no file. While episodes are replayed, in a new worker or by `vecenv replay`, files are not written.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], folder: str | os.PathLike[str], name: str | None = None) -> None:
        """Check everything a recording needs, then wrap an env that renders RGB arrays.

        Args:
            env: the env.
            folder: created if missing.
            name: beginning of each file's name; None makes a unique one.

        Raises:
            ConfigError: the env does not render RGB arrays, or the folder cannot be written. The message names the env.
            DependencyError: moviepy or its encoder is missing.
        """
        self.recorded_frames: list[Any] = []  # read by Gymnasium's __del__ before 1.4, even if __init__ failed
        folder = os.path.abspath(os.fspath(folder))
        if env.render_mode not in ("rgb_array", "rgb_array_list"):
            expected = "expected render_mode 'rgb_array'"
            raise _refused(env, f"{expected}, got {env.render_mode!r}; make the env with render_mode='rgb_array'")
        _check_encoder()
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise _refused(env, f"cannot make folder {folder!r}: {error}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _refused(env, f"folder {folder!r} is not writable")
        with warnings.catch_warnings():
            # Gymnasium warns that files may be overwritten, but these names are unique and envs share the folder.
            warnings.simplefilter("ignore", UserWarning)
            super().__init__(env, folder, episode_trigger=_every_episode, name_prefix=name or unique_name(env))
        #: Paths of the finished files, oldest first.
        self.video_paths: list[str] = []

    def reset(self, **reset_param: Any) -> tuple[Any, dict[str, Any]]:  # the env's own parameters
        """Start an episode and its file; the file of an unfinished episode is written first."""
        obs, info = self.env.reset(**reset_param)
        self.episode_id += 1
        if self.recording:
            self.stop_recording()
        name = self._choose_name(reset_param.get("seed"))
        if name is not None:
            self.start_recording(name)
            self._capture_frame()
        return obs, info

    def _choose_name(self, seed: int | None) -> str | None:
        """Return the name, without a suffix, of the file of the episode that begins; None: it is not recorded."""
        is_wanted = self.episode_trigger is not None and self.episode_trigger(self.episode_id)
        return f"{self.name_prefix}-episode-{self.episode_id}" if is_wanted else None

    def step(self, action: Any) -> Any:
        """Step the env and record a frame; at the end of the episode, write the file."""
        result = super().step(action)
        if (result[2] or result[3]) and self.recording:
            self.stop_recording()
        return result

    def _capture_frame(self) -> None:
        """Render the env and keep the frame; ConfigError without `render`, or if the frame does not fit the video."""
        try:
            frame: Any = self.env.render()
        except NotImplementedError as error:
            raise _refused(self.env, "it has no render()") from error
        except Exception as error:  # any exception of the env or of a library that draws
            hint = _display_hint()
            if hint is None:
                raise
            raise _refused(self.env, f"render() failed: {type(error).__name__}: {error}; {hint}") from error
        if isinstance(frame, list):  # mode 'rgb_array_list' returns all frames since the last call
            self.render_history += frame
            frame = frame[-1] if frame else None
        if not isinstance(frame, np.ndarray):
            raise _refused(self.env, f"expected an array from render(), got {type(frame).__name__}")
        frame = _as_rgb(frame, self.env)
        first: Any = self.recorded_frames[0] if self.recorded_frames else frame
        if frame.shape != first.shape:
            shapes = f"a frame of shape {frame.shape} after one of {first.shape}"
            raise _refused(self.env, f"{shapes}; a video's frames have one size")
        self.recorded_frames.append(frame)

    def stop_recording(self) -> None:
        """Write the collected frames to the file; a single frame (an episode without a step) is dropped."""
        frames, name = self.recorded_frames, self._video_name
        self.recorded_frames, self.recording, self._video_name = [], False, None
        if len(frames) < 2:
            return
        final = os.path.join(self.video_folder, f"{name}.mp4")
        if is_replaying():  # the file was written when the episode was first played, maybe under another name
            if not os.path.exists(final):
                return
        else:
            try:
                self._write(frames, final)
            except OSError as error:  # e.g. a full disk: the env continues without this video
                warn_caller(f"the video {final} could not be written: {error}", RuntimeWarning)
                return
        self.video_paths.append(final)

    def _write(self, frames: list[Any], final: str) -> None:
        os.makedirs(self.video_folder, exist_ok=True)
        folder, name = os.path.split(final.removesuffix(".mp4"))
        hidden = os.path.join(folder, f".{name}")
        # The process id keeps this apart from the file that a worker left when it was killed while writing.
        partial = f"{hidden}.{os.getpid()}.partial.mp4"
        try:
            write_video(partial, frames, self.frames_per_sec)
        except BaseException:  # includes Ctrl-C
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
            raise
        os.replace(partial, final)
        for left in glob.glob(f"{glob.escape(hidden)}.*.partial.mp4"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(left)


class SeedRecorder(EpisodeRecorder):
    """Record the episodes that begin with a reset with one of these seeds, to `<folder>/<name of the env>-seed<k>.mp4`.

    Other episodes are neither recorded nor rendered.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], folder: str | os.PathLike[str], seeds: Set[int]) -> None:
        """Check everything a recording needs, then wrap; arguments and errors are those of `EpisodeRecorder`."""
        super().__init__(env, folder, safe_name(env))
        self._seeds = seeds

    def _choose_name(self, seed: int | None) -> str | None:
        return file_name(self.name_prefix, seed) if seed in self._seeds and seed is not None else None


def file_name(env_name: str, seed: int) -> str:
    """Return the name of a video without its suffix.

    >>> file_name("CartPole-v1", 1000)
    'CartPole-v1-seed1000'
    """
    return f"{env_name}-seed{seed}"


class Recordable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pass all calls on to the env, and start recording at the first reset after `video_folder` is set.

    If the env has an `enable_save_replay` of its own, that method records the videos.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], token: str) -> None:
        """Wrap an env; `token` is part of the file names, and the same when the env is built again in a new worker."""
        super().__init__(env)
        self.video_folder: str | None = None
        self._records_to: str | None = None
        self._token = token
        self._num_folders = 0

    def reset(self, **reset_param: Any) -> tuple[Any, dict[str, Any]]:
        self._prepare()
        return self.env.reset(**reset_param)

    @property
    def reward_space(self) -> Any:
        """The env's reward space or None; Gymnasium's wrappers do not forward it."""
        return reward_space_of(self.env)

    def _prepare(self) -> None:
        folder = self.video_folder
        if folder is None or folder == self._records_to:
            return
        number = self._num_folders + 1
        token = f"{self._token}-{number}"
        if not enable_env_recording(self.env, folder, token):
            if isinstance(self.env, EpisodeRecorder):
                if self.env.recording:
                    self.env.stop_recording()
                self.env = self.env.env
                self._records_to = None
            self.env = EpisodeRecorder(self.env, folder, unique_name(self.env, token))
        self._records_to, self._num_folders = folder, number  # set last, so that a failed start is tried again

    def get_state(self) -> dict[str, Any]:
        """Return the folders, picklable; the recorder inside has a state of its own."""
        return {
            "video_folder": self.video_folder,
            "records_to": self._records_to,
            "num_folders": self._num_folders - (self._records_to is not None),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the folders from `get_state`, and make a recorder if there was one."""
        self._num_folders = state["num_folders"]
        self.video_folder = state["records_to"]
        self._prepare()
        self.video_folder = state["video_folder"]


def write_video(path: str, frames: list[Any], fps: float) -> None:
    """Encode frames, uint8 (height, width, 3), as an H.264 file at `path` with `fps` frames per second.

    Raises:
        DependencyError: imageio-ffmpeg is missing.
        OSError: not all frames could be written.
    """
    # moviepy is not used: it computes the number of frames from duration times rate, and at 50 frames per second
    # it drops one of 11, 12, 13 and 14.
    encoder: Any = require("imageio_ffmpeg", "video")
    height, width = frames[0].shape[:2]
    # H.264 with subsampled colours requires even sides; the encoder stretches an odd side by one pixel.
    writer = encoder.write_frames(path, (width, height), fps=fps, macro_block_size=2)
    writer.send(None)
    try:
        for frame in frames:
            writer.send(np.ascontiguousarray(frame[..., :3], dtype=np.uint8))
    finally:
        writer.close()
    written = _count_frames(encoder, path)
    if written != len(frames):  # imageio-ffmpeg does not report the encoder's exit code
        raise OSError(f"{written} of {len(frames)} frames were written; is the disk full?")


def _count_frames(encoder: Any, path: str) -> int:
    try:
        return int(encoder.count_frames_and_secs(path)[0])
    except Exception:  # the file contains no video
        return 0


def _as_rgb(frame: NDArray[Any], env: gymnasium.Env[Any, Any]) -> NDArray[np.uint8]:
    """Convert a frame, which may be grey or have an alpha channel, to uint8 (height, width, 3)."""
    grey = frame[..., None] if frame.ndim == 2 else frame
    if grey.ndim != 3 or grey.shape[2] not in (1, 3, 4) or not grey.size or grey.dtype.kind not in "iu":
        expected = "whole numbers from 0 to 255, (height, width), (height, width, 1), (height, width, 3 or 4)"
        raise _refused(env, f"expected frames of {expected}, got {frame.dtype} {frame.shape}")
    rgb = np.repeat(grey, 3, axis=2) if grey.shape[2] == 1 else grey[..., :3]
    return rgb.astype(np.uint8)


def folders_by_env(replay_path: str | os.PathLike[str] | Sequence[Any], num_envs: int) -> list[str]:
    """Return the absolute folder of each env, from one folder or one per env; None is './video'.

    ConfigError is raised if the number of folders is wrong, the argument is not a path, or a path is relative and the
    working directory has been removed.
    """
    path: Any = DEFAULT_FOLDER if replay_path is None else replay_path
    single = isinstance(path, str | os.PathLike)
    if not single and not isinstance(path, Sequence):
        raise ConfigError(f"replay_path: expected a folder, or one per env, got {path!r}", key="replay_path")
    paths: list[Any] = [path] * num_envs if single else list(path)
    if len(paths) != num_envs:
        raise ConfigError(f"replay_path: expected {num_envs} folders, got {len(paths)}", key="replay_path")
    try:
        return [os.path.abspath(os.fspath(path)) for path in paths]
    except FileNotFoundError as error:
        raise ConfigError(
            f"replay_path: got {path!r}, and the working directory has been removed; give an absolute path",
            key="replay_path",
        ) from error


def enable_env_recording(env: gymnasium.Env[Any, Any], folder: str, token: str) -> bool:
    """Start the env's own recording, if it has any, and return whether it has.

    `token` is passed on if `enable_save_replay` takes one, as in `DingEnvWrapper`.
    """
    enable = getattr(original(env), "enable_save_replay", None)
    if not callable(enable):
        return False
    takes_token = "token" in (parameters_of(enable) or ())
    try:
        enable(folder, token=token) if takes_token else enable(folder)
    except NotImplementedError:  # BaseEnv's default: the env does not record by itself
        return False
    return True


def make_token() -> str:
    """Return a random part of a file name, unique on all machines."""
    return uuid.uuid4().hex[:12]


def unique_name(env: gymnasium.Env[Any, Any], token: str | None = None) -> str:
    """Return '<name of the env>-<token>', with only characters that are safe in file names; None: a unique one."""
    return f"{safe_name(env)}-{token or make_token()}"


def safe_name(env: gymnasium.Env[Any, Any]) -> str:
    """Return the id or the class of an env, with only characters that are safe in file names."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", _label(env))


def _refused(env: gymnasium.Env[Any, Any], reason: str) -> ConfigError:
    return ConfigError(f"replay of {_label(env)}: {reason}")


def _label(env: gymnasium.Env[Any, Any]) -> str:
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec is not None else type(env.unwrapped).__name__


def _display_hint() -> str | None:
    """Return the settings that libraries need to draw without a display; None if that is not the trouble."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return None
    hints = []
    if "mujoco" in sys.modules and os.environ.get("MUJOCO_GL") not in ("egl", "osmesa"):
        hints.append("MUJOCO_GL=egl or MUJOCO_GL=osmesa, with the library of that name")
    if "pygame" in sys.modules and os.environ.get("SDL_VIDEODRIVER") != "dummy":
        hints.append("SDL_VIDEODRIVER=dummy")
    return f"there is no display: set {' and '.join(hints)}" if hints else None


def _every_episode(episode: int) -> bool:
    return True


def _check_encoder() -> None:
    require("moviepy", "video")
    encoder: Any = require("imageio_ffmpeg", "video")
    try:
        encoder.get_ffmpeg_exe()
    except RuntimeError as error:
        raise DependencyError(f"no video encoder found: {error}; run: pip install imageio-ffmpeg") from error
