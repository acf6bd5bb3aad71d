"""Reads and sets the states of the global random generators: those of `random`, `numpy.random` and torch.

The generators of the CPU are Mersenne Twisters with 624 words and a position, 2,500 bytes. Reading and setting the
state through their functions takes 60 us; copying the memory takes 0.2 us. The memory layout is not
documented. It is therefore first compared with the states that private generators report. If it differs,
the state is swapped at every call of every env, through the slow functions.

    random.Random       header | int position | uint32 words[624]          (and the attribute gauss_next)
    numpy's MT19937     uint32 words[624] | int position                   at `ctypes.state_address`
    RandomState         ... | int has_gauss | 4 bytes | double gauss | ... at an offset that is searched
    torch.Generator     see `torch_generator`

torch's generators of CUDA devices have 16 bytes, which are read and set through their functions at every call.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..layout.native import load
from . import torch_generator

__all__ = [
    "NO_TORCH",
    "Accessor",
    "CallAccessor",
    "CudaAccessor",
    "MemoryAccessor",
    "State",
    "TorchParts",
    "WatchedWords",
    "entropy_of",
    "global_accessor",
    "parts_of",
]

_WORDS = 624
_STATE_NBYTES = 4 * (_WORDS + 1)
_GAUSS_NBYTES = 16  # has_gauss, padding, gauss
_HEADER_NBYTES = object.__basicsize__
_PART_BITS = 128  # size of each part of an entropy

# Position of every state that no env has drawn from. A draw and seeding both move it.
_POSITION = 6
#: Words of an env's own state that a plain step finds in the neutral state, so that its first draws are its own.
_WINDOW_WORDS = 8
_WINDOW_NBYTES = 4 * _WINDOW_WORDS
_WINDOW = slice(4 * _POSITION, 4 * _POSITION + _WINDOW_NBYTES)  # bytes within the words of a generator
#: How often a call may have refilled a generator; beyond that, it is taken for a seeded one.
_MOST_REFILLS = 100
# Offsets in a saved state: position and words of `random`; words and position of NumPy's generator.
_PYTHON_WORDS, _NUMPY_WORDS = 4, _STATE_NBYTES

_BASE_NBYTES = 2 * _STATE_NBYTES + _GAUSS_NBYTES  # without torch
_TORCH_WORDS = _BASE_NBYTES + torch_generator.WORDS
# The words and the position of each generator in a saved state.
_PLACES = (
    (_PYTHON_WORDS, 0),
    (_NUMPY_WORDS, _NUMPY_WORDS + 4 * _WORDS),
    (_TORCH_WORDS, _BASE_NBYTES + torch_generator.NEXT),
)

#: The state of all generators; its form depends on the accessor, see `MemoryAccessor` and `CallAccessor`.
State = tuple[Any, ...]

#: The parts of a state that are torch's: that of its CPU generator and that of its CUDA devices. None: there is none.
TorchParts = tuple[Any, Any]
NO_TORCH: TorchParts = (None, None)

#: (address of a uint32, its value before any draw)
WatchedWords = tuple[tuple[int, int], ...]


def parts_of(entropy: int) -> tuple[int, int, int]:
    """Return the numbers of 128 bits, for `random`, NumPy's generator and torch's, of which an entropy consists."""
    python, numpy, torch = (entropy >> number * _PART_BITS & (1 << _PART_BITS) - 1 for number in range(3))
    return python, numpy, torch


def entropy_of(python: int, numpy: int, torch: int) -> int:
    """Return the entropy that consists of these numbers of 128 bits."""
    return python | numpy << _PART_BITS | torch << 2 * _PART_BITS


@functools.lru_cache(maxsize=256)  # states that are put into envs begin from few entropies
def _words_of(entropy: int, number: int) -> bytes:
    """Return the 624 words of a generator that begin from its part of an entropy: of `random`, NumPy's or torch's."""
    return hashlib.shake_128(b"%d %d" % (number, parts_of(entropy)[number])).digest(4 * _WORDS)


def _refilled(words: bytes | bytearray) -> bytes:
    """Return the 624 words that a generator computes from its last ones when it has used them up."""
    bits: Any = np.random.MT19937(0)
    key = np.frombuffer(words, np.uint32)
    bits.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": _WORDS}}
    bits.random_raw()
    refilled: bytes = bits.state["state"]["key"].tobytes()
    return refilled


def _memory_at(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


class MemoryAccessor:
    """Saves and loads the state of the generators by copying memory.

    A state consists of the memory and the second Gaussian of `random`. The memory of torch's generator comes last.

    Args:
        python, numpy: the generators.
        gauss_offset: result of `_gauss_offset`.
        torch_address: result of `torch_generator.memory_of`; None while torch is not imported.
    """

    has_cuda = False

    def __init__(self, python: random.Random, numpy: Any, gauss_offset: int, torch_address: int | None) -> None:
        bits = numpy._bit_generator
        self._owners = numpy, bits  # keeps the memory alive
        self._python: Any = python
        start, words = id(python) + _HEADER_NBYTES, bits.ctypes.state_address
        areas = [(start, _STATE_NBYTES), (words, _STATE_NBYTES), (id(numpy) + gauss_offset, _GAUSS_NBYTES)]
        self._positions = [start, words + 4 * _WORDS]
        self._first_words = [start + _PYTHON_WORDS, words]
        self.has_torch = torch_address is not None
        if torch_address is not None:
            areas.append((torch_address, torch_generator.NBYTES))
            self._positions.append(torch_address + torch_generator.NEXT)
            self._first_words.append(torch_address + torch_generator.WORDS)
        self._places = _PLACES[: len(self._positions)]
        self._nbytes = sum(nbytes for _, nbytes in areas)
        self._exchange = _exchange_of(areas)
        self.window_addresses = tuple(address + 4 * _POSITION for address in self._first_words)
        self._exchange_windows = _exchange_of([(address, _WINDOW_NBYTES) for address in self.window_addresses])

    def state_of(self, entropy: int) -> State:
        """Return the state that begins from a number."""
        python, numpy = _words_of(entropy, 0), _words_of(entropy, 1)
        position = struct.pack("=i", _POSITION)
        words = bytearray(b"".join((position, python, numpy, position, bytes(_GAUSS_NBYTES))))
        if self.has_torch:
            words += torch_generator.state_of_words(_words_of(entropy, 2), _POSITION)
        return words, None

    def save(self) -> State:
        words = bytearray(self._nbytes)
        self._exchange(words, None)
        return words, self._python.gauss_next

    def load(self, state: State) -> None:
        self._exchange(None, state[0])
        self._python.gauss_next = state[1]

    def swap(self, state: State) -> State:
        """Load a state and return the one before it."""
        words = bytearray(self._nbytes)
        self._exchange(words, state[0])
        gauss, self._python.gauss_next = self._python.gauss_next, state[1]
        return words, gauss

    def window_of(self, state: State) -> bytes:
        """Return the next words of all generators, 64 bytes each."""
        starts = (start + 4 * _POSITION for start, _ in self._places)
        return b"".join(state[0][start : start + _WINDOW_NBYTES] for start in starts)

    def load_window(self, window: bytes) -> None:
        """Replace the next words of the neutral state; as the slot does in C."""
        self._exchange_windows(None, window)

    def continued(self, own: State, seen: State, neutral: State) -> State:
        """Return the state of an env after its first draws from the neutral state with the window of its own state.

        Each generator continues the words of the env from the position that it has reached. One that was seeded has
        the state that the env has left.
        """
        words = bytearray(seen[0])
        for start, _ in self._places:
            area = slice(start, start + 4 * _WORDS)
            envs, drawn = bytes(own[0][area]), bytearray(neutral[0][area])
            drawn[_WINDOW] = envs[_WINDOW]
            for _ in range(_MOST_REFILLS):
                if words[area] == drawn:
                    words[area] = envs
                    break
                envs, drawn[:] = _refilled(envs), _refilled(drawn)
        return words, seen[1]

    def watched_words(self, state: State) -> WatchedWords:
        # A draw changes the position. After seeding or exactly 624 draws the position may be the same, but
        # then the first word differs.
        values = [struct.unpack_from("=I", state[0], position)[0] for _, position in self._places]
        values += [struct.unpack_from("=I", state[0], start)[0] for start, _ in self._places]
        return tuple(zip([*self._positions, *self._first_words], values))

    def torch_parts(self, state: State) -> TorchParts:
        """Return the parts of a state that are torch's."""
        return bytes(state[0][_BASE_NBYTES:]) or None, None

    def without_torch(self, state: State) -> State:
        """Return a state without the parts that are torch's."""
        return state[0][:_BASE_NBYTES], state[1]

    def with_torch(self, rest: State, parts: TorchParts) -> State:
        """Return the state that consists of the result of `without_torch` and parts for torch."""
        return rest[0] + (parts[0] or b""), rest[1]

    def with_torch_window(self, state: State, own: TorchParts) -> TorchParts:
        """Return torch's parts of a state, with the window of another one."""
        part, start = bytearray(self.torch_parts(state)[0]), torch_generator.WORDS + 4 * _POSITION
        part[start : start + _WINDOW_NBYTES] = own[0][start : start + _WINDOW_NBYTES]
        return bytes(part), None


