"""Tensor specs: bounds, equality, samples, and the specs of every space with a fixed layout."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from gymnasium import spaces

from tests.spaces import FIXED_SPACES, OTHER_SPACES
from vecenv.alf import BoundedTensorSpec, TensorSpec, tensor_spec_from_gym_space
from vecenv.alf.base.spec import space_of_specs
from vecenv.errors import ConfigError
from vecenv.values.nested import flatten, map_structure


def test_bounds_are_inclusive_and_checked():
    spec = BoundedTensorSpec((2,), np.int32, [0, -1], 3)
    assert spec.contains(np.array([0, 3], np.int32)) and spec.contains(np.array([3, -1], np.int32))
    assert not spec.contains(np.array([0, 4], np.int32)) and not spec.contains(np.array([0, 3], np.int64))
    with pytest.raises(AssertionError, match="above maximum"):
        BoundedTensorSpec((), np.float32, 2, 1)
    with pytest.raises(ValueError, match=r"minimum: shape \(3,\) does not broadcast to \(2,\)"):
        BoundedTensorSpec((2,), np.float32, [0, 0, 0], 1)


@pytest.mark.parametrize("shape", ["x", 3, None, (2.5,), (-1,), np.array(3)])
def test_shape_must_be_integers(shape):
    with pytest.raises(ConfigError, match="^shape: expected "):
        TensorSpec(shape)


def test_specs_are_equal_however_bounds_were_given():
    assert BoundedTensorSpec((2,), "float32", 0, 1) == BoundedTensorSpec((2,), "float32", [0, 0], [1, 1])
    assert BoundedTensorSpec((2,)) != TensorSpec((2,)) and TensorSpec((2,)) != TensorSpec((2,), np.int64)
    assert hash(BoundedTensorSpec((2,))) == hash(pickle.loads(pickle.dumps(BoundedTensorSpec((2,)))))
    assert BoundedTensorSpec((), "int64", 0, 1) != BoundedTensorSpec((), "int64", 0, 2)


def test_spec_properties_and_constant_arrays():
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


def test_specs_derived_from_others():
    plain, bounded = TensorSpec((2, 3), "uint8"), BoundedTensorSpec((2,), "float32", -1, [1, 2])
    assert not TensorSpec.is_bounded() and BoundedTensorSpec.is_bounded() and bounded.is_bounded()
    assert TensorSpec.from_spec(bounded) == TensorSpec((2,)) and BoundedTensorSpec.from_spec(bounded) == bounded
    with pytest.raises(ValueError, match="bounds"):
        BoundedTensorSpec.from_spec(plain)
    assert plain.replace(shape=(4,)) == TensorSpec((4,), "uint8") and plain.replace() == plain
    assert bounded.replace(dtype="int64", maximum=5) == BoundedTensorSpec((2,), "int64", -1, 5)
    with pytest.raises(ValueError, match="broadcast"):
        bounded.replace(shape=(3,))
    with pytest.raises(TypeError, match="minimum"):
        plain.replace(minimum=0)
    assert TensorSpec.from_array(np.zeros((5, 2, 3), np.uint8), 1) == plain and plain.dtype_str == "uint8"


def test_bounds_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        BoundedTensorSpec((2,), "float32", [0, 0], [1, 1]).minimum[0] = 2


def test_minus_zero_bound_is_zero():
    left, right = BoundedTensorSpec((2,), "float32", -0.0, 1), BoundedTensorSpec((2,), "float32", 0.0, 1)
    assert left == right and hash(left) == hash(right)
    far = 2**62 + 1
    assert BoundedTensorSpec((), "int64", 0, far) != BoundedTensorSpec((), "int64", 0, far + 1)


def test_constants_with_and_without_axes_in_front():
    spec = TensorSpec((2,), "int32")
    for make in (spec.numpy_zeros, spec.numpy_ones):
        assert make(None).shape == make().shape == (2,) and make([4]).shape == (4, 2)
    assert BoundedTensorSpec((2,)).numpy_sample(None).shape == (2,)
    array = spec.numpy_constant(7, (3,))
    assert array.shape == (3, 2) and array.dtype == np.int32 and (array == 7).all()
    with pytest.raises(ValueError, match=r"expected a number, got shape \(2,\)"):
        spec.numpy_constant([1, 2])


def test_tensors_with_and_without_axes_in_front():
    torch = pytest.importorskip("torch")
    spec = BoundedTensorSpec((2,), "float32", 5, 6)
    for make in (spec.zeros, spec.ones, spec.rand, spec.randn, spec.sample):
        assert make(None).shape == make().shape == (2,) and make((3,)).shape == (3, 2)
        assert make().dtype == torch.float32
    assert spec.constant(3, (1,)).tolist() == [[3.0, 3.0]]
    drawn = spec.rand((1000,))
    assert drawn.min() >= 0 and drawn.max() < 1
    assert TensorSpec.from_tensor(torch.zeros(4, 2), from_dim=1) == TensorSpec((2,))


@pytest.mark.parametrize("name", FIXED_SPACES)
@pytest.mark.parametrize("simplify", [False, True])
def test_spec_contains_samples_of_its_space(name, simplify):
    space = FIXED_SPACES[name]
    space.seed(1)
    specs = tensor_spec_from_gym_space(space, simplify_box_bounds=simplify)
    for _ in range(20):
        sample = map_structure(lambda spec, leaf: np.asarray(leaf, spec.dtype), specs, space.sample())
        assert all(spec.contains(leaf) for spec, leaf in zip(flatten(specs), flatten(sample), strict=True))


@pytest.mark.parametrize("name", FIXED_SPACES)
def test_space_of_specs_has_their_layout(name):
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


def test_bound_beyond_float32_is_infinity():
    spec = tensor_spec_from_gym_space(spaces.Box(-1e300, 1e300, (1,), np.float64))
    assert spec.minimum == -np.inf and spec.maximum == np.inf
