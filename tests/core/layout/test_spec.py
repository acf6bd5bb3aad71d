"""Specs: spaces as leaves, values converted to fit them, and the description of the leaves for C."""

from __future__ import annotations

import gc
import warnings
import weakref

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from tests.spaces import ALL_SPACES, FIXED_SPACES, OTHER_SPACES
from vecenv.core.layout.spec import DictNode, Leaf, ObjectNode, Spec, TupleNode, can_convert
from vecenv.errors import SpaceError

SAMPLES = 20


def samples(space, count=SAMPLES):
    space.seed(7)
    return [space.sample() for _ in range(count)]


def leaves_of(node, value):
    """Yield (leaf, value at it)."""
    if isinstance(node, Leaf):
        yield node, value
    elif isinstance(node, DictNode):
        for key, child in zip(node.keys, node.children):
            yield from leaves_of(child, value[key])
    elif isinstance(node, TupleNode):
        for child, part in zip(node.children, value):
            yield from leaves_of(child, part)


@pytest.mark.parametrize("name", FIXED_SPACES)
def test_samples_conform_without_a_warning_and_unchanged(name):
    space = FIXED_SPACES[name]
    spec = Spec(space, "obs", strict=True)
    for sample in samples(space):
        exact = spec.conform(sample)
        for (leaf, array), (_, original) in zip(leaves_of(spec.root, exact), leaves_of(spec.root, sample)):
            assert array.dtype == leaf.dtype and array.shape == leaf.shape and array.flags.c_contiguous
            np.testing.assert_array_equal(array, original)
        assert spec.objects(sample) == []


@pytest.mark.parametrize("name", FIXED_SPACES)
def test_lists_are_as_good_as_arrays(name):
    space = FIXED_SPACES[name]
    spec = Spec(space, "obs")

    def plain(node, value):
        if isinstance(node, DictNode):
            return {key: plain(child, value[key]) for key, child in zip(node.keys, node.children)}
        if isinstance(node, TupleNode):
            return [plain(child, part) for child, part in zip(node.children, value)]
        return np.asarray(value).tolist()

    for sample in samples(space, 5):
        exact = spec.conform(plain(spec.root, sample))
        for (leaf, array), (_, original) in zip(leaves_of(spec.root, exact), leaves_of(spec.root, sample)):
            assert array.dtype == leaf.dtype
            np.testing.assert_array_equal(array, np.asarray(original, leaf.dtype))


@pytest.mark.parametrize("name", FIXED_SPACES)
def test_batch_goes_into_leaves_and_back(name):
    space = FIXED_SPACES[name]
    spec = Spec(space, "action")
    batch = concatenate(space, samples(space, 4), create_empty_array(space, 4))
    flat = spec.flatten_batch(batch, 4)
    assert [(array.dtype, array.shape) for array in flat] == [(leaf.dtype, (4, *leaf.shape)) for leaf in spec.leaves]
    nested = spec.batch(lambda leaf: flat[leaf.index], lambda node: None)
    for one, other in zip(iterate(batch_space(space, 4), batch), iterate(batch_space(space, 4), nested)):
        for (_, mine), (_, theirs) in zip(leaves_of(spec.root, one), leaves_of(spec.root, other)):
            np.testing.assert_array_equal(mine, theirs)


def test_nesting_a_batch_leaves_nothing_to_collect():
    """Otherwise every batch and its messages would stay in memory until the garbage collector runs."""

    class Columns:
        def __call__(self, leaf):
            return np.zeros((2, *leaf.shape))

    spec, columns = Spec(spaces.Dict(a=spaces.Box(0, 1, (3,)), b=spaces.Tuple([spaces.Discrete(2)])), "obs"), Columns()
    seen = weakref.ref(columns)
    gc.disable()
    try:
        assert spec.batch(columns, columns)["a"].shape == (2, 3)
        del columns
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", OTHER_SPACES)
def test_untyped_values_are_objects(name):
    space = OTHER_SPACES[name]
    spec = Spec(space, "obs")
    assert spec.num_objects > 0
    sample = samples(space, 1)[0]
    spec.conform(sample)
    found = spec.objects(sample)
    assert len(found) == spec.num_objects and all(value is not None for value in found)
    with pytest.raises(SpaceError, match="no batch array|expected"):
        spec.flatten_batch(sample, 1)


