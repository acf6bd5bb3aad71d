"""Toy envs that check how values are passed: kept actions and infos, any spaces, shared arrays, global generators."""

from __future__ import annotations

import copy
import random
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ...values.nested import equal, flatten
from .plain import StepResult, ToyEnv

__all__ = ["AliasedObs", "KeepsAction", "KeepsInfo", "KeepsOptions", "NoisyGlobal", "SpaceEnv"]


class _Keeper(ToyEnv):
    """Base of the envs that keep values, and raise RuntimeError if one of them changes later.

    Attributes:
        kept: the values.
    """

    what: ClassVar[str]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kept: list[Any] = []
        self._as_given: list[Any] = []

    def keep(self, value: Any) -> None:
        self.kept.append(value)
        self._as_given.append(copy.deepcopy(value))

    def check_kept(self) -> None:
        """Raise RuntimeError if a value has changed since it was kept."""
        for number, (value, before) in enumerate(zip(self.kept, self._as_given), 1):
            if not equal(value, before):
                raise RuntimeError(f"{self.what} {number} was {before!r} when given and is {value!r} now")


class KeepsAction(_Keeper):
    """Keep all actions; `step` raises RuntimeError if an earlier one has changed, or shares memory with this one.

    An action changes later if a library passes a view of a buffer that it reuses. Info describes the last action:
    `action_type` (class name), `action_dtype`, `action_writeable`, and `own_memory` (False if the memory of the array
    does not belong to a NumPy array).
    """

    what = "action"

    def __init__(self, action_space: spaces.Space[Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if action_space is not None:
            self.action_space = copy.deepcopy(action_space)

    def step(self, action: Any) -> StepResult:
        self.check_kept()
        for number, kept in enumerate(self.kept, 1):
            if any(np.may_share_memory(a, b) for a in _arrays(kept) for b in _arrays(action)):
                raise RuntimeError(f"action {number} shares memory with action {len(self.kept) + 1}")
        self.keep(action)
        return super().step(action)

    def make_info(self) -> dict[str, Any]:
        if not self.kept:
            return {}
        arrays = _arrays(self.kept[-1])
        return {
            "action_type": type(self.kept[-1]).__name__,
            "action_dtype": " ".join(str(array.dtype) for array in arrays),
            "action_writeable": all(array.flags.writeable for array in arrays),
            "own_memory": all(_owner(array) is not None for array in arrays),
        }


class KeepsInfo(_Keeper):
    """Keep all returned infos; `step` and `reset` raise RuntimeError if an earlier one has changed.

    An info changes later if a library passes on the object itself and its receiver writes to it. An info
    contains a number, an array, and a nested list and array.
    """

    what = "info"

    def make_info(self) -> dict[str, Any]:
        self.check_kept()
        number = len(self.kept)
        info = {"number": number, "array": np.full(3, number), "nested": {"list": [number], "array": np.zeros(2)}}
        self.keep(info)
        return info


class KeepsOptions(_Keeper):
    """Keep the options of all resets; `step` and `reset` raise RuntimeError if earlier ones have changed."""

    what = "options"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.keep(options)
        return super().reset(seed=seed)

    def make_info(self) -> dict[str, Any]:
        self.check_kept()
        return {}


class NoisyGlobal(ToyEnv):
    """Draw from the global generators of `random` and NumPy at every call.

    The last two numbers of its observation are such draws, so they depend on all other code in the process
    that uses these generators.
    """

    def observe(self) -> Any:
        obs = super().observe()
        if isinstance(obs, np.ndarray):
            obs[2:] = random.random(), np.random.random()
        return obs


class SpaceEnv(ToyEnv):
    """Return samples of a given space as observations; the space is seeded from `np_random` at each reset."""

    def __init__(
        self,
        space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Copies, because a space contains the generator that it samples with.
        self.observation_space = copy.deepcopy(self.observation_space if space is None else space)
        self.action_space = copy.deepcopy(self.action_space if action_space is None else action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return super().reset(options=options)

    def observe(self) -> Any:
        return self.observation_space.sample()


class AliasedObs(ToyEnv):
    """Write all observations into the same array, like some simulators."""

    def __init__(self, length: int | None = 10, **kwargs: Any) -> None:
        super().__init__(length, **kwargs)
        self._buffer = np.zeros(4, np.float32)

    def observe(self) -> Any:
        self._buffer[:] = super().observe()
        return self._buffer


def _arrays(value: Any) -> list[np.ndarray[Any, Any]]:
    """Return the arrays in a nested action, in order."""
    return [leaf for leaf in flatten(value) if isinstance(leaf, np.ndarray)]


def _owner(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return the array that owns the memory of an array, or None if its owner is not an array."""
    base: Any = array
    while isinstance(base, np.ndarray) and not base.flags.owndata:
        base = base.base
    return base if isinstance(base, np.ndarray) else None
