"""Life of a manager: config, states, launch and close; whom to ask for rows.

    VOID --launch--> envs in a pool, every one reset --close--> VOID

`resets` begins episodes, `base` steps; both stand on this.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ..checks import check_flag
from ..config import deep_merge_dicts, warn_unknown_keys
from ..core.layout.rows import Autoreset
from ..core.parent.batch import Batch
from ..core.pool.pool import Pool
from ..core.pool.serial import SerialPool
from ..envs.remote import CallEnvMethod, FindAttribute
from ..envs.seeding import SEED_BITS
from ..envs.spaces import ObjectSpace
from ..envs.video import folders_by_env, make_token
from ..errors import ConfigError, StateError, WorkerDiedError, WorkerError, WorkerTimeoutError
from .actions import packer_of
from .build import builder_of
from .calls import leave_resets
from .env_driver import EnvMaker, ManagedSnapshotter, Orders, Settings
from .episode_counts import EnvBooks
from .last_obs import Shown
from .options import (
    BASE_CONFIG,
    OTHER_KEYS,
    check_config,
    check_limit,
    limits_of,
    merge_values,
    pool_options,
    read_env_fns,
)
from .remote_access import has_attribute
from .seeds import seeds_by_env
from .states import EnvState
from .timesteps import Layout, TimestepBuffers, Views

__all__ = ["EnvLife"]

_LOG = logging.getLogger(__name__)


class _LiveLimit:
    """A time limit that may be changed on a running manager."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __get__(self, manager: EnvLife, owner: type) -> Any:
        return self if manager is None else manager._cfg.get(self._key)

    def __set__(self, manager: EnvLife, value: float | None) -> None:
        check_limit(self._key, value, type(manager).__name__)
        manager._cfg[self._key] = value
        pool = manager._pool
        if pool is not None:
            manager._take_over_resets()
            pool.set_limits(limits_of(manager._cfg))


