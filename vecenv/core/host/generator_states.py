"""Reads and sets the states of the global random generators: those of `random`, `numpy.random` and torch.

All three generators are Mersenne Twisters with 624 words and a position, 2,500 bytes. Reading and setting the
state through their functions takes 60 us; copying the memory takes 0.2 us. The memory layout is not
documented. It is therefore first compared with the states that private generators report. If it differs,
the state is swapped at every call of every env, through the slow functions.

    random.Random       header | int position | uint32 words[624]          (and the attribute gauss_next)
    numpy's MT19937     uint32 words[624] | int position                   at `ctypes.state_address`
    RandomState         ... | int has_gauss | 4 bytes | double gauss | ... at an offset that is searched
    torch.Generator     see `torch_generator`
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import random
import struct
import sys
from typing import Any

import numpy as np

from ..layout.native import load
from . import torch_generator

__all__ = [
    "CallAccessor",
    "MemoryAccessor",
    "State",
    "WatchedWords",
    "entropy_of",
    "global_accessor",
    "is_exact",
    "parts_of",
]

_WORDS = 624
_STATE_NBYTES = 4 * (_WORDS + 1)
_GAUSS_NBYTES = 16  # has_gauss, padding, gauss
_HEADER_NBYTES = object.__basicsize__
_PART_BITS = 128  # of an entropy

# Position of every state that no env has drawn from. A draw and seeding both move it.
_POSITION = 6
#: Words of an env's own state that a plain step finds in the neutral state, so that its first draws are its own.
_WINDOW_WORDS = 8
_WINDOW_NBYTES = 4 * _WINDOW_WORDS
_WINDOW = slice(4 * _POSITION, 4 * _POSITION + _WINDOW_NBYTES)  # in the words of a generator
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

#: (address of a uint32, its value before any draw)
WatchedWords = tuple[tuple[int, int], ...]


def parts_of(entropy: int) -> tuple[int, int, int]:
    """Return the numbers of 128 bits, for `random`, NumPy's generator and torch's, of which an entropy consists."""
    python, numpy, torch = (entropy >> number * _PART_BITS & (1 << _PART_BITS) - 1 for number in range(3))
    return python, numpy, torch


def entropy_of(python: int, numpy: int, torch: int) -> int:
    """Return the entropy that consists of these numbers of 128 bits."""
    return python | numpy << _PART_BITS | torch << 2 * _PART_BITS


def _words_of(entropy: int) -> tuple[bytes, ...]:
    """Return the 624 words of each generator, of torch's too, that begin from its part of an entropy."""
    parts = enumerate(parts_of(entropy))
    return tuple(hashlib.shake_128(b"%d %d" % (number, part)).digest(4 * _WORDS) for number, part in parts)


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
        native = load()
        if native is None:
            self._exchange = functools.partial(_exchange, [_memory_at(*area) for area in areas])
        else:
            self._exchange = functools.partial(
                native.exchange, struct.pack(f"={2 * len(areas)}Q", *itertools.chain(*areas))
            )
        self.window_addresses = tuple(address + 4 * _POSITION for address in self._first_words)

    def state_of(self, entropy: int) -> State:
        """Return the state that begins from a number."""
        python, numpy, torch = _words_of(entropy)
        position = struct.pack("=i", _POSITION)
        words = bytearray(b"".join((position, python, numpy, position, bytes(_GAUSS_NBYTES))))
        if self.has_torch:
            words += torch_generator.state_of_words(torch, _POSITION)
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
        for number, address in enumerate(self.window_addresses):
            ctypes.memmove(address, window[number * _WINDOW_NBYTES :], _WINDOW_NBYTES)

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

    def torch_part(self, state: State) -> Any:
        """Return the part of a state that is torch's; None if it has none."""
        return bytes(state[0][_BASE_NBYTES:]) or None

    def with_torch(self, state: State, part: Any) -> State:
        """Return a state with another part for torch; None removes it."""
        return state[0][:_BASE_NBYTES] + (part or b""), state[1]

    def with_torch_window(self, state: State, own: Any) -> Any:
        """Return torch's part of a state, with the window of another one."""
        part, start = bytearray(self.torch_part(state)), torch_generator.WORDS + 4 * _POSITION
        part[start : start + _WINDOW_NBYTES] = own[start : start + _WINDOW_NBYTES]
        return bytes(part)


def _exchange(areas: list[memoryview], keep: bytearray | None, fill: bytearray | None) -> None:
    """Copy areas of memory into `keep`, then fill them from `fill`; None skips a part. As `_native.exchange`."""
    start = 0
    for area in areas:
        stop = start + len(area)
        if keep is not None:
            keep[start:stop] = area
        if fill is not None:
            area[:] = fill[start:stop]
        start = stop


class CallAccessor:
    """Saves and loads the state through the generators' own functions, for an unknown memory layout."""

    window_addresses = ()

    def __init__(self, python: random.Random, numpy: Any, torch: Any) -> None:
        self._python, self._numpy, self._torch = python, numpy, torch
        self.has_torch = torch is not None

    def save(self) -> State:
        name, words, *rest = self._numpy.get_state()
        torch = () if self._torch is None else (self._torch.get_state().numpy().tobytes(),)
        return self._python.getstate(), (name, words.tobytes(), *rest), *torch

    def load(self, state: State) -> None:
        self._python.setstate(state[0])
        name, words, *rest = state[1]
        self._numpy.set_state((name, np.frombuffer(words, np.uint32), *rest))
        if self._torch is not None:
            torch: Any = sys.modules["torch"]
            self._torch.set_state(torch.frombuffer(bytearray(state[2]), dtype=torch.uint8))

    def swap(self, state: State) -> State:
        saved = self.save()
        self.load(state)
        return saved

    def state_of(self, entropy: int) -> State:
        python, numpy, torch = _words_of(entropy)
        words = struct.unpack(f"={_WORDS}I", python)
        state: State = (3, (*words, _POSITION), None), ("MT19937", numpy, _POSITION, 0, 0.0)
        if self._torch is not None:
            generator = type(self._torch)().manual_seed(int.from_bytes(torch[:8], "little"))
            state = *state, generator.get_state().numpy().tobytes()
        return state

    def window_of(self, state: State) -> bytes:
        return b""

    def load_window(self, window: bytes) -> None:
        raise AssertionError("every call swaps the state")

    def continued(self, own: State, seen: State, neutral: State) -> State:
        return seen

    def watched_words(self, state: State) -> WatchedWords:
        return ()

    def torch_part(self, state: State) -> Any:
        return state[2] if len(state) > 2 else None

    def with_torch(self, state: State, part: Any) -> State:
        return state[:2] if part is None else (*state[:2], part)

    def with_torch_window(self, state: State, own: Any) -> Any:
        return own


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


def is_exact() -> bool:
    """Return whether the memory layout of the generators is known, so that draws are detected exactly."""
    return _gauss_offset() is not None


def global_accessor() -> MemoryAccessor | CallAccessor:
    """Return the accessor of the global generators, with torch's if torch is imported."""
    python, numpy = random.random.__self__, np.random.mtrand._rand  # type: ignore[attr-defined]
    torch = torch_generator.loaded_generator()
    offset = _gauss_offset()
    is_known = type(python) is random.Random and type(numpy._bit_generator) is np.random.MT19937
    address = None if torch is None else torch_generator.memory_of(torch)
    if offset is None or not is_known or (torch is not None and address is None):
        return CallAccessor(python, numpy, torch)
    return MemoryAccessor(python, numpy, offset, address)
