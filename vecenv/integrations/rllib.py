"""RLlib: env runners whose envs step in vecenv's worker processes.

    register("fast-cartpole", "CartPole-v1")
    config.environment("fast-cartpole").env_runners(gym_env_vectorize_mode="vector_entry_point")

RLlib calls a registered creator in each env runner. It asks for a vector env by the key "num_envs" of the context, and
for a single env without it. A name of Gymnasium's registry does not work there: a remote runner has a registry of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium

from ..envs.factory import EnvFactory
from ..errors import ConfigError, require
from ..ray_options import RayOptions
from ..vector.env import VectorEnv, check_options
from ..vector.options import move_options

__all__ = ["EnvCreator", "assigned_workers", "env_creator", "register"]

#: An id of Gymnasium's registry, or a function of RLlib's context that makes an env.
Source: TypeAlias = "str | Callable[[Any], gymnasium.Env[Any, Any]]"

_NUM_ENVS = "num_envs"


class EnvCreator:
    """Makes the envs of an env runner: a `VectorEnv` if RLlib asks for several, else one env; see `env_creator`."""

    def __init__(self, env: Source, options: Mapping[str, Any]) -> None:
        if not isinstance(env, str) and not callable(env):
            raise ConfigError(f"env: expected an id or a function of the context, got {type(env).__name__}", key="env")
        check_options("env_creator", options)
        options = move_options(options)
        if options.get("backend") == "ray" or isinstance(options.get("backend"), RayOptions):
            raise ConfigError(
                "backend='ray': a runner of RLlib has its place in the cluster already; leave backend out, and set "
                "num_env_runners and num_cpus_per_env_runner",
                key="backend",
            )
        self._env = env
        self._options = options

    def __call__(self, context: Mapping[str, Any]) -> gymnasium.Env[Any, Any] | VectorEnv:
        """Make the env or the envs that RLlib asks for.

        RLlib's `EnvContext` has the values of `env_config`. RLlib makes it a plain dict and adds "num_envs" if
        it wants a vector env.
        """
        config = {key: value for key, value in context.items() if key != _NUM_ENVS}
        if isinstance(self._env, str):
            env_fn = EnvFactory(gymnasium.make, (self._env,), config)
        else:
            env_fn = EnvFactory(self._env, (config if _NUM_ENVS in context else context,))
        if _NUM_ENVS not in context:
            env: gymnasium.Env[Any, Any] = env_fn()
            return env
        num_envs = context[_NUM_ENVS]
        return VectorEnv([env_fn] * num_envs, **{"num_workers": assigned_workers(), **self._options})


def env_creator(env: Source, **options: Any) -> EnvCreator:
    """Return a creator for `ray.tune.register_env`.

    The results equal those of RLlib's own "sync" mode. By default a runner starts a worker process for each CPU that
    Ray has assigned to it (`num_cpus_per_env_runner`), and a runner in the driver one for each usable core.

    Args:
        env: an id of Gymnasium's registry, which gets the values of `env_config` as keyword arguments; or a function
            that gets RLlib's `EnvContext` and makes one env. It travels to the workers by cloudpickle.
        options: options of `VectorEnv`, such as `num_workers` or `timeouts`.

    Example:
        >>> creator = env_creator("CartPole-v1", num_workers=1)
        >>> envs = creator({"num_envs": 4})  # as RLlib calls it
        >>> envs.num_envs
        4
        >>> envs.close()

    Raises:
        ConfigError: an unknown option, or `env` is neither an id nor a function.
    """
    return EnvCreator(env, options)


def register(name: str, env: Source, **options: Any) -> str:
    """Register a creator under a name, also for remote env runners, and return the name.

        config.environment(register("fast-cartpole", "CartPole-v1"))
        config.env_runners(gym_env_vectorize_mode="vector_entry_point", num_envs_per_env_runner=16)

    Args:
        name: any name.
        env, options: as for `env_creator`.

    Raises:
        ConfigError: as `env_creator`.
        DependencyError: Ray is not installed.
    """
    creator = env_creator(env, **options)
    require("ray.tune", "rllib").register_env(name, creator)
    return name


def assigned_workers() -> int | None:
    """Return the number of CPUs that Ray has assigned to this actor; None, the default of a vector env, elsewhere."""
    ray: Any = require("ray", "rllib")
    if not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
