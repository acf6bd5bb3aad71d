"""Options of the pool under an ALF environment, by keyword."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vecenv.core.options import FailurePolicy, Limits, PoolOptions
from vecenv.errors import ConfigError

__all__ = ["pool_options"]

_LIMITS = tuple(field.name for field in dataclasses.fields(Limits))
_FAILURES = tuple(field.name for field in dataclasses.fields(FailurePolicy))
_NOT_BY_NAME = ("limits", "failures", "autoreset", "final_obs")
_OPTIONS = tuple(field.name for field in dataclasses.fields(PoolOptions) if field.name not in _NOT_BY_NAME)


def pool_options(given: Mapping[str, Any], **fixed: Any) -> PoolOptions:
    """Return the pool's options.

    Args:
        given: any field of `PoolOptions` and `FailurePolicy` by its name, any of `Limits` with
            `_timeout` behind it. Workers that die are replaced unless `on_failure` says otherwise.
        fixed: decided by the caller.

    Raises:
        ConfigError: no such option.
    """
    limits, options = {}, {}
    failures: dict[str, Any] = {"on_failure": "recover"}
    for name, value in given.items():
        limit = name.removesuffix("_timeout")
        if name in _OPTIONS:
            options[name] = value
        elif name in _FAILURES:
            failures[name] = value
        elif limit != name and limit in _LIMITS:
            limits[limit] = value
        else:
            known = sorted([*_OPTIONS, *_FAILURES, *(f"{limit}_timeout" for limit in _LIMITS)])
            raise ConfigError(f"unknown option {name!r}; the pool has {', '.join(known)}", key=name)
    return PoolOptions(**{**options, **fixed, "limits": Limits(**limits), "failures": FailurePolicy(**failures)})
