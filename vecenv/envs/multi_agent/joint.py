"""JointEnv: a ParallelEnv of PettingZoo as one env, whose action contains the actions of all agents."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from ...values.checks import check_choice
from .parallel import AgentEnv, alive_agents, as_parallel, common_space, ends_of, has_ended, rewards_of, zero_of

__all__ = ["JointEnv"]


class JointEnv(AgentEnv):
    """All agents of a PettingZoo env as one env, for `VectorEnv`, the managers and `SB3VecEnv`.

    Each step takes an action of every agent; those of agents that are not in the env are ignored. The observation of
    such an agent is zeros. `info["alive"]`, bool (A,), is True for the agents that act in the next step. Infos of
    agents are in `info["agent_infos"]`, a dict by agent, if one is not empty. The episode ends when all agents have
    ended. It is terminated if one of the last agents was terminated, truncated if one was truncated.

    Example:
        >>> import vecenv
        >>> from pettingzoo.classic.rps import rps
        >>> envs = vecenv.VectorEnv([lambda: JointEnv(rps.parallel_env())] * 4, backend="serial")
        >>> obs, infos = envs.reset(seed=0)
        >>> obs, rewards, *_ = envs.step({"player_0": [0, 1, 2, 0], "player_1": [2, 2, 2, 2]})
        >>> obs["player_1"].tolist(), rewards.tolist(), infos["alive"].shape
        ([0, 1, 2, 0], [0.0, 0.0, 0.0, 0.0], (4, 2))
        >>> envs.close()
    """

    def __init__(self, env: Any, *, form: str = "dict", rewards: str = "sum") -> None:
        """Adapt an env.

        Args:
            env: a ParallelEnv, or an AECEnv that can be converted; errors as `as_parallel`.
            form: 'dict' (default): observations and actions are dicts by agent. 'stack': one array, for agents with
                equal spaces (else SpaceError). Observations have shape (A, *S); discrete actions become MultiDiscrete
                of A numbers.
            rewards: 'sum' (default): the reward is the sum of the agents' rewards. 'each': it is an array float32 (A,),
                and `VectorEnv` returns rewards (N, A). ConfigError is raised for other values, and other forms.
        """
        check_choice("form", form, ("dict", "stack"))
        check_choice("rewards", rewards, ("sum", "each"))
        env = as_parallel(env)
        super().__init__(env, rewards)
        self._is_stacked = form == "stack"
        if self._is_stacked:
            self._one_space = common_space(env, "observation_space")
            self.observation_space = batch_space(self._one_space, len(self.agents))
            self.action_space = batch_space(common_space(env, "action_space"), len(self.agents))
        else:
            self.observation_space = spaces.Dict([(agent, env.observation_space(agent)) for agent in self.agents])
            self.action_space = spaces.Dict([(agent, env.action_space(agent)) for agent in self.agents])
        self._absent = {agent: zero_of(env.observation_space(agent)) for agent in self.agents}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observations, infos = self._begin(seed, options)
        return self._join(observations), self._join_infos(infos)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        env = self.agent_env
        parts = dict(zip(self.agents, iterate(self.action_space, action))) if self._is_stacked else action
        acting = set(env.agents)
        given = {agent: parts[agent] for agent in self.agents if agent in acting}
        observations, reward_of, terminated, truncated, infos = env.step(given)
        each = rewards_of(self.agents, reward_of)
        is_over = has_ended(env, terminated, truncated)
        reward = each if self._has_each else float(each.sum())
        ends = ends_of(is_over, terminated, truncated)
        return self._join(observations), reward, *ends, self._join_infos(infos)

    def _join(self, observations: dict[Any, Any]) -> Any:
        full = {agent: observations.get(agent, self._absent[agent]) for agent in self.agents}
        if not self._is_stacked:
            return full
        rows: Any = create_empty_array(self._one_space, len(self.agents))
        return concatenate(self._one_space, list(full.values()), rows)

    def _join_infos(self, infos: dict[Any, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"alive": alive_agents(self.agent_env, self.agents)}
        if any(infos.values()):
            found["agent_infos"] = {agent: info for agent, info in infos.items() if info}
        return found
