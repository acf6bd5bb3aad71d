"""Options: how a pool works, checked before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .infos import Infos
from .rows import Autoreset, Op

__all__ = ["Limits", "PoolOptions", "check_env_fns", "check_options"]


@dataclass(frozen=True)
class Limits:
    """Seconds that one operation of one env may take, None for no limit."""

    construct: float | None = 60.0
    reset: float | None = None
    step: float | None = None
    call: float | None = None
    close: float = 5.0

    def of(self, op: int) -> float | None:
        """Return the limit of a running operation."""
        return {Op.STEP: self.step, Op.RESET: self.reset, Op.CALL: self.call}.get(Op(op))

    def has_any(self) -> bool:
        """Tell whether running operations are limited at all."""
        return any(limit is not None for limit in (self.step, self.reset, self.call))


@dataclass(frozen=True)
class PoolOptions:
    """How a pool works, whatever its engine.

    Attributes:
        num_workers: worker processes; None: min(num_envs, usable cores).
        threads_per_worker: slots per worker; more than one for envs that sleep.
        autoreset: what the worker does when an episode ends.
        depth: batches that the caller may look at: a view is valid until `depth - 1` later
            ones have been received. At least 2.
        infos: which infos travel.
        final_obs: whether rows have room for the observation before a SAME_STEP autoreset.
        strict: refuse actions and observations of another dtype instead of converting them.
        context: start method, 'forkserver', 'spawn' or 'fork'.
        num_threads: threads that numeric libraries may use in a worker.
        spin: longest busy wait in seconds before a wait sleeps.
        debug: fill expired batches with garbage and let `Batch.is_valid` tell.
    """

    num_workers: int | None = None
    threads_per_worker: int = 1
    autoreset: Autoreset = Autoreset.NEXT_STEP
    depth: int = 3
    infos: Infos = Infos.ALL
    final_obs: bool = False
    strict: bool = False
    context: str = "forkserver"
    num_threads: int = 1
    spin: float = 100e-6
    debug: bool = False
    limits: Limits = Limits()


def check_env_fns(env_fns: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Return the constructors as a list.

    Raises:
        ConfigError: there are none, or one cannot be called.
    """
    try:
        fns = list(env_fns)
    except TypeError:
        raise ConfigError(f"env_fns: expected a list of callables, got {type(env_fns).__name__}") from None
    if not fns:
        raise ConfigError("env_fns is empty: at least one env is needed", key="env_fns")
    for env_id, env_fn in enumerate(fns):
        if not callable(env_fn):
            raise ConfigError(f"env_fns[{env_id}] is not callable but {type(env_fn).__name__}", key="env_fns")
    return fns


def check_options(options: PoolOptions) -> None:
    """Raise ConfigError for a value that makes no sense."""
    least = {"num_workers": 1, "threads_per_worker": 1, "depth": 2, "num_threads": 1}
    for name, low in least.items():
        value = getattr(options, name)
        if value is None and name == "num_workers":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ConfigError(f"{name}: expected a whole number of at least {low}, got {value!r}", key=name)
    for name in ("construct", "reset", "step", "call", "close"):
        limit = getattr(options.limits, name)
        if limit is not None and not limit > 0:
            raise ConfigError(f"{name}_timeout: expected seconds above 0, got {limit!r}", key=f"{name}_timeout")
