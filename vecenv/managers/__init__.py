"""Managers: many envs in DI-engine's shape, dicts of actions in, dicts of timesteps out.

    base           BaseEnvManager: step and seed; its bases, each over the one before:
    access           what may be read and called beside stepping
    books            states of envs, episodes counted
    life             launch, close, limits
    resets           first episodes, forced ones, retries
    subprocess     the same over worker processes: synchronous, asynchronous
    v2             actions as one sequence, observations as one tree: TreeSteps put before either
    gym_vector     the same shape over a vector env
    options        config keys, checked
    actions, seeds what a caller gives, per env
    timesteps      a batch taken apart; build: in C or here; asides: what no column holds; shown: `ready_obs`
    managed        the other end, beside the env in its worker
    calls          what it is asked beside steps and resets
    factory        from a config to a manager

Stands above the waist: a batch of the pool comes in, {env_id: timestep} goes out.
"""

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
