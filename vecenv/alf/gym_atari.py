"""Atari under the time steps: Gymnasium's preprocessing, with a life begun by FIRE."""

from __future__ import annotations

from typing import Any

import gymnasium

from vecenv.errors import ConfigError
from vecenv.wrappers.episode import NoopResetWrapper

__all__ = ["DMAtariPreprocessing"]


class DMAtariPreprocessing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Atari as in DeepMind's papers: Gymnasium's `AtariPreprocessing`, and FIRE where a life begins.

    After a reset come 1 to `noop_max` idle steps; then, as after each life lost, FIRE and the action
    after it, if the game has them. Episodes end when all lives are gone. Observations are uint8
    (screen_size, screen_size, 1), or 3 channels in colour.
    """

    def __init__(
        self,
        env: Any,
        frame_skip: int = 4,
        noop_max: int = 30,
        screen_size: int = 84,
        gray_scale: bool = True,
    ) -> None:
        """Wrap an Atari env that skips no frames itself (`frameskip=1`).

        Raises:
            ConfigError: frame_skip or screen_size below 1.
            Exception: Gymnasium's, where OpenCV is missing or the env skips frames.
        """
        for name, value in (("frame_skip", frame_skip), ("screen_size", screen_size)):
            if value < 1:
                raise ConfigError(f"{name}: expected at least 1, got {value!r}", key=name)
        if noop_max > 0:
            env = NoopResetWrapper(env, noop_max)
        super().__init__(
            gymnasium.wrappers.AtariPreprocessing(
                _FireWhereLifeBegins(env),
                noop_max=0,
                frame_skip=frame_skip,
                screen_size=screen_size,
                grayscale_obs=gray_scale,
                grayscale_newaxis=gray_scale,
            )
        )


class _FireWhereLifeBegins(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE and the next action after a reset and after a life lost."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        meanings = env.unwrapped.get_action_meanings()
        self._can_fire = len(meanings) >= 3 and meanings[1] == "FIRE"
        self._lives = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        if self._can_fire:
            obs, _, terminated, truncated, info = self._fire()
            if terminated or truncated:  # such a game is begun again, unfired
                obs, info = self.env.reset(options=options)
        self._lives = self._count()
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self._count()
        if self._can_fire and 0 < lives < self._lives and not (terminated or truncated):
            obs, more, terminated, truncated, info = self._fire()
            reward = float(reward) + more
        self._lives = lives
        return obs, reward, terminated, truncated, info

    def _fire(self) -> Any:
        total = 0.0
        for action in (1, 2):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info

    def _count(self) -> int:
        return int(self.env.unwrapped.ale.lives())  # type: ignore[attr-defined]
