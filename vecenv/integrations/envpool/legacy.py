"""`make` for programs written for EnvPool before 0.7, such as CleanRL's: env_type="gym" means old Gym's calls.

from vecenv.integrations.envpool import legacy as envpool
"""

from __future__ import annotations

from typing import Any

from .tasks import make as _make

__all__ = ["make", "make_gym"]


def make(task_id: str, env_type: str = "gym", **options: Any) -> Any:
    """Make N envs as `vecenv.integrations.envpool.make` does, with its options; 'gym' means its env_type 'old_gym'."""
    return _make(task_id, "old_gym" if env_type == "gym" else env_type, **options)


def make_gym(task_id: str, **options: Any) -> Any:
    """Make an env pool of env_type 'old_gym'; options are those of `vecenv.integrations.envpool.make`."""
    return _make(task_id, "old_gym", **options)
