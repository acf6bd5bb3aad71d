"""`values.content.content_of`: equal values have equal contents, however they were pickled."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from vecenv.values.content import content_of


class Plain:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Listed(list):  # type: ignore[type-arg]
    pass


SHARED = [1, "a"]
UNPICKLED = pickle.loads(pickle.dumps(np.arange(3)))


@pytest.mark.parametrize(
    "one, other",
    [
        ([SHARED, SHARED], [[1, "a"], [1, "a"]]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, 2, "c"}, {"c", 2, 1}),
        ([np.arange(3), np.arange(3)], [np.arange(3), UNPICKLED]),
        (Plain(a=SHARED, b=[SHARED]), Plain(b=[[1, "a"]], a=[1, "a"])),
        (Listed([SHARED]), Listed([[1, "a"]])),
    ],
)
def test_contents_of_equal_values_are_equal(one: Any, other: Any) -> None:
    assert repr(content_of(pickle.dumps(one, 5))) == repr(content_of(pickle.dumps(other, 5)))


@pytest.mark.parametrize(
    "one, other",
    [
        ([1], (1,)),
        ([1], Listed([1])),
        (0.0, -0.0),
        (1, True),
        (b"a", "a"),
        ({1: 2}, {2: 1}),
        (np.arange(3), np.arange(3.0)),
        (Plain(a=1), Plain(a=2)),
        (Plain, Listed),
    ],
)
def test_contents_of_other_values_differ(one: Any, other: Any) -> None:
    assert repr(content_of(pickle.dumps(one, 5))) != repr(content_of(pickle.dumps(other, 5)))


def test_content_of_an_object_that_contains_itself_is_finite() -> None:
    def ring(size: int) -> Any:
        first = Plain(number=size)
        first.inside = Plain(outer=first)
        return first

    assert repr(content_of(pickle.dumps(ring(2)))) == repr(content_of(pickle.dumps(ring(2))))
    assert repr(content_of(pickle.dumps(ring(2)))) != repr(content_of(pickle.dumps(ring(3))))
