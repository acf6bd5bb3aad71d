"""Atari preprocessing below time steps: skips, pools and resizes frames, and presses FIRE when a life begins."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from vecenv.alf.gym.actions import count_env_frames
from vecenv.errors import ConfigError, require
from vecenv.values.checks import check_whole
from vecenv.wrappers.base import EnvWrapper
from vecenv.wrappers.episode import NoopResetWrapper


class DMAtariPreprocessing(EnvWrapper):
    """Preprocesses Atari games as in DeepMind's papers, and presses FIRE when a life begins.

    Each action is repeated `frame_skip` times, and the rewards are summed. The observation is the pixelwise maximum of
    the last two frames, resized. A reset is followed by 1 to `noop_max` idle steps. After a reset and after each lost
    life, actions 1 (FIRE) and 2 follow, if the game has FIRE. A lost life ends the repetition of an action; the
    observation is then the first frame of the next life alone. Episodes end when all lives are lost.

    Observations are uint8 (screen_size, screen_size, 1), or with 3 channels in colour. The info `num_env_frames` is the
    number of times that the action was applied.
    """

    state_names: ClassVar[tuple[str, ...]] = ("_frames", "_lives")

    def __init__(
        self,
        env: Any,
        frame_skip: int = 4,
        noop_max: int = 30,
        screen_size: int = 84,
        gray_scale: bool = True,
    ) -> None:
        """Wrap an Atari env that does not skip frames itself (`frameskip=1`).

        Args:
            frame_skip: number of times that each action is applied, 4 by default.
            noop_max: largest number of idle steps after a reset, 30 by default; 0 for none.
            screen_size: height and width of observations in pixels, 84 by default.
            gray_scale: whether observations are grey. Default: True.

        Raises:
            ConfigError: frame_skip or screen_size is below 1, or the env skips frames itself (a ValueError).
            DependencyError: OpenCV is not installed.
        """
        for name, value in (("frame_skip", frame_skip), ("screen_size", screen_size)):
            check_whole(name, value, 1)
        self._cv2 = require("cv2", "atari")
        super().__init__(NoopResetWrapper(env, noop_max) if noop_max > 0 else env)
        inner = self.env.unwrapped
        if frame_skip > 1 and getattr(inner, "_frameskip", 1) != 1:
            raise ConfigError("frame_skip: the env skips frames itself; make it with frameskip=1", key="frame_skip")
        self._skip, self._size = frame_skip, (screen_size, screen_size)
        self._is_gray = gray_scale
        height, width = self._ale.getScreenDims()
        shape = (height, width) if gray_scale else (height, width, 3)
        self._frames = [np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)]
        meanings = inner.get_action_meanings()  # type: ignore[attr-defined]
        self._can_fire = len(meanings) >= 3 and meanings[1] == "FIRE"
        self._lives = 0
        self.observation_space = spaces.Box(0, 255, (*self._size, 1 if gray_scale else 3), np.uint8)
        self.info_space = count_env_frames(self.env)

    @property
    def _ale(self) -> Any:
        return self.env.unwrapped.ale  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options=options)
        if self._can_fire:
            _, is_over, *_, info = self._fire()
            if is_over:  # FIRE ended the game: begin again without FIRE
                _, info = self.env.reset(options=options)
        return self._begin_life(), info

    def step(self, action: Any) -> Any:
        total, num_frames = 0.0, 0
        for index in range(self._skip):
            _, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            num_frames += int(info.get("num_env_frames", 1))
            lives = self._ale.lives()
            is_lost, self._lives = lives < self._lives, lives
            if is_lost or terminated or truncated:
                break
            if self._skip == 1 or index >= self._skip - 2:
                self._copy_screen(0 if self._skip == 1 else index - (self._skip - 2))
        if is_lost and not (terminated or truncated):
            if self._can_fire:
                more, _, terminated, truncated, info = self._fire()
                total += more
            obs = self._begin_life()
        else:
            obs = self._pool()
        return obs, total, terminated, truncated, {**info, "num_env_frames": num_frames}

    def _fire(self) -> tuple[float, bool, bool, bool, dict[str, Any]]:
        """Apply actions 1 (FIRE) and 2; return (total reward, is_over, terminated, truncated, last info)."""
        total = 0.0
        for action in (1, 2):
            _, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return total, terminated or truncated, terminated, truncated, info

    def _begin_life(self) -> Any:
        """Read the number of lives; return an observation of the current screen alone."""
        self._lives = self._ale.lives()
        self._copy_screen(0)
        self._frames[1].fill(0)
        return self._pool()

    def _copy_screen(self, which: int) -> None:
        """Copy the screen to frame 0 or 1."""
        ale, frame = self._ale, self._frames[which]
        if self._is_gray:
            ale.getScreenGrayscale(frame)
        else:
            ale.getScreenRGB(frame)

    def _pool(self) -> Any:
        """Return the pixelwise maximum of both frames, resized. Frame 0 keeps it, for steps that end before frame 1."""
        first, second = self._frames
        if self._skip > 1:
            np.maximum(first, second, out=first)
        obs = self._cv2.resize(first, self._size, interpolation=self._cv2.INTER_AREA)
        return obs[:, :, None] if obs.ndim == 2 else obs
