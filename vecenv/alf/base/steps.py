"""Builders of time steps: `restart`, `transition`, `termination`, `truncation`.

They take arrays or tensors and answer in kind. A reward with an axis more than its spec makes a
batch of it. They live here and in `vecenv.alf` only: their names say too little elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vecenv.alf.base import tensors
from vecenv.alf.base.spec import TensorSpec, zeros_of
from vecenv.alf.base.timestep import StepType, TimeStep
from vecenv.errors import SpaceError
from vecenv.nested import flatten, map_structure

__all__ = ["restart", "termination", "transition", "truncation"]

_SCALAR = TensorSpec(())


def restart(
    observation: Any,
    action_spec: Any,
    reward_spec: TensorSpec = _SCALAR,
    env_id: Any = None,
    env_info: Any = None,
    batched: bool = False,
) -> TimeStep:
    """Return the FIRST time step of an episode: reward 0, discount 1, previous action 0.

    Args:
        observation: nest of arrays or tensors.
        action_spec: nest of specs, for `prev_action`.
        reward_spec: of the reward.
        env_id: None: 0, or 0 .. B - 1.
        env_info: None: {}.
        batched: whether leaves have a batch axis in front.

    Example:
        >>> step = restart(np.zeros((3, 4), np.float32), TensorSpec((), "int64"), batched=True)
        >>> step.env_id.tolist(), step.prev_action.shape, bool(step.is_first().all())
        ([0, 1, 2], (3,), True)
    """
    outer = (len(flatten(observation)[0]),) if batched else ()
    reward = reward_spec.numpy_zeros(outer)
    prev_action = map_structure(lambda zeros: zeros if zeros.ndim else zeros[()], zeros_of(action_spec, outer))
    return _build(StepType.FIRST, observation, prev_action, reward, 1.0, outer, env_id, env_info)


def transition(
    observation: Any,
    prev_action: Any,
    reward: Any,
    reward_spec: TensorSpec = _SCALAR,
    discount: Any = 1.0,
    env_id: Any = None,
    env_info: Any = None,
) -> TimeStep:
    """Return a MID time step.

    Raises:
        SpaceError: the reward is neither of its spec's shape nor that with one axis in front.
    """
    return _follow(StepType.MID, observation, prev_action, reward, reward_spec, discount, env_id, env_info)


def termination(
    observation: Any,
    prev_action: Any,
    reward: Any,
    reward_spec: TensorSpec = _SCALAR,
    env_id: Any = None,
    env_info: Any = None,
) -> TimeStep:
    """Return the LAST time step of an episode that has really ended: discount 0.

    Raises:
        SpaceError: as `transition`.
    """
    return _follow(StepType.LAST, observation, prev_action, reward, reward_spec, 0.0, env_id, env_info)


def truncation(
    observation: Any,
    prev_action: Any,
    reward: Any,
    reward_spec: TensorSpec = _SCALAR,
    discount: Any = 1.0,
    env_id: Any = None,
    env_info: Any = None,
) -> TimeStep:
    """Return the LAST time step of an episode that was cut off: its discount is not 0.

    Raises:
        SpaceError: as `transition`.
    """
    return _follow(StepType.LAST, observation, prev_action, reward, reward_spec, discount, env_id, env_info)


def _follow(
    step_type: Any,
    observation: Any,
    prev_action: Any,
    reward: Any,
    reward_spec: TensorSpec,
    discount: Any,
    env_id: Any,
    env_info: Any,
) -> TimeStep:
    """Return a time step that follows an action: its reward says whether it is a batch."""
    outer = _outer_dims(reward, reward_spec)
    return _build(step_type, observation, prev_action, reward, discount, outer, env_id, env_info)


def _outer_dims(reward: Any, reward_spec: TensorSpec) -> tuple[int, ...]:
    shape = tuple(np.shape(tensors.to_arrays(reward)))
    extra = len(shape) - reward_spec.ndim
    if extra not in (0, 1) or shape[extra:] != reward_spec.shape:
        expected = f"shape {reward_spec.shape}, or that with a batch axis in front"
        raise SpaceError(f"reward: expected {expected}, got {shape}", path="reward", expected=expected, got=str(shape))
    return shape[:extra]


def _build(
    step_type: Any,
    observation: Any,
    prev_action: Any,
    reward: Any,
    discount: Any,
    outer: tuple[int, ...],
    env_id: Any,
    env_info: Any,
) -> TimeStep:
    batched = len(outer) > 0
    if env_id is None:
        env_id = np.arange(outer[0], dtype=np.int32) if batched else np.int32(0)
    # torch's own leaves stay as they are; the new ones follow the observation
    reward = _as(np.float32, reward)
    discount = _as(np.float32, discount)
    if batched and np.ndim(tensors.to_arrays(discount)) == 0:
        discount = np.full(outer, float(discount), np.float32)
    step_types = np.full(outer, step_type, np.int32) if batched else step_type
    step = TimeStep(step_types, reward, discount, observation, prev_action, _as(np.int32, env_id), (), env_info or {})
    if any(tensors.is_tensor(leaf) for leaf in flatten(observation)):
        step = tensors.to_tensors(step)
    return step


def _as(dtype: Any, value: Any) -> Any:
    if tensors.is_tensor(value):
        return value.to(getattr(tensors.torch(), np.dtype(dtype).name))
    array = np.asarray(value, dtype)
    return array if array.ndim else dtype(array)


def as_array(value: Any) -> Any:
    """Return a value of an env's info as an array, floats as float32; strings and objects stay."""
    if isinstance(value, (bool, int, float, np.generic, np.ndarray)):
        array = np.asarray(value)
        return array.astype(np.float32) if array.dtype == np.float64 else array
    return value


def info_arrays(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an info dict with numbers as arrays, in dicts within it too; other values stay."""
    return {key: info_arrays(value) if isinstance(value, Mapping) else as_array(value) for key, value in info.items()}
