"""Builders of time steps, for environments: `restart`, `transition`, `termination`, `truncation`.

If the observation contains tensors, the time step does, too. If the reward has one axis more than its spec, the time
step is a batch. `reward_spec` is a float32 scalar by default. `env_id` is an int or int32 (B,); None (default) means 0,
or 0 .. B - 1 for a batch. `env_info` is a dict of arrays; None (default) means {}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vecenv.alf.base import tensors
from vecenv.alf.base.spec import TensorSpec, zeros_of
from vecenv.alf.base.timestep import StepType, TimeStep
from vecenv.errors import SpaceError
from vecenv.values.nested import flatten, map_structure

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
        action_spec: nest of specs; `prev_action` is zeros of these.
        batched: whether the leaves of the observation have a batch axis. Default: False.

    Example:
        >>> step = restart(np.zeros((3, 4), np.float32), TensorSpec((), "int64"), batched=True)
        >>> step.env_id.tolist(), step.prev_action.shape, bool(step.is_first().all())
        ([0, 1, 2], (3,), True)
    """
    outer = (len(flatten(observation)[0]),) if batched else ()
    reward = reward_spec.numpy_zeros(outer)
    prev_action = map_structure(scalar_of, zeros_of(action_spec, outer))
    step = transition(observation, prev_action, reward, reward_spec, 1.0, env_id, env_info)
    return with_step_type(step, StepType.FIRST)


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

    Args:
        observation: nest of arrays or tensors.
        prev_action: nest of the action that led to this step.
        reward: of shape S of its spec, or (B, *S) for a batch; converted to float32.
        discount: a number, or (B,); 1.0 by default.

    Raises:
        SpaceError: the reward has another shape.
    """
    outer = _outer_dims(reward, reward_spec)
    batched = len(outer) > 0
    if env_id is None:
        env_id = np.arange(outer[0], dtype=np.int32) if batched else np.int32(0)
    # Tensors stay tensors. New leaves become tensors if the observation contains tensors.
    reward = _as(np.float32, reward)
    discount = _as(np.float32, discount)
    if batched and np.ndim(tensors.to_arrays(discount)) == 0:
        discount = np.full(outer, float(discount), np.float32)
    step_types = np.full(outer, StepType.MID, np.int32) if batched else StepType.MID
    step = TimeStep(step_types, reward, discount, observation, prev_action, _as(np.int32, env_id), (), env_info or {})
    if any(tensors.is_tensor(leaf) for leaf in flatten(observation)):
        step = tensors.to_tensors(step)
    return step


def termination(
    observation: Any,
    prev_action: Any,
    reward: Any,
    reward_spec: TensorSpec = _SCALAR,
    env_id: Any = None,
    env_info: Any = None,
) -> TimeStep:
    """Return the LAST time step of a terminated episode: discount 0. Arguments and errors are those of `transition`."""
    step = transition(observation, prev_action, reward, reward_spec, 0.0, env_id, env_info)
    return with_step_type(step, StepType.LAST)


def truncation(
    observation: Any,
    prev_action: Any,
    reward: Any,
    reward_spec: TensorSpec = _SCALAR,
    discount: Any = 1.0,
    env_id: Any = None,
    env_info: Any = None,
) -> TimeStep:
    """Return the LAST time step of a truncated episode: discount not 0. Arguments, errors: those of `transition`."""
    step = transition(observation, prev_action, reward, reward_spec, discount, env_id, env_info)
    return with_step_type(step, StepType.LAST)


def with_step_type(time_step: TimeStep, step_type: Any) -> TimeStep:
    """Return a time step, or a batch, with this step type in each row."""
    known = time_step.step_type
    if tensors.is_tensor(known):
        return time_step._replace(step_type=known * 0 + int(step_type))
    return time_step._replace(step_type=np.full_like(known, step_type)[()])


def _outer_dims(reward: Any, reward_spec: TensorSpec) -> tuple[int, ...]:
    shape = tuple(np.shape(tensors.to_arrays(reward)))
    extra = len(shape) - reward_spec.ndim
    if extra not in (0, 1) or shape[extra:] != reward_spec.shape:
        expected = f"shape {reward_spec.shape}, or that with a batch axis in front"
        raise SpaceError(f"reward: expected {expected}, got {shape}", path="reward", expected=expected, got=str(shape))
    return shape[:extra]


def _as(dtype: Any, value: Any) -> Any:
    if tensors.is_tensor(value):
        return value.to(getattr(tensors.torch(), np.dtype(dtype).name))
    array = np.asarray(value, dtype)
    return array if array.ndim else dtype(array)


def scalar_of(value: Any) -> Any:
    """Return an array without axes as a NumPy scalar, and other values unchanged."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def as_array(value: Any) -> Any:
    """Return a number or array of an info as an array, float64 as float32; other values unchanged."""
    if isinstance(value, (bool, int, float, np.generic, np.ndarray)):
        array = np.asarray(value)
        return array.astype(np.float32) if array.dtype == np.float64 else array
    return value


def info_arrays(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an info dict with `as_array` applied to its values, also in nested dicts."""
    return {key: info_arrays(value) if isinstance(value, Mapping) else as_array(value) for key, value in info.items()}
