"""Conversion of old `step` and `reset` results to Gymnasium's, and of five-tuples to DI-engine's timesteps.

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

#: Info key, set if requested: an env's info was a sequence with one dict per agent; True a tuple, False a list.
AGENTS = "vecenv.agents"


def split_reset(result: Any, space: spaces.Space[Any] | None) -> tuple[Any, dict[str, Any]] | None:
    """Return (obs, info) if the result of a reset is that pair, None if it is a bare observation.

    A pair whose second part is a dict may be either. It is an observation if the observation space contains it.
    """
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        if isinstance(space, spaces.Tuple) and space.contains(result):
            return None
        return result
    return None


def step_reader(result: Any, *, notes_agents: bool = False) -> Callable[[Any], FiveTuple]:
    """Return the function that converts results of the same form as `result` to five-tuples; TypeError for others.

    `notes_agents`: as in `AdaptedEnv`.
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
    """Return a new dict with the info; a sequence of infos, one per agent, is put under `agent_infos`."""
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
    """Return a flag, or for several flags whether all are set; None if the value is not a flag or is empty."""
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
    """Compute (terminated, truncated) from the `done` and the info of an old env.

    `info['truncated']` or `info['TimeLimit.truncated']` marks a time-out; without either the episode terminated.
    If the info lacks a flag, the infos of the agents are read instead: those under `agent_infos`, or under the keys
    of a dict of dones. A sequence, array or dict of flags counts as set if all its flags are; in a dict with
    `__all__` only that key counts. A `done` of None (an abnormal timestep) counts as not done. TypeError is raised
    if `done` has another form.
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
    """Return a flag of the info; if missing, whether all agents' infos that have the flag set it; else None."""
    value = _parse_flag(info.get(key))
    if value is None:
        agents = info.get("agent_infos")
        parts = [part for part in agents if isinstance(part, Mapping)] if isinstance(agents, (list, tuple)) else []
        flags = [flag for flag in (_parse_flag(part.get(key)) for part in parts) if flag is not None]
        value = all(flags) if flags else None
    return value


def to_timestep(obs: Any, reward: Any, terminated: bool, truncated: bool, info: dict[str, Any]) -> BaseEnvTimestep:
    """Convert a five-tuple to DI-engine's timestep; both flags are added to a shallow copy of the info."""
    terminated, truncated = bool(terminated), bool(truncated)
    marked = {
        **info,
        "terminated": terminated,
        "truncated": truncated,
        "TimeLimit.truncated": truncated and not terminated,
    }
    return BaseEnvTimestep(obs, reward, terminated or truncated, marked)


def is_abnormal(info: Any) -> bool:
    """Return whether `abnormal` is set in an info, or in any of a sequence of infos (one per agent)."""
    if isinstance(info, Mapping):
        return bool(info.get("abnormal", False))
    return isinstance(info, (list, tuple)) and any(is_abnormal(part) for part in info)
