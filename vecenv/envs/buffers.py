"""DI-engine's shared-memory helpers, for programs that use them directly; vecenv's pools do not."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np

from vecenv.envs.check.data import describe
from vecenv.errors import SpaceError

from ..values.pickling import dump_by_value

__all__ = [
    "CloudPickleWrapper",
    "ShmBuffer",
    "ShmBufferContainer",
]


class ShmBuffer:
    """One array in memory shared with child processes; pass it to them as an argument of `Process`.

    Any dtype of fixed size and any shape are allowed. There is no lock: a `get` during a `fill` may return a mix of
    old and new values.

    Example:
        >>> buffer = ShmBuffer(np.float32, (2,), copy_on_get=False)
        >>> view = buffer.get()
        >>> buffer.fill(np.array([1.0, 2.0], np.float32))
        >>> view.tolist()
        [1.0, 2.0]
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...], copy_on_get: bool = True, ctype: Any = None) -> None:
        """Allocate the array, filled with zeros.

        Args:
            dtype: any NumPy dtype of fixed size.
            shape: shape of the array.
            copy_on_get: False: `get` returns a view of the shared memory.
            ctype: accepted for compatibility and ignored.
        """
        self.dtype = np.dtype(dtype)
        self.shape = tuple(shape)
        self.copy_on_get = copy_on_get
        self.buffer = RawArray("b", max(1, self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))))

    def fill(self, src_arr: Any) -> None:
        """Copy an array of the same dtype and shape into the buffer, without a cast; SpaceError for others."""
        if not isinstance(src_arr, np.ndarray) or src_arr.dtype != self.dtype or src_arr.shape != self.shape:
            raise SpaceError(f"fill: expected an array {self.dtype} {self.shape}, got {describe(src_arr)}")
        self._view()[...] = src_arr

    def get(self) -> Any:
        """Return a copy of the array, or a view of the shared memory if `copy_on_get` is False."""
        return self._view().copy() if self.copy_on_get else self._view()

    def _view(self) -> Any:
        size = int(np.prod(self.shape, dtype=np.int64))
        return np.frombuffer(self.buffer, self.dtype, size).reshape(self.shape)


class ShmBufferContainer:
    """A `ShmBuffer`, or a nested dict of them, one for each entry of a nested dict of shapes.

    Example:
        >>> container = ShmBufferContainer(np.float32, {"a": (2,), "b": {"c": (1,)}})
        >>> container.fill({"a": np.ones(2, np.float32), "b": {"c": np.zeros(1, np.float32)}})
        >>> container.get()["a"].tolist()
        [1.0, 1.0]
    """

    def __init__(self, dtype: Any, shape: Any, copy_on_get: bool = True) -> None:
        """Allocate the arrays.

        Args:
            dtype: the dtype of all arrays, or a dict of dtypes nested like `shape`.
            shape: a shape, or a nested dict of shapes.
            copy_on_get: as for `ShmBuffer`.
        """
        self.shape = shape
        if isinstance(shape, Mapping):
            self._data: Any = {
                key: ShmBufferContainer(dtype[key] if isinstance(dtype, Mapping) else dtype, part, copy_on_get)
                for key, part in shape.items()
            }
        else:
            self._data = ShmBuffer(dtype, shape, copy_on_get)

    def fill(self, src_arr: Any) -> None:
        """Copy an array, or a nested dict of arrays with exactly these keys, into the buffers.

        SpaceError is raised at the first entry that does not fit; the entries before it have been written.
        """
        if isinstance(self._data, ShmBuffer):
            self._data.fill(src_arr)
            return
        if not isinstance(src_arr, Mapping) or set(src_arr) != set(self._data):
            raise SpaceError(f"fill: expected a dict of {sorted(map(str, self._data))}, got {describe(src_arr)}")
        for key, part in self._data.items():
            part.fill(src_arr[key])

    def get(self) -> Any:
        """Return the array or the nested dict of arrays, as `ShmBuffer.get` does."""
        return self._data.get() if isinstance(self._data, ShmBuffer) else {k: v.get() for k, v in self._data.items()}


class CloudPickleWrapper:
    """Make a value that plain pickle rejects, such as a lambda, picklable; the value is in `data`.

    Example:
        >>> pickle.loads(pickle.dumps(CloudPickleWrapper(lambda: 3))).data()
        3
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getstate__(self) -> bytes:
        return dump_by_value(self.data)

    def __setstate__(self, state: bytes) -> None:
        self.data = pickle.loads(state)
