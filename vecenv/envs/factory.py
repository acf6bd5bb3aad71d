"""EnvFactory: builds and wraps an env wherever it is called, such as in a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EnvFactory"]


@dataclass(frozen=True)
class EnvFactory:
    """Build an env; a constructor for `env_fns` that is picklable if its fields are.

    Attributes:
        build: returns a new env at each call.
        args, kwargs: arguments of `build`.
        wrappers: applied to the env in this order; each returns an env.

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
        """Return a new env.

        Raises:
            Exception: raised by `build` or a wrapper.
        """
        env = self.build(*self.args, **self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env
