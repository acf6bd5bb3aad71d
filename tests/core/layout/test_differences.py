"""Texts about two spaces that differ, and the comparison of large spaces."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Text, Tuple

import vecenv
from vecenv.core.layout.differences import are_equal, first_difference
from vecenv.envs.toys import SpaceEnv


def box(high=1.0, shape=(2,), dtype=np.float32):
    return Box(0, high, shape, dtype)


CAMERA = Box(0, 255, (64, 64, 3), np.uint8)
CASES = [
    (box(), box(2.0), "space: high is 1.0 at index 0, that of env 0 is 2.0"),
    (Box(np.array([0.0, 1.0]), 2, dtype=np.float64), Box(0, 2, (2,), np.float64), "low is 1.0 at index 1, that"),
    (CAMERA, Box(0, 255, (64, 64, 1), np.uint8), r"shape is \(64, 64, 3\), that of env 0 is \(64, 64, 1\)"),
    (box(), box(dtype=np.float64), "dtype is float32, that of env 0 is float64"),
    (Discrete(2), Discrete(3), "n is 2, that of env 0 is 3"),
    (Discrete(2), Discrete(2, start=1), "start is 0, that of env 0 is 1"),
    (Discrete(2), box(), r"space: is Discrete\(2\), that of env 0 is Box"),
    (MultiDiscrete([2, 3]), MultiDiscrete([2, 4]), "nvec is 3 at index 1, that of env 0 is 4"),
    (MultiBinary(2), MultiBinary(3), "shape is"),
    (Text(2), Text(3), "max_length is 2, that of env 0 is 3"),
    (Graph(box(), None), Graph(box(2.0), None), "space: is Graph"),
    (Dict(a=box(), b=CAMERA), Dict(a=box(2.0), b=CAMERA), "^space/a: high is"),
    (Dict(a=box()), Dict(b=box()), r"space: keys are \['a'\], those of env 0 are \['b'\]"),
    (Dict(a=Tuple((box(), box()))), Dict(a=Tuple((box(), box(2.0)))), "^space/a/1: high is"),
    (Tuple((box(),)), Tuple((box(), box())), r"space: indices are \[0\], those of env 0 are \[0, 1\]"),
]


@pytest.mark.parametrize("space, other, text", CASES, ids=range(len(CASES)))
def test_first_difference_names_leaf_and_property(space, other, text):
    """Whole spaces were printed, whose texts can be equal and are long for dicts of images."""
    path, found = first_difference(space, other, "space", "env 0")
    assert found.startswith(f"{path}: ") and re.search(text, found)


@pytest.mark.parametrize("space", [space for space, _, _ in CASES], ids=range(len(CASES)))
def test_equal_spaces_have_no_difference(space):
    assert first_difference(space, copy.deepcopy(space), "space", "env 0") is None


def test_bounds_may_differ():
    assert first_difference(Dict(a=box()), Dict(a=box(2.0)), "space", "env 0", has_bounds=False) is None
    assert first_difference(Dict(a=box()), Dict(a=box(shape=(3,))), "space", "env 0", has_bounds=False) == (
        "space/a",
        "space/a: shape is (2,), that of env 0 is (3,)",
    )


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_large_bounds_are_compared_by_bytes(backend, monkeypatch):
    """`Box` compares bounds with a tolerance, which takes minutes for large observations."""

    def compare(self, other):
        raise AssertionError("compared with a tolerance")

    monkeypatch.setattr(Box, "__eq__", compare)
    space = Dict(image=Box(0, 255, (64, 64), np.uint8), pair=Tuple([box(), Discrete(2)]))
    with vecenv.VectorEnv([lambda: SpaceEnv(space)] * 4, num_workers=2, backend=backend) as envs:
        envs.reset(seed=1)
        assert envs.observation_space["image"].shape == (4, 64, 64)


def test_bounds_within_the_tolerance_of_box_are_equal():
    assert are_equal(box(1.0), box(1.0 + 1e-7))
    assert not are_equal(Dict(a=box(1.0)), Dict(a=box(1.1)))
    assert not are_equal(Dict(a=box(), b=box()), Dict(b=box(), a=box(2.0)))
