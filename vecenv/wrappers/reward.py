"""Wrappers that change rewards or sum them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from vecenv.envs.adapt import reward_space_of
from vecenv.registry import ENV_WRAPPER_REGISTRY
from vecenv.values.checks import check_whole
from vecenv.wrappers.base import EnvWrapper, reward_range, summed_reward_space


@ENV_WRAPPER_REGISTRY.register("clip_reward")
class ClipRewardWrapper(EnvWrapper):
    """Replace each reward by its sign: -1.0, 0.0 or 1.0; the None of an abnormal timestep stays None."""

    reward_range = (-1, 1)

    @property
    def reward_space(self) -> Any:
        """A float32 Box in [-1, 1] with the shape of the env's reward space, (1,) for numbers."""
        shape = getattr(reward_space_of(self.env), "shape", None)
        return spaces.Box(-1.0, 1.0, shape or (1,), np.float32)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, self.reward(reward), terminated, truncated, info

    def reward(self, reward: Any) -> Any:
        """Return the sign of a reward: a float for a number, a float32 array for an array."""
        if reward is None:
            return None
        sign = np.sign(reward)
        return sign.astype(np.float32) if isinstance(reward, np.ndarray) and reward.ndim else float(sign)


@ENV_WRAPPER_REGISTRY.register("delay_reward")
class DelayRewardWrapper(EnvWrapper):
    """Return 0 as reward for `delay_reward_step - 1` steps, then the sum of all; also the sum at an episode's end.

    A `delay_reward_step` of 0 or 1 has no effect. The reward None of an abnormal timestep is passed on and not
    counted.
    """

    state_names: ClassVar[tuple[str, ...]] = ("delay_reward_duration", "current_delay_reward")

    def __init__(self, env: Any, delay_reward_step: int = 0) -> None:
        """Wrap; ConfigError if `delay_reward_step` is negative."""
        super().__init__(env)
        self.delay_reward_step = check_whole("delay_reward_step", delay_reward_step, 0)
        self.delay_reward_duration = 0
        self.current_delay_reward: Any = 0.0

    @property
    def reward_range(self) -> tuple[float, float]:
        """Bounds of a sum of up to `delay_reward_step` rewards."""
        low, high = reward_range(self.env)
        if self.delay_reward_step <= 1:
            return low, high
        return min(0.0, low * self.delay_reward_step), max(0.0, high * self.delay_reward_step)

    @property
    def reward_space(self) -> Any:
        """Space of such sums; None if the env does not declare a Box as its reward space."""
        return summed_reward_space(self.env, self.delay_reward_step, from_zero=True)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.delay_reward_duration, self.current_delay_reward = 0, 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self.delay_reward_step <= 1 or reward is None:
            return obs, reward, terminated, truncated, info
        self.delay_reward_duration += 1
        self.current_delay_reward = self.current_delay_reward + reward
        if terminated or truncated or self.delay_reward_duration >= self.delay_reward_step:
            reward = self.current_delay_reward
            self.delay_reward_duration, self.current_delay_reward = 0, 0.0
        else:
            reward = np.zeros_like(self.current_delay_reward) if isinstance(reward, np.ndarray) else 0.0
        return obs, reward, terminated, truncated, info


@ENV_WRAPPER_REGISTRY.register("eval_episode_return")
class EvalEpisodeReturnWrapper(EnvWrapper):
    """Add `eval_episode_return`, the sum of an episode's rewards, to the info of its last step.

    The rewards are those of the env inside this wrapper. The value is a Python float; vector rewards are summed to
    one number. With `array=True` it is a float32 array of the rewards' shape, (1,) for numbers. With `older_key=True`
    it is also in `info['final_eval_reward']`, the key that older programs read.
    """

    state_names: ClassVar[tuple[str, ...]] = ("episode_return",)

    def __init__(self, env: Any, array: bool = False, older_key: bool = False) -> None:
        super().__init__(env)
        self.array = array
        self.older_key = older_key
        self.episode_return: Any = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode_return = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if reward is not None:
            self.episode_return = self.episode_return + reward
        if terminated or truncated:
            total = self.episode_return
            if self.array:
                score: Any = np.atleast_1d(np.asarray(total, dtype=np.float32)).copy()
            else:
                score = float(np.sum(total))
            info = {**info, "eval_episode_return": score}
            if self.older_key:
                info["final_eval_reward"] = score
        return obs, reward, terminated, truncated, info
