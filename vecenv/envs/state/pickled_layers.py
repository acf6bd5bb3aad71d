"""Pickled layers: the last way to keep an env's state, for those whose owners ask for it.

A registered layer is taken as it is, all its attributes and so everything inside it. That is the broadest way and the
dearest one, and only the owner of the class can know that nothing of its state lies where pickle does not see it.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from vecenv.envs.own_attributes import get_own_attr
from vecenv.envs.state.adapters import LIFE, StateAdapter

__all__ = ["PICKLED"]


def _capture_all(layer: Any) -> dict[str, Any]:
    # Not pickle's own way of the object, which `EzPickle` replaces by one that keeps nothing but arguments.
    return dict(vars(layer))


def _restore_all(layer: Any, state: dict[str, Any]) -> None:
    vars(layer).clear()
    vars(layer).update(state)


def _find_rebuilt(layer: Any) -> str | None:
    """Name a layer inside that pickle would build anew, its state lost."""
    inner = get_own_attr(layer, "env")
    while inner is not None:
        if isinstance(inner, gymnasium.utils.EzPickle):
            return f"pickle builds the {type(inner).__name__} inside it anew from its arguments (EzPickle)"
        inner = get_own_attr(inner, "env")
    return None


#: What `register_pickled_state` registers.
PICKLED = StateAdapter(_capture_all, _restore_all, LIFE, holds_inner=True, find_gap=_find_rebuilt)
