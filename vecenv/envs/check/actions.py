"""Random actions for the checks, in the form that the env accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.envs.arrays import action_to_ndarray

__all__ = ["is_ding", "sample_action"]


def is_ding(env: Any) -> bool:
    """Return whether `BaseEnv`'s rules for dtypes, rewards and scores apply to the env."""
    return bool(getattr(type(env), "uses_old_calls", False)) and not getattr(type(env), "is_old_api_adapter", False)


def sample_action(env: Any, space: Any, obs: Any = None) -> Any:
    """Return a random action in the form that the env accepts, from the generator of its action space.

    If `obs`, the last observation, is a dict with an `action_mask` for a Discrete space, as in board games, the action
    is a legal one (mask not 0). The env is the user's, not adapted.
    """
    mask = _legal_mask(space, obs)
    action = space.sample() if mask is None else space.sample(mask)
    if not is_ding(env):
        return action
    try:
        return action_to_ndarray(action)
    except TypeError:  # a Tuple of actions cannot be converted to arrays
        return action


def _legal_mask(space: Any, obs: Any) -> Any:
    """Return the mask as int8 (n,) for `Discrete.sample`; None if there is no mask or no legal action."""
    mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
    if not isinstance(mask, np.ndarray) or not isinstance(space, spaces.Discrete) or mask.shape != (int(space.n),):
        return None
    legal = mask.astype(bool)
    return legal.astype(np.int8) if legal.any() else None
