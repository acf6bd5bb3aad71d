"""Nested values: maps over their leaves, comparisons and copies."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

from vecenv import SpaceError
from vecenv.values.nested import copy_arrays, flatten, map_structure, writable_copy


class Pair(NamedTuple):
    left: Any
    right: Any


def frozen(*values: float) -> np.ndarray[Any, Any]:
    array = np.array(values)
    array.flags.writeable = False
    return array


def test_map_structure_keeps_order_and_classes_of_sequences() -> None:
    nest = OrderedDict(b=Pair(1, [2, (3,)]), a=())
    mapped = map_structure(lambda leaf: -leaf, nest)
    assert type(mapped) is dict and list(mapped) == ["b", "a"]
    assert type(mapped["b"]) is Pair and mapped == {"b": (-1, [-2, (-3,)]), "a": ()}
    assert flatten(nest) == [1, 2, 3]


def test_map_structure_stops_at_leaves_that_the_caller_names() -> None:
    nest = {"x": [1, 2], "y": {"z": (3,)}}
    mapped = map_structure(type, nest, is_leaf=lambda part: isinstance(part, (list, tuple)))
    assert mapped == {"x": list, "y": {"z": tuple}}


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"y": 1}, r"nests differ: expected a dict with keys \['x'\], got \['y'\]"),
        ([1], r"nests differ: expected a dict with keys \['x'\], got list"),
        ({"x": (1, 2, 3)}, "nests differ: expected 2 parts, got tuple"),
    ],
)
def test_map_structure_refuses_other_structures(other: Any, text: str) -> None:
    with pytest.raises(SpaceError, match=text):
        map_structure(lambda *leaves: leaves, {"x": (1, 2)}, other)


def test_containers_and_arrays_are_copied_and_other_objects_shared() -> None:
    thing = object()
    value = OrderedDict(pair=Pair(np.zeros(2), [thing]), parts=(np.ones(1),))
    copied = copy_arrays(value)
    assert type(copied) is OrderedDict and type(copied["pair"]) is Pair and type(copied["parts"]) is tuple
    assert copied["pair"].right == [thing] and copied["pair"].right is not value["pair"].right
    value["pair"].left[:] = value["parts"][0][:] = 7
    assert copied["pair"].left.tolist() == [0, 0] and copied["parts"][0].tolist() == [1]


@pytest.mark.parametrize("copied_by", [copy_arrays, writable_copy])
def test_copy_of_a_container_that_holds_itself_holds_itself(copied_by: Any) -> None:
    value: dict[str, Any] = {"array": frozen(1, 2), "list": [1]}
    value["self"] = value
    value["list"].append((value["list"], value))
    copied = copied_by(value)
    assert copied is not value and copied["self"] is copied
    assert copied["list"] is not value["list"]
    assert copied["list"][1][0] is copied["list"] and copied["list"][1][1] is copied
    assert copied["array"].flags.writeable


def test_writable_copy_copies_only_containers_of_frozen_arrays() -> None:
    value: list[Any] = [np.zeros(1), {"text": "x"}]
    value.append(value)
    assert writable_copy(value) is value
    value[1]["deep"] = (frozen(3),)
    assert writable_copy(value)[1]["deep"][0].flags.writeable
