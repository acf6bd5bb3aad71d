"""Envs whose every answer is written down, for tests of wrappers and adapters."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from vecenv.envs.base import BaseEnv, BaseEnvTimestep


class Scripted(gymnasium.Env[Any, Any]):
    """Plays `observations` (the first from reset) and `rewards`; ends after the last one.

    Records the actions, the seeds and the options it was given.
    """

    def __init__(self, observations, rewards=None, *, space=None, actions=None, truncate=False, meanings=None):
        self.observations = list(observations)
        self.rewards = [1.0] * len(self.observations) if rewards is None else list(rewards)
        self.observation_space = space or spaces.Box(-np.inf, np.inf, np.shape(self.observations[0]), np.float32)
        self.action_space = actions or spaces.Discrete(6)
        self.truncate = truncate
        self.meanings = meanings or ["NOOP", "FIRE", "RIGHT", "LEFT"]
        self.actions, self.seeds, self.options = [], [], []
        self.step_count = 0

    def get_action_meanings(self):
        return self.meanings

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.options.append(options)
        self.step_count = 0
        return self.observations[0], {}

    def step(self, action):
        self.actions.append(action)
        self.step_count += 1
        end = self.step_count >= len(self.observations) - 1
        reward = self.rewards[self.step_count - 1]
        obs = self.observations[self.step_count]
        return obs, reward, end and not self.truncate, end and self.truncate, {}


def numbers_env(length=10, **kwargs):
    """Give an env that observes [0.], [1.], ... over `length` steps."""
    return Scripted([np.array([float(i)], np.float32) for i in range(length + 1)], **kwargs)


class Plain:
    """Not a gymnasium.Env: old Gym's calls, four values, `seed`."""

    def __init__(self, length=3, timeout=False):
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.timeout = length, timeout
        self.seeds = []
        self.count = 0
        self.flavour = "vanilla"
        self.closed = False

    def seed(self, seed):
        self.seeds.append(seed)

    def reset(self):
        self.count = 0
        return np.zeros(1, np.float32)

    def step(self, action):
        self.count += 1
        done = self.count >= self.length
        info = {"TimeLimit.truncated": True} if done and self.timeout else {}
        return np.zeros(1, np.float32), 1.0, done, info

    def close(self):
        self.closed = True


class Ding(BaseEnv):
    """A BaseEnv as the migration guide has them: spaces in the constructor, env made at the first reset."""

    config = {"length": 3}

    def __init__(self, cfg=None):
        self._cfg = {**self.config, **(cfg or {})}
        self.observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.reward_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self._count = 0
        self._seed = None

    def seed(self, seed, dynamic_seed=True):
        self._seed, self._dynamic_seed = seed, dynamic_seed

    def reset(self, **kwargs):
        self.reset_kwargs = kwargs
        self._count = 0
        return np.zeros(2, np.float32)

    def step(self, action):
        self.action = action
        self._count += 1
        done = self._count >= self._cfg["length"]
        info = {"eval_episode_return": float(self._count)} if done else {}
        return BaseEnvTimestep(np.ones(2, np.float32), np.ones(1, np.float32), done, info)

    def close(self):
        pass
