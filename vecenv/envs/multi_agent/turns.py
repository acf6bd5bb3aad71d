"""TurnEnv: an AECEnv of PettingZoo as one env, whose step is the move of the agent to move."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from gymnasium import spaces

from ...errors import SpaceError
from ...values.checks import check_choice, is_pettingzoo_env
from .parallel import AgentEnv, common_space, ends_of, is_turn_based, rewards_of

__all__ = ["TurnEnv"]


class TurnEnv(AgentEnv):
    """The moves of all agents of an AECEnv, one per step, for `VectorEnv`, the managers and `SB3VecEnv`.

    Observations are dicts with these keys:
        observation: the env's observation for the agent to move.
        agent: the number of that agent in `agents`.
        action_mask: int8 (num_actions,), 1 for each legal action; only with discrete actions. The env has it in its
            observation or in its infos; otherwise it is all ones.

    The infos of the agent to move are the infos. Agents that have ended get no more moves. The episode ends when all
    agents have ended. It is terminated if one of the last agents was terminated, truncated if one was truncated.

    Example:
        >>> from pettingzoo.classic.tictactoe import tictactoe
        >>> env = TurnEnv(tictactoe.env())
        >>> obs, info = env.reset(seed=0)
        >>> for action in (0, 3, 1, 4, 2):
        ...     obs, reward, terminated, truncated, info = env.step(action)
        >>> reward, terminated, obs["action_mask"].tolist()
        (1.0, True, [0, 0, 0, 0, 0, 1, 1, 1, 1])
    """

    def __init__(self, env: Any, *, rewards: str = "own") -> None:
        """Adapt an env.

        Args:
            env: an AECEnv whose agents have equal spaces.
            rewards: 'own' (default): the reward is that of the agent that has moved, for this move. Rewards that other
                agents get at the same time are left out. 'each': an array float32 (A,) of the rewards of all agents,
                and `VectorEnv` returns rewards (N, A).

        Raises:
            SpaceError: the spaces of the agents differ.
            ConfigError: `rewards` is wrong.
            TypeError: the object is not an AECEnv.
        """
        check_choice("rewards", rewards, ("own", "each"))
        if not (is_pettingzoo_env(env) and is_turn_based(env)):
            raise TypeError(f"expected an AECEnv of PettingZoo, got {type(env).__name__}")
        super().__init__(env, rewards)
        space, self.action_space = common_space(env, "observation_space"), common_space(env, "action_space")
        self._has_own_mask = isinstance(space, spaces.Dict) and {"observation", "action_mask"} <= space.spaces.keys()
        shown: Any = cast(spaces.Dict, space)["observation"] if self._has_own_mask else space
        parts: dict[str, Any] = {"observation": shown, "agent": spaces.Discrete(len(self.agents))}
        if isinstance(self.action_space, spaces.Discrete):
            parts["action_mask"] = spaces.Box(0, 1, (int(self.action_space.n),), np.int8)
        elif self._has_own_mask:
            raise SpaceError(f"the env has an action mask; it needs Discrete actions, not {self.action_space}")
        self.observation_space = spaces.Dict(list(parts.items()))
        self._obs: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; return the observation of the agent that moves first."""
        self._begin(seed, options)
        return self._observe()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        env = self.agent_env
        mover = env.agent_selection
        env.step(action)
        each = rewards_of(self.agents, env.rewards)
        reward = each if self._has_each else float(each[self.agents.index(mover)])
        is_over = all(map(self._has_ended, env.agents))
        ends = ends_of(is_over, env.terminations, env.truncations)
        while not is_over and self._has_ended(env.agent_selection):
            env.step(None)  # removes an agent that has ended
        obs, info = self._observe()
        return obs, reward, *ends, info

    def _has_ended(self, agent: Any) -> bool:
        return bool(self.agent_env.terminations[agent] or self.agent_env.truncations[agent])

    def _observe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the observation and the infos of the agent to move; if no agent is left, the last ones again."""
        env = self.agent_env
        if not env.agents:
            return self._obs, {}
        agent = env.agent_selection
        observation, info = env.observe(agent), dict(env.infos.get(agent, {}))
        mask = info.pop("action_mask", None)
        if self._has_own_mask:
            observation, mask = observation["observation"], observation["action_mask"]
        self._obs = {"observation": observation, "agent": self.agents.index(agent)}
        if isinstance(self.action_space, spaces.Discrete):
            legal = np.ones(self.action_space.n) if mask is None else mask
            self._obs["action_mask"] = np.asarray(legal, np.int8)
        return self._obs, info

    def action_masks(self) -> Any:
        """Return the mask of legal actions, bool (num_actions,), as `MaskablePPO` of sb3-contrib asks for it."""
        return self._obs["action_mask"].astype(np.bool_)
