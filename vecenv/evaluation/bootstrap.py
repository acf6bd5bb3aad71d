"""Confidence intervals of means by the bootstrap; equal values give equal intervals.

A value is the return of an episode: one number, or one of shape K for each number of the rewards.
"""

from __future__ import annotations

import math

import numpy as np

from ..core.layout.spec import Array

__all__ = ["mean_interval", "standard_error"]

_NUM_RESAMPLES = 10_000
_SEED = 0
#: Values that are drawn at once: 8 MiB.
_MOST_DRAWN = 2**20


def mean_interval(values: Array, level: float = 0.95) -> tuple[Array, Array]:
    """Return a confidence interval of the mean: quantiles of the means of 10,000 resamples, drawn with a fixed seed.

    Args:
        values: float64 (E, *K), episodes independent of each other.
        level: the share of such intervals that contain the true mean, between 0 and 1.

    Returns:
        (low, high), float64 (*K); NaN for fewer than two values, or if one is not finite.
    """
    count = len(values)
    if count < 2 or not np.isfinite(values).all():
        unknown = np.full(values.shape[1:], math.nan)
        return unknown, unknown
    generator = np.random.default_rng(_SEED)
    means = np.empty((_NUM_RESAMPLES, *values.shape[1:]))
    step = max(1, _MOST_DRAWN // values.size)
    for start in range(0, _NUM_RESAMPLES, step):
        part = means[start : start + step]
        part[:] = values[generator.integers(count, size=(len(part), count))].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def standard_error(values: Array) -> Array:
    """Return the standard error of the mean of values, (E, *K); NaN for fewer than two, or if one is infinite."""
    if len(values) < 2 or not np.isfinite(values).all():
        return np.full(values.shape[1:], math.nan)
    found: Array = np.std(values, axis=0, ddof=1) / math.sqrt(len(values))
    return found
