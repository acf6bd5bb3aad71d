"""Side values: values of an env that its row cannot hold. They travel in the info and are put back by the manager.

env -> EnvDriver: row, and side values under keys of our own in the info -> TimestepBuffers -> timestep
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..envs.step_formats import AGENTS, is_abnormal

__all__ = [
    "ABNORMAL",
    "AGENTS",
    "REWARD",
    "AgentInfos",
    "abnormal_values",
    "add_to_info",
    "infos_of_agents",
    "move_reward_to_info",
]

#: Info key of (obs, reward, terminated, truncated) of an abnormal timestep, as the env returned them.
ABNORMAL = "vecenv.abnormal"

#: Info key of a reward that its row would change.
REWARD = "vecenv.reward"

_FLAGS = ("terminated", "truncated", "TimeLimit.truncated")


def abnormal_values(info: dict[str, Any]) -> tuple[Any, Any, bool] | None:
    """Remove the side values of an abnormal timestep from its info.

    Returns:
        (obs, reward, done) as the env returned them; None if they are in the row.
    """
    own = info.pop(ABNORMAL, None)
    if own is None:
        return None
    obs, reward, terminated, truncated = own
    return obs, reward, bool(terminated or truncated)


def move_reward_to_info(result: Any) -> Any:
    """Return the five values of a step with the reward in the info, unless it is a float32 array (1,).

    The row gets a number: the reward if it is one number, else 0.0. A result of another form is returned as it is;
    the worker raises an error for it.
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


class AgentInfos:
    """The form of the infos of envs that return a sequence of infos, one per agent.

    Args:
        forms: those of another object, by env_id: whether it is a tuple, and the number of agents.
    """

    def __init__(self, forms: dict[int, tuple[bool, int]] | None = None) -> None:
        self.forms = forms or {}

    def restore(self, ids: list[int], infos: list[Any], put_info: Callable[[int, Any], None]) -> None:
        """Make sequences of the infos of a step that came as sequences, and of infos of lost episodes of such envs.

        Args:
            ids: the env of each row.
            infos: the info of each row.
            put_info: called with a row and its new info.
        """
        for row, info in enumerate(infos):
            if AGENTS in info:
                self.forms[ids[row]] = info[AGENTS], len(info["agent_infos"])
                put_info(row, infos_of_agents(info))
            elif info.get("recovered") == "truncated" and ids[row] in self.forms:
                put_info(row, self.in_form_of(ids[row], info))

    def in_form_of(self, env_id: int, info: dict[str, Any]) -> Any:
        """Return an info that the env did not return itself, in the form of the env's other infos."""
        if env_id not in self.forms:
            return info
        is_tuple, count = self.forms[env_id]
        return infos_of_agents({**info, AGENTS: is_tuple, "agent_infos": [{}] * count})


def infos_of_agents(info: dict[str, Any]) -> Any:
    """Return the list or tuple of infos, one per agent, as the env returned it.

    All other items of `info` are added to each agent's dict that lacks them. The items that say how an episode
    ended are added only at its end.

    Args:
        info: has the key `AGENTS`; two of its keys are removed.
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
    """Add an item to an info, or to each agent's info, where the key is missing."""
    for own in [info] if isinstance(info, dict) else info:
        if isinstance(own, dict):
            own.setdefault(key, value)
