"""Find the space of an env's rewards, which the env or a layer under it declares as `reward_space`."""

from __future__ import annotations

import copy
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ..values.own_attributes import get_own_attr

__all__ = ["find_reward_space", "reward_shape_of"]


def find_reward_space(env: Any) -> Any:
    """Return the `reward_space` of an env or of the layers under it, outermost first; None if none declares one.

    Gymnasium's wrappers do not forward attributes, so an env of `gymnasium.make` has none itself. Wrappers without a
    reward space of their own leave the rewards as they are, with two exceptions. A `RewardWrapper` gives rewards of the
    form that its method `reward` makes of zeros; a copy of the wrapper is called. `LinearReward` of MO-Gymnasium gives
    one number. Other wrappers that change the form of rewards have to declare a `reward_space`.
    """
    passed: list[Any] = []
    layer = env
    while layer is not None:
        try:
            space = layer.reward_space
            break
        except AttributeError:
            passed.append(layer)
            inner = get_own_attr(layer, "env")
            layer = None if inner is layer else inner
    else:
        return None
    for wrapper in reversed(passed):
        space = _space_through(wrapper, space)
    return space


def reward_shape_of(reward_space: Any) -> tuple[int, ...]:
    """Return the shape of one reward: that of the env's reward space, () without one.

    A space of one number, shape (1,), counts as a scalar too; front ends restore its shape.
    """
    # otherwise it is not a space
    shape = getattr(reward_space, "shape", None) if hasattr(reward_space, "contains") else None
    return shape if isinstance(shape, tuple) and shape != (1,) else ()


def _space_through(wrapper: Any, space: Any) -> Any:
    """Return the space of the rewards outside a wrapper without one; `space`: of those inside."""
    shape = reward_shape_of(space)
    if shape == ():
        return space
    multi_objective = sys.modules.get("mo_gymnasium.wrappers")
    if multi_objective is not None and isinstance(wrapper, multi_objective.LinearReward):
        return None
    if not isinstance(wrapper, gymnasium.RewardWrapper):
        return space
    try:
        apart = copy.deepcopy(wrapper, {id(wrapper.env): wrapper.env})  # the wrapper may count its calls
        found = np.asarray(apart.reward(np.zeros(shape, space.dtype))).shape
    except Exception:  # a wrapper that cannot be copied or called apart: its first step shows whether the form is wrong
        return space
    if found == shape:
        return space
    return None if found == () else spaces.Box(-np.inf, np.inf, found, np.float64)
