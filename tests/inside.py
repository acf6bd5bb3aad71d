"""The private parts that tests watch or disturb; each private name stands here once, in a typed function."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv import VectorEnv
from vecenv.core.operations.engine import OpenedEnvs
from vecenv.core.operations.requests import Requests
from vecenv.core.operations.waiter import Waiter
from vecenv.core.pool.pool import Pool
from vecenv.core.processes.worker import Worker
from vecenv.core.processes.worker_group import WorkerGroup

# ---- pools ---------------------------------------------------------------------------------


def pool_of(envs: Any) -> Pool:
    """Return the pool of an ALF environment or of a launched manager; a vector env has the public `pool`."""
    pool: Pool = envs._pool
    return pool


def vector_env_of(manager: Any) -> VectorEnv:
    """Return the vector env of a `GymVectorEnvManager`."""
    envs: VectorEnv = manager._vector_env
    return envs


def engine_of(pool: Pool) -> Any:
    """Return the engine of a pool: an `Engine`, whose kind has further methods."""
    return pool._engine


def workers_of(pool: Pool) -> list[Worker]:
    """Return the running workers of a process pool, by worker_id."""
    group: WorkerGroup = engine_of(pool)._group
    return group.workers


def opened_envs(pool: Pool) -> OpenedEnvs:
    """Return the plan, the memory and the counters of an open pool."""
    return pool._envs


def timings_of(pool: Pool) -> np.ndarray[Any, Any] | None:
    """Return the counted times of each env in the pool's memory; None with `timings=False`."""
    envs = opened_envs(pool)
    return envs.plan.counters.timings(envs.counters)


def hub_of(pool: Pool) -> Any:
    """Return the hub of an open pool: a `Hub`, whose kind has further methods."""
    return pool._hub


def waiter_of(pool: Pool) -> Waiter:
    """Return the part of an open pool that has its inbox and its watchdog."""
    return pool._waiter


def requests_of(pool: Pool) -> Requests:
    """Return the part of an open pool that sends commands."""
    return pool._requests
