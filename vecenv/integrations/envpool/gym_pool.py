"""GymEnvPool: results with old Gym's calls, as EnvPool before 0.7 returned them for env_type="gym"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import Space, spaces

from ...errors import SpaceError, require
from ...vector.env import VectorEnv
from .pool import EnvPool, EnvPoolRows

__all__ = ["GymEnvPool"]

_gym: Any = require("gym", "gym")


class GymEnvPool(EnvPool, _gym.Env):
    """An `EnvPool` whose `reset` returns the observation alone, and `step` returns (obs, reward, done, info).

    `info` is that of `GymnasiumEnvPool`, and has "TimeLimit.truncated", bool (B,): whether `done` is a truncation.

    Attributes:
        observation_space, action_space: the spaces of a single env, of the classes of gym.
    """

    _saved = (*EnvPool._saved, "_generator_states")

    def __init__(self, envs: VectorEnv, config: Mapping[str, Any], seeds: Sequence[int | None]) -> None:
        super().__init__(envs, config, seeds)
        self.observation_space = _space_of_gym(envs.single_observation_space)
        self.action_space = _space_of_gym(envs.single_action_space)
        self.metadata = envs.metadata

    @property
    def _generator_states(self) -> list[Any]:
        """The states of the generators of the spaces; gym's own pickles cannot be read with NumPy 2."""
        return [space.np_random.bit_generator.state for space in (self.observation_space, self.action_space)]

    @_generator_states.setter
    def _generator_states(self, states: list[Any]) -> None:
        for space, state in zip((self.observation_space, self.action_space), states):
            space.np_random.bit_generator.state = state

    def reset(self, env_id: Any = None) -> Any:
        """Begin an episode in every env, or in the envs `env_id`; return their first observations."""
        return self._reset(env_id, None, None, _one)

    def recv(self, reset: bool = False) -> Any:
        """Wait for the next batch; return `obs` alone if `reset` is True. Raises as `GymnasiumEnvPool.recv`."""
        return self._recv(_one if reset else self._form)

    def _form(self, rows: EnvPoolRows) -> tuple[Any, Any, Any, dict[str, Any]]:
        is_truncation = rows.truncated & ~rows.terminated
        return (
            rows.obs,
            rows.reward,
            rows.terminated | rows.truncated,
            {**rows.info(), "TimeLimit.truncated": is_truncation},
        )


def _one(rows: EnvPoolRows) -> Any:
    return rows.obs


def _space_of_gym(space: Space[Any]) -> Any:
    """Return the space of gym that equals a space of Gymnasium."""
    if isinstance(space, spaces.Discrete):
        return _gym.spaces.Discrete(int(space.n), start=int(space.start))
    if isinstance(space, spaces.Box):
        return _gym.spaces.Box(space.low, space.high, space.shape, space.dtype.type)
    if isinstance(space, spaces.MultiDiscrete):
        return _gym.spaces.MultiDiscrete(space.nvec)
    if isinstance(space, spaces.MultiBinary):
        return _gym.spaces.MultiBinary(space.n)
    if isinstance(space, spaces.Tuple):
        return _gym.spaces.Tuple([_space_of_gym(inner) for inner in space])
    if isinstance(space, spaces.Dict):
        return _gym.spaces.Dict({key: _space_of_gym(inner) for key, inner in space.items()})
    raise SpaceError(f"gym has no space like {type(space).__name__}")
