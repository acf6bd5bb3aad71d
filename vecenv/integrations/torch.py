"""Torch: batches as tensors, without copies on the CPU, and with one asynchronous copy to a GPU.

    arena (shared memory) -- views, copy=False -- tensors of the same bytes        as_tensors
                \\                                     \\
            registered with CUDA                     device, on the current stream     ToDevice

It takes results of `step` or `recv`. A GPU can copy from pages that are locked in memory while the program continues;
those of the arena are, once they are registered, and no second buffer is needed.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

import numpy as np

from ..core.layout.spec import Array
from ..core.pool.pool import Pool
from ..errors import ConfigError, require
from ..values.nested import map_structure

__all__ = ["PinnedMemory", "ToDevice", "as_tensors", "to_device"]

torch: Any = require("torch", "torch")

#: Kinds of NumPy dtypes that are numbers; arrays of others stay arrays.
_NUMBERS = "biufc"
#: Least `depth` with which a view outlives the receiving of the next batch.
_MIN_DEPTH = 3


def as_tensors(value: Any) -> Any:
    """Return nested arrays as tensors over the same memory.

    Args:
        value: arrays in dicts, tuples and lists to any depth, such as the result of a step. Other values
            than arrays of numbers are returned unchanged.

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
        TypeError, ValueError: torch has no such dtype; no such order of bytes, or strides.
    """
    return map_structure(_as_tensor, value, is_leaf=_is_leaf)


def _as_tensor(value: Any) -> Any:
    is_number = isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS
    return torch.from_numpy(value) if is_number else value


def _is_leaf(value: Any) -> bool:
    """Return whether a value is converted as a whole. Only dicts, tuples, lists and named tuples are taken apart."""
    return not (isinstance(value, dict) or type(value) in (tuple, list) or hasattr(value, "_make"))


def to_device(value: Any, device: Any, *, non_blocking: bool = False) -> Any:
    """Return nested arrays as tensors on a device.

    Args:
        value: as for `as_tensors`, which this is for the CPU: nothing is copied then.
        device: as torch has it, such as 'cuda:0'.
        non_blocking: do not wait for the copies. The arrays must not change until they are done, see `ToDevice`.

    Raises:
        ConfigError: there is no such device.
    """
    device = _check_device(device)
    tensors = as_tensors(value)
    return tensors if device.type == "cpu" else _move(tensors, device, non_blocking)


def _move(value: Any, device: Any, non_blocking: bool) -> Any:
    def move(part: Any) -> Any:
        return part.to(device, non_blocking=non_blocking) if isinstance(part, torch.Tensor) else part

    return map_structure(move, value, is_leaf=_is_leaf)


def _check_device(device: Any) -> Any:
    """Return a torch.device; of a CUDA device with its index, which is the current one's by default.

    Raises:
        ConfigError: torch knows no such device, or sees no such GPU.
    """
    if not isinstance(device, str | int | torch.device):
        raise ConfigError(f"device: expected a torch.device, 'cpu', 'cuda:0' or the like, got {device!r}", key="device")
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device {device!r}: {error}", key="device") from error
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]  # The MPS backend writes dozens of lines.
            raise ConfigError(f"device {str(device)!r}: {reason}", key="device") from error
        return device
    if not torch.cuda.is_available():
        reason = "was built without CUDA" if torch.version.cuda is None else "sees no CUDA device"
        raise ConfigError(
            f"device {str(device)!r}: torch {torch.__version__} {reason}; use 'cpu', where tensors share the arrays' "
            "memory",
            key="device",
        )
    if device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if device.index >= torch.cuda.device_count():
        raise ConfigError(f"device {str(device)!r}: torch sees {torch.cuda.device_count()} CUDA devices", key="device")
    return device


class PinnedMemory:
    """The memory of the batches of a vector env, registered with CUDA as page-locked.

    Arrays of a vector env made with `copy=False` lie in it, where the native implementation runs: copies of them to a
    GPU can be asynchronous, and `tensor.is_pinned()` is true of their tensors. The same holds for large arrays that are
    lent instead of copied: keep those until a copy that does not block is done. The registration and the memory last
    until `close`, or as long as this object. A forked process has no part in it.

    Validated on machines without a GPU only: there the refusal is tested; the other paths follow CUDA's and torch's
    documentation.

    Attributes:
        device: whose copies are waited for before the registration ends, with its index.
        nbytes: how much memory that is.
    """

    def __init__(self, envs: Any, device: Any = "cuda") -> None:
        """Register the pages; takes milliseconds per 100 MiB.

        Args:
            envs: a vector env of vecenv, a wrapper around one, an SB3VecEnv, or a started pool.
            device: the GPU that the pages are registered from; all GPUs may copy from them.

        Raises:
            ConfigError: torch sees no such CUDA device, or `envs` are not vecenv's.
            StateError: `envs` are closed, or the pool is not started.
            RuntimeError: CUDA refused, for one because the memory is registered already.
        """
        self.device = _check_device(device)
        if self.device.type != "cuda":
            raise ConfigError(f"device {str(self.device)!r}: only memory for CUDA can be registered", key="device")
        memory = _pool_of(envs).memory
        self.nbytes = memory.nbytes
        with torch.cuda.device(self.device):  # else the current one gets a context, which takes some of its memory
            # flags 0: pinned for all devices, as every 64-bit Linux has unified addresses
            _check_status(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
        self._finalizer = weakref.finalize(self, _unregister, memory, self.device, os.getpid())

    def close(self) -> None:
        """End the registration once all copies are done; idempotent."""
        self._finalizer()

    def __enter__(self) -> PinnedMemory:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _unregister(memory: Array, device: Any, pid: int) -> None:
    if os.getpid() != pid:  # a forked process has neither CUDA nor the registration
        return
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)  # a copy under way still reads these pages
        _check_status(torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data))


def _check_status(status: Any) -> None:
    """Raise RuntimeError unless a call of the CUDA runtime succeeded."""
    if int(status) == 0:
        return
    # CUDA reports the error at the next call, which would be an unrelated kernel of the caller.
    cudart = torch.cuda.cudart()
    if hasattr(cudart, "cudaGetLastError"):  # newer versions of torch
        cudart.cudaGetLastError()
    else:
        with contextlib.suppress(RuntimeError):  # the very error that is raised below, by asking next
            torch.ones(1, device="cuda")
    torch.cuda.check_error(int(status))


def _pool_of(envs: Any) -> Pool:
    pool = getattr(getattr(envs, "unwrapped", envs), "_pool", envs)
    if not isinstance(pool, Pool):
        raise ConfigError(f"envs: expected a vector env of vecenv, got {type(envs).__name__}", key="envs")
    return pool


class ToDevice:
    """Moves the results of a vector env to one device, one call per batch.

    On the CPU, tensors share the memory of the arrays. Copies to a CUDA device are asynchronous if the arrays are views
    of the arena, see `PinnedMemory`. A call waits for the copies of the previous batch. No row changes while the device
    reads it if every batch is given here before the second next one is received. With `depth=2` each call waits for
    its own copies. Do not write to the arrays before that.

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
        is_pinned: whether the vector env's memory is registered with CUDA; without it copies are waited for.
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
        pool = _pool_of(envs)
        copies = getattr(getattr(envs, "unwrapped", envs), "copy", envs is not pool)  # SB3VecEnv always does
        is_pinned = self.device.type == "cuda" and pool.implementation == "native" and not copies
        self._pinned = PinnedMemory(envs, self.device) if is_pinned else None
        self._waits = pool.options.depth < _MIN_DEPTH
        self._under_way: Any = None  # an event after the last copies, and the arrays that they read

    @property
    def is_pinned(self) -> bool:
        return self._pinned is not None

    def __call__(self, value: Any) -> Any:
        """Return a batch on the device, nested as it is.

        Tensors on a GPU are the caller's own, copied on the current stream; others are as valid as the arrays.
        """
        if self._pinned is None:
            return to_device(value, self.device)
        self._wait()
        sources = as_tensors(value)
        tensors = _move(sources, self.device, non_blocking=True)
        self._under_way = torch.cuda.current_stream(self.device).record_event(), sources
        if self._waits:
            self._wait()
        return tensors

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way[0].synchronize()
            self._under_way = None

    def close(self) -> None:
        """Wait for the last copy and let go of the vector env's memory; idempotent."""
        if self._pinned is not None:
            self._wait()
            self._pinned.close()
            self._pinned = None

    def __enter__(self) -> ToDevice:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
