"""Asides: what an env gives and no row can hold goes beside it, in the info, and is put back here.

env -> ManagedEnv: row, and the rest under keys of our own in the info -> TimestepBuffers -> as the env gave it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..envs.step_formats import AGENTS, is_abnormal

__all__ = ["ABNORMAL", "AGENTS", "REWARD", "abnormal_values", "add_to_info", "infos_of_agents", "move_reward_to_info"]

#: Info key under which an abnormal timestep's own (obs, reward, terminated, truncated) travel.
ABNORMAL = "vecenv.abnormal"

#: Info key under which a reward travels that its row would not give back as it is.
REWARD = "vecenv.reward"

_FLAGS = ("terminated", "truncated", "TimeLimit.truncated")


def abnormal_values(info: dict[str, Any]) -> tuple[Any, Any, bool] | None:
    """Return observation, reward and end of an abnormal timestep as its env gave them, if they are not in the row."""
    own = info.pop(ABNORMAL, None)
    if own is None:
        return None
    obs, reward, terminated, truncated = own
    return obs, reward, bool(terminated or truncated)


def move_reward_to_info(result: Any) -> Any:
    """Give a step's five values with the reward in the info, as it is, unless it is a float32 array (1,).

    In its place is a number: the reward itself if it is one, else 0.0. What is no five-tuple is the host's to refuse.
    """
    if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)):
        return result
    obs, reward, terminated, truncated, info = result
    if type(reward) is np.ndarray and reward.shape == (1,) and reward.dtype == np.float32:
        return result
    return obs, _number(reward), terminated, truncated, {**info, REWARD: reward}


def _number(reward: Any) -> float:
    try:
        array = np.asarray(reward, np.float64)
    except (TypeError, ValueError):
        return 0.0
    return float(array.reshape(())) if array.size == 1 else 0.0


def infos_of_agents(info: dict[str, Any]) -> Any:
    """Return the sequence of infos, one per agent, as the env gave it: a list or a tuple, with dicts of its own.

    What else the info says goes into each of these dicts that does not say it itself, how the episode ended among
    it. Before its end there is nothing to say of that.

    Args:
        info: with the key `AGENTS`; it is used up.
    """
    is_tuple = bool(info.pop(AGENTS))
    agents = [dict(part) if isinstance(part, Mapping) else part for part in info.pop("agent_infos")]
    is_end = bool(info.get("terminated") or info.get("truncated"))
    is_theirs = is_abnormal(agents)
    for key, value in info.items():
        if (is_end or key not in _FLAGS) and not (key == "abnormal" and is_theirs):
            add_to_info(agents, key, value)
    return tuple(agents) if is_tuple else agents


def add_to_info(info: Any, key: str, value: Any) -> None:
    """Say something in an info, or in each agent's, that says nothing of it itself."""
    for own in [info] if isinstance(info, dict) else info:
        if isinstance(own, dict):
            own.setdefault(key, value)
