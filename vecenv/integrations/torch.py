"""Torch: batches as tensors, without copies on the CPU, and with one asynchronous copy to a GPU.

    arena (shared memory) -- views, copy=False -- tensors of the same bytes        as_tensors
                \\                                     \\
            registered with CUDA                     device, on the current stream     ToDevice

Stands behind the faces: it takes what `step` or `recv` returned. A GPU can fetch from pages that are locked in memory
while the program goes on; the arena's are, once they are registered, and no second buffer is needed.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from ..core.pool import Pool
from ..core.spec import Array
from ..errors import ConfigError, require

__all__ = ["PinnedMemory", "ToDevice", "as_tensors", "to_device"]

torch: Any = require("torch", "torch")

#: Kinds of NumPy dtypes that are numbers; arrays of others stay arrays.
_NUMBERS = "biufc"


def as_tensors(value: Any) -> Any:
    """Return nested arrays as tensors over the same memory.

    Args:
        value: arrays in dicts, tuples and lists to any depth, such as the result of a step. Whatever is no array of
            numbers is returned as it is.

    Returns:
        The same nest. A tensor is valid as long as its array is: of a vector env with `copy=False` until `depth - 1`
        later batches have been received. Writing to one writes to the other.

    Example:
        >>> rewards = np.zeros(2)
        >>> tensors = as_tensors((rewards, {"note": "as it is"}))
        >>> rewards[1] = 3.0
        >>> tensors
        (tensor([0., 3.], dtype=torch.float64), {'note': 'as it is'})

    Raises:
        TypeError: torch has no such dtype.
    """
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value) if value.dtype.kind in _NUMBERS else value
    if isinstance(value, dict):
        return {key: as_tensors(part) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(as_tensors(part) for part in value)
    return value


def to_device(value: Any, device: Any, *, non_blocking: bool = False) -> Any:
    """Return nested arrays as tensors on a device.

    Args:
        value: as for `as_tensors`, which this is for the CPU: nothing is copied then.
        device: as torch has it, such as 'cuda:0'.
        non_blocking: do not wait for the copies. The caller must keep the arrays as they are until they are done;
            `ToDevice` sees to it.

    Raises:
        ConfigError: there is no such device.
    """
    device = _check_device(device)
    tensors = as_tensors(value)
    return tensors if device.type == "cpu" else _move(tensors, device, non_blocking)


def _move(value: Any, device: Any, non_blocking: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=non_blocking)
    if isinstance(value, dict):
        return {key: _move(part, device, non_blocking) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_move(part, device, non_blocking) for part in value)
    return value


def _check_device(device: Any) -> Any:
    """Return a torch.device.

    Raises:
        ConfigError: it is a CUDA device, and torch sees none.
    """
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        reason = "was built without CUDA" if torch.version.cuda is None else "sees no CUDA device"
        raise ConfigError(
            f"device {str(device)!r}: torch {torch.__version__} {reason}; use 'cpu', where tensors share the arrays' "
            "memory",
            key="device",
        )
    return device


class PinnedMemory:
    """The memory that the batches of a vector env lie in, registered with CUDA as page-locked.

    Arrays of a vector env made with `copy=False` lie in it, where the native implementation runs: copies of them to a
    GPU can be asynchronous, and `tensor.is_pinned()` is true of their tensors. The registration ends with `close`, or
    with this object; the memory itself stays until then.

    Attributes:
        nbytes: how much memory that is.
    """

    def __init__(self, envs: Any) -> None:
        """Register the pages; takes milliseconds per 100 MiB.

        Args:
            envs: a vector env of vecenv, a wrapper around one, an SB3VecEnv, or a started pool.

        Raises:
            ConfigError: torch sees no CUDA device, or `envs` are not vecenv's.
            RuntimeError: CUDA refused, for one because the memory is registered already.
        """
        _check_device("cuda")
        memory = _memory_of(envs)
        self.nbytes = memory.nbytes
        torch.cuda.init()  # the registration belongs to the device's context
        status = torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
        torch.cuda.check_error(int(status))
        self._finalizer = weakref.finalize(self, _unregister, memory)

    def close(self) -> None:
        """End the registration once all copies are done; idempotent."""
        self._finalizer()

    def __enter__(self) -> PinnedMemory:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _unregister(memory: Array) -> None:
    torch.cuda.synchronize()  # a copy under way still reads these pages
    torch.cuda.check_error(int(torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)))


def _memory_of(envs: Any) -> Array:
    pool = getattr(getattr(envs, "unwrapped", envs), "_pool", envs)
    if not isinstance(pool, Pool):
        raise ConfigError(f"envs: expected a vector env of vecenv, got {type(envs).__name__}", key="envs")
    return pool.memory


class ToDevice:
    """Puts what a vector env returns on one device, one call per batch.

    On the CPU tensors share the arrays' memory. To a CUDA device copies are asynchronous if the vector env was made
    with `copy=False` (and `depth` of at least 3): its memory is registered, and before a batch is copied the copy of
    the one before is waited for, so no row changes while the device reads it.

    Example:
        >>> from vecenv import VectorEnv
        >>> from vecenv.envs.toys import ToyEnv
        >>> envs = VectorEnv([ToyEnv] * 2, backend="serial", copy=False)
        >>> with ToDevice(envs, "cpu") as to_device:
        ...     obs, infos = to_device(envs.reset(seed=1))
        ...     obs, rewards, terminations, truncations, infos = to_device(envs.step([0, 1]))
        >>> rewards
        tensor([1., 1.], dtype=torch.float64)
        >>> envs.close()

    Attributes:
        device: where tensors go.
        is_pinned: whether the vector env's memory is registered with CUDA.
    """

    def __init__(self, envs: Any, device: Any) -> None:
        """Prepare the device.

        Args:
            envs: as for `PinnedMemory`; it must stay open as long as this is used.
            device: as torch has it.

        Raises:
            ConfigError: there is no such device, or `envs` are not vecenv's.
            RuntimeError: CUDA refused to register the memory.
        """
        self.device = _check_device(device)
        _memory_of(envs)
        self._pinned = PinnedMemory(envs) if self.device.type == "cuda" else None
        self._copied: Any = None  # an event after the last copy

    @property
    def is_pinned(self) -> bool:
        return self._pinned is not None

    def __call__(self, value: Any) -> Any:
        """Return a batch on the device, nested as it is.

        Tensors on a GPU are the caller's own and ready for work on the current stream; those on the CPU are valid as
        long as the arrays are.
        """
        if self._pinned is None:
            return to_device(value, self.device)
        if self._copied is not None:
            self._copied.synchronize()
        tensors = _move(as_tensors(value), self.device, non_blocking=True)
        self._copied = torch.cuda.current_stream(self.device).record_event()
        return tensors

    def close(self) -> None:
        """Wait for the last copy and let go of the vector env's memory; idempotent."""
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = self._copied = None

    def __enter__(self) -> ToDevice:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
