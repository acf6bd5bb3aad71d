"""DMEnvPool: results as time steps of dm_env, as EnvPool returns them for env_type="dm"."""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from ...errors import SpaceError, require
from .pool import EnvPool, EnvPoolRows

__all__ = ["DMEnvPool"]

_dm_env: Any = require("dm_env", "dm")
_specs: Any = require("dm_env.specs", "dm")

_FIRST, _MID, _LAST = (np.int32(step_type) for step_type in _dm_env.StepType)


class DMEnvPool(EnvPool, _dm_env.Environment):
    """An `EnvPool` that returns `dm_env.TimeStep`.

    `step_type` is int32 (B,), `reward` and `discount` are float32 (B,); `discount` is 0 in a row that ends an episode,
    also by truncation, as in EnvPool. `observation` is a named tuple: `env_id`, int32 (B,); `players`, which contains
    `env_id` again; `obs`; and the infos of the envs.
    """

    def reset(self, env_id: Any = None) -> Any:
        """Begin an episode in every env, or in the envs `env_id`; return their first time steps."""
        return self._reset(env_id, None, None, self._form)

    def recv(self, reset: bool = False, return_info: bool = True) -> Any:
        """Wait for the next batch; the arguments have no effect. Raises as `GymnasiumEnvPool.recv`."""
        return self._recv(self._form)

    def _form(self, rows: EnvPoolRows) -> Any:
        is_last = rows.terminated | rows.truncated
        step_type = np.where(is_last, _LAST, np.where(rows.is_first, _FIRST, _MID))
        return _dm_env.TimeStep(
            step_type=step_type,
            reward=rows.reward,
            discount=np.where(is_last, np.float32(0), np.float32(1)),
            observation=_state(rows.env_id, rows.obs, rows.state),
        )

    def observation_spec(self) -> Any:
        """Return the specs of `env_id`, `players` and `obs` of one env, as a named tuple."""
        ids = _specs.BoundedArray((), np.int32, 0, self.num_envs - 1, name="env_id")
        return _state(ids, _spec_of(self.vector_env.single_observation_space, "obs"), {})

    def action_spec(self) -> Any:
        """Return the spec of one env's action."""
        return _spec_of(self.vector_env.single_action_space, "action")


def _state(env_id: Any, obs: Any, state: dict[str, Any]) -> Any:
    players = _type("players", ("env_id",))(env_id)
    return _type("State", ("env_id", "players", "obs", *state))(env_id, players, obs, *state.values())


@functools.cache
def _type(name: str, fields: tuple[str, ...]) -> Any:
    """Return a type of named tuples, as EnvPool names it; fields that no attribute can have become `_3` and so on."""
    return namedtuple(name, fields, rename=True)


def _spec_of(space: Space[Any], name: str) -> Any:
    """Return the spec of dm_env for a space; a dict of specs for a `Dict`, a tuple for a `Tuple`."""
    if isinstance(space, spaces.Dict):
        return {key: _spec_of(inner, str(key)) for key, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_spec_of(inner, f"{name}_{i}") for i, inner in enumerate(space))
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return _specs.DiscreteArray(int(space.n), dtype=space.dtype, name=name)
    if isinstance(space, spaces.Discrete):
        return _specs.BoundedArray((), space.dtype, space.start, space.start + space.n - 1, name=name)
    if isinstance(space, spaces.MultiDiscrete):
        return _specs.BoundedArray(space.shape, space.dtype, space.start, space.start + space.nvec - 1, name=name)
    if isinstance(space, spaces.MultiBinary):
        return _specs.BoundedArray(space.shape, space.dtype, 0, 1, name=name)
    if isinstance(space, spaces.Box):
        return _specs.BoundedArray(space.shape, space.dtype, space.low, space.high, name=name)
    raise SpaceError(f"{name}: dm_env has no spec for {type(space).__name__}", path=name)
