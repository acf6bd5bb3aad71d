"""Toy envs without faults: with observations that depend on all calls made, and with steps of known cost."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

__all__ = ["BusyEnv", "CountEnv", "FixedSleepEnv", "FrameEnv", "NullEnv", "SleepEnv", "ToyEnv"]

StepResult = tuple[Any, float, bool, bool, dict[str, Any]]

# 2**16 and below are exact in float32, so a seed's residue survives the observation.
_SEED_MODULUS = 65_521

# Bound of the discrete observation if episodes never end.
_MANY_STEPS = 2**31


class ToyEnv(gym.Env[Any, Any]):
    """An env whose results depend only on its seed and actions; each other toy env changes one property of it.

    The observation is float32 (4,): the number of steps in this episode, the sum of its actions, a
    random number drawn at the reset, and a random number drawn at this step. With `obs='discrete'` it is
    the number of steps, as an int. The reward is 1.0 per step. An episode terminates at step `length`.

    Only the generator keeps state from one episode to the next, so restoring it is enough to repeat
    an episode. `num_resets` and `num_steps` count calls over the env's life.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        length: int | None = 10,
        *,
        obs: str = "box",
        truncate: bool = False,
        num_actions: int = 2,
        render_mode: str | None = None,
    ) -> None:
        """Make the env.

        Args:
            length: steps per episode; None: episodes never end.
            obs: 'box' or 'discrete'.
            truncate: end episodes by truncation instead of termination.
            num_actions: size of the discrete action space.
            render_mode: accepted because `gymnasium.make` passes it; the env does not render.
        """
        if obs not in ("box", "discrete"):
            raise ValueError(f"obs must be 'box' or 'discrete', got {obs!r}")
        self.length = length
        self.truncate = truncate
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(num_actions)
        if obs == "box":
            self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        else:
            self.observation_space = spaces.Discrete((length or _MANY_STEPS) + 1)
        self.num_resets = 0
        self.num_steps = 0
        self.elapsed_steps = 0
        self.action_sum = 0.0
        self.episode_draw = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; without a seed the generator continues."""
        super().reset(seed=seed)
        self.num_resets += 1
        self.elapsed_steps = 0
        self.action_sum = 0.0
        self.episode_draw = self.np_random.random()
        return self.observe(), self.make_info()

    def step(self, action: Any) -> StepResult:
        """Count one step and add the action to the sum, if it is a number."""
        self.num_steps += 1
        self.elapsed_steps += 1
        if isinstance(action, (int, np.integer)) or (isinstance(action, np.ndarray) and action.size == 1):
            self.action_sum += int(action.item() if isinstance(action, np.ndarray) else action)
        over = self.length is not None and self.elapsed_steps >= self.length
        return self.observe(), 1.0, over and not self.truncate, over and self.truncate, self.make_info()

    def observe(self) -> Any:
        """Return the observation of the current state; draws once from `np_random`."""
        draw = self.np_random.random()
        if isinstance(self.observation_space, spaces.Discrete):
            return self.elapsed_steps
        return np.array([self.elapsed_steps, self.action_sum, self.episode_draw, draw], np.float32)

    def make_info(self) -> dict[str, Any]:
        """Return the info dict of the current state."""
        return {}


class CountEnv(ToyEnv):
    """Count the calls in its observations, so that a lost, repeated or misdirected call is visible.

    The observation is float32 (4,): steps in this episode, episodes since the last seed, that
    seed modulo 65521 (-1 if there was none), and a random number. Info has `steps`, `episode` and
    the full `seed`. The last two keep their values over episodes, unlike the counters of `ToyEnv`.
    """

    def __init__(self, length: int | None = 10, **kwargs: Any) -> None:
        super().__init__(length, **kwargs)
        self.seed_given: int | None = None
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.seed_given = seed
            self.episode = 0
        self.episode += 1
        return super().reset(seed=seed, options=options)

    def observe(self) -> Any:
        obs = super().observe()
        if isinstance(obs, np.ndarray):
            obs[1:3] = self.episode, -1 if self.seed_given is None else self.seed_given % _SEED_MODULUS
        return obs

    def make_info(self) -> dict[str, Any]:
        return {"steps": self.elapsed_steps, "episode": self.episode, "seed": self.seed_given}


# ---- envs of known cost, for benchmarks: all other measured time is that of the library ----------


class NullEnv(ToyEnv):
    """Return one cached tuple at each step, at almost no cost; episodes never end. `info` is that of each step."""

    def __init__(self, length: int | None = None, *, info: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if length is not None:
            raise ValueError("a null env has no state, hence no episode length")
        super().__init__(None, **kwargs)
        self._obs = self.make_obs()
        self._result: StepResult = (self._obs, 1.0, False, False, info or {})

    def make_obs(self) -> Any:
        """Make the observation that all calls return."""
        return np.zeros(4, np.float32) if isinstance(self.observation_space, spaces.Box) else 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            super(ToyEnv, self).reset(seed=seed)
        return self._obs, {}

    def step(self, action: Any) -> StepResult:
        return self._result


class FrameEnv(NullEnv):
    """Return one cached stack of frames, uint8 (4, 84, 84), to measure the cost of copying Atari observations."""

    def make_obs(self) -> Any:
        self.observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
        return np.arange(4 * 84 * 84, dtype=np.uint8).reshape(4, 84, 84)


class BusyEnv(NullEnv):
    """Keep a core busy for `busy_us` microseconds per step, like a simulator of known cost."""

    def __init__(self, busy_us: float = 50.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.busy_us = busy_us
        self._busy_ns = int(busy_us * 1000)

    def step(self, action: Any) -> StepResult:
        clock = time.perf_counter_ns
        end = clock() + self._busy_ns
        while clock() < end:
            pass
        return self._result


class SleepEnv(NullEnv):
    """Sleep at each step for an exponentially distributed time with mean `mean_ms`, like an env behind a network.

    `total_sleep` is the measured total in seconds; a sleep takes longer than requested.
    """

    def __init__(self, mean_ms: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mean_ms = mean_ms
        self.total_sleep = 0.0

    def step(self, action: Any) -> StepResult:
        self.num_steps += 1
        start = time.perf_counter()
        time.sleep(self.np_random.exponential(self.mean_ms) / 1000.0)
        self.total_sleep += time.perf_counter() - start
        return self._result


class FixedSleepEnv(ToyEnv):
    """Sleep for `step_ms` at each step and for `reset_ms` at each reset, like an env behind a network.

    Episodes have from 20 to 30 steps, and never end if a reset takes no time. The episode after a seed has from 1 to
    30 steps, so envs that start together do not reset together.
    """

    def __init__(self, step_ms: float = 1.0, reset_ms: float = 0.0, **kwargs: Any) -> None:
        super().__init__(None, **kwargs)
        self.step_ms = step_ms
        self.reset_ms = reset_ms

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        if self.reset_ms:
            time.sleep(self.reset_ms / 1000.0)
            self.length = int(self.np_random.integers(20 if seed is None else 1, 31))
        return result

    def step(self, action: Any) -> StepResult:
        time.sleep(self.step_ms / 1000.0)
        return super().step(action)
