"""Factory: from a config to a manager, by the names in ENV_MANAGER_REGISTRY."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ..config import deep_merge_dicts
from ..errors import ConfigError
from ..registry import ENV_MANAGER_REGISTRY, import_modules

__all__ = ["create_env_manager", "get_env_manager_cls"]


def get_env_manager_cls(cfg: Mapping[str, Any]) -> type:
    """Return the class that `cfg['type']` names, after importing `cfg['import_names']`.

    Raises:
        ConfigError: no `type`, or no config at all.
        UnknownNameError: nothing has that name.
    """
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"cfg: expected a dict, got {cfg!r}", key="cfg")
    if "type" not in cfg:
        raise ConfigError(f"manager config lacks 'type'; it has {sorted(map(str, cfg))}", key="type")
    import_modules(cfg.get("import_names"))
    return cast(type, ENV_MANAGER_REGISTRY.get(cfg["type"]))


def create_env_manager(cfg: Mapping[str, Any], env_fn: Sequence[Callable[[], Any]]) -> Any:
    """Build the manager that `cfg['type']` names; cfg stays as it is.

    Raises:
        ConfigError: no `type`, or what the class finds wrong.
        UnknownNameError: nothing has that name.
    """
    manager_cls: Any = get_env_manager_cls(cfg)
    rest = deep_merge_dicts(cfg, None)
    del rest["type"]
    rest.pop("import_names", None)
    return manager_cls(env_fn=env_fn, cfg=rest)
