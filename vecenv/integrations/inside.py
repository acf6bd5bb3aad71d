"""What an SB3VecEnv sends to its workers: calls by name, without a word of Stable-Baselines3.

A function that lived beside SB3VecEnv would have every worker import Stable-Baselines3, and torch with it.
"""

from __future__ import annotations

import os
from typing import Any

from ..envs.adapt import original

__all__ = ["AttributeGetter", "AttributeSetter", "AttributeTest", "MethodCaller", "WrapperTest", "identity_of"]


class AttributeGetter:
    """Reads an attribute of the env or of the first layer below that has it; methods are not called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, env: Any) -> Any:
        """Return the value for one env."""
        return env.get_wrapper_attr(self.name)


class AttributeSetter:
    """Sets an attribute of the env's outermost layer, as Stable-Baselines3 does."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def __call__(self, env: Any) -> None:
        """Set it in one env."""
        setattr(original(env), self.name, self.value)


class MethodCaller:
    """Calls a method of the env or of the first layer below that has it."""

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs

    def __call__(self, env: Any) -> Any:
        """Return what it returns for one env."""
        return env.get_wrapper_attr(self.name)(*self.args, **self.kwargs)


class WrapperTest:
    """Tells whether a layer of the env is of a class, which is known by its name.

    The class itself stays where it is: sending Stable-Baselines3's Monitor, as its VecMonitor does, would load all of
    Stable-Baselines3 in every worker.
    """

    def __init__(self, wrapper_class: type) -> None:
        if not isinstance(wrapper_class, type):
            raise TypeError(f"env_is_wrapped: expected a class, got {wrapper_class!r}")
        self.module, self.name = wrapper_class.__module__, wrapper_class.__qualname__

    def __call__(self, env: Any) -> bool:
        """Return the verdict on one env."""
        layer = original(env)
        innermost = getattr(layer, "unwrapped", layer)
        while layer is not None and layer is not innermost:
            if any((kind.__module__, kind.__qualname__) == (self.module, self.name) for kind in type(layer).__mro__):
                return True
            layer = getattr(layer, "env", None)
        return False


class AttributeTest:
    """Tells whether the env or a layer below has an attribute, whose value need not travel."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, env: Any) -> bool:
        """Return the verdict on one env."""
        try:
            env.get_wrapper_attr(self.name)
        except AttributeError:
            return False
        return True


def identity_of(env: Any) -> tuple[int, int]:
    """Return what two envs have in common only if they are the same object: process and address."""
    return os.getpid(), id(getattr(env, "unwrapped", env))
