"""Toy envs of known cost, for benchmarks: all other measured time is that of the library."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gymnasium import spaces

from .plain import StepResult, ToyEnv


class NullEnv(ToyEnv):
    """Return one cached tuple at each step, at almost no cost; episodes never end."""

    def __init__(self, length: int | None = None, **kwargs: Any) -> None:
        if length is not None:
            raise ValueError("a null env has no state, hence no episode length")
        super().__init__(None, **kwargs)
        self._obs = self.make_obs()
        self._result: StepResult = (self._obs, 1.0, False, False, {})

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