def _exchange_of(areas: list[tuple[int, int]]) -> Callable[[bytearray | None, bytes | bytearray | None], None]:
    """Return the function (keep, fill) that copies areas of memory into `keep`, then fills them from `fill`.

    Args:
        areas: (address, bytes) of each.
    """
    native = load()
    if native is None:
        return functools.partial(_exchange, [_memory_at(*area) for area in areas])
    return functools.partial(native.exchange, struct.pack(f"={2 * len(areas)}Q", *itertools.chain(*areas)))


def _exchange(areas: list[memoryview], keep: bytearray | None, fill: bytes | bytearray | None) -> None:
    """Copy areas of memory into `keep`, then fill them from `fill`; None skips a part. As `_native.exchange`."""
    start = 0
    for area in areas:
        stop = start + len(area)
        if keep is not None:
            keep[start:stop] = area
        if fill is not None:
            area[:] = fill[start:stop]
        start = stop


class _SlowAccessor:
    """Base of accessors that read no memory: the state of an env is swapped in at every call, so it has no window."""

    window_addresses = ()
    has_cuda = False

    def save(self) -> State:
        raise NotImplementedError

    def load(self, state: State) -> None:
        raise NotImplementedError

    def swap(self, state: State) -> State:
        saved = self.save()
        self.load(state)
        return saved

    def window_of(self, state: State) -> bytes:
        return b""

    def load_window(self, window: bytes) -> None:
        raise AssertionError("every call swaps the state")

    def watched_words(self, state: State) -> WatchedWords:
        return ()


