"""Fixtures of the tests of managers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def launch() -> Iterator[Callable[..., Any]]:
    """Builds and launches managers, which are closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def launch(manager_cls: Any, env_fn: Any, **cfg: Any) -> Any:
            manager = stack.enter_context(contextlib.closing(manager_cls(env_fn, cfg)))
            manager.launch()
            return manager

        yield launch
