"""Finds torch's global generators and the CPU generator's memory; notices when torch is imported and starts CUDA.

This module never imports torch.

A `torch.Generator` holds a pointer to an object of C++ that contains, from the seed on:

    uint64 seed | int32 left | bool seeded | 3 bytes | uint32 next | uint32 words[624] | float, bool | 3 bytes |
    double, bool

`next` is the position in the words, and `left` is 625 - next. The last two pairs are cached Gaussians. This layout is
not documented, so it is compared with what private generators report.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.abc
import importlib.machinery
import struct
import sys
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import Any

__all__ = [
    "NBYTES",
    "NEXT",
    "WORDS",
    "TorchImports",
    "call_on_cuda",
    "cuda_generators",
    "loaded_generator",
    "memory_of",
    "state_of_words",
]

#: Size of the memory from the seed to the last Gaussian, and offsets in it: of the position and of the words.
NBYTES, NEXT, WORDS = 2537, 16, 20
_NUM_WORDS = 624
_MOST_OFFSET = 256  # bytes before the seed in the object of C++
_HEADER_NBYTES = object.__basicsize__


def loaded_generator() -> Any:
    """Return torch's global CPU generator; None while torch is not imported, or only in part."""
    return getattr(sys.modules.get("torch"), "default_generator", None)


def cuda_generators() -> tuple[Any, ...]:
    """Return torch's generators of the CUDA devices; none before torch starts CUDA in this process."""
    return tuple(getattr(getattr(sys.modules.get("torch"), "cuda", None), "default_generators", ()))


def call_on_cuda(function: Callable[[], None]) -> None:
    """Have torch, which is imported, call a function when it starts CUDA in this process: now if it has done so."""
    torch: Any = sys.modules["torch"]
    torch.cuda._lazy_call(function)


def state_of_words(words: bytes, position: int) -> bytes:
    """Return the memory, uint8 (2537,), of a generator with 624 words and the position of the next one."""
    (seed,) = struct.unpack_from("=Q", words)
    head = struct.pack("=QiB3xI", seed, _NUM_WORDS + 1 - position, 1, position)
    return head + words + bytes(NBYTES - WORDS - len(words))


def memory_of(generator: Any) -> int | None:
    """Return the address of a generator's memory; None if the layout is unknown."""
    offset = _offset()
    return None if offset is None else _pointer_of(generator) + offset


def _pointer_of(generator: Any) -> int:
    return ctypes.c_uint64.from_address(id(generator) + _HEADER_NBYTES).value


@functools.cache
def _offset() -> int | None:
    """Return the offset of the seed in the object of C++; None if any part of the layout is unknown."""
    torch: Any = sys.modules["torch"]
    first, second = torch.Generator(), torch.Generator()
    if type(first).__basicsize__ < _HEADER_NBYTES + 8:
        return None
    first.manual_seed(0x123456789ABCDEF)
    draw = functools.partial(torch.randn, 1, dtype=torch.float64, device="cpu")
    for _ in range(5):
        draw(generator=first)  # an odd number leaves a cached Gaussian
    reported = bytes(first.get_state().tolist())
    try:
        with open("/proc/self/mem", "rb", 0) as memory:  # a wrong pointer raises here, and does not crash
            memory.seek(_pointer_of(first))
            found = memory.read(_MOST_OFFSET + NBYTES)
    except (OSError, OverflowError):
        return None
    seed, left, _, position, *words = struct.unpack_from(f"=QiiQ{_NUM_WORDS}Q", reported)
    offset = found.find(struct.pack("=QiB", seed, left, 1))
    if not 0 <= offset <= _MOST_OFFSET or left != _NUM_WORDS + 1 - position:
        return None
    if found[offset + NEXT : offset + WORDS + 4 * _NUM_WORDS] != struct.pack(f"={_NUM_WORDS + 1}I", position, *words):
        return None
    ctypes.memmove(_pointer_of(second) + offset, found[offset : offset + NBYTES], NBYTES)
    is_whole = bytes(second.get_state().tolist()) == reported
    return offset if is_whole and draw(generator=second).item() == draw(generator=first).item() else None


class TorchImports(importlib.abc.MetaPathFinder):
    """Calls a function right after torch has been imported; a `with` block installs and removes it, and may be nested.

    Args:
        on_import: called in the thread that imports torch.
    """

    def __init__(self, on_import: Callable[[], None]) -> None:
        self._on_import = on_import
        self._num_users = 0

    def __enter__(self) -> None:
        self._num_users += 1
        if "torch" not in sys.modules and self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._num_users -= 1
        if not self._num_users:
            self._remove()

    def _remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch as the other finders do; its loader calls the function once."""
        if fullname != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        loader: Any = None if spec is None else spec.loader
        if loader is not None and hasattr(loader, "__dict__"):

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module  # the loader is as it was
                loader.exec_module(module)
                self._remove()
                self._on_import()

            loader.exec_module = exec_module
        return spec
