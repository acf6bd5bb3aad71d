"""Construction of wrappers by their registered names."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from vecenv.errors import ConfigError
from vecenv.registry import ENV_WRAPPER_REGISTRY, import_modules

__all__ = ["create_env_wrapper"]


def create_env_wrapper(env: Any, env_wrapper_cfg: Mapping[str, Any]) -> Any:
    """Wrap an env by a config with the keys `type` and, optionally, `kwargs` and `import_names`.

    The modules in `import_names` are imported first. The config is not changed.

    Example:
        >>> import gymnasium
        >>> env = create_env_wrapper(gymnasium.make("CartPole-v1"), {"type": "time_limit", "kwargs": {"max_limit": 3}})
        >>> env.max_limit
        3

    Raises:
        ConfigError: the config or its `kwargs` is not a mapping, or lacks `type`.
        UnknownNameError: `type` is not a registered wrapper.
    """
    if not isinstance(env_wrapper_cfg, Mapping):
        raise ConfigError(f"env_wrapper_cfg: expected a dict, got {env_wrapper_cfg!r}", key="env_wrapper_cfg")
    if "type" not in env_wrapper_cfg:
        raise ConfigError(f"wrapper config lacks 'type': {dict(env_wrapper_cfg)!r}", key="type")
    import_modules(env_wrapper_cfg.get("import_names"))
    wrapper_cls = ENV_WRAPPER_REGISTRY.get(env_wrapper_cfg["type"])
    kwargs = env_wrapper_cfg.get("kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise ConfigError(f"kwargs: expected a dict, got {kwargs!r}", key="kwargs")
    return wrapper_cls(env, **copy.deepcopy(dict(kwargs)))
