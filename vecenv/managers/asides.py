"""Asides: what an env gives and no row can hold goes beside it, in the info, and is put back here.

env -> ManagedEnv: row, and the rest under keys of our own in the info -> Blanks -> as the env gave it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..envs.adapt import AGENTS, is_abnormal

__all__ = ["ABNORMAL", "AGENTS", "abnormal_values", "add_to_info", "infos_of_agents"]

#: Info key under which an abnormal timestep's own (obs, reward, terminated, truncated) travel.
ABNORMAL = "vecenv.abnormal"

_FLAGS = ("terminated", "truncated", "TimeLimit.truncated")


def abnormal_values(info: dict[str, Any]) -> tuple[Any, Any, bool] | None:
    """Return observation, reward and end of an abnormal timestep as its env gave them, if they are not in the row."""
    own = info.pop(ABNORMAL, None)
    if own is None:
        return None
    obs, reward, terminated, truncated = own
    return obs, reward, bool(terminated or truncated)


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
