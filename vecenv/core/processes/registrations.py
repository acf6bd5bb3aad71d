"""Registrations: what the caller has registered with Gymnasium, by value, for a process that makes envs by their ids.

Entry points may be named as text, "__main__:MyEnv" too: what the caller's `__main__` has under such a name goes
along, since a worker's own `__main__` is another one.
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
    """Pickle the registered env specs that a fresh process would lack, as far as they pickle."""
    specs = [spec for spec in gymnasium.registry.values() if not _is_builtin(spec)]
    named = dict(item for spec in specs for item in _named_in_main(spec))
    try:
        data: bytes = cloudpickle.dumps((specs, named), protocol=5)
    except Exception:  # whatever does not pickle: who makes such an env must make it in env_fn
        specs = [spec for spec in specs if _can_travel(spec)]
        named = {name: value for name, value in named.items() if _can_travel(value)}
        data = cloudpickle.dumps((specs, named), protocol=5)
    return data


def register_missing(pickled: bytes) -> None:
    """Register what this process lacks, of what `pickle_registrations` gave."""
    specs, named = pickle.loads(pickled)
    main = sys.modules[_MAIN]
    for name, value in named.items():
        if not hasattr(main, name):
            setattr(main, name, value)
    if specs:  # a package that is imported later, to make one of these, registers them again
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
    except Exception:  # an open file or a lock, say
        return False
    return True
