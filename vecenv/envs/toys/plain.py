"""Toy envs without faults, whose observations depend on their seed and on all calls made."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

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
