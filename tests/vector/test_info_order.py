"""Infos are equal row by row, whether timing makes their values use columns or pickles."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.vector.test_infos import GivesInfos
from vecenv import VectorEnv
from vecenv.vector.infos import join_rows

#: Functions that draw a value; most of the values fit into columns.
KINDS: list[Callable[[random.Random], Any]] = [
    lambda rng: rng.random() < 0.5,
    lambda rng: rng.choice([0, 1, -1, 300, 2**60 + 1]),
    lambda rng: rng.choice([0.0, 1.0, 0.1, float("nan"), 2.0**63]),
    lambda rng: np.float32(rng.choice([0.5, 3, 1e30])),
    lambda rng: np.uint8(rng.randrange(256)),
    lambda rng: np.int8(rng.randrange(-128, 128)),
    lambda rng: np.uint64(rng.choice([1, 2**64 - 1])),
    lambda rng: np.bool_(rng.random() < 0.5),
    lambda rng: np.arange(rng.choice([2, 3])),
    lambda rng: np.arange(3) / 2,
    lambda rng: {"x": rng.choice([1, 0.5])},
    lambda rng: {"x": True, "y": 2},
    lambda rng: rng.choice([None, "text", 2**70, {"x": None}]),
]
NUM_ROUNDS = 6


def spelled(value: Any) -> Any:
    """Return infos in a form whose == also compares types and treats NaN as equal to NaN."""
    if isinstance(value, dict):
        return {key: spelled(part) for key, part in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return ["objects", *map(spelled, value)]
    return type(value), getattr(value, "dtype", None), repr(value)


def check(seed: int) -> None:
    rng = random.Random(seed)
    kinds = rng.sample(KINDS, rng.randrange(1, 4))
    infos = [
        [{key: rng.choice(kinds)(rng) for key in "ab" if rng.random() < 0.8} for _ in range(NUM_ROUNDS)]
        for _ in range(rng.randrange(2, 7))
    ]
    env_fns = [functools.partial(GivesInfos, *own, length=None) for own in infos]
    with contextlib.closing(VectorEnv(env_fns, backend="serial")) as envs:
        found = [envs.reset(seed=0)[1]] + [envs.step([0] * len(infos))[4] for _ in range(NUM_ROUNDS - 1)]
    for number, one in enumerate(found):
        assert spelled(one) == spelled(join_rows([own[number] for own in infos])), f"seed {seed}, round {number}"


def test_info_columns_equal_row_by_row_infos() -> None:
    for seed in range(150):
        check(seed)


@pytest.mark.slow
def test_info_columns_equal_row_by_row_infos_many_times() -> None:
    for seed in range(1000, 2000):
        check(seed)
