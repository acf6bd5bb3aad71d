"""An env whose rewards have two numbers, bare and behind wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 3


class TwoGoals(gymnasium.Env[Any, Any]):
    """Rewards (t, -2 t) at step t; episodes of `length` steps, or without an end of their own."""

    observation_space, action_space = spaces.Box(-1e9, 1e9, (1,), np.float64), spaces.Discrete(2)

    def __init__(self, length: int | None = LENGTH) -> None:
        self.reward_space = spaces.Box(-10, 10, (2,), np.float32)
        self.length, self.t = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, float(self.t)), np.array([self.t, -2 * self.t], np.float32), self.t == self.length, False, {}


def limited(length: int = LENGTH) -> Any:
    return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.OrderEnforcing(TwoGoals(None)), length)


def sums(length: int = LENGTH) -> list[float]:
    total = length * (length + 1) / 2
    return [total, -2 * total]


def policy(obs: Any, env_id: Any) -> Any:
    return np.zeros(len(env_id), np.int64)