@pytest.mark.parametrize("name", ALL_SPACES)
def test_leaves_and_their_description_follow_the_space(name):
    spec = Spec(ALL_SPACES[name], "obs")
    assert [leaf.index for leaf in spec.leaves] == list(range(len(spec.leaves)))
    offsets = [64 * i for i in range(len(spec.leaves))]

    def described(node):
        if node[0] == "array":
            yield node
        for child in node[-1] if node[0] in ("dict", "tuple") else ():
            yield from described(child)

    for leaf, node in zip(spec.leaves, described(spec.describe(offsets, scratch=True))):
        _, index, offset, nbytes, kind, itemsize, shape, scratch = node
        assert (index, offset, nbytes, shape) == (leaf.index, 64 * leaf.index, leaf.nbytes, leaf.shape)
        assert np.dtype(f"{kind}{itemsize}") == leaf.dtype
        assert scratch.nbytes == nbytes and scratch.dtype == leaf.dtype and scratch.flags.writeable
    assert all(node[-1] is None for node in described(spec.describe(offsets)))


def test_paths_name_the_way_to_a_leaf():
    spec = Spec(FIXED_SPACES["dict_nested"], "obs")
    assert [leaf.path for leaf in spec.leaves][:2] == ["obs/camera/left", "obs/camera/right"]
    assert Spec(OTHER_SPACES["tuple_mixed"], "action").root.children[0] == ObjectNode("action/0", 0)


BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize(
    "space, value, says",
    [
        (BOX, np.zeros(3, np.float32), r"obs: expected float32 \(2,\), got float32 \(3,\)"),
        (BOX, np.zeros((2, 1), np.float32), r"expected float32 \(2,\), got float32 \(2, 1\)"),
        (BOX, np.zeros(2, np.complex64), "got complex64"),
        (BOX, np.array(["a", "b"]), "got <U1"),
        (BOX, [[1.0], [2.0, 3.0]], "obs: "),
        (BOX, None, r"obs: expected float32 \(2,\), got None$"),
        (BOX, {"b": 1, 2: 1}, r"got a dict with keys \['2', 'b'\]$"),
        (BOX, object(), "got object$"),
        (BOX, [None, 1], "got list of objects$"),
        (spaces.Box(0, 255, (1,), np.uint8), [300], r"got int64 \(1,\) of 300 to 300$"),
        (FIXED_SPACES["dict"], {"position": None, "gear": 1}, r"obs/position: expected float32 \(2,\), got None$"),
        (spaces.Discrete(4), 1.5, r"expected int64 \(\), got float 1.5"),
        (spaces.Discrete(4), np.array([1]), r"got int64 \(1,\)"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([1, 256]), r"expected uint8 \(2,\), got int64 \(2,\)"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([-1, 5]), "got int64"),
        (FIXED_SPACES["dict"], {"position": np.zeros(2, np.float32)}, "expected a dict with keys"),
        (FIXED_SPACES["dict"], {"position": np.zeros(2), "gear": 1, "more": 2}, "expected a dict with keys"),
        (FIXED_SPACES["dict"], 3, "got int"),
        (FIXED_SPACES["dict"], ["position", "gear"], "got list"),
        (FIXED_SPACES["tuple"], (1,), "expected a tuple of 2, got tuple of 1"),
        (FIXED_SPACES["tuple"], 5, "expected a tuple of 2, got int"),
    ],
)
def test_value_that_does_not_fit_is_refused_with_its_path(space, value, says):
    with pytest.raises(SpaceError, match=says) as caught:
        Spec(space, "obs").conform(value)
    assert caught.value.path.startswith("obs")


def test_path_of_an_error_leads_to_the_leaf():
    value = {"position": np.zeros(3, np.float32), "gear": 1}
    with pytest.raises(SpaceError, match="obs/position: expected") as caught:
        Spec(FIXED_SPACES["dict"], "obs").conform(value)
    assert caught.value.path == "obs/position"
    assert caught.value.expected == "float32 (2,)" and caught.value.got == "float32 (3,)"


def test_converted_leaf_warns_once():
    spec = Spec(FIXED_SPACES["dict"], "obs")
    warned = []
    spec.warn = lambda path, text: warned.append((path, text))
    for _ in range(3):
        exact = spec.conform({"position": np.zeros(2, np.float64), "gear": np.int32(2)})
    assert exact["position"].dtype == np.float32 and exact["gear"].dtype == np.int64
    assert [path for path, _ in warned] == ["obs/position"], "the int32 is exact as an int64"
    assert "float64 is converted to the space's float32" in dict(warned)["obs/position"]


