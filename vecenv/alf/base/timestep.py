"""TimeStep: the result of `reset` and `step` of every ALF environment, and the meaning of its step type and discount.

    step_type  discount   value of this step...   when
                          bootstraps  is learned
    FIRST      1          no          yes         an episode starts
    MID        1          yes         yes         otherwise
    LAST       0          no          no          the episode was terminated
    LAST       1          yes         no          the episode was truncated

The reward of a FIRST step is 0, because no action precedes it.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from vecenv.alf.base import tensors
from vecenv.alf.base.spec import BoundedTensorSpec, TensorSpec
from vecenv.core.system.clock import is_number
from vecenv.errors import ConfigError
from vecenv.values.nested import flatten, map_structure


def check_discount(discount: Any) -> float:
    """Return a discount as a float; raise ConfigError if it is not a number."""
    if not is_number(discount):
        raise ConfigError(f"discount: expected a number, got {discount!r}", key="discount")
    return float(discount)


class StepType:
    """The three types of step, as int32 constants; `StepType(value)` returns the constant that equals a number.

    Example:
        >>> int(StepType(2)), StepType.LAST.dtype.name
        (2, 'int32')
        >>> StepType(3)
        Traceback (most recent call last):
        ...
        ValueError: 3 is not a step type: 0 is FIRST, 1 MID, 2 LAST
    """

    FIRST = np.int32(0)
    MID = np.int32(1)
    LAST = np.int32(2)

    def __new__(cls, value: Any) -> Any:  # returns a number, so that arrays can be compared with it
        """Return the constant that equals `value`; ValueError if there is none."""
        for constant in (cls.FIRST, cls.MID, cls.LAST):
            if value == constant:
                return constant
        raise ValueError(f"{value!r} is not a step type: 0 is FIRST, 1 MID, 2 LAST")


class _Fields(NamedTuple):
    step_type: Any = ()
    reward: Any = ()
    discount: Any = ()
    observation: Any = ()
    prev_action: Any = ()
    env_id: Any = ()
    untransformed: Any = ()
    env_info: Any = ()


class TimeStep(_Fields):
    """The result of one step of an env, or of B envs with a batch axis in front of every leaf.

    Leaves are NumPy arrays, or torch tensors if the environment is tensor based. Every field defaults to ().

    Attributes:
        step_type: int32, () or (B,); see `StepType`.
        reward: float32, of the reward spec's shape; the reward of `prev_action`.
        discount: float32, () or (B,). At LAST steps it is 0 if terminated and not 0 if truncated, see the table of the
            module. It is not the discount factor (gamma) of an algorithm.
        observation: nest like the observation spec; the observation after `prev_action`.
        prev_action: nest like the action spec; zeros if step_type is FIRST.
        env_id: int32, () or (B,); the env of each row.
        untransformed: the time step before an algorithm's transformations.
        env_info: dict of further values from the env.

    Example:
        >>> step = TimeStep(step_type=np.array([0, 2], np.int32), discount=np.array([1, 0], np.float32))
        >>> step.is_last().tolist()
        [False, True]
        >>> step._replace(reward=np.zeros(2)).reward.shape, step.observation
        ((2,), ())
    """

    def is_first(self) -> Any:
        """Return where step_type is FIRST: an episode starts. Bool, of the shape of step_type."""
        return self.step_type == int(StepType.FIRST)

    def is_mid(self) -> Any:
        """Return where step_type is MID: an episode continues. Bool, of the shape of step_type."""
        return self.step_type == int(StepType.MID)

    def is_last(self) -> Any:
        """Return where step_type is LAST: an episode ends. Bool, of the shape of step_type."""
        return self.step_type == int(StepType.LAST)

    def cpu(self) -> TimeStep:
        """Return this time step with all tensors in main memory; itself if they are. The result is cached."""
        return self._moved("_on_cpu", lambda leaf: leaf.cpu() if tensors.is_tensor(leaf) else leaf)

    def cuda(self) -> TimeStep:
        """Return this time step with numeric arrays and tensors as tensors on the GPU. The result is cached.

        Raises:
            DependencyError: torch is not installed.
            Exception: raised by torch if there is no GPU.
        """
        torch = tensors.torch()

        def move(leaf: Any) -> Any:
            if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "biufc":
                leaf = torch.as_tensor(leaf)
            return leaf.cuda() if tensors.is_tensor(leaf) else leaf

        return self._moved("_on_cuda", move)

    def _moved(self, name: str, move: Any) -> TimeStep:
        kept: TimeStep | None = self.__dict__.get(name)
        if kept is None:
            kept = map_structure(move, self)
            if all(map(operator.is_, flatten(kept), flatten(self))):
                kept = self
            self.__dict__[name] = kept
        return kept

    def __reduce__(self) -> Any:
        return type(self), tuple(self)  # without the caches of cpu() and cuda()


def time_step_spec(observation_spec: Any, action_spec: Any, reward_spec: Any = None) -> TimeStep:
    """Return a TimeStep whose fields are the specs of an unbatched time step.

    Args:
        observation_spec, action_spec: nests of specs.
        reward_spec: spec of the reward. None (default): a float32 scalar.

    Example:
        >>> spec = time_step_spec(TensorSpec((4,)), BoundedTensorSpec((), "int64", 0, 1))
        >>> spec.discount
        BoundedTensorSpec(shape=(), dtype=float32, minimum=0.0, maximum=1.0)
        >>> spec.prev_action.maximum.item()
        1
    """
    return TimeStep(
        step_type=BoundedTensorSpec((), np.int32, StepType.FIRST, StepType.LAST),
        reward=TensorSpec((), np.float32) if reward_spec is None else reward_spec,
        discount=BoundedTensorSpec((), np.float32, 0, 1),
        observation=observation_spec,
        prev_action=action_spec,
        env_id=TensorSpec((), np.int32),
    )
