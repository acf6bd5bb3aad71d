"""Under the check: which actions it plays, in the form that the env's dialect has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.envs.arrays import action_to_ndarray

__all__ = ["is_ding", "sample_action"]


def is_ding(env: Any) -> bool:
    """Tell whether `BaseEnv`'s rules of data apply."""
    return bool(getattr(type(env), "uses_old_calls", False)) and not getattr(type(env), "is_old_api_adapter", False)


def sample_action(env: Any, space: Any, obs: Any = None) -> Any:
    """Draw an action in the form the env's dialect has them.

    Args:
        env: not adapted.
        space: to draw from.
        obs: the newest observation. If it is a dict whose `action_mask` says what is legal now (not 0) in a
            Discrete space, as those of board games, a legal action is drawn.
    """
    mask = _legal_mask(space, obs)
    action = space.sample() if mask is None else space.sample(mask)
    if not is_ding(env):
        return action
    try:
        return action_to_ndarray(action)
    except TypeError:  # a Tuple of actions has no form as one array
        return action


def _legal_mask(space: Any, obs: Any) -> Any:
    """Give the mask as int8 (n,), which `Discrete.sample` takes; None if there is none, or nothing is legal."""
    mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
    if not isinstance(mask, np.ndarray) or not isinstance(space, spaces.Discrete) or mask.shape != (int(space.n),):
        return None
    legal = mask.astype(bool)
    return legal.astype(np.int8) if legal.any() else None
