"""The rules of the checks for values: spaces, dtypes and shared memory."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

#: Types of data with parts to check; numbers, strings and None may be parts but are not checked alone.
CONTAINERS = (np.ndarray, Mapping, list, tuple)


class Violation(NamedTuple):
    """One violation of a rule."""

    #: Short name of the rule: dtype, bounds, nan, done, score, aliasing, determinism, pickling, endless, ...
    rule: str
    #: Description, which may have line breaks, e.g. from an exception or an array; `str` joins the lines.
    message: str

    def __str__(self) -> str:
        return " ".join(line.strip() for line in f"{self.rule}: {self.message}".splitlines())


def lacks_spaces(found: Iterable[Violation]) -> bool:
    """Return whether a space is missing or not a space; then most other checks are not possible."""
    return any(violation.rule == "spaces" for violation in found)


def leaf_spaces(space: Any, path: str) -> Iterator[tuple[str, spaces.Space[Any]]]:
    """Yield (path, space) for each part of a nested space that is not a Dict or Tuple."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from leaf_spaces(part, f"{path}/{key}")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaf_spaces(part, f"{path}/{index}")
    else:
        yield path, space


def dtype_violations(path: str, space: spaces.Space[Any]) -> Iterator[Violation]:
    """Yield a violation if the dtype is not float32, int64, uint8 (images) or int8 (masks of 0 and 1)."""
    dtype = space.dtype
    if dtype is None or isinstance(space, spaces.MultiBinary):
        return
    if np.issubdtype(dtype, np.floating):
        if dtype != np.float32:
            yield Violation("dtype", f"{path}: expected float32, got {dtype}")
    elif np.issubdtype(dtype, np.integer):
        is_mask = dtype == np.int8 and isinstance(space, spaces.Box) and space.low.min() >= 0 and space.high.max() <= 1
        if dtype not in (np.int64, np.uint8) and not is_mask:
            yield Violation("dtype", f"{path}: expected int64 (or uint8 for images), got {dtype}")


def data_violations(data: Any, space: Any, name: str, *, observed: bool = False) -> Iterator[Violation]:
    """Yield a violation for each part of the data that does not fit its space; TypeError for a type that no space has.

    Args:
        space: a space, or a sequence or dict of spaces.
        observed: True for observations, in which a value of a Discrete space must not be an array (1,). Actions may
            have that form.
    """
    parts = space.spaces if isinstance(space, (spaces.Dict, spaces.Tuple)) else space
    if isinstance(parts, Mapping):
        if not isinstance(data, Mapping) or set(data) != set(parts):
            yield Violation("structure", f"{name}: expected a dict of {sorted(parts)}, got {describe(data)}")
            return
        for key in parts:
            yield from data_violations(data[key], parts[key], f"{name}/{key}", observed=observed)
    elif isinstance(parts, (list, tuple)):
        if not isinstance(data, (list, tuple)) or len(data) != len(parts):
            yield Violation("structure", f"{name}: expected a tuple of {len(parts)}, got {describe(data)}")
            return
        for index, (value, part) in enumerate(zip(data, parts, strict=True)):
            yield from data_violations(value, part, f"{name}/{index}", observed=observed)
    elif isinstance(space, spaces.Discrete):
        yield from _discrete_violations(data, space, name, observed)
    elif isinstance(data, np.ndarray):
        yield from _array_violations(data, space, name)
    elif isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)):
        if isinstance(data, (Mapping, list, tuple, numbers.Number, np.generic)):
            yield Violation("dtype", f"{name}: expected an array {space.dtype} {space.shape}, got {describe(data)}")
        else:
            raise TypeError(f"{name}: expected an array, a sequence or a dict, got {type(data).__name__}")
    elif not space.contains(data):
        yield Violation("bounds", f"{name}: {data!r} is not in {space}")


def _discrete_violations(data: Any, space: spaces.Discrete, name: str, observed: bool) -> Iterator[Violation]:
    array = np.asarray(data)
    if array.size != 1 or not np.issubdtype(array.dtype, np.integer):
        if not isinstance(data, (np.ndarray, np.generic, numbers.Number)):
            raise TypeError(f"{name}: expected an integer, got {type(data).__name__}")
        yield Violation("dtype", f"{name}: expected an integer, got {describe(data)}")
        return
    if observed and array.shape != ():
        yield Violation("shape", f"{name}: expected an integer of shape (), got {describe(data)}")
    low, high = int(space.start), int(space.start + space.n - 1)
    if not low <= int(array.item()) <= high:
        yield Violation("bounds", f"{name}: expected {low} to {high}, got {array.item()}")


def _array_violations(data: Any, space: Any, name: str) -> Iterator[Violation]:
    if data.dtype != space.dtype or data.shape != space.shape:
        expected, got = f"{space.dtype} {space.shape}", f"{data.dtype} {data.shape}"
        yield Violation("dtype" if data.shape == space.shape else "shape", f"{name}: expected {expected}, got {got}")
    elif not space.contains(data):
        if isinstance(space, spaces.Box):
            bounds = f"between {_short(space.low.min())} and {_short(space.high.max())}"
            got = f"{_short(data.min())} to {_short(data.max())}"
            yield Violation("bounds", f"{name}: expected values {bounds}, got {got}")
        else:
            yield Violation("bounds", f"{name}: {data!r} is not in {space}")


def _short(value: Any) -> str:
    return f"{value:.6g}"


def describe(data: Any) -> str:
    """Return a short description of a value for a message: its dtype and shape, or its type and content."""
    if isinstance(data, (np.ndarray, np.generic)):
        return f"{data.dtype} {data.shape}"
    if isinstance(data, Mapping):
        return f"a dict of {sorted(map(str, data))}"
    if isinstance(data, (list, tuple)):
        return f"a {type(data).__name__} of {len(data)}"
    return f"{type(data).__name__} {data!r}"


def memory_violations(one: Any, two: Any, name: str) -> Iterator[Violation]:
    """Yield a violation for each pair of parts that share memory, or differ in type or structure."""
    if type(one) is not type(two):
        yield Violation("aliasing", f"{name}: types differ, {type(one).__name__} and {type(two).__name__}")
    elif isinstance(one, np.ndarray):
        if np.shares_memory(one, two):
            yield Violation("aliasing", f"{name}: share memory; return a copy from each call")
    elif isinstance(one, Mapping) and set(one) != set(two):
        yield Violation("aliasing", f"{name}: keys differ, {sorted(map(str, one))} and {sorted(map(str, two))}")
    elif isinstance(one, Mapping):
        for key in one:
            yield from memory_violations(one[key], two[key], f"{name}/{key}")
    elif isinstance(one, (list, tuple)) and len(one) != len(two):
        yield Violation("aliasing", f"{name}: lengths differ, {len(one)} and {len(two)}")
    elif isinstance(one, (list, tuple)):
        for index, (first, second) in enumerate(zip(one, two, strict=True)):
            yield from memory_violations(first, second, f"{name}/{index}")
    elif not isinstance(one, (numbers.Number, np.generic, str, type(None))):
        raise TypeError(f"{name}: expected arrays or containers of them, got {type(one).__name__}")


def has_nan(value: Any) -> bool:
    """Return whether a number is NaN, or an array contains NaN."""
    if not isinstance(value, (float, np.floating, np.ndarray)):
        return False
    array = np.asarray(value)
    return array.dtype.kind == "f" and bool(np.isnan(array).any())
