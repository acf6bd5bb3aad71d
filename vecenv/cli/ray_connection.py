"""A connection to Ray for the time of a command: to the cluster of a job, or to a local Ray."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from vecenv.errors import ConfigError, require

__all__ = ["connected_ray"]


@contextlib.contextmanager
def connected_ray() -> Iterator[None]:
    """Call `ray.init()`, which joins the cluster of RAY_ADDRESS or starts a local Ray; disconnect at the end."""
    ray = require("ray", "ray")
    is_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(log_to_driver=False, logging_level="error")
        except ConnectionError as error:
            raise ConfigError(f"ray.init(): {error}") from error
        if is_main_thread:  # Ray has installed a handler of its own
            signal.signal(signal.SIGTERM, handler)
        yield
    finally:
        ray.shutdown()
