"""Parts that the adapters for PettingZoo's envs have in common: detection, conversion, spaces and missing agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import create_empty_array, iterate
from numpy.typing import NDArray

from vecenv.errors import ConfigError, SpaceError, require
from vecenv.values.checks import is_pettingzoo_env

__all__ = [
    "as_parallel",
    "common_space",
    "ends_of",
    "has_ended",
    "is_turn_based",
    "own_seed",
    "rewards_of",
    "zero_of",
]


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
