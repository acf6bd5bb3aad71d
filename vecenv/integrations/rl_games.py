"""rl_games: `VecenvVecEnv`, a vector env that rl_games' configurations select by the type "VECENV".

    import vecenv.integrations.rl_games                                 registers the type
    configurations["openai_gym"]["vecenv_type"] = "VECENV"              in place of "RAY"

Envs of rl_games have the calls of old Gym. An ended env is reset in the same step, and its row contains the first
observation of the next episode and the info of the last step.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from ..core.layout.flags import RowFlag
from ..core.layout.spec import Array, map_columns
from ..core.parent.batch import Batch
from ..core.pool.pool import Pool
from ..envs.adapt import AdaptedEnv
from ..errors import ConfigError, require
from ..vector.env import VectorEnv, check_adapter_options
from ..vector.saved_adapter import SavedAdapter

__all__ = ["VecenvVecEnv"]

_IVecEnv: Any = require("rl_games.common.ivecenv", "rl_games").IVecEnv
_configurations: Any = require("rl_games.common.env_configurations", "rl_games").configurations
_stack_dicts: Any = require("rl_games.common.tr_helpers", "rl_games").dicts_to_dict_with_arrays


class VecenvVecEnv(SavedAdapter, _IVecEnv):
    """N envs of one agent in worker processes for rl_games, a few of them per worker.

    The same seeds and actions give what `RayVecEnv` gives, and Ray is not needed. Envs without a `seed` method get
    their seed in the first reset, where `RayVecEnv` does not seed them.

    Attributes:
        vector_env: the `vecenv.VectorEnv` that contains the envs; it has `statistics()`, `report()` and `worker_pids`.
    """

    vector_env: VectorEnv
    _saved = ("_seeds",)

    def __init__(
        self,
        config_name: str,
        num_actors: int,
        seed: int | None = None,
        vecenv_config: dict[str, Any] | None = None,
        **env_config: Any,
    ) -> None:
        """Build all envs; `create_vec_env` of rl_games calls this with the values of `env_config`.

        Args:
            config_name: the key of rl_games' `configurations`.
            num_actors: N.
            seed: env i gets `seed + i` in the first reset. None (default): none.
            vecenv_config: options of `vecenv.VectorEnv`, with the same defaults, such as `num_workers`. There are no
                autoreset_mode, batch_size, copy, episode_statistics and mark_autoreset.
            **env_config: arguments of the constructor of each env.

        Raises:
            ConfigError: an option is wrong, or the envs have several agents, a central value or several values.
            Exception: as `vecenv.VectorEnv`.
        """
        options = dict(vecenv_config or {})
        check_adapter_options("vecenv_config", "rl_games", options)
        make = functools.partial(_Actor.build, _configurations[config_name]["env_creator"], env_config)
        self.vector_env = VectorEnv([make] * num_actors, autoreset_mode=AutoresetMode.SAME_STEP, **options)
        self._pool: Pool = self.vector_env.pool
        self._seeds: Any = None if seed is None else [seed + i for i in range(num_actors)]
        self._is_tuple = isinstance(self.vector_env.single_action_space, spaces.Tuple)
        try:
            (found,) = self._pool.call(_describe, [0], pure=True)
            if found != {**found, "agents": 1, "value_size": 1, "use_global_observations": False}:
                raise ConfigError(f"vecenv supports envs with one agent and one value only, not {found}")
        except BaseException:
            self.vector_env.close()
            raise
        self._stacks_infos = found.pop("concat_infos")
        spaces_found = self.vector_env.single_action_space, self.vector_env.single_observation_space
        self._env_info = dict(zip(("action_space", "observation_space"), spaces_found), state_space=None, **found)
        self._continue_own(options.get("resume"))

    def get_env_info(self) -> dict[str, Any]:
        """Return the spaces of one env, and the numbers of agents and values, which are 1."""
        return self._env_info

    def reset(self) -> Any:
        """Begin an episode in every env, the first time with the seeds; return observations with N rows."""
        self._pool.reset(seeds=self._seeds)
        self._seeds = None
        return self._deliver_reset(self._pool.recv())

    def _deliver_reset(self, batch: Batch) -> Any:
        batch.raise_errors(self._deliver_reset)
        return map_columns(self._pool.obs_spec.root, self.vector_env.results.own_obs(batch), _narrow)

    def step(self, actions: Array) -> tuple[Any, Array, Array, Any]:
        """Step every env with a row of `actions`, and wait.

        Returns:
            Observations with N rows, float32 where the space has float64; rewards float64 (N,); dones bool (N,); and
            one dict of infos per env, or a dict of arrays if the envs have `concat_infos`.

        Raises:
            Exception: as `VectorEnv.step`.
        """
        return self._deliver(self._pool.step(tuple(actions.T) if self._is_tuple else actions))

    def _deliver(self, batch: Batch) -> tuple[Any, Array, Array, Any]:
        batch.raise_errors(self._deliver)
        dones, infos = batch.terminated | batch.truncated, batch.infos()
        if batch.flags & RowFlag.FINAL:
            final_infos = batch.final_infos()
            infos = [final if done else info for info, final, done in zip(infos, final_infos, dones.tolist())]
        obs = map_columns(self._pool.obs_spec.root, self.vector_env.results.own_obs(batch), _narrow)
        return obs, batch.rewards.copy(), dones, _stack_dicts(infos, False) if self._stacks_infos else infos

    def has_action_masks(self) -> bool:
        """Return True; `get_action_masks` needs envs that have them."""
        return True

    def get_action_masks(self) -> Array:
        """Return what `get_action_mask` of all envs returns, one after the other."""
        return np.concatenate(self.vector_env.call("get_action_mask"), axis=0)

    def set_weights(self, indices: Any, weights: Any) -> None:
        """Call `update_weights(weights)` of the envs `indices`, for self-play."""
        self.vector_env.call("update_weights", weights, env_id=indices)

    def close(self) -> None:
        """End envs and workers; idempotent."""
        self.vector_env.close()


class _Actor(AdaptedEnv):
    """An env of rl_games behind Gymnasium's calls, with unchanged infos."""

    @classmethod
    def build(cls, creator: Any, env_config: dict[str, Any]) -> Any:
        return cls(creator(**env_config))

    def step(self, action: Any) -> Any:
        obs, reward, done, info = self.env.step(action)
        truncated = bool(done and info.get("time_outs", False))
        return obs, reward, bool(done) and not truncated, truncated, info


def _describe(actor: _Actor) -> dict[str, Any]:
    """Return what rl_games reads from an env beside its spaces."""
    env = actor.env
    return {
        "agents": env.get_number_of_agents() if hasattr(env, "get_number_of_agents") else 1,
        "value_size": getattr(env, "value_size", 1),
        "use_global_observations": getattr(env, "use_central_value", False),
        "concat_infos": getattr(env, "concat_infos", False),
    }


def _narrow(column: Array) -> Array:
    """Return an array of float64 as float32, and others unchanged."""
    return column.astype(np.float32) if column.dtype == np.float64 else column


require("rl_games.common.vecenv", "rl_games").register("VECENV", VecenvVecEnv)
