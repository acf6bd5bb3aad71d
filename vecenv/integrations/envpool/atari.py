"""The last layer of an Atari game in EnvPool's form; it stands in the workers, above Gymnasium's `AtariPreprocessing`.

ALE/Pong-v5 -> AtariPreprocessing -> AtariTask -> FrameStackObservation
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...wrappers.base import EnvWrapper
from ...wrappers.episode import FIRE, NOOP, action_meanings

__all__ = ["AtariTask"]


class AtariTask(EnvWrapper):
    """Starts games, ends episodes at lost lives, clips rewards, and returns EnvPool's infos.

    Each info has `lives` (int32), `reward` before clipping (float32), `terminated` (int32: 1 if the game is over, which
    a lost life is not) and `elapsed_step` (int32: the steps of this game).

    Args:
        env: an `AtariPreprocessing`.
        max_episode_steps: the game is truncated after this number of steps.
        episodic_life: a lost life ends the episode. The next reset continues the game, unless it has a seed.
        reward_clip: rewards become -1, 0 or 1.
        use_fire_reset: apply FIRE once after each reset of a game that has this action.
    """

    state_names: ClassVar[tuple[str, ...]] = ("lives", "is_over", "elapsed_step")

    def __init__(
        self, env: Any, *, max_episode_steps: int, episodic_life: bool, reward_clip: bool, use_fire_reset: bool
    ) -> None:
        super().__init__(env)
        self._max_episode_steps = max_episode_steps
        self._episodic_life = episodic_life
        self._reward_clip = reward_clip
        self._has_fire = use_fire_reset and action_meanings(env)[FIRE] == "FIRE"
        self.lives = 0
        self.is_over = True
        self.elapsed_step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._episodic_life and not self.is_over and seed is None:
            obs, is_over = self._start()
            if not is_over:
                return obs, self._note(0.0, False)
        obs, _ = self.env.reset(seed=seed, options=options)
        if self._has_fire:
            obs, is_over = self._start()
            if is_over:
                obs, _ = self.env.reset(options=options)
        self.is_over, self.elapsed_step = False, 0
        return obs, self._note(0.0, False)

    def _start(self) -> tuple[Any, bool]:
        """Apply FIRE, or NOOP in a game without it; return the observation and whether that ended the game."""
        obs, _, terminated, truncated, _ = self.env.step(FIRE if self._has_fire else NOOP)
        return obs, bool(terminated or truncated)

    def step(self, action: Any) -> Any:
        lives = self.lives
        obs, reward, is_terminated, truncated, _ = self.env.step(action)
        self.elapsed_step += 1
        truncated = truncated or self.elapsed_step >= self._max_episode_steps
        self.is_over = bool(is_terminated or truncated)
        info = self._note(float(reward), bool(is_terminated))
        # Some games continue for a few frames with 0 lives before they end.
        is_life_lost = self._episodic_life and 0 < self.lives < lives
        clipped = float(np.sign(info["reward"])) if self._reward_clip else float(reward)
        return obs, clipped, bool(is_terminated or is_life_lost), bool(truncated), info

    def _note(self, reward: float, is_terminated: bool) -> dict[str, Any]:
        """Read the lives from the game; return the info of this step."""
        game: Any = self.env.unwrapped
        self.lives = game.ale.lives()
        return {
            "lives": np.int32(self.lives),
            "reward": np.float32(reward),
            "terminated": np.int32(is_terminated),
            "elapsed_step": np.int32(self.elapsed_step),
        }
