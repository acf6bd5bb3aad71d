"""What the managers drive: `BaseEnv`, the timestep it returns, and the way from a config to an env class."""

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
    """What one step gives: four values, in this order. Immutable; `_replace` makes a changed copy.

    `done` is `terminated or truncated`; which of the two is in `info['terminated']`, `info['truncated']` and
    `info['TimeLimit.truncated']`. An abnormal timestep (`info['abnormal']` true) may have None elsewhere.

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
    """An env in DI-engine's dialect: configured by a dict, built at the first reset, bare observations.

    Subclasses write `__init__`, `reset`, `step` and `close`, and should have the three attributes
    `observation_space`, `action_space` and `reward_space`. Data are arrays (int64, float32, uint8 for images),
    the reward has shape (1,), `done` is a Python bool, and the last timestep of an episode has
    `info['eval_episode_return']`, a Python number.

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

    uses_old_calls: ClassVar[bool] = True
    """Bare observations from reset, done instead of terminated and truncated; read by `envs.adapt`."""

    reward_space: Any
    _seed: int | None
    _dynamic_seed: bool

    @abstractmethod
    def __init__(self, cfg: dict[str, Any]) -> None:
        """Store the configuration only; the real env is built by the first `reset`."""

    @abstractmethod
    def reset(self) -> Any:  # type: ignore[override]  # DI-engine's dialect, translated in envs.adapt
        """Start an episode and return its first observation, not a tuple."""

    @abstractmethod
    def step(self, action: Any) -> BaseEnvTimestep:  # type: ignore[override]  # as reset
        """Advance by one action."""

    @abstractmethod
    def close(self) -> None:
        """Release everything held; may be called more than once."""

    def seed(self, seed: int, dynamic_seed: bool = True) -> None:
        """Remember the seed for the resets to come.

        Args:
            seed: at least 0.
            dynamic_seed: True gives every episode its own seed (`seeding.episode_seed` makes one), False
                starts every episode alike.
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
        """Give one config per collecting env: `cfg['collector_env_num']` independent copies without that key.

        Raises:
            ConfigError: the count is missing or negative.
        """
        return copy_env_cfg(cfg, "collector_env_num")

    @staticmethod
    def create_evaluator_env_cfg(cfg: dict[str, Any]) -> list[dict[str, Any]]:
        """Give one config per evaluating env, by `cfg['evaluator_env_num']`.

        Raises:
            ConfigError: the count is missing or negative.
        """
        return copy_env_cfg(cfg, "evaluator_env_num")

    def enable_save_replay(self, replay_path: str | None = None) -> None:
        """Ask for a video of each episode; call after `seed` and before `reset`.

        Raises:
            NotImplementedError: this env cannot.
        """
        raise NotImplementedError(f"{type(self).__name__} has no enable_save_replay")

    def random_action(self) -> Any:
        """Give a random action as an array; None where an env offers none."""
        return None

    @classmethod
    def default_config(cls) -> Config:
        """Give a copy of the class's `config`, with `cfg_type` naming the class."""
        config = Config(copy.deepcopy(dict(getattr(cls, "config", {}))))
        config["cfg_type"] = f"{cls.__name__}Dict"
        return config


def copy_env_cfg(cfg: Mapping[str, Any], count_key: str, **extra: Any) -> list[Any]:
    """Give `cfg[count_key]` deep copies of the config without that key, with `extra` set in each.

    The argument stays as it is, and no two copies share anything mutable. A plain dict becomes a `Config`,
    other mappings (EasyDict) keep their type.

    Raises:
        ConfigError: the count is missing or no integer >= 0.
    """
    if count_key not in cfg:
        raise ConfigError(f"env config lacks {count_key!r}; it has {sorted(map(str, cfg))}")
    count = cfg[count_key]
    if isinstance(count, bool) or not isinstance(count, numbers.Integral) or int(count) < 0:
        raise ConfigError(f"{count_key}: expected an integer >= 0, got {count!r}")
    copies = []
    for _ in range(int(count)):
        one: Any = Config(copy.deepcopy(dict(cfg))) if type(cfg) is dict else copy.deepcopy(cfg)
        one.pop(count_key)
        for key, value in extra.items():
            one[key] = value
        copies.append(one)
    return copies


def get_env_cls(cfg: Mapping[str, Any]) -> type:
    """Look up the env class named by `cfg['type']`, after importing the modules in `cfg['import_names']`.

    Raises:
        ConfigError: no `type` in the config.
        UnknownNameError: nothing is registered under that name.
    """
    if "type" not in cfg:
        raise ConfigError(f"env config lacks 'type'; it has {sorted(map(str, cfg))}")
    import_modules(cfg.get("import_names"))
    return cast(type, ENV_REGISTRY.get(cfg["type"]))


def get_vec_env_setting(
    cfg: Mapping[str, Any], collect: bool = True, eval_: bool = True
) -> tuple[type, list[Any] | None, list[Any] | None]:
    """Give (env class, configs of the collecting envs, configs of the evaluating envs); cfg stays as it is.

    Args:
        cfg: needs `type`; `collector_env_num` and `evaluator_env_num` as far as asked for.
        collect: False gives None in the second place.
        eval_: False gives None in the third place.

    Raises:
        ConfigError: a key is missing.
        UnknownNameError: nothing is registered under `cfg['type']`.
    """
    env_cls: Any = get_env_cls(cfg)
    # An env's own factory may pop from what it gets, as the original ones do: each gets a copy.
    collector_cfgs = env_cls.create_collector_env_cfg(_own_copy(cfg)) if collect else None
    evaluator_cfgs = env_cls.create_evaluator_env_cfg(_own_copy(cfg)) if eval_ else None
    return env_cls, collector_cfgs, evaluator_cfgs


def _own_copy(cfg: Mapping[str, Any]) -> Any:
    return Config(copy.deepcopy(dict(cfg))) if type(cfg) is dict else copy.deepcopy(cfg)
