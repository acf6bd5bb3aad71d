"""Spaces with functions of the caller that make their batches.

The functions stay registered, and all later workers import the module that defines them. So this module is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate


class Angle(gymnasium.Space[float]):
    """A space without a layout; its batch is an array."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def contains(self, x: Any) -> bool:
        return isinstance(x, float)

    def sample(self, mask: Any = None, probability: Any = None) -> float:
        return float(self.np_random.uniform(0.0, 360.0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Angle)


class Image(spaces.Box):
    """A Box whose batch has the envs in the last axis."""


@batch_space.register(Angle)
def _(space: Angle, n: int = 1) -> spaces.Box:
    return spaces.Box(0.0, 360.0, (n,), np.float64)


@concatenate.register(Angle)
def _(space: Angle, items: Any, out: Any) -> Any:
    out[:] = list(items)
    return out


@create_empty_array.register(Angle)
def _(space: Angle, n: int = 1, fn: Any = np.zeros) -> Any:
    return fn(n, np.float64)


@batch_space.register(Image)
def _(space: Image, n: int = 1) -> spaces.Box:
    return spaces.Box(-9.0, 9.0, (*space.shape, n), np.float32)


@concatenate.register(Image)
def _(space: Image, items: Any, out: Any) -> Any:
    return np.stack(list(items), -1, out=out)


@create_empty_array.register(Image)
def _(space: Image, n: int = 1, fn: Any = np.zeros) -> Any:
    return fn((*space.shape, n), np.float32)


class Pair(spaces.Box):
    """A Box for actions whose batch has the envs in the last axis."""


class PairBatch(spaces.Box):
    """The batch of `Pair`."""


@batch_space.register(Pair)
def _(space: Pair, n: int = 1) -> PairBatch:
    return PairBatch(-9.0, 9.0, (2, n), np.float32)


@iterate.register(PairBatch)
def _(space: PairBatch, items: Any) -> Iterator[Any]:
    return iter(np.moveaxis(items, -1, 0))
