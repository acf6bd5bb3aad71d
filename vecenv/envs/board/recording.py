"""Output of a game's pictures: to a video file, or to a window."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any

from vecenv.envs.video import write_video
from vecenv.errors import ConfigError, StateError, require

RENDER_MODES = ("state_realtime_mode", "image_realtime_mode", "image_savefile_mode", "rgb_array")
SAVED_FORMATS = ("gif", "mp4")
MS_PER_SECOND = 1000


def save_frames(frames: Sequence[Any], name: str, folder: str | None, format: str, fps: float) -> str:
    """Write pictures, uint8 (height, width, 3), to one animation file; return its path.

    Args:
        name: beginning of the file name; a unique part is added.
        folder: created if missing; None for the working directory.
        format: 'gif' or 'mp4'.
        fps: pictures per second.

    Raises:
        ConfigError: the format is unknown, or the folder cannot be made.
        StateError: there are no frames.
        DependencyError: imageio is missing, or ffmpeg for mp4.
    """
    if format not in SAVED_FORMATS:
        raise ConfigError(f"format: expected 'gif' or 'mp4', got {format!r}", key="format")
    if not frames:
        raise StateError("no frames to save: render in 'image_savefile_mode' first")
    folder = os.curdir if folder is None else os.fspath(folder)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"replay_path: cannot make folder {folder!r}: {error}", key="replay_path") from error
    unique = f"{name}-{uuid.uuid4().hex[:12]}"
    partial = os.path.join(folder, f".{unique}.partial.{format}")
    final = os.path.join(folder, f"{unique}.{format}")
    if format == "mp4":
        write_video(partial, list(frames), fps)
    else:
        imageio: Any = require("imageio.v3", "video")
        imageio.imwrite(partial, list(frames), extension=".gif", duration=MS_PER_SECOND / fps, loop=0)
    os.replace(partial, final)
    return final


class GameWindow:
    """The pygame window, of which a process has only one; it shows one picture at a time."""

    def __init__(self, title: str) -> None:
        """Import pygame; the window opens with the first picture. DependencyError: pygame is missing."""
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        self._pygame: Any = require("pygame", "board")
        self._title = title

    def show(self, picture: Any) -> None:
        display = self._pygame.display
        size = picture.shape[1::-1]
        screen = display.get_surface() if display.get_init() else None
        if screen is None or screen.get_size() != size:
            display.init()
            display.set_caption(self._title)
            screen = display.set_mode(size)
        screen.blit(self._pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        display.flip()
        self._pygame.event.pump()

    def close(self) -> None:
        """Close the window; another env that shares it reopens it with its next picture."""
        self._pygame.display.quit()
