"""Time steps: fields, step types, constructors, tensors, and the table of step types and discounts."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from vecenv.alf import (
    BoundedTensorSpec,
    StepType,
    TensorSpec,
    TimeStep,
    restart,
    termination,
    time_step_spec,
    transition,
    truncation,
)

ACTION = {"a": BoundedTensorSpec((2,), np.float32, -1, 1), "b": TensorSpec((), np.int64)}
FIELDS = ("step_type", "reward", "discount", "observation", "prev_action", "env_id", "untransformed", "env_info")


def test_timestep_has_eight_fields_with_defaults():
    assert TimeStep._fields == FIELDS
    assert tuple(TimeStep()) == ((),) * 8


def test_step_types_are_three_int32_values():
    assert [StepType.FIRST, StepType.MID, StepType.LAST] == [0, 1, 2]
    assert {constant.dtype for constant in (StepType.FIRST, StepType.MID, StepType.LAST)} == {np.dtype(np.int32)}
    assert StepType(np.int64(1)) is StepType.MID
    for value in (3, -1, 0.5):
        with pytest.raises(ValueError, match="not a step type"):
            StepType(value)


@pytest.mark.parametrize(
    ("build", "step_type", "discount"),
    [(transition, 1, 1.0), (termination, 2, 0.0), (truncation, 2, 1.0)],
)
@pytest.mark.parametrize("batch", [None, 3])
def test_step_types_and_discounts_of_each_flag(build, step_type, discount, batch):
    outer = () if batch is None else (batch,)
    observation = np.zeros((*outer, 4), np.float32)
    action = {"a": np.ones((*outer, 2), np.float32), "b": np.ones(outer, np.int64)}
    step = build(observation, action, np.full(outer, 2.0))
    assert np.shape(step.step_type) == np.shape(step.discount) == np.shape(step.reward) == outer
    assert (step.step_type == step_type).all() and (step.discount == discount).all()
    assert step.reward.dtype == step.discount.dtype == np.float32
    assert step.step_type.dtype == step.env_id.dtype == np.int32
    np.testing.assert_array_equal(step.env_id, np.arange(batch) if batch else 0)
    assert np.all(step.is_last()) == (step_type == 2) and np.all(step.is_mid()) == (step_type == 1)
    assert step.prev_action is action and step.env_info == {}


@pytest.mark.parametrize("batched", [False, True])
def test_restart_has_zero_reward_and_prev_action(batched):
    observation = {"x": np.ones((3, 4) if batched else (4,), np.float32)}
    step = restart(observation, ACTION, TensorSpec((2,)), batched=batched)
    outer = (3,) if batched else ()
    assert step.reward.shape == (*outer, 2) and not step.reward.any()
    assert step.prev_action["a"].shape == (*outer, 2) and not step.prev_action["a"].any()
    assert np.all(step.is_first()) and np.all(step.discount == 1)


def test_vector_reward_is_not_a_batch():
    spec = TensorSpec((2,))
    assert transition(np.zeros(4), 0, np.zeros(2), spec).step_type.shape == ()
    assert transition(np.zeros((3, 4)), np.zeros(3), np.zeros((3, 2)), spec).step_type.shape == (3,)
    with pytest.raises(ValueError, match=r"reward: expected shape \(2,\)"):
        transition(np.zeros(4), 0, np.zeros(3), spec)


def test_timestep_accepts_own_discount_and_env_id():
    step = transition(np.zeros((2, 1)), np.zeros(2), np.zeros(2), discount=[0.5, 0.9], env_id=[7, 3])
    np.testing.assert_allclose(step.discount, [0.5, 0.9])
    assert step.env_id.tolist() == [7, 3] and step.env_id.dtype == np.int32


def test_timestep_of_tensors_holds_tensors():
    torch = pytest.importorskip("torch")
    step = termination(torch.zeros(2, 3), torch.zeros(2), torch.ones(2, dtype=torch.float64))
    assert step.reward.dtype == torch.float32 and step.step_type.dtype == torch.int32
    assert step.is_last().tolist() == [True, True] and step.discount.tolist() == [0.0, 0.0]
    first = restart(torch.zeros(3), ACTION)
    assert all(torch.is_tensor(leaf) for leaf in (first.step_type, first.reward, first.prev_action["b"]))
    assert first.cpu() is first, "it is there already"


def test_cuda_without_a_gpu_is_an_error():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        moved = restart(np.zeros(3, np.float32), ACTION).cuda()
        assert moved.reward.is_cuda and moved.cuda() is moved and moved.cpu().reward.device.type == "cpu"
    else:
        with pytest.raises((AssertionError, RuntimeError)):
            restart(np.zeros(3, np.float32), ACTION).cuda()


def test_cpu_cache_is_not_copied_by_replace():
    step = restart(np.zeros(3, np.float32), ACTION)
    assert step.cpu() is step.cpu()
    changed = step._replace(reward=np.float32(5))
    assert changed.cpu().reward == 5


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))])
def test_time_steps_copy_and_pickle(copied):
    step = restart(np.zeros(3, np.float32), ACTION)
    step.cpu()
    again = copied(step)
    assert type(again) is TimeStep and again.prev_action.keys() == {"a", "b"}
    assert "_on_cpu" not in again.__dict__


def test_spec_of_a_time_step():
    spec = time_step_spec(TensorSpec((4,)), ACTION)
    assert spec.discount == BoundedTensorSpec((), np.float32, 0, 1)
    assert spec.step_type.dtype == np.int32 and spec.reward == TensorSpec(()) and spec.prev_action is ACTION
    assert time_step_spec(TensorSpec(()), ACTION, TensorSpec((2,))).reward == TensorSpec((2,))