class EnvLife(EnvBooks):
    """The part of a manager that builds envs, knows their states, and ends them."""

    config: ClassVar[dict[str, Any]] = BASE_CONFIG

    _is_async: ClassVar[bool] = False
    _retries_steps: ClassVar[bool] = True
    _abnormal_is_error: ClassVar[bool] = False

    _step_timeout = _LiveLimit("step_timeout")
    _reset_timeout = _LiveLimit("reset_timeout")
    _connect_timeout = _LiveLimit("connect_timeout")

    def __init__(self, env_fn: Sequence[Callable[[], Any]], cfg: Mapping[str, Any] | None = None) -> None:
        """Check the arguments; `launch` builds the envs.

        Args:
            env_fn: one constructor per env.
            cfg: merged over `default_config()`, whose keys are explained in `vecenv/managers/options.py`. `timeouts`
                takes a `vecenv.Timeouts` and `failures` a `vecenv.FailurePolicy`, or dicts of their fields; the same
                options are keys of their own, too, such as `step_timeout` and `on_failure`. A key that has its
                default counts as not given. Unknown keys are kept.

        Raises:
            ConfigError: env_fn is empty or not callable, a key has a value that it cannot have, or an option is given
                twice.
        """
        name = type(self).__name__
        fns = read_env_fns(env_fn, name)
        warn_unknown_keys({} if cfg is None else cfg, (*self.config, *OTHER_KEYS), name)
        self._cfg = deep_merge_dicts(self.default_config(), cfg)
        merge_values(self._cfg, self.config, name)
        check_config(self._cfg, name, has_inplace="reset_inplace" in self.config)
        self._env_fn = fns
        self._max_retry = max(1, int(self._cfg["max_retry"]))
        self._retry_type: str = self._cfg["retry_type"]
        self._retry_waiting_time: float = self._cfg["retry_waiting_time"]
        self._auto_reset = bool(self._cfg["auto_reset"])
        # A key of the classes with workers; a config for those means nothing by it elsewhere.
        self._reset_inplace = "reset_inplace" in self.config and bool(self._cfg["reset_inplace"])
        self._has_columns = bool(self._cfg.get("shared_memory", True))
        self._copies = bool(self._cfg.get("copy_on_get", True))
        self._open_books(len(fns), self._cfg["episode_num"])
        self._pending_seeds: dict[int, tuple[int, bool | None]] = {}
        self._seeds_in_use: dict[int, tuple[int, bool | None]] = {}
        self._episodes_begun = dict.fromkeys(self._all_ids, 0)  # since the env was seeded
        self._first_seeds: dict[int, int] = {}  # drawn here, of envs that nobody has seeded
        self._unstepped: set[int] = set()  # reset, and not stepped since
        self._params: dict[int, dict[str, Any]] = {}
        self._orders: dict[int, Orders] = {}  # of resets not answered yet
        self._attempts: dict[int, int] = {}  # left, of resets not answered yet
        self._asked: set[int] = set()  # envs whose reset under way the caller asked for; the others' are automatic
        self._replay_paths: list[str] | None = None
        self._replay_tokens: dict[int, str] = {}
        self._recording: set[int] = set()
        self._agents: dict[int, tuple[bool, int]] = {}  # envs with an info per agent: as tuple or list, how many
        self._lost: set[int] = set()  # built anew, and not told yet what they were told before
        self._shown = Shown(len(fns), None)
        self._unreturned: list[TimestepBuffers] = []  # what a step under way has received, if observations are views
        self._views: Views = {}  # into the pool's memory, which stays as long as they do

    # ---- properties ------------------------------------------------------------------------

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker; empty where envs live in this process."""
        return () if self._pool is None else self._pool.worker_pids

    @property
    def ready_obs(self) -> dict[int, Any]:
        """Newest observation of each env that can be stepped, {env_id: obs}; {} when none can."""
        shown = self._shown.rows
        return {env_id: shown[env_id] for env_id in self.ready_obs_id}

    def _check_known_while_closed(self, name: str) -> None:
        self.env_ref  # noqa: B018  # builds it
        if not has_attribute(self._env_reference, name):
            raise AttributeError(f"neither {type(self).__name__} nor its envs have an attribute {name!r}")

    # ---- life ------------------------------------------------------------------------------

    def launch(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Build all envs and reset them.

        Args:
            reset_param: as for `reset`, for every env.

        Raises:
            StateError: launched already.
            ConfigError: reset_param is no dict, or does not name every env.
            Exception: what a constructor raised; else as `reset`. The manager is closed then.
        """
        if not self._closed:
            raise StateError(f"launch: {type(self).__name__} is running; close it first")
        if reset_param is not None and not isinstance(reset_param, Mapping):
            raise ConfigError(f"launch: reset_param: expected a dict of env ids, got {type(reset_param).__name__}")
        if reset_param is not None and len(reset_param) != self.env_num:
            raise ConfigError(f"launch: reset_param: expected {self.env_num} entries, got {len(reset_param)}")
        pool = self._pool = self._make_pool()  # there already for a `close` in the meantime, by a signal handler
        try:
            pool.start()
        except BaseException:
            self._pool = None
            raise
        self._closed = False
        self._known_spaces = None
        self._seeds_in_use.clear()
        self._params.clear()
        self._attempts.clear()
        self._asked.clear()
        self._orders.clear()
        self._recording.clear()
        self._unstepped.clear()
        self._first_seeds.clear()
        self._begin_books_of_new(self._all_ids)
        self._lost.update(self._all_ids)
        self._agents.clear()
        self._shown = Shown(self.env_num, None if self._copies else pool.options.depth)
        for env_id in self._all_ids:
            self._env_episode_count[env_id] = self._episodes_begun[env_id] = 0
            self._set_state(env_id, EnvState.INIT)
        builder = builder_of(pool.implementation)
        self._pack = packer_of(pool.action_spec, builder.common_type)
        self._layout = Layout(
            pool.obs_spec,
            _shape_of_rewards(pool.reward_space),
            self.env_num,
            builder,
            self._views,
            copies=self._copies,
            is_untyped=isinstance(pool.observation_space, ObjectSpace),
        )
        seeds = dict(self._pending_seeds)
        try:
            self.reset(reset_param)
        except BaseException:
            self._pending_seeds.update(seeds)  # of envs that had begun, too: the next launch begins all of them
            with contextlib.suppress(Exception):
                self.close()
            raise

    def _begin_books_of_new(self, env_ids: Sequence[int]) -> None:
        """Begin with envs that have just been built."""
        self._replay_tokens.update((env_id, make_token()) for env_id in env_ids)
        self._draw_first_seeds(env_ids)

    def _draw_first_seeds(self, env_ids: Sequence[int]) -> None:
        """Draw the seeds of the first resets of envs that nobody has seeded, so that they can be told."""
        first = secrets.randbelow(2**SEED_BITS - self.env_num)
        known = self._pending_seeds.keys() | self._seeds_in_use.keys()
        unseeded = [env_id for env_id in env_ids if env_id not in known]
        self._first_seeds.update((env_id, first + env_id) for env_id in unseeded)
        if unseeded:
            _LOG.info("unseeded first reset of envs %s: Gymnasium env i gets the seed %d + i", unseeded, first)

    def _make_pool(self) -> Pool:
        # Where it may be so, the worker resets in the row that ends an episode; that costs no round trip.
        self._worker_resets = self._resets_in_row = self._may_reset_in_row()
        settings = Settings(
            autoresets=self._worker_resets,
            abnormal_ends=not self._abnormal_is_error,
            has_columns=self._has_columns,
        )
        makers = [EnvMaker(env_fn, env_id, settings) for env_id, env_fn in enumerate(self._env_fn)]
        autoreset = Autoreset.SAME_STEP if self._worker_resets else Autoreset.DISABLED
        return self._pool_class()(makers, pool_options(self._cfg, autoreset), snapshotter=ManagedSnapshotter())

    def _pool_class(self) -> type[Pool]:
        return SerialPool

    def _may_reset_in_row(self) -> bool:
        """Whether resets may be part of a step: nothing is to be limited or tried again."""
        limits = (self._cfg["step_timeout"], self._cfg["reset_timeout"])
        is_free = self._max_retry == 1 and limits == (None, None)
        return self._auto_reset and is_free and (self._reset_inplace or not self._is_async)

    def _take_over_resets(self) -> None:
        """Make automatic resets commands of their own, as a limit that was set now must not cover two operations."""
        if self._resets_in_row and not self._may_reset_in_row():
            self._call_envs(leave_resets, "a new time limit")
            self._resets_in_row = False

    def close(self) -> None:
        """End all envs; may be repeated. `launch` builds new ones.

        Raises:
            Exception: what an env's `close` raised, after everything has ended.
        """
        pool, self._pool = self._pool, None
        self._closed = True
        for env_id in self._all_ids:
            self._set_state(env_id, EnvState.VOID)
        self._shown = Shown(self.env_num, None)
        self._views.clear()
        try:
            if pool is not None:
                pool.close()
        finally:
            self._close_env_ref()

    def _close_after(self, error: BaseException) -> None:
        """Close because of an error, which is the one to be heard of."""
        with contextlib.suppress(Exception):
            self.close()

    # ---- seeds and replays -------------------------------------------------------------------

    def seed(self, seed: Any, dynamic_seed: bool | None = None) -> None:
        """Seed envs; takes effect at each env's next reset, once.

        Args:
            seed: an integer s gives env i the seed s + i; a list has one per env; a dict names
                the envs meant. What is given stays as it is.
            dynamic_seed: True: every episode has a seed of its own, a function of the env's seed
                and the episode's index. False: every episode begins alike. None: as the env does,
                which is True for Gymnasium's.

        Raises:
            ConfigError: a wrong number of seeds, or a negative one; dynamic_seed is no bool.
            TypeError: none of these.
        """
        seeds = seeds_by_env(seed, self.env_num)
        if dynamic_seed is not None:
            check_flag("dynamic_seed", dynamic_seed)
        self._pending_seeds.update((env_id, (value, dynamic_seed)) for env_id, value in seeds.items())
        if seeds:
            self._seed_action_space(seeds[min(seeds)])

    def enable_save_replay(self, replay_path: str | os.PathLike[str] | Sequence[Any]) -> None:
        """Record a video of every episode from each env's next reset on, in later launches too.

        Args:
            replay_path: one folder for all envs, or one per env.

        Raises:
            ConfigError: a wrong number of folders.
        """
        self._replay_paths = folders_by_env(replay_path, self.env_num)

    def reset(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Begin new episodes; see `EnvResets`."""
        raise NotImplementedError

    # ---- rows --------------------------------------------------------------------------------

    def _recv(self, min_count: int, timeout: float | None = None) -> Batch | None:
        """Wait for rows; None if `_can_go_on` without them.

        Raises:
            WorkerTimeoutError, WorkerDiedError: the manager is closed.
            Exception: a worker could not be replaced, as its envs' constructor raised this; it is closed, too.
        """
        pool = self._pool or self._open_pool("recv")
        if not self._copies:
            moved = self._shown.expect_batch()
            if moved:
                self._move_obs(moved)
        try:
            return pool.recv(min_count, timeout=timeout)
        except (WorkerTimeoutError, WorkerDiedError) as error:
            if not self._can_go_on(error):
                self._give_up_worker(error)
                raise
            return None
        except Exception as error:
            if pool._has_dead():
                self._give_up_worker(error)
            raise

    def _move_obs(self, moved: Mapping[int, Any]) -> None:
        """Let nothing that is yet to be handed out look at these observations, which are about to expire."""

    def _can_go_on(self, error: WorkerError) -> bool:
        """Deal with a worker that died or did not answer, if there is a way."""
        return False

    def _outlives(self, error: WorkerError) -> bool:
        """Whether a call was only disturbed by the reset of some env, which has hung and is tried again."""
        return error.op == "reset" and self._can_go_on(error)

    def _give_up_worker(self, error: Exception) -> None:
        for env_id in getattr(error, "env_ids", ()):
            self._set_state(env_id, EnvState.ERROR)
        self._close_after(error)


def _shape_of_rewards(space: Any) -> tuple[int, ...]:
    """Return the shape that timesteps give rewards: that of their space, (1,) if that has none."""
    shape = getattr(space, "shape", None)
    return (1,) if shape is None else tuple(shape)
