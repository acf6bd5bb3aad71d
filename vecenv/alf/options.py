"""Options of the pool under an ALF environment, by keyword."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vecenv.core.options import Limits, PoolOptions
from vecenv.errors import ConfigError

__all__ = ["pool_options"]

_LIMITS = tuple(field.name for field in dataclasses.fields(Limits))
_OPTIONS = tuple(field.name for field in dataclasses.fields(PoolOptions) if field.name not in ("limits", "autoreset"))


def pool_options(given: Mapping[str, Any], **fixed: Any) -> PoolOptions:
    """Return the pool's options.

    Args:
        given: any field of `PoolOptions` by its name, any of `Limits` with `_timeout` behind it.
        fixed: decided by the caller.

    Raises:
        ConfigError: no such option.
    """
    limits, options = {}, {}
    for name, value in given.items():
        limit = name.removesuffix("_timeout")
        if name in _OPTIONS:
            options[name] = value
        elif limit != name and limit in _LIMITS:
            limits[limit] = value
        else:
            known = sorted([*_OPTIONS, *(f"{limit}_timeout" for limit in _LIMITS)])
            raise ConfigError(f"unknown option {name!r}; the pool has {', '.join(known)}", key=name)
    return PoolOptions(**{**options, **fixed, "limits": Limits(**limits)})
