"""ManagerPool: builds the pool of a manager from its config, owns it, and closes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import Config
from ..core.layout.flags import Autoreset
from ..core.pool.pool import Pool
from ..core.pool.recipe import PoolRecipe
from ..core.pool.serial import SerialPool
from ..core.spares.resets import SpareRule
from ..envs.factory import EnvFactory
from ..envs.seeding import episode_seed
from ..errors import ClosedError
from ..ray_options import read_ray_options
from ..saved_state import SavedState
from .env_driver import DriverSettings, DriverSnapshotter, EnvDriver, request_for_spare
from .options import check_spares, pool_options

__all__ = ["ManagerPool"]


@dataclass(eq=False)
class ManagerPool:
    """The pool of a manager, from `open` to `close`; ConfigError for a wrong `num_spare_envs`.

    Attributes:
        owner: name of the manager's class, for messages.
        env_fns: constructors of the envs.
        cfg: the manager's config; its limits, and `max_retry` and `retry_type`, may change while envs run.
        backend: name of the backend, see `make_pool`.
        is_async: a step returns before all envs have answered.
        reset_inplace: the last timestep of an episode has the first observation of the next one.
        has_workers: envs live in worker processes; else in this process.
        num_spares_per_env: number of spare envs of each env.
        pool: None before launch and after close.
        local_pool: the pool of a manager without workers. It is kept after close, until the next launch; None before.
        recipe: of the pool; known after the first `make`.
        may_autoreset: the pool was built to begin the next episode in the row that ended one.
        is_autoreset: workers still do so. Otherwise each reset is a command of its own.
    """

    owner: str
    env_fns: Sequence[Callable[[], Any]]
    cfg: Config
    backend: str
    is_async: bool
    reset_inplace: bool
    pool: Pool | None = None
    local_pool: SerialPool | None = None
    recipe: PoolRecipe = field(init=False)
    may_autoreset: bool = False
    is_autoreset: bool = False

    def __post_init__(self) -> None:
        self.has_workers = self.backend != "serial"
        if self.has_workers:
            check_spares(self.cfg, self.owner, len(self.env_fns))
        self.num_spares_per_env = self.cfg.get("num_spare_envs", 0) // len(self.env_fns) if self.has_workers else 0
        # A pool with spare envs begins the next episode by a reset, which needs no round trip either.
        can_autoreset = bool(self.cfg["auto_reset"]) and (self.reset_inplace or not self.is_async)
        self._can_autoreset = can_autoreset and not self.num_spares_per_env

    def require_pool(self, what: str) -> Pool:
        """Return the pool; raise ClosedError, which begins with `what`, if there is none."""
        if self.pool is None:
            raise ClosedError(f"{what}: {self.owner} is closed; call launch first")
        return self.pool

    def make(self, saved: SavedState | None) -> Pool:
        """Make a pool, which continues a saved state if there is one; `open` starts it."""
        recipe = self._plan(saved)
        pool = recipe.make(saved)
        self.recipe = recipe
        return pool

    def _plan(self, saved: SavedState | None) -> PoolRecipe:
        """Return the recipe of a pool. Its envs are reset as those of the saved state, whatever the config says."""
        may_autoreset = self._is_autoreset_allowed()
        if saved is not None:
            may_autoreset = saved.header.get("autoreset_mode") == Autoreset.SAME_STEP.name
        # An autoreset in the worker needs no round trip.
        autoreset = Autoreset.SAME_STEP if may_autoreset else Autoreset.DISABLED
        settings = DriverSettings(
            autoreset=may_autoreset,
            abnormal_ends=not self.has_workers,
            has_columns=bool(self.cfg.get("shared_memory", True)),
        )
        factories = [EnvFactory(EnvDriver, (env_fn, env_id, settings)) for env_id, env_fn in enumerate(self.env_fns)]
        num_spares = self.num_spares_per_env * len(factories)
        return PoolRecipe(
            "AsyncSubprocessEnvManager" if self.is_async else "BaseEnvManager",
            read_ray_options(self.cfg["ray"]) if self.backend == "ray" else self.backend,
            factories,
            pool_options(self.cfg, autoreset),
            DriverSnapshotter(),
            spares=SpareRule(num_spares, episode_seed, request_for_spare) if num_spares else None,
        )

    def open(self, pool: Pool) -> None:
        """Start the pool that `make` has returned."""
        self.pool = pool
        self.may_autoreset = self.is_autoreset = self.recipe.options.autoreset == Autoreset.SAME_STEP
        try:
            pool.start()  # A signal handler may call `close` during this call.
        except BaseException:
            self.pool = None
            raise
        self.local_pool = pool if isinstance(pool, SerialPool) else None

    def _is_autoreset_allowed(self) -> bool:
        """Return whether a reset may be part of a step: it has no time limit and is not repeated."""
        limits = (self.cfg["step_timeout"], self.cfg["reset_timeout"])
        return self._can_autoreset and self.cfg["max_retry"] == 1 and limits == (None, None)

    def must_disable_autoreset(self) -> bool:
        """Return whether a limit was set that must not cover a step and a reset together."""
        return self.is_autoreset and not self._is_autoreset_allowed()

    def on_autoreset_disabled(self) -> None:
        """Send each reset as a command from now on."""
        self.is_autoreset = False

    def close(self) -> None:
        """Close the pool, if there is one."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()
