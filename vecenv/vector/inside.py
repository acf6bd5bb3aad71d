"""What a VectorEnv sends to its workers: how to build a registered env."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

__all__ = ["EnvMaker"]


class EnvMaker:
    """Builds one registered env with its wrappers, wherever it is called."""

    def __init__(self, spec: EnvSpec, kwargs: dict[str, Any], wrappers: Sequence[Callable[[Any], Any]]) -> None:
        self.spec, self.kwargs, self.wrappers = spec, kwargs, wrappers

    def __call__(self) -> Any:
        """Return a new env."""
        env: Any = gymnasium.make(self.spec, **self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env
