"""Conversion to arrays, scaling, and the forms of actions."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest
from gymnasium import spaces

from vecenv import ConfigError
from vecenv.ding import affine_transform, to_ndarray
from vecenv.envs.arrays import action_to_ndarray, normalise_action, present_obs, present_space, scale_action

Pair = namedtuple("Pair", "a b")


def test_to_ndarray_of_numbers_and_sequences():
    assert to_ndarray([1, 2]).tolist() == [1, 2]
    assert to_ndarray(3.0).shape == ()
    assert to_ndarray([1, 2], np.float32).dtype == np.float32
    assert to_ndarray((np.float64(1), 2)).shape == (2,)


def test_to_ndarray_keeps_containers():
    out = to_ndarray({"a": [1.0], "b": ([1, 2], "text", None, True)})
    assert out["a"].shape == (1,) and isinstance(out["b"], tuple) and out["b"][1:] == ("text", None, True)
    assert isinstance(to_ndarray(Pair([1], 2)), Pair)
    assert to_ndarray([]) is None


def test_to_ndarray_does_not_copy_fitting_arrays():
    array = np.zeros(3, np.float32)
    assert to_ndarray(array) is array and to_ndarray(array, np.float32) is array
    assert to_ndarray(array, np.int64).dtype == np.int64


def test_to_ndarray_takes_tensors():
    torch = pytest.importorskip("torch")
    assert to_ndarray(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]


def test_to_ndarray_refuses_other_types():
    with pytest.raises(TypeError, match="object"):
        to_ndarray(object())


def test_affine_transform_by_bounds_and_by_scale():
    data = np.array([-2.0, -1.0, 0.0, 1.0])
    assert affine_transform(data, min_val=0, max_val=10).tolist() == [0, 0, 5, 10]
    assert affine_transform(data, action_clip=False, alpha=2, beta=1).tolist() == [-3, -1, 1, 3]
    assert affine_transform(0.5, alpha=2) == 1.0


def test_affine_transform_needs_both_bounds():
    with pytest.raises(ConfigError):
        affine_transform(0.0, min_val=0)
    with pytest.raises(ConfigError):
        affine_transform(0.0)


def test_w4_space_dtype_is_not_edited_in_place():
    space = spaces.Box(np.array([-1e300, 0.1]), np.array([1e300, 0.3]), dtype=np.float64)
    shown = present_space(space)
    assert space.dtype == np.float64 and space.low.dtype == np.float64
    assert shown.dtype == shown.low.dtype == shown.high.dtype == np.float32
    assert shown.low[0] == -np.inf
    assert shown.contains(present_obs(np.array([0.0, 0.3]), space))


def test_present_space_maps_containers_and_keeps_fitting_spaces():
    image = spaces.Box(0, 255, (2,), np.uint8)
    nested = spaces.Dict({"a": spaces.Box(0.0, 1.0, (1,), np.float64), "b": spaces.Tuple([image])})
    shown = present_space(nested)
    assert shown["a"].dtype == np.float32 and shown["b"] is nested["b"]
    assert present_space(image) is image


def test_present_obs_of_nested_spaces():
    space = spaces.Dict({"a": spaces.Box(0.0, 1.0, (1,), np.float64), "b": spaces.Tuple([spaces.Discrete(3)])})
    obs = present_obs({"a": np.ones(1), "b": (2,)}, space)
    assert obs["a"].dtype == np.float32 and obs["b"][0].dtype == np.int64


def test_present_obs_returns_separate_arrays():
    part = spaces.Box(0.0, 1.0, (1,), np.float32)
    array = np.zeros(1, np.float32)
    nested = {"a": (array, Pair(array, "text"))}
    box = present_obs(array, part)
    known = present_obs({"a": (array,)}, spaces.Dict({"a": spaces.Tuple([part])}))["a"][0]
    unknown = present_obs(nested, None)["a"]
    other = present_obs(array, spaces.MultiBinary(1))
    assert isinstance(unknown[1], Pair) and unknown[1].b == "text"
    for shown in (box, known, unknown[0], unknown[1].a, other):
        assert shown.tolist() == [0.0] and not np.shares_memory(shown, array)


@pytest.mark.parametrize("action", [1, np.int8(1), np.int32(1), np.uint8(1), np.array(1), np.array([1], np.int64)])
def test_discrete_actions_become_int(action):
    normal = normalise_action(action, spaces.Discrete(2))
    assert normal == 1 and type(normal) is int


@pytest.mark.parametrize("dtype", [np.int32, np.int16, np.uint8])
def test_w5_int32_actions_are_taken(dtype):
    assert normalise_action(np.array([2], dtype), spaces.Discrete(3)) == 2
    assert normalise_action(dtype(2), None) == 2


def test_one_element_arrays_stay_arrays_if_the_space_has_them():
    box, multi = spaces.Box(-1, 1, (1,)), spaces.MultiDiscrete([3])
    action = np.array([1])
    assert normalise_action(action, multi) is action
    floats = np.array([0.5], np.float32)
    assert normalise_action(floats, box) is floats


def test_w5_dict_actions_are_not_edited_in_place():
    action = {"a": np.array([1], np.int32), "b": np.array([0.5])}
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (1,))})
    normal = normalise_action(action, space)
    assert normal["a"] == 1 and isinstance(action["a"], np.ndarray)


def test_actions_of_tuples_and_trees():
    space = spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2,))])
    choice, parameters = normalise_action([np.array([1]), np.zeros(2)], space)
    assert choice == 1 and parameters.shape == (2,)

    class Tree:
        def json(self):
            return {"a": np.array([1])}

    assert normalise_action(Tree(), spaces.Dict({"a": spaces.Discrete(2)})) == {"a": 1}


@pytest.mark.parametrize("action", ["left", None, object(), (1, 2)])
def test_other_actions_are_type_errors(action):
    with pytest.raises(TypeError, match="action"):
        normalise_action(action, spaces.Discrete(2))


def test_random_actions_are_arrays():
    assert action_to_ndarray(3).tolist() == [3] and action_to_ndarray(3).dtype == np.int64
    assert action_to_ndarray({"a": 1})["a"].shape == (1,)
    with pytest.raises(TypeError):
        action_to_ndarray((1, 2))


def test_scaled_actions_reach_the_bounds():
    box = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    assert scale_action(np.array([-1.0, 3.0]), box).tolist() == [-2.0, 10.0]
    assert scale_action(np.array([0.0, 0.0]), box).dtype == np.float32
    assert scale_action(1, spaces.Discrete(2)) == 1
    args = spaces.Tuple([box, spaces.Discrete(3)])
    hybrid = spaces.Dict(action_type=spaces.Discrete(2), action_args=args, force=box)
    given = {"action_type": 1, "action_args": (np.array([-1.0, 3.0]), 2), "force": np.array([1.0, -1.0])}
    found = scale_action(given, hybrid)
    scaled, number = found["action_args"]
    assert (found["action_type"], number) == (1, 2)
    assert scaled.tolist() == [-2.0, 10.0] and found["force"].tolist() == [2.0, 0.0]
    assert given["force"].tolist() == [1.0, -1.0]
