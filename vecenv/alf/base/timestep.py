"""TimeStep: what every ALF environment returns, and what its step type and discount mean.

    step_type  discount   value of this step...   when
                          bootstraps  is learned
    FIRST      1          no          yes         an episode starts
    MID        1          yes         yes         otherwise
    LAST       0          no          no          the episode has really ended: terminated
    LAST       1          yes         no          the episode was cut off: truncated

The reward of a FIRST step is 0: no action has led to it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vecenv.alf.base import tensors
from vecenv.alf.base.spec import BoundedTensorSpec, TensorSpec
from vecenv.core.system.clock import is_number
from vecenv.errors import ConfigError
from vecenv.nested import map_structure

__all__ = ["StepType", "TimeStep", "time_step_spec"]


def check_discount(discount: Any) -> float:
    """Return a discount as a float.

    Raises:
        ConfigError: it is no number.
    """
    if not is_number(discount):
        raise ConfigError(f"discount: expected a number, got {discount!r}", key="discount")
    return float(discount)


class StepType:
    """The three kinds of step, int32; calling it checks a number.

    Example:
        >>> int(StepType(2)), StepType.LAST.dtype.name
        (2, 'int32')
        >>> StepType(3)
        Traceback (most recent call last):
        ...
        ValueError: 3 is no step type: 0 is FIRST, 1 MID, 2 LAST
    """

    FIRST = np.int32(0)
    MID = np.int32(1)
    LAST = np.int32(2)

    def __new__(cls, value: Any) -> Any:  # a number, not an instance: arrays compare with it
        """Return the constant that equals `value`.

        Raises:
            ValueError: there is none.
        """
        for constant in (cls.FIRST, cls.MID, cls.LAST):
            if value == constant:
                return constant
        raise ValueError(f"{value!r} is no step type: 0 is FIRST, 1 MID, 2 LAST")


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
    """The result of one step of an env, or of a batch of envs with B as the first axis of every leaf.

    Leaves are NumPy arrays, or torch tensors where an environment is tensor based. Every field
    defaults to ().

    Attributes:
        step_type: int32, see `StepType`.
        reward: float32, for `prev_action`.
        discount: float32; tells how an episode ended, see the table of the module. It is not an
            algorithm's gamma.
        observation: nest; after `prev_action`.
        prev_action: nest like the action spec; zeros where step_type is FIRST.
        env_id: int32; which env of a batch.
        untransformed: the time step before an algorithm's transformations.
        env_info: dict of what else the env tells.

    Example:
        >>> step = TimeStep(step_type=np.array([0, 2], np.int32), discount=np.array([1, 0], np.float32))
        >>> step.is_last().tolist()
        [False, True]
        >>> step._replace(reward=np.zeros(2)).reward.shape, step.observation
        ((2,), ())
    """

    def is_first(self) -> Any:
        """Tell, elementwise, where an episode starts."""
        return self.step_type == int(StepType.FIRST)

    def is_mid(self) -> Any:
        """Tell, elementwise, where an episode goes on."""
        return self.step_type == int(StepType.MID)

    def is_last(self) -> Any:
        """Tell, elementwise, where an episode ends."""
        return self.step_type == int(StepType.LAST)

    def cpu(self) -> TimeStep:
        """Return it with tensors in main memory; itself if they are there. Kept for the next call."""
        return self._moved("_on_cpu", lambda leaf: leaf.cpu() if tensors.is_tensor(leaf) else leaf)

    def cuda(self) -> TimeStep:
        """Return it as tensors on the GPU; kept for the next call.

        Raises:
            DependencyError: torch is not installed.
            Exception: torch's own, where there is no GPU.
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
            leaves_moved = False

            def move_leaf(leaf: Any) -> Any:
                nonlocal leaves_moved
                moved = move(leaf)
                leaves_moved = leaves_moved or moved is not leaf
                return moved

            copy: TimeStep = map_structure(move_leaf, self)
            kept = copy if leaves_moved else self
            self.__dict__[name] = kept
        return kept

    def __reduce__(self) -> Any:
        return type(self), tuple(self)  # without what cpu() and cuda() keep


def time_step_spec(observation_spec: Any, action_spec: Any, reward_spec: Any = None) -> TimeStep:
    """Return the specs of an unbatched time step, each in its field.

    Args:
        observation_spec, action_spec: nests of specs.
        reward_spec: None for a scalar float32.

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
