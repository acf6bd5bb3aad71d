"""The adapter that saves an env's state by pickling all attributes of a layer, for classes registered for it.

The attributes include the env inside the layer, so this saves all layers inside as well. It is the most general and
most expensive way. Only the owner of a class can know whether pickle covers all of its state.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from vecenv.envs.state.adapters import LIFE, StateAdapter
from vecenv.values.own_attributes import get_own_attr

__all__ = ["PICKLED"]


def _capture_all(layer: Any) -> dict[str, Any]:
    # Not the object's own pickling, because `EzPickle` replaces that by one that keeps only the arguments.
    return dict(vars(layer))


def _restore_all(layer: Any, state: dict[str, Any]) -> None:
    vars(layer).clear()
    vars(layer).update(state)


def _find_rebuilt(layer: Any) -> str | None:
    """Return the reason if pickle would rebuild a layer inside and lose its state, else None."""
    inner = get_own_attr(layer, "env")
    while inner is not None:
        if isinstance(inner, gymnasium.utils.EzPickle):
            return f"pickle rebuilds the {type(inner).__name__} inside it from its arguments (EzPickle)"
        inner = get_own_attr(inner, "env")
    return None


#: The adapter that `register_pickled_state` registers.
PICKLED = StateAdapter(_capture_all, _restore_all, LIFE, holds_inner=True, find_gap=_find_rebuilt)
