"""An env of rl_games, with the calls of old Gym and a method `seed`, which rl_games' actors call."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from rl_games.common.gym_compat import make


class SeededCartPole:
    """CartPole-v1 with short episodes, an action mask and weights."""

    def __init__(self, max_episode_steps: int = 20, concat_infos: bool = False) -> None:
        self.env = make("CartPole-v1", max_episode_steps=max_episode_steps)
        space = self.env.observation_space
        self.observation_space = Box(space.low.astype(np.float64), space.high.astype(np.float64), dtype=np.float64)
        self.action_space = self.env.action_space
        self.concat_infos, self.next_seed, self.weights = concat_infos, None, 0

    def seed(self, seed: int) -> None:
        self.next_seed = seed

    def reset(self) -> Any:
        seed, self.next_seed = self.next_seed, None
        return self.env.reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, done, info = self.env.step(action)
        return obs.astype(np.float64), reward, done, info | {"scores": float(obs[0]), "weights": self.weights}

    def get_action_mask(self) -> Any:
        return np.array([[True, self.weights == 0]])

    def update_weights(self, weights: int) -> None:
        self.weights = weights

    def close(self) -> None:
        self.env.close()
