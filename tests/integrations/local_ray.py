"""A stub of Ray whose actors are objects of this process, for rl_games' `RayVecEnv`."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any


class _Remote:
    """A class or a method, whose `remote` calls it."""

    def __init__(self, function: Callable[..., Any], wrap: Callable[[Any], Any]) -> None:
        self.function, self.wrap = function, wrap

    def remote(self, *args: Any) -> Any:
        return self.wrap(self.function(*args))


class _Actor:
    def __init__(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> _Remote:
        return _Remote(getattr(self._value, name), lambda result: result)


@contextlib.contextmanager
def ray_in_this_process() -> Iterator[None]:
    """Make `import ray` return the stub."""
    stub: Any = types.ModuleType("ray")
    stub.remote = lambda actor_class: _Remote(actor_class, _Actor)
    stub.get = lambda results: results
    stub.is_initialized = lambda: True
    stub.shutdown = lambda: None
    before = sys.modules.get("ray")
    sys.modules["ray"] = stub
    try:
        yield
    finally:
        del sys.modules["ray"]
        if before is not None:
            sys.modules["ray"] = before
