"""Backends: make a pool by the name of its engine, or choose the engine by a measurement of one env."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ConfigError
from ...ray_options import RayOptions
from ...values.checks import check_choice
from ..advice.auto import choose_options
from ..host.replay import Snapshotter
from ..layout.flags import Autoreset
from ..operations.engine import Engine, ResumeLike
from ..options import AUTO, Limits, PoolOptions, check_env_fns
from ..processes.leased_workers import is_leased
from ..spares.resets import SpareRule
from .pool import Pool
from .process import ProcessEngine, ProcessPool, measure_first_env
from .serial import SerialEngine, SerialPool

__all__ = ["BACKENDS", "CHOOSING_BACKENDS", "make_pool", "measure_first_env"]

#: Names of backends; 'auto' measures env 0 and chooses 'process' or 'serial'.
BACKENDS = ("process", "serial", "ray", AUTO)
#: Backends that choose the number of workers themselves: by a measurement, or by the CPUs of each shard.
CHOOSING_BACKENDS = (AUTO, "ray")
#: With this environment variable set to 1, all pools are serial and without time limits, for a debugger within an env.
_DEBUG_VARIABLE = "VECENV_DEBUG"


def make_pool(
    backend: str | RayOptions,
    env_fns: Sequence[Callable[[], Any]],
    options: PoolOptions,
    *,
    adapt: Callable[[Any], Any] | None = None,
    snapshotter: Snapshotter,
    spares: SpareRule | None = None,
    resume: ResumeLike | None = None,
) -> Pool:
    """Make the pool of a front end.

    With the environment variable `VECENV_DEBUG=1`, `backend` is 'serial' and operations have no time limits.

    Args:
        backend: one of `BACKENDS`, or a `RayOptions` for 'ray' with these options. With 'auto', env 0 is built,
            measured and closed in a worker of its own here, and `options.num_workers` must be None or 'auto'.
        env_fns, options, adapt, snapshotter: as for `ProcessEngine`.
        spares: None: ended envs are not reset ahead. With spare envs, each env has a worker of its own, unless
            `options.num_workers` is given, so that a slow reset delays no other env. `CHOOSING_BACKENDS` decide by
            themselves.
        resume: the result of `Pool.save` of another pool, or a function as for `Engine`; None: all envs are new.

    Raises:
        ConfigError: an argument is wrong.
        DependencyError: with 'ray', Ray is not installed.
        Exception: with 'auto', the exception of the constructor of env 0.
    """
    if not isinstance(backend, RayOptions):
        check_choice("backend", backend, BACKENDS)
        backend = RayOptions() if backend == "ray" else backend
    if _is_debugged():
        backend = "serial"
        options = dataclasses.replace(options, num_workers=None, limits=Limits(construct=None, close=None))
    mode = options.autoreset
    if backend == AUTO and is_leased(env_fns):  # there is nothing to choose
        backend = "process"
    if spares is not None:
        fns = check_env_fns(env_fns)
        env_fns = fns + list(spares.env_fns or (fns[number % len(fns)] for number in range(spares.num_spares)))
        is_open = options.num_workers is None and spares.num_spares and backend in ("process", "serial")
        is_open = is_open and not is_leased(env_fns)
        num_workers = len(env_fns) if is_open else options.num_workers
        options = dataclasses.replace(options, autoreset=Autoreset.DISABLED, leases=0, num_workers=num_workers)
    if backend == AUTO:
        if options.num_workers not in (None, AUTO):
            raise ConfigError(
                f"num_workers: backend='{AUTO}' chooses the workers, too; leave num_workers out", key="num_workers"
            )
        fns = check_env_fns(env_fns)
        found = measure_first_env(fns, options, adapt=adapt, snapshotter=snapshotter)
        options = choose_options(options, len(fns), found, may_be_serial=True)
        backend = "serial" if options.num_workers is None else "process"
    if spares is None and not isinstance(backend, RayOptions):
        pool_class: type[SerialPool | ProcessPool] = SerialPool if backend == "serial" else ProcessPool
        return pool_class(env_fns, options, adapt=adapt, snapshotter=snapshotter, resume=resume)
    engine: Engine
    if isinstance(backend, RayOptions):
        from ...integrations.ray.carrier import make_ray_engine  # the only use of Ray below front ends

        engine = make_ray_engine(env_fns, options, backend, adapt=adapt, snapshotter=snapshotter, resume=resume)
    elif backend == "serial":
        engine = SerialEngine(env_fns, options, adapt=adapt, snapshotter=snapshotter, resume=resume)
    else:
        engine = ProcessEngine(env_fns, options, adapt=adapt, snapshotter=snapshotter, resume=resume)
    return Pool(engine, spares, mode)


def _is_debugged() -> bool:
    """Return whether `VECENV_DEBUG=1` is set.

    Raises:
        ConfigError: the variable has another value than 0, 1 or nothing.
    """
    value = os.environ.get(_DEBUG_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ConfigError(f"{_DEBUG_VARIABLE}: expected 0 or 1, got {value!r}", key=_DEBUG_VARIABLE)
    return value == "1"
