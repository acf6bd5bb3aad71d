"""An env with episodes of four steps, whose constructors and workers fail in tests of faults."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class FourStepEnv(gymnasium.Env[Any, Any]):
    """Observes the number of its steps; its rewards are random."""

    observation_space, action_space = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)

    def __init__(self) -> None:
        self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.num_steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        return np.full(1, self.num_steps, np.float32), self.reward(action), self.num_steps == 4, False, {}

    def reward(self, action: Any) -> float:
        """Return the reward of a step."""
        return float(self.np_random.random())