def test_extra_keys_are_dropped_with_a_warning():
    spec = Spec(FIXED_SPACES["dict"], "obs", ignores_extra=True)
    warned = []
    spec.warn = lambda path, text: warned.append((path, text))
    with pytest.raises(SpaceError, match="expected a dict with keys"):
        spec.conform({"position": np.zeros(2, np.float32), "more": 1})
    assert warned == []
    for _ in range(2):
        exact = spec.conform({"position": np.zeros(2, np.float32), "gear": 1, "more": 1})
        assert exact.keys() == {"position", "gear"}
    assert len(warned) == 1 and "obs: keys ['more'] are not in the space" in warned[0][1]


def test_python_numbers_and_lists_are_converted_without_a_warning():
    spec = Spec(FIXED_SPACES["dict"], "obs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec.conform({"position": [0.5, 1], "gear": 3})


def test_strict_refuses_another_dtype_of_the_same_kind():
    spec = Spec(BOX, "obs", strict=True)
    spec.conform(np.zeros(2, np.float32))
    with pytest.raises(SpaceError, match="got float64"):
        spec.conform(np.zeros(2, np.float64))


@pytest.mark.parametrize("numbers", [np.array([0, 255]), np.array([3, 4], np.int8), np.array([1, 2], np.uint64)])
def test_whole_numbers_convert_when_they_fit_by_value(numbers):
    spec = Spec(spaces.Box(0, 255, (2,), np.uint8), "obs")
    spec.warn = lambda path, text: None
    np.testing.assert_array_equal(spec.conform(numbers), numbers)


#: (dtype of the space, a number that does not fit, a number that fits), for each unsigned kind.
UNSIGNED = [
    (np.uint8, np.uint16(300), np.uint16(255)),
    (np.uint8, np.uint64(2**40), np.uint64(7)),
    (np.int8, np.uint8(200), np.uint8(127)),
    (np.int16, np.uint16(2**15), np.uint16(2**15 - 1)),
    (np.int32, np.uint32(2**31), np.uint32(2**31 - 1)),
    (np.int64, np.uint64(2**63), np.uint64(2**63 - 1)),
    (np.uint32, np.uint64(2**32), np.uint64(2**32 - 1)),
]


def whole(dtype):
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, (2,), dtype)


@pytest.mark.parametrize("dtype, large, fits", UNSIGNED, ids=lambda value: getattr(value, "__name__", repr(value)))
def test_unsigned_numbers_that_are_too_large_are_refused_and_others_convert(dtype, large, fits):
    """Such numbers once wrapped around without a warning."""
    spec = Spec(whole(dtype), "obs")
    spec.warn = lambda path, text: None
    name = np.dtype(dtype).name
    says = rf"obs: expected {name} \(2,\), got {large.dtype} \(2,\) of 0 to {int(large)}"
    with pytest.raises(SpaceError, match=says):
        spec.conform(np.array([0, large], large.dtype))
    exact = spec.conform(np.array([0, fits], fits.dtype))
    assert exact.dtype == dtype and exact.tolist() == [0, int(fits)]


@pytest.mark.parametrize(
    "array, dtype, expected",
    [
        (np.zeros(0, np.uint64), np.int8, True),
        (np.array([], np.int64), np.uint8, True),
        (np.array([-1], np.int8), np.uint64, False),
        (np.array(2**63 - 1, np.uint64), np.int64, True),
        (np.array([1.0]), np.int64, False),
        (np.array([1.0]), np.float32, True),
        (np.array([2**60]), np.float32, True),
        (np.array([True]), np.int8, True),
        (np.array([1]), np.bool_, False),
        (np.array(["1"]), np.int64, False),
        (np.array([None]), np.int64, False),
    ],
    ids=repr,
)
def test_conversions_by_dtype(array, dtype, expected):
    assert can_convert(array, np.dtype(dtype)) is expected


@pytest.mark.parametrize("order", ["F", "step"])
def test_arrays_with_gaps_become_contiguous(order):
    space = spaces.Box(-1.0, 1.0, (2, 3), np.float32)
    full = np.arange(12, dtype=np.float32).reshape(2, 6)
    value = np.asfortranarray(full[:, :3]) if order == "F" else full[:, ::2]
    exact = Spec(space, "obs").conform(value)
    assert exact.flags.c_contiguous
    np.testing.assert_array_equal(exact, value)


def test_batch_of_the_wrong_length_is_refused():
    with pytest.raises(SpaceError, match=r"action: expected float32 \(3, 2\), got float32 \(2, 2\)"):
        Spec(BOX, "action").flatten_batch(np.zeros((2, 2), np.float32), 3)
