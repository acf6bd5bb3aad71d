"""Send the caller's Gymnasium registrations by value to processes that build envs by their ids.

An entry point may be text such as "__main__:MyEnv". A worker has another `__main__` than the caller, so the objects
with such names are sent too.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from typing import Any

import cloudpickle
import gymnasium

__all__ = ["pickle_registrations", "register_missing"]

_MAIN = "__main__"


def pickle_registrations() -> bytes:
    """Pickle the registered env specs that a fresh process lacks; leave out those that cannot be pickled."""
    specs = [spec for spec in gymnasium.registry.values() if not _is_builtin(spec)]
    named = dict(item for spec in specs for item in _named_in_main(spec))
    try:
        data: bytes = cloudpickle.dumps((specs, named), protocol=5)
    except Exception:  # some specs cannot be pickled: such envs must be created in env_fn
        specs = [spec for spec in specs if _can_travel(spec)]
        named = {name: value for name, value in named.items() if _can_travel(value)}
        data = cloudpickle.dumps((specs, named), protocol=5)
    return data


def register_missing(pickled: bytes) -> None:
    """Register the env specs from `pickle_registrations` that this process lacks."""
    specs, named = pickle.loads(pickled)
    main = sys.modules[_MAIN]
    for name, value in named.items():
        if not hasattr(main, name):
            setattr(main, name, value)
    if specs:  # a package that is imported later to create one of these envs registers it again
        warnings.filterwarnings("ignore", ".*Overriding environment .* already in registry", UserWarning)
    for spec in specs:
        gymnasium.registry.setdefault(spec.id, spec)


def _is_builtin(spec: Any) -> bool:
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.envs.")


def _named_in_main(spec: Any) -> list[tuple[str, Any]]:
    found = []
    for entry_point in (spec.entry_point, spec.vector_entry_point):
        module, _, name = entry_point.partition(":") if isinstance(entry_point, str) else ("", "", "")
        if module == _MAIN and hasattr(sys.modules[_MAIN], name):
            found.append((name, getattr(sys.modules[_MAIN], name)))
    return found


def _can_travel(value: Any) -> bool:
    try:
        cloudpickle.dumps(value, protocol=5)
    except Exception:  # for example, it refers to an open file or a lock
        return False
    return True
