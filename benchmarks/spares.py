"""How spare envs of `VectorEnv` are measured: slow resets with and without them."""

from __future__ import annotations

import functools

from benchmarks import rows
from benchmarks.alf import SLOW_RESET
from benchmarks.rows import Effort
from vecenv.measurement.measure import Mode, SyncMode

__all__ = ["vector_spare_env_gain"]


def vector_spare_env_gain(num_envs: int, num_spares: int, effort: Effort) -> list[float]:
    """Return how many times more env steps per second `VectorEnv.step` makes with spare envs than without any.

    Both sides have a worker for each env, so that a reset delays only its own env.
    """
    ours, theirs = functools.partial(_mode, num_envs, num_spares), functools.partial(_mode, num_envs, 0)
    return rows.ratio(ours, theirs, effort)


def _mode(num_envs: int, num_spares: int) -> Mode:
    from vecenv import VectorEnv

    envs = VectorEnv([SLOW_RESET] * num_envs, num_spare_envs=num_spares, num_workers=num_envs + num_spares)
    return SyncMode(f"{num_spares} spare envs", envs, envs.worker_pids)
