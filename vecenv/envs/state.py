"""State of a whole env stack: taken between two episodes, put into a stack built anew, and the next begins alike.

    what a layer is or has                       what is carried
    get_state() and set_state()                  what they give: vecenv's wrappers and envs, a user's own
    an adapter for it is registered              ALE: the emulator with its generator; MuJoCo: the integration state
    it is one of gymnasium.wrappers              its attributes that are plain data: counters, queues, statistics
    generators among its attributes or spaces    their states, beside any of the above

A start of an episode is reproduced by restoring what was taken before its reset, then resetting. Layers are held
together by the attributes `env` and `_env`.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd

from vecenv.errors import StateError

__all__ = [
    "capture_state",
    "register_state_adapter",
    "restore_state",
]

# Neither counters nor statistics: what is inside, what a layer was made with, and generators, which go another way.
NO_STATE = ("env", "_env", "_saved_kwargs", "_metadata", "_cached_spec", "_np_random", "_np_random_seed")
PLAIN_TYPES = (bool, int, float, str, bytes, type(None), np.generic, np.ndarray)
CONTAINER_TYPES = (list, tuple, deque)


class LayerState(NamedTuple):
    """What one layer of a stack has to carry; picklable."""

    layer: str
    """The layer's class, to find out whether a stack is built alike."""
    own: Any
    """What its hook or adapter gave, or its plain attributes; None if it has neither."""
    generators: dict[str, Any]
    """States of the random generators it holds, by place."""


class _Adapter(NamedTuple):
    matches: Callable[[Any], bool]
    get: Callable[[Any], Any]
    set: Callable[[Any, Any], None]


def capture_state(env: Any) -> list[LayerState]:
    """Take the state of every layer, outermost first; the env goes on as if nothing had been asked.

    A generator that the innermost env has not made yet is made now, so that what it draws can be drawn again.

    Example:
        >>> import pickle
        >>> env, fresh = (gymnasium.make("CartPole-v1") for _ in range(2))
        >>> obs, info = env.reset(seed=3)
        >>> state = pickle.dumps(capture_state(env))
        >>> restore_state(fresh, pickle.loads(state))
        >>> bool((env.reset()[0] == fresh.reset()[0]).all())
        True
    """
    found = []
    for layer in layers_of(env):
        if isinstance(layer, gymnasium.Env) and next(inner_of(layer), None) is None:
            layer.np_random  # noqa: B018  # makes one, from fresh entropy, if there is none
        found.append(LayerState(_class_name(layer), _get_own(layer), _get_generators(layer)))
    return found


def restore_state(env: Any, state: list[LayerState]) -> None:
    """Put a state of `capture_state` into a stack of the same layers; the argument is not kept.

    An env that builds itself at its first reset is reset once for that.

    Raises:
        StateError: the stack has other layers.
    """
    if not _restore_layers(env, state):
        env.reset()  # with its own seeds in place already
        if not _restore_layers(env, state):
            raise StateError(f"state of another env: {_class_name(env)} lacks {state[-1].layer}, also after a reset")


def _restore_layers(env: Any, state: list[LayerState]) -> bool:
    """Restore from the outside in; False if there are fewer layers, those that are there being restored."""
    layers = layers_of(env)
    for saved in state:
        layer = next(layers, None)
        if layer is None:
            return False
        if _class_name(layer) != saved.layer:
            raise StateError(f"state of another env: expected {saved.layer} in its place, got {_class_name(layer)}")
        _set_own(layer, saved.own)
        _set_generators(layer, saved.generators)
    return True


def register_state_adapter(
    matches: Callable[[Any], bool], get: Callable[[Any], Any], set: Callable[[Any, Any], None]
) -> None:
    """Teach vecenv to carry the state of envs or wrappers that have no `get_state` and `set_state`.

    Those registered last are asked first. In worker processes this must have run too: do it in a module that the
    env's constructor imports.

    Args:
        matches: tells whether a layer is one of them.
        get: gives a layer's own state, picklable and not shared with it; not that of the layers under it.
        set: puts such a state into a layer built alike.
    """
    _adapters.insert(0, _Adapter(matches, get, set))


def layers_of(env: Any) -> Iterator[Any]:
    """Give an env and what it holds as `env` or `_env`, outermost first; looks for each when asked for it."""
    layer = env
    while layer is not None:
        yield layer
        layer = next(inner_of(layer), None)


def inner_of(layer: Any) -> Iterator[Any]:
    """Give the env inside a layer, if there is one."""
    for name in ("env", "_env"):
        inner = getattr(layer, "__dict__", {}).get(name)
        if inner is not None and inner is not layer and callable(getattr(inner, "step", None)):
            yield inner