class CallAccessor(_SlowAccessor):
    """Saves and loads the state through the generators' own functions, for an unknown memory layout."""

    def __init__(self, python: random.Random, numpy: Any, torch: Any) -> None:
        self._python, self._numpy, self._torch = python, numpy, torch
        self.has_torch = torch is not None

    def save(self) -> State:
        name, words, *rest = self._numpy.get_state()
        torch = () if self._torch is None else (_bytes_of(self._torch),)
        return self._python.getstate(), (name, words.tobytes(), *rest), *torch

    def load(self, state: State) -> None:
        self._python.setstate(state[0])
        name, words, *rest = state[1]
        self._numpy.set_state((name, np.frombuffer(words, np.uint32), *rest))
        if self._torch is not None:
            _load_bytes(self._torch, state[2])

    def state_of(self, entropy: int) -> State:
        words = struct.unpack(f"={_WORDS}I", _words_of(entropy, 0))
        state: State = (3, (*words, _POSITION), None), ("MT19937", _words_of(entropy, 1), _POSITION, 0, 0.0)
        if self._torch is not None:
            generator = type(self._torch)().manual_seed(int.from_bytes(_words_of(entropy, 2)[:8], "little"))
            state = *state, _bytes_of(generator)
        return state

    def continued(self, own: State, seen: State, neutral: State) -> State:
        return seen

    def torch_parts(self, state: State) -> TorchParts:
        return (state[2] if len(state) > 2 else None), None

    def without_torch(self, state: State) -> State:
        return state[:2]

    def with_torch(self, rest: State, parts: TorchParts) -> State:
        return rest if parts[0] is None else (*rest, parts[0])

    def with_torch_window(self, state: State, own: TorchParts) -> TorchParts:
        return own


