"""Backends: make a pool by the name of its engine, or choose the engine by a measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ...checks import check_choice
from ...errors import ConfigError
from ..host.replay import Snapshotter
from ..options import AUTO, PoolOptions, check_env_fns
from .auto import choose_options
from .pool import Pool
from .process import ProcessEngine, ProcessPool
from .serial import SerialPool

__all__ = ["BACKENDS", "make_pool"]

#: Names of backends; 'auto' measures env 0 and chooses one of the others.
BACKENDS = ("process", "serial", AUTO)


def make_pool(
    backend: str,
    env_fns: Sequence[Callable[[], Any]],
    options: PoolOptions,
    *,
    adapt: Callable[[Any], Any],
    snapshotter: Snapshotter,
) -> Pool:
    """Make the pool of a front end.

    Args:
        backend: one of `BACKENDS`. With 'auto', env 0 is built, measured and closed in a worker of its own here, and
            `options.num_workers` must be None or 'auto'.
        env_fns, options, adapt, snapshotter: as for `ProcessEngine`.

    Raises:
        ConfigError: an argument is wrong.
        Exception: with 'auto', the exception of the constructor of env 0.
    """
    check_choice("backend", backend, BACKENDS)
    if backend == AUTO:
        if options.num_workers not in (None, AUTO):
            raise ConfigError(
                f"num_workers: backend='{AUTO}' chooses the workers, too; leave num_workers out", key="num_workers"
            )
        fns = check_env_fns(env_fns)
        prober = ProcessEngine(
            fns[:1], dataclasses.replace(options, num_workers=1), adapt=adapt, snapshotter=snapshotter
        )
        options = choose_options(options, len(fns), prober.measure(_ignore), may_be_serial=True)
        backend = "serial" if options.num_workers is None else "process"
    if backend == "serial":
        return SerialPool(env_fns, options, adapt=adapt, snapshotter=snapshotter)
    return ProcessPool(env_fns, options, adapt=adapt, snapshotter=snapshotter)


def _ignore(what: str) -> None:
    """Check nothing: the pool does not exist yet, so it cannot be closed."""
