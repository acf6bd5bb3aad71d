"""ShardEnvs: the envs of a shard, as the loops of collectors and evaluations use a vector env."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode

from ..core.layout.flags import RowFlag
from ..core.layout.spec import Array, Spec
from ..core.parent.batch import Batch
from ..core.shards.recorded_pool import RecordedPool
from ..errors import converted
from .nested import row_of
from .results import Results

__all__ = ["ShardEnvs"]

_Step = tuple[Any, Array, Array, Array, dict[str, Any]]


class ShardEnvs:
    """The envs of a shard, with ids from 0.

    The members are those of `VectorEnv` that a `BatchFiller` and the loop of an evaluation use.

    Args:
        pool: of the shard.
        results: makes results as those of the vector env; None: arrays are views, valid until the next receive, and of
            the infos there are only those that a `BatchFiller` reads.
    """

    def __init__(self, pool: RecordedPool, results: Results | None = None) -> None:
        self._pool, self.pool = pool, pool.pool
        self._results = results
        self.num_envs = pool.num_envs
        self.metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode[pool.autoreset.name]}
        self._action_spec = Spec(pool.action_space, "action")

    @property
    def num_batches(self) -> int:
        """The number of batches that were received so far: always 0, as a policy has no access to these envs."""
        return 0

    @property
    def num_outstanding(self) -> int:
        return self._pool.outstanding()

    def step(self, actions: Any) -> _Step:
        leaves = self._action_spec.flatten_batch(actions, self.num_envs)
        return converted(self._deliver, self._pool.step, leaves)

    def send(self, actions: Any, env_id: Array) -> None:
        self._pool.send(self._action_spec.flatten_batch(actions, len(env_id)), env_id)

    def async_reset(self, env_id: Array, *, seed: Sequence[int] | None = None) -> None:
        self._pool.reset(env_id, None if seed is None else [seed[one] for one in env_id.tolist()])

    def recv(self, min_count: int, timeout: float | None = None) -> _Step:
        return converted(self._deliver, self._pool.recv, min_count, timeout)

    def _deliver(self, batch: Batch) -> _Step:
        if self._results is not None:
            return self._results.deliver_some(batch.copy(), False)
        infos: dict[str, Any] = {"env_id": batch.env_ids}
        if batch.flags & RowFlag.FINAL:
            infos["final_obs"] = _FinalObs(self._pool.observation_space, batch)
            infos["final_info"] = {}
        for row, reply in batch.replies().items() if batch.flags & RowFlag.MESSAGE else ():
            for into, info in ((infos, reply.info), (infos.get("final_info", {}), reply.final_info)):
                if info and "recovered" in info:
                    into.setdefault("recovered", np.full(len(batch), None, object))[row] = info["recovered"]
        return batch.obs, batch.rewards, batch.terminated, batch.truncated, infos


class _FinalObs:
    """The final observation of each row, as `infos["final_obs"]` has it; only rows that end an episode have one."""

    def __init__(self, space: Space[Any], batch: Batch) -> None:
        self._space = space
        self._obs = batch.final_obs

    def __getitem__(self, row: int | np.integer[Any]) -> Any:
        return row_of(self._space, self._obs, int(row))
