"""Nests of every type through a batch: dicts, tuples, named tuples and lists keep the structure of the specs."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.alf.comparison import assert_same
from vecenv.alf import (
    AlfEnvironment,
    BatchEnvironmentWrapper,
    BoundedTensorSpec,
    ParallelAlfEnvironment,
    TensorSpec,
    restart,
    termination,
    transition,
)
from vecenv.alf.wrappers.batch import stack
from vecenv.values.nested import map_structure


class Pair(NamedTuple):
    """Two named parts."""

    wheel: Any
    gear: Any


NESTS = {
    "named tuple": Pair,
    "list": lambda a, b: [a, b],
    "tuple": lambda a, b: (a, b),
    "mixed": lambda a, b: {"x": [a, Pair(b, a)], "y": (b,)},
    "named tuple of one leaf": lambda a, b: Pair(a, [b]),
}


class Nested(AlfEnvironment):
    """Has observations and actions of one structure and three steps; refuses actions of another structure."""

    def __init__(self, nest, env_id=0):
        self.nest, self.env_id, self.count = nest, np.int32(env_id), 0

    def observation_spec(self):
        return self.nest(TensorSpec((2,)), TensorSpec((), np.int64))

    def action_spec(self):
        return self.nest(BoundedTensorSpec((2,), np.float32, -1, 1), BoundedTensorSpec((), np.int64, 0, 3))

    def env_info_spec(self):
        return {}

    def reward_spec(self):
        return TensorSpec(())

    def observe(self):
        return self.nest(np.full(2, self.count, np.float32), np.int64(self.env_id))

    def _reset(self):
        self.count = 0
        return restart(self.observe(), self.action_spec(), env_id=self.env_id)

    def _step(self, action):
        if self.count == 3:
            return self.reset()
        assert types_of(action) == types_of(self.action_spec())
        self.count += 1
        end = termination if self.count == 3 else transition
        return end(self.observe(), action, np.float32(self.count), env_id=self.env_id)


def types_of(nest):
    """Return the structure only: the types of the nests, with None for each leaf."""
    if isinstance(nest, dict):
        return {key: types_of(part) for key, part in nest.items()}
    if isinstance(nest, (tuple, list)):
        return type(nest), [types_of(part) for part in nest]
    return None


LAYOUTS = {
    "serial": {"backend": "serial"},
    "workers": {"num_workers": 2},
    "ahead": {"backend": "serial", "reset_ahead": True},
    "spare": {"backend": "serial", "num_spare_envs_for_reload": 1},
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nests_convert_to_specs_and_back(nest, layout):
    options = LAYOUTS[layout]
    count = 2 + options.get("num_spare_envs_for_reload", 0)
    with ParallelAlfEnvironment([functools.partial(Nested, nest)] * count, tensors=False, **options) as env:
        check(env, nest, is_alike=count == 2)


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_nests_of_batches_in_a_worker(nest):
    def make(env_id):
        return BatchEnvironmentWrapper([Nested(nest, env_id)])

    with ParallelAlfEnvironment([make] * 2, tensors=False, backend="serial") as env:
        check(env, nest)


def check(env, nest, is_alike=True):
    """Compare five steps with those of single envs stepped in a loop."""
    singles = [Nested(nest, env_id) for env_id in range(2)]
    zeros = map_structure(lambda spec: spec.numpy_zeros((2,)), env.action_spec())
    ones = map_structure(lambda leaf: leaf + 1, zeros)
    assert types_of(env.observation_spec()) == types_of(singles[0].observation_spec())
    assert types_of(env.action_spec()) == types_of(singles[0].action_spec())
    mine, theirs = env.reset(), [single.reset() for single in singles]
    for action in (zeros, ones, ones, zeros, ones):
        assert types_of(mine.observation) == types_of(singles[0].observation_spec())
        assert types_of(mine.prev_action) == types_of(singles[0].action_spec())
        if is_alike:
            assert_same(mine, stack(theirs))
        mine = env.step(action)
        rows = [map_structure(lambda leaf, row=row: leaf[row], action) for row in range(2)]
        theirs = [single.step(row) for single, row in zip(singles, rows)]
