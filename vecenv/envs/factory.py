"""`EnvFactory`, a picklable constructor of a wrapped env, called in the worker that runs the env."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EnvFactory"]


@dataclass(frozen=True)
class EnvFactory:
    """A constructor for `env_fns` that builds and wraps an env. It is picklable if its fields are.

    Attributes:
        build: returns a new env at each call.
        args, kwargs: arguments of `build`.
        wrappers: callables that take an env and return an env; applied in this order.

    Example:
        >>> import gymnasium
        >>> EnvFactory(gymnasium.make, ("CartPole-v1",), {"sutton_barto_reward": True})().spec.id
        'CartPole-v1'
    """

    build: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[Callable[[Any], Any]] = ()

    def __call__(self) -> Any:
        env = self.build(*self.args, **self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env
