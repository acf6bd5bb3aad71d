"""KnownInfos: keeps the keys of `env_info` the same from step to step, so that a rollout can be stacked by key."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenv.alf.base.spec import zeros_of
from vecenv.values.nested import map_structure

#: Key in the infos of old Gym that marks a time limit. `step_type` and `discount` already contain this information.
TIME_LIMIT_KEY = "TimeLimit.truncated"


class KnownInfos:
    """Adds zeros to infos for numeric keys that they lack but that earlier infos, or the declared specs, contain.

    Args:
        specs: the declared specs, from `env_info_spec`. None or (): no keys are declared.
        outer_dims: axes in front of each spec's shape.

    Attributes:
        zeros: zeros for every known key: arrays, nested in dicts.
    """

    def __init__(self, specs: Any = None, outer_dims: tuple[int, ...] = ()) -> None:
        self.zeros: dict[str, Any] = zeros_of(specs or {}, outer_dims)
        self._whole: set[str] | None = None  # a set of keys that is complete and has no dicts as values

    def complete(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Return infos with all known keys, not copied if they are complete. Keys of strings and objects are not kept.

        Numeric keys that are new become known.
        """
        if infos.keys() == self._whole:  # the usual case; takes a fifth of the time of a check of each key
            return infos
        result = _fill(self.zeros, infos)
        is_flat = not any(isinstance(value, dict) for value in result.values())
        self._whole = set(result) if is_flat else None
        return result


def _fill(zeros: dict[str, Any], infos: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            known = zeros.get(key)
            inner = known if isinstance(known, dict) else {}
            result[key] = _fill(inner, value)
            if known is None and inner:
                zeros[key] = inner
        else:
            result[key] = value
            if key not in zeros and isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
                zeros[key] = np.zeros(value.shape, value.dtype)
    for key, zero in zeros.items():
        if key not in result:
            result[key] = map_structure(lambda leaf: np.zeros(leaf.shape, leaf.dtype), zero)
    return result
