"""Two toy envs with unusual spaces: two agents in one env, and actions that are a choice with parameters."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenv.config import deep_merge_dicts
from vecenv.envs.base import BaseEnv, BaseEnvTimestep
from vecenv.envs.seeding import EpisodeSeeds
from vecenv.errors import ConfigError, StateError
from vecenv.registry import ENV_REGISTRY
from vecenv.values.checks import check_choice, check_whole
from vecenv.values.nested import map_structure

__all__ = [
    "HybridEnv",
    "TwoAgentEnv",
]

FORMS = ("tuple", "dict", "stack")
AGENTS = ("left", "right")
STEP_COST = 0.01


@ENV_REGISTRY.register("two_agents")
class TwoAgentEnv(BaseEnv):
    """Two agents walk to a flag between them; the first to arrive gets 1, each step costs 0.01.

    Each agent observes float32 (3,): its own distance to the flag, the other agent's, and whether it has
    arrived. The actions are 0 (away), 1 (stay) and 2 (towards). An agent that has arrived stays there.
    `info['agent_done']`, bool (2,), contains True for each agent that has arrived. The episode terminates when
    both have arrived, and is truncated after `max_steps`.

    Config keys:
    `mode`: 'double' (both agents are controlled; reward (2,)) or 'single' (only 'left' is controlled and 'right'
    always walks towards the flag; the observation and action of one agent, reward (1,)).
    `form`, the form of observations and actions in mode 'double': 'tuple', 'dict' by agent name, or 'stack'
    (obs (2, 3), actions MultiDiscrete).
    `size`: the largest distance. `max_steps`: steps per episode.

    Example:
        >>> env = TwoAgentEnv({"form": "dict"})
        >>> env.seed(0)
        >>> sorted(env.reset())
        ['left', 'right']
        >>> env.step({"left": 2, "right": 1}).info["agent_done"].tolist()
        [False, False]
    """

    config: ClassVar[dict[str, Any]] = {"mode": "double", "form": "tuple", "size": 6, "max_steps": 30}

    def __init__(self, cfg: dict[str, Any] | None = None) -> None:
        """Store the configuration; ConfigError if the mode or form is unknown, or the size is below 2."""
        self._cfg = deep_merge_dicts(self.config, dict(cfg or {}))
        if self._cfg.mode not in ("single", "double"):
            raise ConfigError(f"mode: expected 'single' or 'double', got {self._cfg.mode!r}", key="mode")
        check_choice("form", self._cfg.form, FORMS)
        check_whole("size", self._cfg.size, 2)
        self._seeds = EpisodeSeeds()
        self._generator = np.random.default_rng()
        self._distances: Any = None
        self._returns = np.zeros(2)
        self._steps = 0
        self._set_spaces()

    def _set_spaces(self) -> None:
        size = self._cfg.size
        one_obs = spaces.Box(0.0, np.array([size, size, 1], np.float32), dtype=np.float32)
        one_action = spaces.Discrete(3)
        single = self._cfg.mode == "single"
        self.reward_space = spaces.Box(-STEP_COST, 1.0, (1 if single else 2,), np.float32)
        pair: Any  # the spaces of observations and actions
        if single:
            pair = one_obs, one_action
        elif self._cfg.form == "tuple":
            pair = spaces.Tuple([one_obs, one_obs]), spaces.Tuple([one_action, one_action])
        elif self._cfg.form == "dict":
            pair = spaces.Dict(dict.fromkeys(AGENTS, one_obs)), spaces.Dict(dict.fromkeys(AGENTS, one_action))
        else:
            high = np.stack([one_obs.high] * 2)
            pair = spaces.Box(0.0, high, dtype=np.float32), spaces.MultiDiscrete([3, 3])
        self.observation_space, self.action_space = pair

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        super().seed(seed, dynamic_seed)
        self._seeds.seed(seed, dynamic_seed)

    def reset(self) -> Any:  # type: ignore[override]  # BaseEnv's signature
        """Place both agents at random distances from the flag; return the observation."""
        seed = self._seeds.advance()
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        self._distances = self._generator.integers(1, self._cfg.size + 1, size=2)
        self._returns = np.zeros(2)
        self._steps = 0
        return self._observe()

    def step(self, action: Any) -> BaseEnvTimestep:  # type: ignore[override]  # BaseEnv's signature
        """Move both agents; StateError if called before a reset."""
        if self._distances is None:
            raise StateError("step of TwoAgentEnv before a reset")
        arrived = self._distances == 0
        moves = np.where(arrived, 0, np.array(self._moves(action)) - 1)
        self._distances = np.clip(self._distances - moves, 0, self._cfg.size)
        self._steps += 1
        done = self._distances == 0
        rewards = np.where(arrived, 0.0, -STEP_COST)
        if not arrived.any():
            rewards = np.where(done, 1.0, rewards)
        self._returns = self._returns + rewards
        terminated = bool(done.all())
        truncated = not terminated and self._steps >= self._cfg.max_steps
        info: dict[str, Any] = {"agent_done": done.copy(), "terminated": terminated, "truncated": truncated}
        single = self._cfg.mode == "single"
        if terminated or truncated:
            info["eval_episode_return"] = float(self._returns[0] if single else self._returns.sum())
        reward = (rewards[:1] if single else rewards).astype(np.float32)
        return BaseEnvTimestep(self._observe(), reward, terminated or truncated, info)

    def _moves(self, action: Any) -> list[int]:
        if self._cfg.mode == "single":
            return [int(np.asarray(action).item()), 2]
        parts = [action[name] for name in AGENTS] if self._cfg.form == "dict" else list(action)
        return [int(np.asarray(part).item()) for part in parts]

    def _observe(self) -> Any:
        near, far = (int(distance) for distance in self._distances)
        left = np.array([near, far, near == 0], np.float32)
        right = np.array([far, near, far == 0], np.float32)
        if self._cfg.mode == "single":
            return left
        if self._cfg.form == "dict":
            return {"left": left, "right": right}
        return (left, right) if self._cfg.form == "tuple" else np.stack([left, right])

    def random_action(self) -> Any:
        """Return a random action in the env's form; each part is int64 of shape (1,)."""
        return map_structure(lambda part: np.atleast_1d(np.asarray(part, np.int64)), self.action_space.sample())

    def close(self) -> None:
        self._distances = None


