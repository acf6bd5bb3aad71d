"""Equality of everything that a vector env returns: values, dtypes, shapes, structure."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same(got: Any, expected: Any, path: str = "result") -> None:
    """Fail unless `got` equals `expected`: arrays by dtype, shape and value, and NaN equals NaN."""
    if isinstance(expected, dict):
        assert isinstance(got, dict), f"{path}: expected a dict, got {got!r}"
        assert set(got) == set(expected), f"{path}: keys {sorted(got)} are not {sorted(expected)}"
        for key, value in expected.items():
            assert_same(got[key], value, f"{path}/{key}")
    elif isinstance(expected, tuple | list):
        assert isinstance(got, tuple | list), f"{path}: expected {type(expected).__name__}, got {got!r}"
        assert len(got) == len(expected), f"{path}: {len(got)} parts are not {len(expected)}"
        for i, (one, other) in enumerate(zip(got, expected)):
            assert_same(one, other, f"{path}/{i}")
    elif isinstance(expected, np.ndarray) and expected.dtype == object:
        assert isinstance(got, np.ndarray) and got.dtype == object, f"{path}: expected objects, got {got!r}"
        assert_same(list(got), list(expected), path)
    elif isinstance(expected, int) and isinstance(got, np.integer):
        assert got == expected, f"{path}: {got!r} is not {expected!r}"  # an int must not arrive as a NumPy number
    elif isinstance(expected, np.ndarray | np.generic):
        assert isinstance(got, np.ndarray | np.generic), f"{path}: expected {expected!r}, got {got!r}"
        assert got.dtype == expected.dtype, f"{path}: {got.dtype} is not {expected.dtype}"
        np.testing.assert_array_equal(got, expected, err_msg=path)
    else:
        assert got == expected, f"{path}: {got!r} is not {expected!r}"
        assert isinstance(got, type(expected)), f"{path}: {type(got)} is not {type(expected)}"
