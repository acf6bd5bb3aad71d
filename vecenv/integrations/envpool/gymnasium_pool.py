"""GymnasiumEnvPool: results as tuples, as EnvPool returns them for env_type="gymnasium" and "gym"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from ...vector.arguments import SeedsLike
from ...vector.env import VectorEnv
from .pool import EnvPool, EnvPoolRows

__all__ = ["GymnasiumEnvPool"]

# As EnvPool's class it is both, for wrappers that accept only one of them. Their calls have other arguments.
_VectorEnv: Any = gymnasium.vector.VectorEnv
_Env: Any = gymnasium.Env


class GymnasiumEnvPool(EnvPool, _VectorEnv, _Env):
    """An `EnvPool` that returns tuples (obs, reward, terminated, truncated, info).

    `info` has "env_id", int32 (B,); "players", a dict that contains "env_id" again; the infos of the envs; and
    "elapsed_step", int32 (B,). Infos that some rows lack come with Gymnasium's masks.

    Attributes:
        observation_space, action_space: the spaces of a single env, and so are `single_observation_space` and
            `single_action_space`.
    """

    is_vector_env = True

    def __init__(self, envs: VectorEnv, config: Mapping[str, Any], seeds: Sequence[int | None]) -> None:
        super().__init__(envs, config, seeds)
        self.observation_space = self.single_observation_space = envs.single_observation_space
        self.action_space = self.single_action_space = envs.single_action_space
        self.metadata = {**envs.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = envs.render_mode

    def reset(
        self, env_id: Any = None, *, seed: SeedsLike = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every env, or in some, and wait for the first observations.

        Args:
            env_id: distinct ids; the result has rows of these envs only, in this order. None (default): all envs.
            seed: env i gets `seed + i`, or `seed[i]`. None (default): the seeds of the constructor in the first reset
                of each env; later its generator continues. EnvPool ignores this argument.
            options: passed to each env, without `reset_mask`, bool (N,), which selects envs in place of `env_id`.

        Returns:
            (obs, info).

        Raises:
            ConfigError: there is no such env, or the number of seeds is wrong.
            WorkerTimeoutError, WorkerDiedError, Exception: as from `VectorEnv.reset`.
        """
        found: tuple[Any, dict[str, Any]] = self._reset(env_id, seed, options, _two)
        return found

    def recv(self, reset: bool = False, return_info: bool = True) -> Any:
        """Wait for the next batch: `batch_size` envs, or all that are outstanding if `batch_size` is N.

        Args:
            reset: return (obs, info) only.
            return_info: if False, and `reset` is True, return `obs` alone.

        Raises:
            StateError: fewer envs are outstanding than a batch has rows.
            WorkerTimeoutError, WorkerDiedError, Exception: as from `VectorEnv.recv`.
        """
        return self._recv(self._form if not reset else _two if return_info else _one)

    def _form(self, rows: EnvPoolRows) -> tuple[Any, ...]:
        return rows.obs, rows.reward, rows.terminated, rows.truncated, rows.info()


def _one(rows: EnvPoolRows) -> Any:
    return rows.obs


def _two(rows: EnvPoolRows) -> tuple[Any, dict[str, Any]]:
    return rows.obs, rows.info()
