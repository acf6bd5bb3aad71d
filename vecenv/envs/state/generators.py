"""Finding, saving and restoring the random generators in the attributes and spaces of an env layer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenv.envs.seeding import EpisodeSeeds
from vecenv.errors import StateError
from vecenv.values.class_cache import class_cache
from vecenv.values.own_attributes import attributes_of, get_own_attr

_GENERATOR, _SPACE, _NEITHER = range(3)
_PLAIN_SPACES = {spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete, spaces.Text}
GENERATOR_CLASSES = (np.random.Generator, np.random.RandomState, random.Random, EpisodeSeeds)


@class_cache
def _kind_of(cls: type) -> int:
    """Return one of the three kinds of classes of attributes."""
    if issubclass(cls, GENERATOR_CLASSES):
        return _GENERATOR
    return _SPACE if issubclass(cls, spaces.Space) else _NEITHER


def is_space_or_generator(value: Any) -> bool:
    """Return whether a value is a space or a generator; see `find_generators`."""
    cls: Any = type(value)
    return _kind_of(cls) != _NEITHER


def find_generators(
    layer: Any, depth: int, attributes: dict[str, Any] | None = None
) -> list[tuple[int, tuple[Any, ...], Any]]:
    """Return (depth, path, generator) for each generator in a layer's attributes and spaces.

    A path contains the attribute names, keys and indices from the layer to the generator. `EpisodeSeeds` count as
    generators. `attributes` are those of the layer, if they are known.
    """
    found: list[tuple[int, tuple[Any, ...], Any]] = []
    for name, value in (attributes_of(layer) if attributes is None else attributes).items():
        cls: Any = type(value)
        kind = _kind_of(cls)
        if kind == _NEITHER:
            continue
        if kind == _GENERATOR:
            found.append((depth, (name,), value))
        elif cls in _PLAIN_SPACES:
            if value._np_random is not None:
                found.append((depth, (name, "_np_random"), value._np_random))
        else:
            found.extend((depth, path, generator) for path, generator in _in_space(value, (name,)))
    return found


def _in_space(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, generator) for the generators of a space and of the spaces in it."""
    if isinstance(value, spaces.Space):
        for name, part in vars(value).items():
            yield from _in_space(part, (*path, name))
    elif isinstance(value, np.random.Generator):
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _in_space(part, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            if isinstance(part, spaces.Space):
                yield from _in_space(part, (*path, index))


def get_generator_state(generator: Any) -> Any:
    """Return the state of a NumPy or `random` generator; picklable."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate()


def _set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def save_generators(layer: Any) -> tuple[list[Any], list[Any]]:
    """Return the generators in the attributes and spaces of one object, as `restore_generators` takes them."""
    paths: list[Any] = []
    generators: list[Any] = []
    known: list[Any] = []
    for depth, path, generator in find_generators(layer, 0):
        index = next((i for i, other in enumerate(known) if other is generator), len(known))
        if index == len(known):
            known.append(generator)
            generators.append((type(generator), get_generator_state(generator)))
        paths.append((depth, path, index))
    return paths, generators


def restore_generators(layers: list[Any], paths: list[Any], generators: list[Any]) -> None:
    """Restore the generators. Existing objects are reused if possible, as others may refer to them.

    Args:
        layers: of the stack, outermost first.
        paths: (depth, path, index in `generators`) of each reference; several may share one generator.
        generators: (class, state) of each generator.
    """
    taken: list[Any] = []
    for index, (cls, state) in enumerate(generators):
        mine = [(_container(layers[depth], path), path[-1]) for depth, path, i in paths if i == index]
        chosen = None
        # A seeded reset replaces `_np_random`, so an object with another name is preferred.
        for container, key in sorted(mine, key=lambda one: one[1] == "_np_random"):
            present = _get_part(container, key)
            if _fits(present, cls, state) and not any(present is other for other in taken):
                chosen = present
                break
        if chosen is None:
            chosen = _make_generator(cls, state)
        _set_generator_state(chosen, state)
        taken.append(chosen)
        for container, key in mine:
            if _get_part(container, key) is not chosen:
                _set_part(container, key, chosen)


def _container(layer: Any, path: tuple[Any, ...]) -> Any:
    part = layer
    for key in path[:-1]:
        part = _get_part(part, key)
        if part is None:
            raise StateError(f"restore of {type(layer).__name__}: it has no {'.'.join(map(str, path))}")
    return part


def _get_part(container: Any, key: Any) -> Any:
    if isinstance(container, dict):
        return container.get(key)
    if isinstance(container, (list, tuple)):
        return container[key] if key < len(container) else None
    return get_own_attr(container, key)


def _set_part(container: Any, key: Any, value: Any) -> None:
    if isinstance(container, (dict, list)):
        container[key] = value
    else:
        setattr(container, key, value)


def _fits(present: Any, cls: type, state: Any) -> bool:
    if type(present) is not cls:
        return False
    if isinstance(present, np.random.RandomState):
        return bool(present.get_state(legacy=False)["bit_generator"] == state["bit_generator"])
    if isinstance(present, np.random.Generator):
        return bool(present.bit_generator.state["bit_generator"] == state["bit_generator"])
    return True


def _make_generator(cls: Any, state: Any) -> Any:
    if issubclass(cls, random.Random):
        return cls()
    return cls(getattr(np.random, state["bit_generator"])())