def plain_attributes(layer: Any) -> dict[str, Any]:
    """Give copies of a layer's attributes that are numbers, text, arrays, or containers of such."""
    return {
        name: copy.deepcopy(value)
        for name, value in getattr(layer, "__dict__", {}).items()
        if name not in NO_STATE and _is_plain(value)
    }


def has_carrier(layer: Any) -> bool:
    """Tell whether a layer's own state is carried, beside its generators."""
    return _has_hook(layer) or _find_adapter(layer) is not None or _is_gymnasiums(layer)


def _is_plain(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    if isinstance(value, PLAIN_TYPES):
        return True
    if isinstance(value, CONTAINER_TYPES):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(_is_plain, value.values()))
    return isinstance(value, RunningMeanStd)


def _class_name(layer: Any) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _has_hook(layer: Any) -> bool:
    # Of the class: wrappers that forward names would answer for the layer inside.
    return all(callable(getattr(type(layer), name, None)) for name in ("get_state", "set_state"))


def _is_gymnasiums(layer: Any) -> bool:
    return isinstance(layer, gymnasium.Wrapper) and type(layer).__module__.startswith("gymnasium.wrappers")


def _find_adapter(layer: Any) -> _Adapter | None:
    return next((adapter for adapter in _adapters if adapter.matches(layer)), None)


def _get_own(layer: Any) -> Any:
    adapter = _find_adapter(layer)
    if adapter is not None:
        return adapter.get(layer)
    if _has_hook(layer):
        return layer.get_state()
    return plain_attributes(layer) if _is_gymnasiums(layer) else None


def _set_own(layer: Any, own: Any) -> None:
    adapter = _find_adapter(layer)
    if adapter is not None:
        adapter.set(layer, own)
    elif _has_hook(layer):
        layer.set_state(own)
    elif own is not None:
        vars(layer).update(copy.deepcopy(own))


# ---- generators --------------------------------------------------------------------------------


def _get_generators(layer: Any) -> dict[str, Any]:
    return {place: _generator_state(generator) for place, generator in _generators_of(layer)}


def _set_generators(layer: Any, states: dict[str, Any]) -> None:
    generators = dict(_generators_of(layer, make=states.keys()))
    for place, state in states.items():
        if place not in generators:  # an attribute that the env makes at its first reset
            generators[place] = vars(layer)[place] = _make_generator(state)
        _set_generator_state(generators[place], state)


def _generators_of(layer: Any, make: Any = ()) -> Iterator[tuple[str, Any]]:
    """Give the generators a layer holds itself, with their places; those in `make` are made if they can be."""
    for name, value in list(getattr(layer, "__dict__", {}).items()):
        if name in ("env", "_env"):
            continue
        if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
            yield name, value
        elif isinstance(value, spaces.Space):
            for path, space in _spaces_in(value, name):
                if path in make or vars(space)["_np_random"] is not None:
                    yield path, space.np_random
        elif name == "_np_random" and value is None and name in make:
            yield name, layer.np_random
    if "_np_random" in make and "_np_random" not in vars(layer) and isinstance(layer, gymnasium.Env):
        yield "_np_random", layer.np_random


def _spaces_in(space: spaces.Space[Any], path: str) -> Iterator[tuple[str, spaces.Space[Any]]]:
    yield path, space
    parts = getattr(space, "spaces", ())
    for key, part in parts.items() if isinstance(parts, Mapping) else enumerate(parts):
        yield from _spaces_in(part, f"{path}/{key}")


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _make_generator(state: Any) -> Any:
    if isinstance(state, dict):
        return np.random.Generator(getattr(np.random, state["bit_generator"])())
    return np.random.RandomState() if isinstance(state[0], str) else random.Random()


def _set_generator_state(generator: Any, state: Any) -> None:
    # In place: a simulator may hold the same generator under another name.
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


# ---- simulators whose state is not in Python ---------------------------------------------------


def _is_ale(layer: Any) -> bool:
    return callable(getattr(vars(layer).get("ale"), "cloneSystemState", None)) if hasattr(layer, "__dict__") else False


def _set_ale(layer: Any, state: Any) -> None:
    layer.ale.restoreSystemState(state)


def _is_mujoco(layer: Any) -> bool:
    attributes = getattr(layer, "__dict__", {})
    return type(attributes.get("data")).__name__ == "MjData" and "model" in attributes


def _get_mujoco(layer: Any) -> Any:
    import mujoco  # here: whoever has an MjData has it

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(layer.model, kind))
    mujoco.mj_getState(layer.model, layer.data, state, kind)
    return state


def _set_mujoco(layer: Any, state: Any) -> None:
    import mujoco

    mujoco.mj_setState(layer.model, layer.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)


_adapters = [
    _Adapter(_is_ale, lambda layer: layer.ale.cloneSystemState(), _set_ale),
    _Adapter(_is_mujoco, _get_mujoco, _set_mujoco),
]
