"""XuanCe: `VecenvVecEnv`, a vector env that XuanCe's configurations select by `vectorize`.

    import vecenv.integrations.xuance       registers the class
    vectorize: "VecenvVecEnv"               in the configuration, in place of "DummyVecEnv" or "SubprocVecEnv"

XuanCe expects that an ended env is reset in the same step. The row contains the last observation of the old episode,
and the info contains the first one of the next episode as "reset_obs".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from ..core.layout.flags import RowFlag
from ..core.layout.spec import Array, Leaf, pick_rows
from ..core.parent.batch import Batch
from ..core.pool.pool import Pool
from ..errors import StateError, require
from ..vector.env import VectorEnv, check_adapter_options
from ..vector.nested import merge, own, row_of
from ..vector.saved_adapter import SavedAdapter

__all__ = ["VecenvVecEnv"]

_vector_envs: Any = require("xuance.environment.vector_envs", "xuance")


Infos = list[dict[str, Any]]


class VecenvVecEnv(SavedAdapter, _vector_envs.VecEnv):
    """N envs of one agent in worker processes for XuanCe, a few of them per worker.

    The same configuration gives what `SubprocVecEnv` gives. `make_envs` of XuanCe builds it from a configuration.
    `functools.partial(VecenvVecEnv, num_workers=4)` in `REGISTRY_VEC_ENV`, under any name, sets options.

    Attributes:
        observation_space, action_space: of one env.
        buf_obs: the last observations, with N rows; XuanCe's agents write first observations into it.
        max_episode_steps: the attribute of env 0.
        vector_env: the `vecenv.VectorEnv` that contains the envs; it has `statistics()`, `report()` and `worker_pids`.
    """

    vector_env: VectorEnv
    _saved = ("buf_obs",)
    _is_ordered = True

    def __init__(self, env_fns: Sequence[Callable[..., Any]], env_seed: int | None, **options: Any) -> None:
        """Build all envs.

        Args:
            env_fns: one constructor per env, called with the keyword `env_seed`.
            env_seed: env i gets `env_seed + i`. None: each gets None.
            **options: options of `vecenv.VectorEnv`, such as `num_workers` and `timeouts`, with the same defaults but
                for `context`: workers are forked, as those of `SubprocVecEnv`, since each other one would import XuanCe
                itself. There are no autoreset_mode, batch_size, copy, episode_statistics and mark_autoreset.

        Raises:
            ConfigError: an option is wrong.
            Exception: as `vecenv.VectorEnv`.
        """
        check_adapter_options("VecenvVecEnv", "XuanCe", options)
        seeds = [None if env_seed is None else env_seed + i for i in range(len(env_fns))]
        seeded = [functools.partial(one, env_seed=seed) for one, seed in zip(env_fns, seeds)]
        options = {"context": "fork", **options}
        envs = self.vector_env = VectorEnv(seeded, autoreset_mode=AutoresetMode.SAME_STEP, **options)
        try:
            super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
            self.max_episode_steps: int = envs.get_attr("max_episode_steps", 0)[0]
        except BaseException:
            envs.close()
            raise
        self._pool: Pool = envs.pool
        self._root = self._pool.obs_spec.root
        self.buf_obs: Any = None
        self._continue_own(options.get("resume"))

    def reset(self) -> tuple[Any, Infos]:
        """Begin an episode in every env, and wait for it. A step under way is cancelled.

        Returns:
            Observations, nested like the space, with N rows, and one dict of infos per env.
        """
        if self._pool.outstanding():
            self._pool.cancel()
        self._pool.reset()
        return self._deliver_reset(self._pool.recv())

    def _deliver_reset(self, batch: Batch) -> tuple[Any, Infos]:
        batch.raise_errors(self._deliver_reset)
        self.buf_obs = self.vector_env.results.own_obs(batch)
        return own(self._root, self.buf_obs), batch.infos()

    def step_async(self, actions: Any) -> None:
        """Begin a step of every env; `actions` is an array, or a sequence of N actions."""
        if self._pool.outstanding():
            raise StateError("step_async: a step is under way; call step_wait first, or reset")
        if isinstance(self._pool.action_spec.root, Leaf):
            self._pool.send(np.asarray(actions))
        else:
            self._pool.send_objects(list(actions), range(self.num_envs))

    def step_wait(self) -> tuple[Any, Array, Array, Array, Infos]:
        """Wait for the step that `step_async` began.

        Returns:
            Observations (N rows), the last ones of ended episodes among them; rewards float64 (N,); terminations and
            truncations bool (N,); and one dict of infos per env, with "reset_obs" where an episode has ended.

        Raises:
            StateError: there is none.
            Exception: as `VectorEnv.step`.
        """
        if not self._pool.outstanding():
            raise StateError("step_wait: call step_async first")
        return self._deliver(self._pool.recv())

    def _deliver(self, batch: Batch) -> tuple[Any, Array, Array, Array, Infos]:
        batch.raise_errors(self._deliver)
        obs, infos = self.vector_env.results.own_obs(batch), batch.infos()
        if batch.flags & RowFlag.FINAL:
            ended, final_infos = np.flatnonzero(batch.terminated | batch.truncated), batch.final_infos()
            for env_id in ended.tolist():
                infos[env_id] = {**final_infos[env_id], "reset_obs": row_of(self.observation_space, obs, env_id)}
            obs = merge(self._root, obs, pick_rows(self._root, batch.final_obs, ended), ended)
        self.buf_obs = obs
        ends = batch.terminated.copy(), batch.truncated.copy()
        return own(self._root, obs), batch.rewards.copy(), *ends, infos

    def render(self, mode: str | None = None) -> list[Any]:
        """Return what each env renders; the mode is the `render_mode` of the configuration."""
        return list(self.vector_env.render() or ())

    def close_extras(self) -> None:
        """End envs and workers; `close` calls this once."""
        self.vector_env.close()


_vector_envs.REGISTRY_VEC_ENV["VecenvVecEnv"] = VecenvVecEnv
