"""Changes of an env's attributes by a call are found, whatever kind of value they are in."""

from __future__ import annotations

from collections import defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecenv.envs.state.state import SNAPSHOTTER

Pair = namedtuple("Pair", ["first", "second"])


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Hidden(gymnasium.utils.EzPickle):
    """An object whose pickle contains the arguments of its constructor only."""

    def __init__(self) -> None:
        super().__init__()
        self.value = [0]

    def read(self) -> int:
        return self.value[0]


def closure() -> Callable[[], int]:
    count = 0

    def add() -> int:
        nonlocal count
        count += 1
        return count

    return add


class Holder(gymnasium.Env[Any, Any]):
    """An env with one attribute."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def __init__(self, value: Any) -> None:
        self.value = value


def setitem(key: Any, value: Any) -> Callable[[Any], None]:
    return lambda env: env.value.__setitem__(key, value)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [0, 1], setitem(0, 5)),
    "list in a tuple": (lambda: (0, [1]), lambda env: env.value[1].append(2)),
    "key of a dict": (lambda: {"a": 1}, lambda env: env.value.update(b=env.value.pop("a"))),
    "value of a dict": (lambda: {"a": [1]}, lambda env: env.value["a"].append(1)),
    "set": (lambda: {1, 2}, lambda env: env.value.add(3)),
    "deque": (lambda: deque([1, 2]), lambda env: env.value.rotate()),
    "defaultdict": (lambda: defaultdict(list), lambda env: env.value["new"]),
    "named tuple": (lambda: Pair(0, [1]), lambda env: env.value.second.append(1)),
    "array": (lambda: np.zeros(3), setitem(1, -0.0)),
    "array of objects": (lambda: np.array([[0], None], object), lambda env: env.value[0].append(1)),
    "shape of an array": (lambda: np.zeros(4), lambda env: setattr(env.value, "shape", (2, 2))),
    "long list": (lambda: list(range(10_000)), setitem(9999, 0)),
    "long list of lists": (lambda: [[i] for i in range(1000)], lambda env: env.value[999].append(0)),
    "object": (Hidden, lambda env: env.value.value.append(1)),
    "object in a long list": (lambda: [Hidden() for _ in range(1000)], lambda env: env.value[5].value.append(1)),
    "slot": (Slotted, lambda env: setattr(env.value, "value", 1)),
    "slot in a long list": (lambda: [Slotted() for _ in range(1000)], lambda env: setattr(env.value[5], "value", 1)),
    "method": (lambda: Hidden().read, lambda env: env.value.__self__.value.append(1)),
    "closure": (closure, lambda env: env.value()),
    "type of a number": (lambda: 1, lambda env: setattr(env, "value", True)),
    "sign of zero": (lambda: 0.0, lambda env: setattr(env, "value", -0.0)),
    "generator": (lambda: np.random.default_rng(0), lambda env: env.value.random()),
    "old generator": (lambda: np.random.RandomState(0), lambda env: env.value.random()),
    "space": (lambda: spaces.Discrete(3, seed=0), lambda env: env.value.sample()),
    "size of a space": (lambda: spaces.Discrete(3, seed=0), lambda env: setattr(env.value, "n", np.int64(4))),
    "space in a space": (lambda: spaces.Dict(a=spaces.Discrete(3, seed=0)), lambda env: env.value["a"].sample()),
}


def changes_of(env: Any, call: Callable[[Any], Any]) -> Any:
    watch = SNAPSHOTTER.watch(env, is_deep=True)
    call(env)
    return SNAPSHOTTER.changes(env, watch)


@pytest.mark.parametrize("kind", CHANGES)
def test_change_of_a_value_is_found(kind: str) -> None:
    make, change = CHANGES[kind]
    env = Holder(make())
    assert changes_of(env, lambda env: None) == {}
    assert changes_of(env, change) != {}
    assert changes_of(env, lambda env: None) == {}


def test_equal_new_values_are_no_change() -> None:
    for value in (float("nan"), "text" * 9, [1.5, "a"], np.ones(3), {"a": (1, 2)}):
        env = Holder(value)
        watch = SNAPSHOTTER.watch(env, is_deep=True)
        env.value = value.copy() if hasattr(value, "copy") else type(value)(str(value))
        assert SNAPSHOTTER.changes(env, watch) == {}, value


def test_value_that_is_an_attribute_twice_is_found() -> None:
    env = Holder([0])
    env.alias = env.value  # type: ignore[attr-defined]
    assert set(changes_of(env, lambda env: env.alias.append(1))) == {(0, "value")}


def test_object_that_contains_itself_is_compared() -> None:
    env = Holder([0])
    env.value.append(env.value)
    env.value.append(env)
    assert changes_of(env, lambda env: None) == {}
    assert changes_of(env, setitem(0, 1)) != {}