class HybridEnv(gymnasium.Env[Any, Any]):
    """A point drives to the origin; each action is a choice (accelerate, turn, brake) with two parameters.

    Actions are Tuple(Discrete(3), Box [0, 1] x [-1, 1]). Accelerate uses the first parameter, turn uses the
    second, brake uses neither. Observations are float32 (5,): x, y, speed, cosine and sine of the heading. The
    reward is the decrease of the distance to the origin, plus 1 on arrival. Truncated after `max_steps`.

    Example:
        >>> env = HybridEnv()
        >>> obs, info = env.reset(seed=1)
        >>> obs, reward, terminated, truncated, info = env.step((0, np.array([1.0, 0.0], np.float32)))
        >>> obs.shape, terminated
        ((5,), False)
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, max_steps: int = 100) -> None:
        self.max_steps = max_steps
        high = np.array([4.0, 4.0, 1.0, 1.0, 1.0], np.float32)
        self.observation_space = spaces.Box(np.array([-4.0, -4.0, 0.0, -1.0, -1.0], np.float32), high)
        parameters = spaces.Box(np.array([0.0, -1.0], np.float32), np.array([1.0, 1.0], np.float32))
        self.action_space = spaces.Tuple([spaces.Discrete(3), parameters])
        self._place: NDArray[np.float64] = np.zeros(2)
        self._speed = self._heading = 0.0
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Place the point at a random position with a random heading and speed 0."""
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-2.0, 2.0, size=2)
        self._heading = float(self.np_random.uniform(-np.pi, np.pi))
        self._speed = 0.0
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply the action, then move for 0.1 seconds."""
        choice, parameters = int(action[0]), np.asarray(action[1], np.float64)
        if choice == 0:
            self._speed = min(1.0, self._speed + 0.2 * float(parameters[0]))
        elif choice == 1:
            self._heading += 0.5 * float(parameters[1])
        else:
            self._speed = max(0.0, self._speed - 0.2)
        before = float(np.hypot(*self._place))
        ahead = np.array([np.cos(self._heading), np.sin(self._heading)])
        self._place = np.clip(self._place + 0.1 * self._speed * ahead, -4.0, 4.0)
        after = float(np.hypot(*self._place))
        self._steps += 1
        arrived = after < 0.2
        reward = before - after + float(arrived)
        return self._observe(), reward, arrived, self._steps >= self.max_steps, {}

    def _observe(self) -> Any:
        heading = np.cos(self._heading), np.sin(self._heading)
        return np.array([*self._place, self._speed, *heading], np.float32)
