"""`BaseEnv`, the env class of the managers, with its timestep type and the lookup of env classes by config."""

from __future__ import annotations

import copy
import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, cast

import gymnasium

from vecenv.config import Config
from vecenv.errors import ConfigError
from vecenv.registry import ENV_REGISTRY, import_modules

__all__ = [
    "BaseEnv",
    "BaseEnvTimestep",
    "get_env_cls",
    "get_vec_env_setting",
]


class BaseEnvTimestep(NamedTuple):
    """The result of one step: four values, in this order. Immutable; `_replace` returns a changed copy.

    `done` is `terminated or truncated`. The two flags are in `info['terminated']`, `info['truncated']` and
    `info['TimeLimit.truncated']`. In an abnormal timestep (`info['abnormal']` is true) `obs` and `reward` may be None.

    Example:
        >>> obs, reward, done, info = BaseEnvTimestep([0.0], [1.0], True, {"eval_episode_return": 1.0})
        >>> done
        True
    """

    obs: Any
    reward: Any
    done: bool
    info: dict[str, Any]


class BaseEnv(gymnasium.Env[Any, Any], ABC):
    """Base class of envs with DI-engine's calls: configured by a dict, built at the first reset.

    `reset` returns the observation alone and `step` returns a `BaseEnvTimestep`. Subclasses implement
    `__init__`, `reset`, `step` and `close`. They should have the three attributes `observation_space`,
    `action_space` and `reward_space`. Data are arrays (int64, float32, uint8 for images), the reward has
    shape (1,), and `done` is a Python bool. The info of an episode's last timestep contains
    `eval_episode_return`, a Python number.

    Example:
        >>> import numpy as np
        >>> class Zeros(BaseEnv):
        ...     def __init__(self, cfg):
        ...         self._cfg = cfg
        ...     def reset(self):
        ...         return np.zeros(2, np.float32)
        ...     def step(self, action):
        ...         info = {"eval_episode_return": 0.0}
        ...         return BaseEnv.timestep(np.zeros(2, np.float32), np.zeros(1, np.float32), True, info)
        ...     def close(self):
        ...         pass
        >>> Zeros({}).step(0).done
        True
    """

    timestep = BaseEnvTimestep

    #: True: `reset` returns a bare observation, and `step` returns `done`. `envs.adapt` reads it.
    uses_old_calls: ClassVar[bool] = True

    reward_space: Any
    _seed: int | None
    _dynamic_seed: bool

    @abstractmethod
    def __init__(self, cfg: dict[str, Any]) -> None:
        """Store the configuration only; the first `reset` builds the real env."""

    @abstractmethod
    def reset(self) -> Any:  # type: ignore[override]  # DI-engine's signature, adapted in envs.adapt
        """Start an episode and return its first observation alone, without an info."""

    @abstractmethod
    def step(self, action: Any) -> BaseEnvTimestep:  # type: ignore[override]  # as reset
        """Apply one action and return the timestep."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; may be called more than once."""

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Store the seed, at least 0, for the coming resets.

        With `dynamic_seed` each episode has its own seed (see `seeding.episode_seed`), else all have the same seed.
        """
        self._seed = seed
        self._dynamic_seed = dynamic_seed

    def __repr__(self) -> str:
        cfg = getattr(self, "_cfg", None)
        name = cfg.get("env_id") if isinstance(cfg, Mapping) else None
        return f"{type(self).__name__}({name or ''})"

    def __str__(self) -> str:
        return repr(self)

    @staticmethod
    def create_collector_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """Return one config per collector env: `cfg['collector_env_num']` independent copies without that key.

        ConfigError is raised if the count is missing or negative.
        """
        return copy_env_cfg(cfg, "collector_env_num")

    @staticmethod
    def create_evaluator_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """Return one config per evaluator env, by `cfg['evaluator_env_num']`; else as `create_collector_env_cfg`."""
        return copy_env_cfg(cfg, "evaluator_env_num")

    def enable_save_replay(self, replay_path: str | None = None) -> None:
        """Record a video of each episode in this folder; call it after `seed` and before `reset`.

        None means the env's default folder. NotImplementedError is raised if the env cannot record videos.
        """
        raise NotImplementedError(f"{type(self).__name__} has no enable_save_replay")

    def random_action(self) -> Any:
        """Return a random action as an array; this default returns None."""
        return None

    @classmethod
    def default_config(cls) -> Config:
        """Return a deep copy of the class's `config`, in which `cfg_type` is '<class name>Dict'."""
        config = Config(copy.deepcopy(dict(getattr(cls, "config", {}))))
        config["cfg_type"] = f"{cls.__name__}Dict"
        return config


def copy_env_cfg(cfg: Mapping[str, Any], count_key: str, **extra: Any) -> list[Any]:
    """Return `cfg[count_key]` deep copies of the config without that key, with `extra` set in each.

    The argument is not changed. A plain dict becomes a `Config`; other mappings (EasyDict) keep their type. ConfigError
    is raised if the count is missing or is not an integer >= 0.
    """
    if count_key not in cfg:
        raise ConfigError(f"env config lacks {count_key!r}; it has {sorted(map(str, cfg))}")
    count = cfg[count_key]
    if isinstance(count, bool) or not isinstance(count, numbers.Integral) or int(count) < 0:
        raise ConfigError(f"{count_key}: expected an integer >= 0, got {count!r}")
    copies = []
    for _ in range(int(count)):
        one = _own_copy(cfg)
        one.pop(count_key)
        one.update(extra)
        copies.append(one)
    return copies


def get_env_cls(cfg: Mapping[str, Any]) -> type:
    """Look up the env class named by `cfg['type']`, after importing the modules in `cfg['import_names']`.

    Raises:
        ConfigError: the config lacks `type`.
        UnknownNameError: no class is registered under that name.
    """
    if "type" not in cfg:
        raise ConfigError(f"env config lacks 'type'; it has {sorted(map(str, cfg))}")
    import_modules(cfg.get("import_names"))
    return cast(type, ENV_REGISTRY.get(cfg["type"]))


def get_vec_env_setting(
    cfg: Mapping[str, Any], collect: bool = True, eval_: bool = True
) -> tuple[type, list[Any] | None, list[Any] | None]:
    """Return (env class, configs of the collector envs, configs of the evaluator envs); cfg is not changed.

    `cfg` must contain `type`, and `collector_env_num` and `evaluator_env_num` for the lists that are returned. Without
    `collect` or `eval_` that list is None.

    Raises:
        ConfigError: a key is missing.
        UnknownNameError: no class is registered under `cfg['type']`.
    """
    env_cls: Any = get_env_cls(cfg)
    # Like DI-engine's own, an env's `create_..._env_cfg` may remove keys from its argument, so each gets a copy.
    collector_cfgs = env_cls.create_collector_env_cfg(_own_copy(cfg)) if collect else None
    evaluator_cfgs = env_cls.create_evaluator_env_cfg(_own_copy(cfg)) if eval_ else None
    return env_cls, collector_cfgs, evaluator_cfgs


def _own_copy(cfg: Mapping[str, Any]) -> Any:
    return Config(copy.deepcopy(dict(cfg))) if type(cfg) is dict else copy.deepcopy(cfg)
