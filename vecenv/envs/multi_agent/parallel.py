"""Parts that the adapters for PettingZoo's envs have in common: detection, conversion, spaces and missing agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import create_empty_array, iterate
from numpy.typing import NDArray

from vecenv.errors import ConfigError, SpaceError, require
from vecenv.values.checks import is_pettingzoo_env

__all__ = [
    "AgentEnv",
    "alive_agents",
    "as_parallel",
    "common_space",
    "ends_of",
    "has_ended",
    "is_turn_based",
    "own_seed",
    "rewards_of",
    "zero_of",
]


class AgentEnv(gymnasium.Env[Any, Any]):
    """An env of PettingZoo as one env: the parts that `JointEnv` and `TurnEnv` have in common.

    Attributes:
        agent_env: the env of PettingZoo.
        agents: names of the A agents, `possible_agents`.
        has_begun: whether it has been reset.
    """

    def __init__(self, env: Any, rewards: str) -> None:
        """Adapt an env; with the rewards 'each' the reward is an array float32 (A,)."""
        self.agent_env = env
        self.agents = tuple(env.possible_agents)
        self.metadata = dict(env.metadata)
        self.render_mode = getattr(env.unwrapped, "render_mode", None)
        self.has_begun = False
        self._has_each = rewards == "each"
        if self._has_each:
            self.reward_space = spaces.Box(-np.inf, np.inf, (len(self.agents),), np.float32)

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the env of PettingZoo; return the result."""
        begun = self.agent_env.reset(seed=own_seed(self, seed), options=options)
        self.has_begun = True
        return begun

    def render(self) -> Any:
        return self.agent_env.render()

    def close(self) -> None:
        self.agent_env.close()


def is_turn_based(env: Any) -> bool:
    """Return whether an env of PettingZoo is an AECEnv, whose agents act one after the other."""
    return hasattr(env, "agent_iter")


def as_parallel(env: Any) -> Any:
    """Return a ParallelEnv of PettingZoo; an AECEnv is converted by `aec_to_parallel` if its metadata allows that.

    Raises:
        TypeError: the object is not an env of PettingZoo.
        ConfigError: the agents must take turns.
        DependencyError: PettingZoo, which converts AECEnvs, is not installed.
    """
    if not (is_pettingzoo_env(env) and hasattr(env, "possible_agents")):
        raise TypeError(f"expected an env of PettingZoo, got {type(env).__name__}")
    if not is_turn_based(env):
        return env
    if not env.metadata.get("is_parallelizable", False):
        raise ConfigError(
            f"{env}: its agents take turns and cannot act at the same time (its metadata has no is_parallelizable); "
            "wrap it in vecenv.integrations.pettingzoo.TurnEnv"
        )
    return require("pettingzoo.utils.conversions", "pettingzoo").aec_to_parallel(env)


def common_space(env: Any, name: str) -> Space[Any]:
    """Return the 'observation_space' or 'action_space' that all agents have; SpaceError if those of two differ."""
    first, *others = env.possible_agents
    space: Space[Any] = getattr(env, name)(first)
    for agent in others:
        other = getattr(env, name)(agent)
        if other != space:
            wrapper = "pad_observations_v0" if name == "observation_space" else "pad_action_space_v0"
            raise SpaceError(
                f"{name} of agent {agent!r} is {other}, that of agent {first!r} is {space}; rows need equal spaces: "
                f"wrap the env in supersuit.{wrapper}, or use vecenv.integrations.pettingzoo.JointEnv",
                path=name,
            )
    return space


def zero_of(space: Space[Any]) -> Any:
    """Return the value of zeros that stands for a missing agent."""
    return next(iter(iterate(gymnasium.vector.utils.batch_space(space, 1), create_empty_array(space, 1, np.zeros))))


def rewards_of(agents: Iterable[Any], rewards: Mapping[Any, Any]) -> NDArray[np.float32]:
    """Return the rewards of agents in this order, 0 for agents without one."""
    return np.array([rewards.get(agent, 0) for agent in agents], np.float32)


def alive_agents(env: Any, agents: Iterable[Any]) -> NDArray[np.bool_]:
    """Return for each of these agents whether it is in the env, so that it acts in the next step."""
    living = set(env.agents)
    return np.array([agent in living for agent in agents], np.bool_)


def has_ended(env: Any, terminations: Mapping[Any, Any], truncations: Mapping[Any, Any]) -> bool:
    """Return whether the episode is over: each agent in the result of a step has ended, or no agent is left."""
    return not env.agents or all(terminations[agent] or truncations.get(agent, False) for agent in terminations)


def ends_of(is_over: bool, terminations: Mapping[Any, Any], truncations: Mapping[Any, Any]) -> tuple[bool, bool]:
    """Return whether the episode of all agents is terminated, and truncated, from the flags of the last agents."""
    is_truncated = is_over and any(truncations.values())
    return is_over and (any(terminations.values()) or not is_truncated), is_truncated


def own_seed(env: Any, seed: int | None) -> int | None:
    """Return the seed for a reset: a drawn one for the first reset without a seed, so that it can be repeated.

    The engine replaces the generator of an env that has none (see `first_seeds`); the envs of PettingZoo have theirs
    in attributes without a common name, so they get its seed. `env` is the adapter, with the attribute `has_begun`.
    """
    if seed is not None or env.has_begun:
        return seed
    drawn: int = env.np_random_seed
    return drawn if 0 <= drawn < 2**32 else int(env.np_random.integers(2**31))
