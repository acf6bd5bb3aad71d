"""Managers: many envs with DI-engine's calls, dicts of actions in, dicts of timesteps out.

    manager         EnvManager, the base of all managers: calls and properties over the parts below
    base            BaseEnvManager: launch, reset, step, close; envs in this process
    subprocess      the same over worker processes: synchronous, asynchronous
    ray             the synchronous one on the nodes of a Ray cluster
    v2              the same with a sequence of actions and trees as results
    gym_vector      the same over a vector env
    factory         from a config to a manager

Parts of a manager. Each owns its state, and gets the parts that it uses in `__init__`:
    episode_counts  states of envs, and counts of their episodes; states: EnvState
    env_spaces      spaces of envs, and the reference env
    manager_pool    builds the pool, and closes it
    remote_access   functions that run beside an env in its worker
    reset_scheduler resets that are requested, under way, and to be tried again; seeds: a part of it
    last_obs        the newest observation of each env
    timesteps       one timestep per env out of a batch; build: in C or Python; trees: for V2
    side_values     values of an env that its row cannot hold
    actions         how actions are sent; options: config keys
    env_driver      the other end: stands beside the env in its worker

The managers stand above the pool: a batch of the pool comes in, {env_id: timestep} goes out.
"""

from .base import BaseEnvManager
from .factory import create_env_manager, get_env_manager_cls
from .gym_vector import GymVectorEnvManager
from .ray import RayEnvManager
from .states import EnvState
from .subprocess import AsyncSubprocessEnvManager, SyncSubprocessEnvManager
from .v2 import BaseEnvManagerV2, SubprocessEnvManagerV2

__all__ = [
    "AsyncSubprocessEnvManager",
    "BaseEnvManager",
    "BaseEnvManagerV2",
    "EnvState",
    "GymVectorEnvManager",
    "RayEnvManager",
    "SubprocessEnvManagerV2",
    "SyncSubprocessEnvManager",
    "create_env_manager",
    "get_env_manager_cls",
]
