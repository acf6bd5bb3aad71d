"""Results of steps and resets in old dialects, read as five-tuples, and the way back to DI-engine's timesteps.

(obs, reward, done, info)      done, info['truncated'], infos of agents --> (obs, reward, terminated, truncated, info)
obs, or (obs, info)            the observation space decides            --> (obs, info)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.envs.base import BaseEnvTimestep

FiveTuple = tuple[Any, Any, bool, bool, dict[str, Any]]

#: Info key that says, where it is asked for, that the env gave a sequence of infos: True a tuple, False a list.
AGENTS = "vecenv.agents"


def split_reset(result: Any, space: spaces.Space[Any] | None) -> tuple[Any, dict[str, Any]] | None:
    """Give (obs, info) if a reset's result is that pair, None if it is a bare observation.

    A pair whose second part is a dict may be either; the observation space decides, if it holds the whole.
    """
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        if isinstance(space, spaces.Tuple) and space.contains(result):
            return None
        return result
    return None


def step_reader(result: Any, *, notes_agents: bool = False) -> Callable[[Any], FiveTuple]:
    """Give the function that turns results of this one's form into five-tuples.

    Args:
        result: of a step.
        notes_agents: as of `AdaptedEnv`.

    Raises:
        TypeError: the form is unknown.
    """
    if isinstance(result, tuple) and len(result) == 5:
        return _read_five
    if isinstance(result, (tuple, list)) and len(result) == 4:
        return functools.partial(_read_four, notes_agents=True) if notes_agents else _read_four
    length = f" of {len(result)}" if isinstance(result, (tuple, list)) else ""
    raise TypeError(
        f"step: expected (obs, reward, done, info) or (obs, reward, terminated, truncated, info), "
        f"got {type(result).__name__}{length}"
    )


def _read_five(result: Any) -> FiveTuple:
    obs, reward, terminated, truncated, info = result
    return obs, reward, _is_done(terminated), _is_done(truncated), info


def _read_four(result: Any, notes_agents: bool = False) -> FiveTuple:
    obs, reward, done, given = result
    info = _info_dict(given)
    if notes_agents and isinstance(given, (list, tuple)):
        info[AGENTS] = isinstance(given, tuple)
    terminated, truncated = read_flags(done, info)
    info["terminated"], info["truncated"] = terminated, truncated
    info["TimeLimit.truncated"] = truncated and not terminated
    if obs is None:
        info["abnormal"] = True
    return obs, reward, terminated, truncated, info


def _info_dict(info: Any) -> dict[str, Any]:
    """Give a dict of our own to write in; a list of infos, one per agent, goes under `agent_infos`."""
    if isinstance(info, Mapping):
        return dict(info)
    if info is None:
        return {}
    if isinstance(info, (list, tuple)):
        merged: dict[str, Any] = {"agent_infos": list(info)}
        if is_abnormal(info):
            merged["abnormal"] = True
        return merged
    raise TypeError(f"info: expected a dict or a list of dicts, got {type(info).__name__}: {info!r}")


def _parse_flag(value: Any) -> bool | None:
    """Read a flag, or several that count as set when all are; None for what is no flag, and for none at all."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, Mapping):
        return _parse_flag(value["__all__"] if "__all__" in value else list(value.values()))
    if isinstance(value, (list, tuple)):
        flags = [_parse_flag(part) for part in value]
        return None if not flags or None in flags else all(flags)
    if isinstance(value, (int, float)) or hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.size and array.dtype.kind in "biuf":
            return bool(array.all())
    return None


def read_flags(done: Any, info: Mapping[str, Any]) -> tuple[bool, bool]:
    """Tell (terminated, truncated) apart from an old env's done and what its info says.

    `info['truncated']` or `info['TimeLimit.truncated']` marks a time-out; without either an end is a
    termination. Where the info itself says nothing of it, the infos of the agents do, if there are any: those
    under `agent_infos`, or under the keys of a dict of dones. A sequence, an array or a dict of dones or flags
    counts as set when all are, a dict with `__all__` by that; a done of None (an abnormal timestep) as not done.

    Raises:
        TypeError: done is none of these.
    """
    if not isinstance(done, bool):
        given, done = done, _is_done(done)
        if isinstance(given, Mapping):
            agents = [info[key] for key in given if isinstance(info.get(key), Mapping)]
            info = {**info, "agent_infos": info.get("agent_infos", agents)}
    if not done:
        return False, False
    truncated = bool(_read_flag(info, "truncated") or _read_flag(info, "TimeLimit.truncated"))
    terminated = _read_flag(info, "terminated")
    if terminated is None or not (terminated or truncated):
        terminated = not truncated
    return terminated, truncated


def _is_done(done: Any) -> bool:
    if done is None:
        return False
    value = _parse_flag(done)
    if value is None:
        expected = "a bool, or a sequence, an array or a dict of them"
        raise TypeError(f"done: expected {expected}, got {type(done).__name__}: {done!r}")
    return value


def _read_flag(info: Mapping[str, Any], key: str) -> bool | None:
    """Give a flag as the info itself has it, else as those of the agents' infos agree that say something of it."""
    value = _parse_flag(info.get(key))
    if value is None:
        agents = info.get("agent_infos")
        parts = [part for part in agents if isinstance(part, Mapping)] if isinstance(agents, (list, tuple)) else []
        flags = [flag for flag in (_parse_flag(part.get(key)) for part in parts) if flag is not None]
        value = all(flags) if flags else None
    return value


def to_timestep(obs: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]) -> BaseEnvTimestep:
    """Give a five-tuple as DI-engine's timestep, with both flags in a shallow copy of info."""
    terminated, truncated = bool(terminated), bool(truncated)
    marked = {
        **info,
        "terminated": terminated,
        "truncated": truncated,
        "TimeLimit.truncated": truncated and not terminated,
    }
    return BaseEnvTimestep(obs, reward, terminated or truncated, marked)


def is_abnormal(info: Any) -> bool:
    """Tell whether an info, or any of a list of infos (one per agent), declares its timestep abnormal."""
    if isinstance(info, Mapping):
        return bool(info.get("abnormal", False))
    return isinstance(info, (list, tuple)) and any(is_abnormal(part) for part in info)
