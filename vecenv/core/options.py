"""Options: how a pool works, checked before anything is started."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import check_choice, check_flag, check_whole
from ..errors import ConfigError
from .layout.info_cells import Infos
from .layout.rows import Autoreset, Op
from .system.clock import is_number, limit_of

__all__ = [
    "START_METHODS",
    "FailurePolicy",
    "Limits",
    "PoolOptions",
    "check_env_fns",
    "check_limit",
    "check_options",
    "is_positive",
]

START_METHODS = ("forkserver", "spawn", "fork")


@dataclass(frozen=True)
class Limits:
    """Seconds that one operation of one env may take, but for `construct` and `close` of all.

    None is no limit; `math.inf` becomes None.
    """

    construct: float | None = 60.0
    reset: float | None = None
    step: float | None = None
    call: float | None = None
    close: float | None = 5.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if is_number(value):  # else `check_options` says what it should be
                object.__setattr__(self, field.name, limit_of(value))

    def of(self, op: int) -> float | None:
        """Return the limit of a running operation."""
        return {Op.STEP: self.step, Op.RESET: self.reset, Op.CALL: self.call}.get(Op(op))

    def has_any(self) -> bool:
        """Tell whether running operations are limited at all."""
        return any(limit is not None for limit in (self.step, self.reset, self.call))


@dataclass(frozen=True)
class FailurePolicy:
    """What a ProcessPool does about a worker that dies or hangs.

    Attributes:
        on_failure: 'recover': replace it and bring its envs to where they were; 'raise'.
        on_repeat: the same call of an env kills a second worker, or an eighth where the signal came from
            outside, as the memory killer's does. 'truncate': end that episode honestly, truncated, and raise if
            that does not help either; 'raise'.
        recover_hangs: whether an operation over its limit is a failure like a death; else it
            raises WorkerTimeoutError.
        max_restarts: how often workers may fail with the same env at work within `restart_window`
            seconds (with none at work: ten times as often).
        max_log_bytes: most memory for what is kept to bring envs to where they were, all envs together; `log_nbytes`
            of the statistics says how much it is. 0: nothing is kept, so episodes that a death cuts off end truncated.
        recovery_timeout: seconds that repeating one env's episode may take; None: the larger of
            60 s and ten step limits. Each repeated step has the limit of its own, too.
        recycle_after: replace workers between two batches, after this many 'episodes' of an
            env or above this much memory, 'rss_mb' (MiB). It frees what envs leak if they begin there from a seeded
            reset or a state; where all they were asked is repeated, they leak it again, and a worker that is too large
            stays for 20 times as long as that took. An episode that cannot be repeated ends truncated.
        reproducer_dir: existing folder where reproducer files are written; None: the system's temporary folder.
    """

    on_failure: str = "raise"
    on_repeat: str = "truncate"
    recover_hangs: bool = True
    max_restarts: int = 32
    restart_window: float = 60.0
    max_log_bytes: int = 64 << 20
    recovery_timeout: float | None = None
    recycle_after: Mapping[str, float] | None = None
    reproducer_dir: str | None = None

    @property
    def recovers(self) -> bool:
        """Whether workers are replaced at all."""
        return self.on_failure == "recover"


@dataclass(frozen=True)
class PoolOptions:
    """How a pool works, whatever its engine.

    Attributes:
        num_workers: worker processes; None: min(num_envs, usable cores).
        threads_per_worker: slots per worker; more than one for envs that sleep. Where there is one worker for each
            core its threads stay on that core while their envs mostly wait; processes they start do not.
        autoreset: what the worker does when an episode ends.
        depth: batches that the caller may look at: a view is valid until `depth - 1` later
            ones have been received. At least 2.
        leases: blocks of large observations that the caller may keep, see `Pool.lend`.
        infos: which infos travel.
        final_obs: whether rows have room for the observation before a SAME_STEP autoreset.
        strict: refuse actions and observations of another dtype instead of converting them.
        ignores_extra_keys: leave out what dicts have beside the keys of their space, with a warning, as Gymnasium
            does without one; else it is an error.
        context: start method, 'forkserver', 'spawn' or 'fork'.
        num_threads: threads that numeric libraries may use in a worker.
        spin: longest busy wait in seconds before a wait sleeps, with a yield every few looks; only while recent
            waits were shorter, and beyond 100 us only on a core that nobody else wants. 0: never spin.
        debug: fill expired batches with garbage and let `Batch.is_valid` tell.
        limits: how long operations may take.
        failures: what to do about workers that die or hang.
    """

    num_workers: int | None = None
    threads_per_worker: int = 1
    autoreset: Autoreset = Autoreset.NEXT_STEP
    depth: int = 3
    leases: int = 0
    infos: Infos = Infos.ALL
    final_obs: bool = False
    strict: bool = False
    ignores_extra_keys: bool = False
    context: str = "forkserver"
    num_threads: int = 1
    spin: float = 500e-6
    debug: bool = False
    limits: Limits = Limits()
    failures: FailurePolicy = FailurePolicy()


def check_env_fns(env_fns: Sequence[Callable[..., Any]], name: str = "env_fns") -> list[Callable[..., Any]]:
    """Return the constructors, an argument of this name, as a list.

    Raises:
        ConfigError: there are none, or one cannot be called.
    """
    try:
        fns = list(env_fns)
    except TypeError:
        raise ConfigError(f"{name}: expected a list of callables, got {type(env_fns).__name__}", key=name) from None
    if not fns:
        raise ConfigError(f"{name} is empty: at least one env is needed", key=name)
    for env_id, env_fn in enumerate(fns):
        if not callable(env_fn):
            raise ConfigError(f"{name}[{env_id}] is not callable but {type(env_fn).__name__}", key=name)
    return fns


def check_options(options: PoolOptions) -> PoolOptions:
    """Return the options with whole numbers and flags of NumPy's types as Python's.

    Raises:
        ConfigError: a value makes no sense.
    """
    least = {"num_workers": 1, "threads_per_worker": 1, "depth": 2, "leases": 0, "num_threads": 1}
    if options.num_workers is None:
        del least["num_workers"]
    plain: dict[str, Any] = {name: check_whole(name, getattr(options, name), low) for name, low in least.items()}
    for name in ("final_obs", "strict", "ignores_extra_keys", "debug"):
        plain[name] = check_flag(name, getattr(options, name))
    check_choice("context", options.context, START_METHODS)
    infos: Any = options.infos
    if not isinstance(infos, Infos):
        known = [f"Infos.{one.name}" for one in Infos]
        raise ConfigError(f"infos: expected one of {known}, got {infos!r}", key="infos")
    if not is_number(options.spin) or options.spin < 0:
        raise ConfigError(f"spin: expected seconds of at least 0, got {options.spin!r}", key="spin")
    for name in ("construct", "reset", "step", "call", "close"):
        check_limit(f"{name}_timeout", getattr(options.limits, name))
    return dataclasses.replace(options, **plain, failures=_check_failures(options.failures))


def check_limit(name: str, value: Any) -> None:
    """Raise ConfigError for what is neither seconds above 0 nor None."""
    if value is not None:
        _check_seconds(name, value)


def _check_seconds(name: str, value: Any) -> None:
    if not is_positive(value):
        raise ConfigError(f"{name}: expected seconds above 0, got {value!r}", key=name)


def is_positive(value: Any) -> bool:
    """Tell whether a value is a number above 0; NaN is not."""
    return is_number(value) and bool(value > 0)


def _check_failures(policy: FailurePolicy) -> FailurePolicy:
    check_choice("on_failure", policy.on_failure, ("recover", "raise"))
    check_choice("on_repeat", policy.on_repeat, ("truncate", "raise"))
    plain: dict[str, Any] = {
        name: check_whole(name, getattr(policy, name), 0) for name in ("max_restarts", "max_log_bytes")
    }
    recover_hangs = check_flag("recover_hangs", policy.recover_hangs)
    _check_seconds("restart_window", policy.restart_window)
    check_limit("recovery_timeout", policy.recovery_timeout)
    folder = policy.reproducer_dir
    if folder is not None and not (isinstance(folder, str | os.PathLike) and os.path.isdir(folder)):
        raise ConfigError(f"reproducer_dir: expected an existing folder, got {folder!r}", key="reproducer_dir")
    if policy.recycle_after is not None and not isinstance(policy.recycle_after, Mapping):
        raise ConfigError(f"recycle_after: expected a dict, got {policy.recycle_after!r}", key="recycle_after")
    for key, value in (policy.recycle_after or {}).items():
        if key not in ("episodes", "rss_mb"):
            raise ConfigError(
                f"recycle_after: unknown key {key!r}; known are 'episodes' and 'rss_mb'", key="recycle_after"
            )
        if not is_positive(value):
            raise ConfigError(f"recycle_after[{key!r}]: expected a number above 0, got {value!r}", key="recycle_after")
    return dataclasses.replace(policy, **plain, recover_hangs=recover_hangs)
