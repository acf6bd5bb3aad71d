"""Managers: many envs in DI-engine's shape, dicts of actions in, dicts of timesteps out."""

from .base import BaseEnvManager
from .factory import create_env_manager, get_env_manager_cls
from .gym_vector import GymVectorEnvManager
from .states import EnvState
from .subprocess import AsyncSubprocessEnvManager, SyncSubprocessEnvManager
from .v2 import BaseEnvManagerV2, SubprocessEnvManagerV2

__all__ = [
    "AsyncSubprocessEnvManager",
    "BaseEnvManager",
    "BaseEnvManagerV2",
    "EnvState",
    "GymVectorEnvManager",
    "SubprocessEnvManagerV2",
    "SyncSubprocessEnvManager",
    "create_env_manager",
    "get_env_manager_cls",
]
