"""Options: how a pool works, checked before anything is started."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import ConfigError
from ..options import EngineOptions, FailurePolicy, Timeouts, check_option, given_fields
from ..values.checks import MAKE, check_choice, check_flag, check_whole, describe_wrong_env_fn
from .host.global_rngs import pool_entropy
from .layout.flags import Autoreset, Op
from .layout.info_cells import Infos
from .system.clock import is_number, limit_of
from .system.process_settings import ProcessSettings

__all__ = [
    "AUTO",
    "DEFAULT_START_METHOD",
    "RECOVERING",
    "START_METHODS",
    "Limits",
    "PoolFailurePolicy",
    "PoolOptions",
    "check_env_fns",
    "check_options",
    "resolve",
]

#: Value of `num_workers` and `backend`: measure an env, then choose.
AUTO = "auto"
START_METHODS = ("forkserver", "spawn", "fork")
#: The start method of workers unless another one is given.
DEFAULT_START_METHOD = "forkserver" if hasattr(os, "fork") else "spawn"


@dataclass(frozen=True, kw_only=True, repr=False)
class Limits(Timeouts):
    """Time limits of a pool: `Timeouts` with the defaults filled in. None is no limit; `math.inf` becomes None."""

    construct: float | None = 60.0
    close: float | None = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, limit_of(getattr(self, field.name)))

    def of(self, op: int) -> float | None:
        """Return the limit of a running operation."""
        return {Op.STEP: self.step, Op.RESET: self.reset, Op.CALL: self.call}.get(Op(op))

    def has_any(self) -> bool:
        """Return whether running operations have a limit."""
        return any(limit is not None for limit in (self.step, self.reset, self.call))


@dataclass(frozen=True, kw_only=True, repr=False)
class PoolFailurePolicy(FailurePolicy):
    """Failure policy of a pool: `FailurePolicy` with the defaults filled in.

    A pool recovers only if its front end asks for that. None in `recovery_timeout`: 60 s, or ten step limits if that
    is more; in `recycle_after`: never; in `reproducer_dir`: the temporary folder of the system.
    """

    on_failure: str = "raise"
    on_repeat: str = "truncate"
    on_exception: str = "raise"
    recover_hangs: bool = True
    max_restarts: int = 32
    restart_window: float = 60.0
    max_log_bytes: int = 64 << 20
    reproducer_dir: str | None = None

    @property
    def recovers(self) -> bool:
        """Whether workers are replaced at all."""
        return self.on_failure == "recover"

    @property
    def exception_limit(self) -> tuple[int, float] | None:
        """How many exceptions of an env are caught within how many seconds; None if they reach the caller."""
        return (self.max_restarts, self.restart_window) if self.on_exception == "truncate" else None


#: The default of all front ends but the managers, which have config keys.
RECOVERING = PoolFailurePolicy(on_failure="recover")

_Resolved = TypeVar("_Resolved", Limits, PoolFailurePolicy)


def resolve(given: Timeouts | FailurePolicy, defaults: _Resolved) -> _Resolved:
    """Return `defaults` with the fields that `given` has."""
    return dataclasses.replace(defaults, **given_fields(given))


@dataclass(frozen=True)
class PoolOptions:
    """Options of a pool, the same for both engines.

    Attributes:
        num_workers: worker processes; None: min(num_envs, usable cores), and more if envs wait; 'auto': env 0
            is measured in a worker of its own, and workers and threads are chosen.
        threads_per_worker: slots per worker; more than one for envs that sleep. With one worker per core its threads
            stay on that core while their envs mostly wait; processes that envs start may run on any core.
        build, timings, monitor, worker_output, worker_init: as in `EngineOptions`, with the defaults filled in.
        autoreset: how the worker begins the next episode.
        depth: number of blocks in the ring, at least 2: a view is valid until `depth - 1` later batches have been
            received.
        leases: blocks of large observations that the caller may keep, see `Pool.lend`.
        infos: which infos are sent to the parent.
        final_obs: whether rows have room for the observation before a SAME_STEP autoreset.
        strict: refuse actions and observations of another dtype instead of converting them, and actions outside their
            space.
        ignores_extra_keys: drop keys of dicts that their space lacks, with a warning (Gymnasium drops them without
            one); if False, such keys are an error.
        context: start method, 'forkserver', 'spawn' or 'fork'; only 'spawn' where the system cannot fork.
        num_threads: threads that numeric libraries may use in a worker, unless the environment variables of these
            libraries (`OMP_NUM_THREADS` and others) are set.
        spin: longest busy wait in seconds before a wait sleeps, with a yield every few polls; only while recent
            waits were shorter, and only on a core that no other process needs. 0: never spin.
        debug: overwrite expired batches, and let `Batch.is_valid` find them. Refuse actions outside their space.
        warns_of_views: in debug mode, warn if observations of an expired batch are still referenced when its memory is
            used again; for callers that refer to a batch only until the next one has been received.
        limits: time limits of operations.
        failures: the policy for workers that die or hang.
        rng_entropy: the number of 384 bits from which the states of the global random generators of each env begin;
            see `host.global_rngs`. By default it is drawn from the caller's generators, which are not moved.
        settings: settings of the program's process that workers take over, as they are when the pool is made.
        choice: the reason why 'auto', or the pool, has chosen these workers and threads; '' if there is none.
    """

    num_workers: int | str | None = None
    threads_per_worker: int = 1
    build: str = "parallel"
    autoreset: Autoreset = Autoreset.NEXT_STEP
    depth: int = 3
    leases: int = 0
    infos: Infos = Infos.ALL
    final_obs: bool = False
    strict: bool = False
    ignores_extra_keys: bool = False
    context: str = DEFAULT_START_METHOD
    num_threads: int = 1
    spin: float = 500e-6
    debug: bool = False
    timings: bool = True
    monitor: bool = True
    worker_output: str = "once"
    warns_of_views: bool = False
    limits: Limits = Limits()
    failures: PoolFailurePolicy = PoolFailurePolicy()
    rng_entropy: int = dataclasses.field(default_factory=pool_entropy, compare=False)
    settings: ProcessSettings = dataclasses.field(default_factory=ProcessSettings.now, compare=False)
    worker_init: Callable[[], object] | None = dataclasses.field(default=None, compare=False)
    choice: str = ""


def check_env_fns(env_fns: Any, name: str = "env_fns", make: str = MAKE) -> list[Callable[..., Any]]:
    """Return the constructors as a list.

    Args:
        env_fns: the constructors.
        name: the name of the argument; it may begin with "owner: ".
        make: for errors, as for `describe_wrong_env_fn`.

    Raises:
        ConfigError: there are none, or one cannot be called.
    """
    key = name.rpartition(" ")[2]
    expected = "a list of functions, each of which builds an env"
    if callable(env_fns):
        raise ConfigError(f"{name}: expected {expected}, got one function; write [env_fn] * num_envs", key=key)
    if isinstance(env_fns, str) or not isinstance(env_fns, Iterable):
        raise ConfigError(f"{name}: expected {expected}, {describe_wrong_env_fn(env_fns, make)}", key=key)
    fns = list(env_fns)
    if not fns:
        raise ConfigError(f"{name} is empty: at least one env is needed", key=key)
    for env_id, env_fn in enumerate(fns):
        if not callable(env_fn):
            got = describe_wrong_env_fn(env_fn, make)
            raise ConfigError(f"{name}[{env_id}]: expected a function that builds an env, {got}", key=key)
    return fns


def check_options(options: PoolOptions) -> PoolOptions:
    """Return the options with whole numbers and flags of NumPy's types as Python's.

    Raises:
        ConfigError: a value makes no sense.
    """
    least = {"num_workers": 1, "threads_per_worker": 1, "leases": 0, "num_threads": 1}
    if options.num_workers is None or options.num_workers == AUTO:
        del least["num_workers"]
    elif isinstance(options.num_workers, str):
        raise ConfigError(
            f"num_workers: expected a whole number, None or '{AUTO}', got {options.num_workers!r}", key="num_workers"
        )
    if options.num_workers == AUTO and options.threads_per_worker != 1:
        raise ConfigError(
            f"threads_per_worker: num_workers='{AUTO}' chooses the threads, too; leave threads_per_worker out",
            key="threads_per_worker",
        )
    plain: dict[str, Any] = {name: check_whole(name, getattr(options, name), low) for name, low in least.items()}
    for name in ("final_obs", "strict", "ignores_extra_keys", "debug", "warns_of_views"):
        plain[name] = check_flag(name, getattr(options, name))
    for name in (field.name for field in dataclasses.fields(EngineOptions)):
        if name != "worker_init" or options.worker_init is not None:
            plain[name] = check_option(name, getattr(options, name))
    check_choice("context", options.context, START_METHODS)
    if options.context != "spawn" and not hasattr(os, "fork"):
        raise ConfigError(
            f"context={options.context!r} needs os.fork, which this system lacks; use 'spawn'", key="context"
        )
    infos: Any = options.infos
    if not isinstance(infos, Infos):
        known = [f"Infos.{one.name}" for one in Infos]
        raise ConfigError(f"infos: expected one of {known}, got {infos!r}", key="infos")
    if not is_number(options.spin) or options.spin < 0:
        raise ConfigError(f"spin: expected seconds of at least 0, got {options.spin!r}", key="spin")
    return dataclasses.replace(options, **plain)
