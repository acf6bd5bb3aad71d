"""Find random generators that forked workers would share, and notice imports that take entropy, as most of them do.

The functions are watched from which Python, NumPy and the standard library take entropy. So it does not matter where a
module keeps its generator, or whether it keeps a seed or a table of random numbers instead.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["entropy_watched", "find_generator", "has_new_generator", "live_generators"]

_GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
#: The global generators of Python and NumPy: a module may have another name for them. Workers set their states.
_GLOBAL_GENERATORS = {id(method.__self__) for method in (random.random, np.random.random_sample)}  # type: ignore[attr-defined]
#: The functions that return entropy. NumPy's `SeedSequence` and `secrets` take theirs from `random._urandom`.
_PLACES = ((os, "urandom"), (os, "getrandom"), (random, "_urandom"))

#: The modules that have taken entropy; None: they are not noted at present.
_takers: list[str] | None = None


@contextlib.contextmanager
def entropy_watched() -> Iterator[list[str]]:
    """Collect the names of the modules that take entropy during the context."""
    global _takers
    seed = random.Random.seed
    functions = [(owner, name, getattr(owner, name)) for owner, name in _PLACES]
    for owner, name, function in functions:
        setattr(owner, name, _watched(function))
    random.Random.seed = _watched_seed(seed)  # type: ignore[method-assign]
    found: list[str] = []
    _takers = found
    try:
        yield found
    finally:
        _takers = None  # an imported module may have kept a watched function
        random.Random.seed = seed  # type: ignore[method-assign]
        for owner, name, function in functions:
            setattr(owner, name, function)


def _watched(function: Callable[[int], bytes]) -> Callable[..., bytes]:
    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> bytes:
        _note_taker()
        return function(*args, **kwargs)

    return watched


def _watched_seed(seed: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(seed)
    def watched(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None:
            _note_taker()
        seed(self, a, version)

    return watched


def _note_taker() -> None:
    """Note the module that takes entropy now, unless it is one that notices a fork."""
    if _takers is None:
        return
    names = []
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        names.append(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    names = [name for name in names if name not in ("random", "secrets")]
    if names[0] != "tempfile":  # its generator of names is another one after a fork
        _takers.append(
            next((name for name in names if name.partition(".")[0] not in sys.stdlib_module_names), names[0])
        )


def live_generators() -> list[Any]:
    """Return the random generators that exist in this process, wherever they are kept."""
    kinds = _kinds()
    return [one for one in gc.get_objects() if type(one) in kinds and not _is_safe(one)]


def has_new_generator(earlier: list[Any]) -> bool:
    """Return whether a generator exists that does not belong to these."""
    known = set(map(id, earlier))
    return any(id(one) not in known for one in live_generators())


def find_generator(module: types.ModuleType) -> str:
    """Return the name of a generator at the top of a module or in a class of it; '' if there is none."""
    kinds = _kinds()
    classes = [one for one in vars(module).values() if issubclass(type(one), type)]
    for owner in (module, *(one for one in classes if one.__module__ == module.__name__)):
        for name, value in vars(owner).items():
            if type(value) in kinds and not _is_safe(value):
                where = module.__name__ if owner is module else f"{module.__name__}.{owner.__name__}"
                return f"{where}.{name}"
    return ""


def _kinds() -> set[type]:
    """Return the classes of generators."""
    kinds: set[type] = set()
    more: list[type] = list(_GENERATORS)
    while more:
        kind = more.pop()
        if kind is not random.SystemRandom:
            kinds.add(kind)
            more += kind.__subclasses__()
    return kinds


def _is_safe(generator: Any) -> bool:
    """Return whether forked workers do not share a generator: it is a global one, or that of `tempfile`."""
    of_names = getattr(getattr(tempfile, "_name_sequence"), "_rng", None)  # noqa: B009
    return id(generator) in _GLOBAL_GENERATORS or generator is of_names
