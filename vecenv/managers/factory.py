"""Factory: builds a manager from a config, by the names in ENV_MANAGER_REGISTRY."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ..config import deep_merge_dicts
from ..errors import ConfigError
from ..registry import ENV_MANAGER_REGISTRY, import_modules

__all__ = ["create_env_manager", "get_env_manager_cls"]


def get_env_manager_cls(cfg: Mapping[str, Any]) -> type:
    """Return the manager class that is registered as `cfg['type']`.

    Args:
        cfg: a dict with the key `type`. The modules in `import_names`, if it has that key, are imported first, so
            that they can register classes.

    Raises:
        ConfigError: cfg is not a dict, or has no key `type`.
        UnknownNameError: no class has that name.
    """
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"cfg: expected a dict, got {cfg!r}", key="cfg")
    if "type" not in cfg:
        raise ConfigError(f"manager config lacks 'type'; it has {sorted(map(str, cfg))}", key="type")
    import_modules(cfg.get("import_names"))
    return cast(type, ENV_MANAGER_REGISTRY.get(cfg["type"]))


def create_env_manager(cfg: Mapping[str, Any], env_fn: Sequence[Callable[[], Any]]) -> Any:
    """Build a manager of the class that is registered as `cfg['type']`.

    Args:
        cfg: as for `get_env_manager_cls`; the other keys are the manager's config. It is not changed.
        env_fn: one constructor per env. No env is built before `launch`, unless its spaces are read.

    Returns:
        The manager; call `launch` to build its envs. `gym_vector` builds its vector env at once.

    Raises:
        ConfigError: cfg is not a dict, has no key `type`, or a key has a value that it cannot have.
        UnknownNameError: no class has that name.

    Example:
        >>> import gymnasium
        >>> cfg = {"type": "subprocess", "num_workers": 2, "episode_num": 10}
        >>> with create_env_manager(cfg, [lambda: gymnasium.make("CartPole-v1")] * 4) as manager:
        ...     manager.seed(0)
        ...     manager.launch()
        ...     timesteps = manager.step(manager.random_action())
        ...     sorted(timesteps), timesteps[3].obs.shape
        ([0, 1, 2, 3], (4,))
    """
    manager_cls: Any = get_env_manager_cls(cfg)
    rest = deep_merge_dicts(cfg, None)
    del rest["type"]
    rest.pop("import_names", None)
    return manager_cls(env_fn=env_fn, cfg=rest)
