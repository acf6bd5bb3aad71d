"""EnvPool's interface over vecenv's worker processes: for any Gymnasium env, and without EnvPool.

    from vecenv.integrations import envpool              # in place of `import envpool`
    envs = envpool.make("Pong-v5", env_type="gymnasium", num_envs=16, batch_size=8)

    tasks           `make`: task ids, options and seeds
    pool            the parts that all interfaces share: sending, receiving, seeds, the steps of each episode
    gymnasium_pool  results as tuples
    dm_pool         results as time steps of dm_env
    gym_pool        results with old Gym's calls
    legacy          `make` for programs of EnvPool before 0.7
    atari           the preprocessing of Atari games, in the workers

The interfaces stand on `pool`, which stands above a `VectorEnv`.
"""

from __future__ import annotations

from typing import Any

from .tasks import make

__all__ = ["make", "make_dm", "make_gym", "make_gymnasium"]


def make_gymnasium(task_id: str, **options: Any) -> Any:
    """Make an env pool of env_type 'gymnasium'; options are those of `make`."""
    return make(task_id, "gymnasium", **options)


def make_gym(task_id: str, **options: Any) -> Any:
    """Make an env pool of env_type 'gym', which equals 'gymnasium'; options are those of `make`."""
    return make(task_id, "gym", **options)


def make_dm(task_id: str, **options: Any) -> Any:
    """Make an env pool of env_type 'dm'; options are those of `make`."""
    return make(task_id, "dm", **options)