class CudaAccessor(_SlowAccessor):
    """Adds torch's generators of CUDA devices to those of another accessor.

    A state consists of the other accessor's state and a tuple of bytes, one item per device. The memory of these
    generators is not watched, so the state of an env is swapped in at every call.

    Args:
        base: the accessor of the other generators.
        devices: the generators of the devices.
    """

    has_torch = has_cuda = True

    def __init__(self, base: MemoryAccessor | CallAccessor, devices: tuple[Any, ...]) -> None:
        self._base, self._devices = base, devices

    def save(self) -> State:
        return self._base.save(), tuple(map(_bytes_of, self._devices))

    def load(self, state: State) -> None:
        self._base.load(state[0])
        for device, words in zip(self._devices, state[1]):
            _load_bytes(device, words)

    def state_of(self, entropy: int) -> State:
        part, states = parts_of(entropy)[2], []
        for number, device in enumerate(self._devices):
            seed = hashlib.blake2b(b"%d %d" % (number, part), digest_size=8).digest()
            generator = type(device)(device.device).manual_seed(int.from_bytes(seed, "little"))
            states.append(_bytes_of(generator))
        return self._base.state_of(entropy), tuple(states)

    def continued(self, own: State, seen: State, neutral: State) -> State:
        return self._base.continued(own[0], seen[0], neutral[0]), seen[1]

    def torch_parts(self, state: State) -> TorchParts:
        return self._base.torch_parts(state[0])[0], state[1]

    def without_torch(self, state: State) -> State:
        return self._base.without_torch(state[0])

    def with_torch(self, rest: State, parts: TorchParts) -> State:
        return self._base.with_torch(rest, parts), parts[1]

    def with_torch_window(self, state: State, own: TorchParts) -> TorchParts:
        return self._base.with_torch_window(state[0], own)[0], own[1]


def _bytes_of(generator: Any) -> bytes:
    """Return the state of one of torch's generators."""
    state: bytes = generator.get_state().numpy().tobytes()
    return state


def _load_bytes(generator: Any, state: bytes) -> None:
    torch: Any = sys.modules["torch"]
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


#: What saves and loads the states of the generators of this process.
Accessor = MemoryAccessor | CallAccessor | CudaAccessor


@functools.cache
def _gauss_offset() -> int | None:
    """Return the offset of the second Gaussian in a RandomState; None if any part of the layout is unknown."""
    python, numpy = random.Random(1), np.random.RandomState(1)
    python.random(), numpy.random_sample()
    words = python.getstate()[1]
    if type(python).__basicsize__ < _HEADER_NBYTES + _STATE_NBYTES:
        return None
    if bytes(_memory_at(id(python) + _HEADER_NBYTES, _STATE_NBYTES)) != struct.pack("=625I", words[-1], *words[:-1]):
        return None
    state = numpy.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return None
    laid_out = state["state"]["key"].tobytes() + struct.pack("=i", state["state"]["pos"])
    if bytes(_memory_at(numpy._bit_generator.ctypes.state_address, _STATE_NBYTES)) != laid_out:
        return None
    numpy.set_state(("MT19937", state["state"]["key"], 7, 1, 0.123456789))
    body = bytes(_memory_at(id(numpy), type(numpy).__basicsize__))
    offset = body.find(struct.pack("=d", 0.123456789)) - 8
    if offset < 0 or body[offset : offset + 4] != struct.pack("=i", 1):
        return None
    numpy.standard_normal()  # uses up the second Gaussian
    return offset if bytes(_memory_at(id(numpy) + offset, 4)) == bytes(4) else None


def global_accessor() -> Accessor:
    """Return the accessor of the global generators, with torch's if torch is imported and with CUDA's if CUDA runs."""
    python, numpy = random.random.__self__, np.random.mtrand._rand  # type: ignore[attr-defined]
    torch = torch_generator.loaded_generator()
    offset = _gauss_offset()
    is_known = type(python) is random.Random and type(numpy._bit_generator) is np.random.MT19937
    address = None if torch is None else torch_generator.memory_of(torch)
    base: MemoryAccessor | CallAccessor
    if offset is None or not is_known or (torch is not None and address is None):
        base = CallAccessor(python, numpy, torch)
    else:
        base = MemoryAccessor(python, numpy, offset, address)
    devices = torch_generator.cuda_generators()
    return CudaAccessor(base, devices) if devices else base
