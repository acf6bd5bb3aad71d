"""The loggers of vecenv; each of their lines begins with `vecenv:`, also where no handler shows names of loggers."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

__all__ = ["own_logger"]


class _OwnLogger(logging.LoggerAdapter):  # type: ignore[type-arg]  # Python 3.10 has no item of it
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"vecenv: {msg}", kwargs


def own_logger(name: str = "vecenv") -> _OwnLogger:
    """Return an object like the logger of this name, whose lines begin with `vecenv:`."""
    return _OwnLogger(logging.getLogger(name), {})
