"""Keyword options of an ALF environment, converted to the options of its pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from vecenv.core.options import RECOVERING, Limits, PoolOptions, resolve
from vecenv.errors import ConfigError
from vecenv.options import FailurePolicy, Timeouts, read_failures, read_timeouts
from vecenv.values.checks import nearest

_LIMITS = tuple(f"{field.name}_timeout" for field in dataclasses.fields(Timeouts))
_FAILURES = tuple(field.name for field in dataclasses.fields(FailurePolicy))
_NOT_BY_NAME = ("limits", "failures", "autoreset", "final_obs", "rng_entropy", "settings", "choice")
_OPTIONS = tuple(field.name for field in dataclasses.fields(PoolOptions) if field.name not in _NOT_BY_NAME)


def pool_options(
    given: Mapping[str, Any], timeouts: Any = None, failures: Any = None, others: Iterable[str] = (), **fixed: Any
) -> PoolOptions:
    """Return the options of a pool, from keywords.

    Args:
        given: fields of `PoolOptions` and `FailurePolicy` by name, and fields of `Timeouts` with `_timeout` appended,
            for which None means no limit.
        timeouts: a `Timeouts`, a dict of its fields, or None.
        failures: a `FailurePolicy`, a dict of its fields, or None. Deaths and hangs are recovered by default.
        others: names of other arguments, one of which an unknown option may have meant.
        **fixed: fields of `PoolOptions` that users cannot choose.

    Raises:
        ConfigError: there is no such option, a value is wrong, or an option is given twice.
    """
    by_class: dict[tuple[str, ...], dict[str, Any]] = {_OPTIONS: {}, _LIMITS: {}, _FAILURES: {}}
    for name, value in given.items():
        names = next((names for names in by_class if name in names), None)
        if names is None:
            known = sorted([*_OPTIONS, *_FAILURES, *_LIMITS])
            near = nearest(name, {*known, *others})
            hint = f"did you mean {near!r}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"unknown option {name!r}; {hint}", key=name)
        by_class[names][name] = value
    return PoolOptions(
        **{**by_class[_OPTIONS], **fixed},
        limits=resolve(read_timeouts(timeouts, **by_class[_LIMITS]), Limits()),
        failures=resolve(read_failures(failures, **by_class[_FAILURES]), RECOVERING),
    )
