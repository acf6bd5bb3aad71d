"""Tensor specs: bounds, equality, samples, and the specs of every space with a fixed layout."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from gymnasium import spaces

from tests.spaces import FIXED_SPACES, OTHER_SPACES
from vecenv.alf import BoundedTensorSpec, TensorSpec, tensor_spec_from_gym_space
from vecenv.alf.nests import flatten, map_structure
from vecenv.alf.spec import space_of_specs


def test_bounds_are_inclusive_and_checked():
    spec = BoundedTensorSpec((2,), np.int32, [0, -1], 3)
    assert spec.contains(np.array([0, 3], np.int32)) and spec.contains(np.array([3, -1], np.int32))
    assert not spec.contains(np.array([0, 4], np.int32)) and not spec.contains(np.array([0, 3], np.int64))
    with pytest.raises(AssertionError, match="above maximum"):
        BoundedTensorSpec((), np.float32, 2, 1)
    with pytest.raises(ValueError, match=r"minimum: shape \(3,\) does not broadcast to \(2,\)"):
        BoundedTensorSpec((2,), np.float32, [0, 0, 0], 1)


def test_equal_specs_are_equal_however_their_bounds_were_given():
    assert BoundedTensorSpec((2,), "float32", 0, 1) == BoundedTensorSpec((2,), "float32", [0, 0], [1, 1])
    assert BoundedTensorSpec((2,)) != TensorSpec((2,)) and TensorSpec((2,)) != TensorSpec((2,), np.int64)
    assert hash(BoundedTensorSpec((2,))) == hash(pickle.loads(pickle.dumps(BoundedTensorSpec((2,)))))
    assert BoundedTensorSpec((), "int64", 0, 1) != BoundedTensorSpec((), "int64", 0, 2)


def test_what_a_spec_makes():
    spec = TensorSpec((2, 3), "uint8")
    assert spec.ndim == 2 and spec.numel == 6 and spec.is_discrete and not spec.is_continuous
    assert spec.numpy_ones((4,)).shape == (4, 2, 3) and spec.numpy_zeros().dtype == np.uint8
    assert TensorSpec.from_array(np.zeros((2, 3), np.uint8)) == spec


@pytest.mark.parametrize("spec", [BoundedTensorSpec((5,), "int64", -2, 2), BoundedTensorSpec((5,), "float32", -2, 2)])
def test_samples_lie_between_the_bounds(spec):
    drawn = spec.numpy_sample((200,), np.random.default_rng(0))
    assert drawn.shape == (200, 5) and all(spec.contains(row) for row in drawn)
    if spec.is_discrete:
        assert set(np.unique(drawn)) == {-2, -1, 0, 1, 2}, "both ends come up"


def test_tensors_of_a_spec():
    torch = pytest.importorskip("torch")
    spec = BoundedTensorSpec((2,), torch.int64, 0, 3)
    assert spec.dtype == np.int64 and spec.torch_dtype == torch.int64
    assert spec.zeros((3,)).shape == (3, 2) and spec.contains(spec.sample())
    assert TensorSpec.from_array(torch.zeros(2)) == TensorSpec((2,))


@pytest.mark.parametrize("name", FIXED_SPACES)
@pytest.mark.parametrize("simplify", [False, True])
def test_the_spec_contains_what_the_space_samples(name, simplify):
    space = FIXED_SPACES[name]
    space.seed(1)
    specs = tensor_spec_from_gym_space(space, simplify_box_bounds=simplify)
    for _ in range(20):
        sample = map_structure(lambda spec, leaf: np.asarray(leaf, spec.dtype), specs, space.sample())
        assert all(spec.contains(leaf) for spec, leaf in zip(flatten(specs), flatten(sample), strict=True))


@pytest.mark.parametrize("name", FIXED_SPACES)
def test_a_space_made_of_specs_has_their_layout(name):
    specs = tensor_spec_from_gym_space(FIXED_SPACES[name])
    assert tensor_spec_from_gym_space(space_of_specs(specs), float_dtype=np.float32) == specs


@pytest.mark.parametrize("name", OTHER_SPACES)
def test_spaces_without_a_fixed_layout_are_refused(name):
    with pytest.raises(ValueError, match="fixed layout"):
        tensor_spec_from_gym_space(OTHER_SPACES[name])


def test_discrete_spaces_keep_their_start():
    spec = tensor_spec_from_gym_space(spaces.Discrete(5, start=-2))
    assert (spec.minimum, spec.maximum) == (-2, 2)


def test_nested_boxes_keep_both_options():
    space = spaces.Dict(inner=spaces.Tuple([spaces.Box(-1.0, 1.0, (3,), np.float64)]))
    (spec,) = tensor_spec_from_gym_space(space, simplify_box_bounds=True, float_dtype=np.float64)["inner"]
    assert spec.dtype == np.float64 and spec.minimum.shape == ()
    (spec,) = tensor_spec_from_gym_space(space, simplify_box_bounds=False)["inner"]
    assert spec.dtype == np.float32 and spec.minimum.shape == (3,)


def test_a_bound_beyond_float32_is_infinity():
    spec = tensor_spec_from_gym_space(spaces.Box(-1e300, 1e300, (1,), np.float64))
    assert spec.minimum == -np.inf and spec.maximum == np.inf
