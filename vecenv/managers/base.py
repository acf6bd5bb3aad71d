"""BaseEnvManager: DI-engine's manager over a pool in this process; the base of the managers over worker processes.

    step(actions) -> Pool.send -> envs -> Pool.recv -> TimestepBuffers -> {env_id: timestep}
                                                       episode over: DONE, NEED_RESET, or another episode

If an episode ends, by default the worker resets the env itself and puts the first observation in the same row; that
needs no round trip. If resets have a time limit, or more than one attempt, they are commands of their own.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from ..config import deep_merge_dicts, warn_unknown_keys
from ..core.advice.facts import SettingNames
from ..core.layout.flags import RowFlag
from ..core.options import check_env_fns
from ..core.parent.batch import Batch, raise_first
from ..core.pool.face import PoolFace
from ..core.pool.pool import Pool
from ..core.pool.recipe import values_of
from ..envs.adapt import find_attr
from ..envs.remote import CallEnvMethod, FindAttribute, Render
from ..envs.spaces import ObjectSpace
from ..envs.video import folders_by_env
from ..errors import (
    ClosedError,
    ConfigError,
    EnvError,
    StateError,
    WorkerDiedError,
    WorkerError,
    WorkerTimeoutError,
    add_notes,
    locate,
    place_of,
    warn_caller,
)
from ..registry import ENV_MANAGER_REGISTRY
from ..saved_state import SavedState, StateLike
from ..statistics import Shards
from ..values.checks import check_flag
from .actions import packer_of
from .build import builder_of
from .env_spaces import ReferenceSpaces
from .episode_counts import EpisodeCounts
from .last_obs import LastObservations
from .manager import EnvManager, env_property
from .manager_pool import ManagerPool
from .options import BASE_CONFIG, OTHER_KEYS, check_config, check_limit, limits_of, merge_values
from .remote_access import LASTING_CALLS, disable_autoreset, rebuild_env
from .reset_scheduler import ResetScheduler
from .seeds import seeds_by_env
from .side_values import ABNORMAL, AgentInfos, abnormal_values
from .states import EnvState
from .timesteps import HAS_INFO, REBUILT, Layout, TimestepBuffers, final_rows

__all__ = ["BaseEnvManager"]


def _live_limit(key: str) -> Any:
    """Make a property for a time limit of the config, which may be changed while envs run."""
    return property(lambda self: self._cfg.get(key), lambda self, seconds: self._set_limit(key, seconds))


def _live_value(key: str) -> Any:
    """Make a property for a value of the config that is read whenever it is used."""
    return property(lambda self: self._cfg[key], lambda self, value: self._cfg.update({key: value}))


@ENV_MANAGER_REGISTRY.register("base")
class BaseEnvManager(EnvManager, PoolFace):
    """Envs in this process, stepped one after another; for debugging, and for envs whose steps take no time.

    Example:
        >>> import gymnasium
        >>> with BaseEnvManager([lambda: gymnasium.make("CartPole-v1")] * 2, {"episode_num": 1}) as manager:
        ...     manager.seed(0)
        ...     manager.launch()
        ...     timesteps = manager.step({0: 1, 1: 0})
        ...     sorted(timesteps), timesteps[0].reward, timesteps[0].done
        ([0, 1], array([1.], dtype=float32), False)
    """

    config: ClassVar[dict[str, Any]] = BASE_CONFIG

    _setting_names = SettingNames(
        serial="BaseEnvManager",
        processes="SyncSubprocessEnvManager",
        overlap="AsyncSubprocessEnvManager with wait_num=...",
        infos="",
        views="copy_on_get=False",
        collect="",
    )
    _backend: ClassVar[str] = "serial"
    _is_async: ClassVar[bool] = False
    _buffers_class: ClassVar[type[TimestepBuffers]] = TimestepBuffers

    _step_timeout = _live_limit("step_timeout")
    _reset_timeout = _live_limit("reset_timeout")
    _connect_timeout = _live_limit("connect_timeout")
    _max_retry = _live_value("max_retry")
    _retry_type = _live_value("retry_type")

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
        fns = check_env_fns(env_fn, f"{name}: env_fn")
        warn_unknown_keys({} if cfg is None else cfg, (*self.config, *OTHER_KEYS), name)
        self._cfg = deep_merge_dicts(self.default_config(), cfg)
        merge_values(self._cfg, self.config, name)
        check_config(self._cfg, name)
        self._auto_reset = bool(self._cfg["auto_reset"])
        # Only a key of the managers with workers; other managers ignore it.
        self._reset_inplace = "reset_inplace" in self.config and bool(self._cfg["reset_inplace"])
        if self._reset_inplace and not self._auto_reset:
            raise ConfigError(f"{name}: reset_inplace=True needs auto_reset=True", key="reset_inplace")
        self._cfg["max_retry"] = max(1, int(self._cfg["max_retry"]))
        counts = EpisodeCounts(len(fns), self._cfg["episode_num"])
        spaces = ReferenceSpaces(fns[0], needed=bool(self._cfg.get("shared_memory", True)))
        self._manager_pool = ManagerPool(name, fns, self._cfg, self._backend, self._is_async, self._reset_inplace)
        super().__init__(counts, spaces)
        self._last_obs = LastObservations(len(fns))
        self._resets = ResetScheduler(counts, self._manager_pool, self._last_obs)
        self._agent_infos = AgentInfos()
        self._open_layout: Layout | None = None  # it exists from launch to close
        self._resume: StateLike | None = self._cfg["resume"]

    def _set_limit(self, key: str, seconds: float | None) -> None:
        check_limit(key, seconds, type(self).__name__)
        self._cfg[key] = seconds
        pool = self._manager_pool.pool
        if pool is not None and self._manager_pool.must_disable_autoreset():
            self._disable_autoreset("a new time limit")
        if pool is not None:
            pool.set_limits(limits_of(self._cfg))

    def _disable_autoreset(self, what: str) -> None:
        self._call_envs(disable_autoreset, what)
        self._manager_pool.on_autoreset_disabled()

    # ---- properties ------------------------------------------------------------------------

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker; empty if the envs live in this process."""
        return () if self._manager_pool.pool is None else self._manager_pool.pool.worker_pids

    @property
    def _pool(self) -> Pool:  # type: ignore[override]
        if self._manager_pool.pool is None:
            raise StateError("launch the manager first")
        return self._manager_pool.pool

    def shards(self) -> Shards:
        """Return the state and the node of every shard of a manager over Ray; [] for all others, and before launch."""
        return Shards() if self._manager_pool.pool is None else self._manager_pool.pool.shards()

    def __repr__(self) -> str:
        pool = self._manager_pool.pool if "_manager_pool" in vars(self) else None
        name = type(self).__name__
        if pool is not None:
            return f"{name}({pool.describe()})"
        return f"{name}(num_envs={self.env_num}, closed=True)" if "_counts" in vars(self) else f"{name}(not built)"

    @env_property
    def envs(self) -> list[Any]:
        """The objects that `env_fn` returned, in their order; only in managers without worker processes.

        The list is a copy: replacing one of its items has no effect, but changes of an env have. After `close` the envs
        are closed.

        Raises:
            AttributeError: the envs live in worker processes.
            ClosedError: the manager has never been launched.
        """
        name = type(self).__name__
        if self._manager_pool.has_workers:
            raise AttributeError(
                f"{name} has no envs in this process: they live in its workers. Read attributes by the names that the "
                "envs have, or use BaseEnvManager"
            )
        if self._manager_pool.local_pool is None:
            raise ClosedError(f"envs: {name} has not been launched; call launch first")
        return [driver.built for driver in self._manager_pool.local_pool.envs]

    _envs = envs  # DI-engine's name

    @property
    def ready_obs(self) -> dict[int, Any]:
        """Newest observation of each env that can be stepped, {env_id: obs}; {} if there is none."""
        rows = self._last_obs.rows
        return {env_id: rows[env_id] for env_id in self.ready_obs_id}

    # ---- launch, close -----------------------------------------------------------------------

    def launch(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Build all envs and reset them.

        With the config key `resume`, the first launch continues where that state was saved. It resets no env, and what
        the manager was given before, such as seeds, is replaced by the state. Later launches reset new envs.

        Args:
            reset_param: as for `reset`, with an entry for every env.

        Raises:
            StateError: the manager has been launched already.
            ConfigError: reset_param is not a dict, or lacks an env. Or the state is damaged, or does not fit.
            OSError: the file of the state cannot be read.
            Exception: raised by the constructor of an env; and exceptions of `reset`. The manager is closed then.
        """
        name = type(self).__name__
        if not self._counts.closed:
            raise StateError(f"launch: {name} is running; close it first")
        if reset_param is not None and not isinstance(reset_param, Mapping):
            raise ConfigError(f"launch: reset_param: expected a dict of env ids, got {type(reset_param).__name__}")
        if reset_param is not None and len(reset_param) != self.env_num:
            raise ConfigError(f"launch: reset_param: expected {self.env_num} entries, got {len(reset_param)}")
        saved = None if self._resume is None else SavedState.read(self._resume)
        self._open(self._manager_pool.make(saved), saved, reset_param)
        self._resume = None

    def _open(self, pool: Pool, saved: SavedState | None, reset_param: Any = None) -> None:
        """Start a pool, and reset its envs, or continue a saved state."""
        self._manager_pool.open(pool)
        self._counts.open()
        self._resets.open()
        self._agent_infos = AgentInfos()
        builder = builder_of(pool.implementation)
        spaces = pool.spaces
        self._pack = packer_of(pool.action_spec, builder.common_type)
        reward_shape = getattr(spaces.reward_space, "shape", None)
        self._open_layout = Layout(
            *(pool.obs_spec, (1,) if reward_shape is None else tuple(reward_shape), self.env_num, builder),
            leases=None if self._cfg.get("copy_on_get", True) else pool.lend(operator.attrgetter("obs")),
            is_untyped=isinstance(spaces.observation_space, ObjectSpace),
            copy_timer=pool.copy_timer,
        )
        seeds = dict(self._resets.seeds.waiting)
        try:
            if saved is None or not self._spaces.is_known:  # a caller may hold the spaces of this manager
                self._spaces.set(spaces.observation_space, spaces.action_space, spaces.reward_space)
            if saved is None:
                self.reset(reset_param)
            else:
                self._load_values(values_of(saved))
        except BaseException:
            self._resets.seeds.waiting.update(seeds)  # the next launch resets all envs
            with contextlib.suppress(Exception):
                self.close()
            raise

    # ---- saving ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the manager and of all envs, from which another manager continues; see `save`.

        Returns:
            A dict of plain values, for `torch.save({"model": model.state_dict(), "envs": manager.state_dict()}, path)`.

        Raises:
            ClosedError, StateError: as for `save`.
        """
        return self._save("state_dict").as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called. All envs are built again, also if the manager was not launched.

        Args:
            state: the result of `state_dict` of a manager with the same `env_fn`.

        Raises:
            ConfigError: the state is damaged, or it does not fit. Nothing was changed if it was saved by another kind
                of manager, or has another number of envs.
            Exception: as for `launch`; the manager is closed then.
        """
        saved = SavedState.read(state)
        pool = self._manager_pool.make(saved)
        self.close()
        self._open(pool, saved)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state into one file; a manager with the config key `resume` continues with the same results.

        The state contains everything that decides the next results: the envs with their random generators, env states,
        episode counts, seeds, reset parameters, resets under way, and timesteps that were not returned yet. Steps
        without an answer are made again after the load. Config keys are not saved and may differ. The managers whose
        `step` waits for all envs continue each other's states, and the asynchronous one its own.

        The file replaces an older one when it is complete. It contains pickles, so load only files that you trust.

        Raises:
            ClosedError: the manager has not been launched, or is closed.
            StateError: another call is under way, or this is a forked process. In this process, or with
                `on_failure="raise"`: the class of an env is unknown, or calls have changed an env.
            OSError: the file cannot be written.
        """
        self._save("save").write(path)

    def _save(self, what: str) -> SavedState:
        pool = self._manager_pool.require_pool(what)
        return self._manager_pool.recipe.save(pool, self._values)

    def _values(self) -> dict[str, Any]:
        """Return the values beside those of the pool that the next results depend on; they can be pickled."""
        return {
            "episode_num": self._counts.episode_num,
            "is_autoreset": self._manager_pool.is_autoreset,
            "counts": self._counts.save(),
            "resets": self._resets.save(),
            "last_obs": self._last_obs.rows,
            "agents": self._agent_infos.forms,
            "spaces": self._spaces.save(),
        }

    def _load_values(self, saved: dict[str, Any]) -> None:
        """Continue with the result of `_values`."""
        self._counts.load(saved["counts"])
        self._resets.load(saved["resets"])
        self._last_obs.load(saved["last_obs"])
        self._agent_infos = AgentInfos(saved["agents"])
        self._spaces.load(saved["spaces"])
        if not saved["is_autoreset"]:
            self._manager_pool.on_autoreset_disabled()
        # Workers count by the old config how many episodes are left.
        elif self._manager_pool.must_disable_autoreset() or saved["episode_num"] != self._counts.episode_num:
            self._disable_autoreset("launch")

    def close(self) -> None:
        """Close all envs; may be repeated. `launch` builds new ones.

        Raises:
            Exception: raised by the `close` of an env, after all envs and workers have ended.
        """
        self._counts.close()
        self._last_obs.clear()
        self._open_layout = None  # its views refer to memory of the pool
        try:
            self._manager_pool.close()
        finally:
            self._spaces.close()

    @property
    def _layout(self) -> Layout:
        """The layout of timesteps; ClosedError if a signal handler has closed the manager in the middle of a step."""
        layout = self._open_layout
        if layout is None:
            self._manager_pool.require_pool("step")
        assert layout is not None
        return layout

    def _close_after(self, error: BaseException) -> None:
        """Close because of an error; it is more important than an error of `close`."""
        pool = self._manager_pool.pool
        hung = error.worker_id if isinstance(error, WorkerTimeoutError) else None
        if hung is not None and pool is not None and self._manager_pool.has_workers:
            with contextlib.suppress(Exception):
                pool.kill(hung)  # closing would wait for it in vain
        with contextlib.suppress(Exception):
            self.close()

    # ---- seeds, recordings, resets -------------------------------------------------------------

    def seed(self, seed: Any, dynamic_seed: bool | None = None) -> None:
        """Seed envs. The next reset of each env that the caller asks for uses its seed once.

        Args:
            seed: an integer s gives env i the seed s + i; a list has one seed per env; a dict has the seeds of some
                envs. The argument is not changed.
            dynamic_seed: True: each episode has its own seed, a function of the env's seed and the episode's index.
                False: all episodes begin with the same seed. None: the env decides; Gymnasium's envs use True.

        Raises:
            ConfigError: a wrong number of seeds, or a negative seed; dynamic_seed is not a bool.
            TypeError: `seed` is none of these.
        """
        seeds = seeds_by_env(seed, self.env_num)
        if dynamic_seed is not None:
            check_flag("dynamic_seed", dynamic_seed)
        self._resets.seeds.give(seeds, dynamic_seed)
        if seeds:
            self._spaces.seed_actions(seeds[min(seeds)])

    def enable_save_replay(self, replay_path: str | os.PathLike[str] | Sequence[Any]) -> None:
        """Record a video of every episode, from each env's next reset on, and after later launches.

        Args:
            replay_path: one folder for all envs, or a sequence of one folder per env.

        Raises:
            ConfigError: a wrong number of folders, or there are spare envs.
        """
        if self._manager_pool.num_spares_per_env:
            raise ConfigError(
                "enable_save_replay: num_spare_envs must be 0. Spare envs begin episodes that may never be stepped, so "
                "there would be videos of episodes that no env has delivered",
                key="num_spare_envs",
            )
        self._resets.record_to(folders_by_env(replay_path, self.env_num))

    def reset(self, reset_param: Mapping[int, Mapping[str, Any] | None] | None = None) -> None:
        """Begin new episodes, in any state of the envs, and wait for their first observations.

        Answers of these envs to earlier steps are dropped. Episode counts do not change.

        Args:
            reset_param: {env_id: keyword arguments of that env's reset, or None}. They are kept for its later
                resets. None: all envs, with the arguments that were kept.

        Raises:
            ClosedError: the manager has not been launched, or is closed.
            ConfigError: not a dict of dicts, or an argument cannot be sent to a worker. Nothing has changed.
            RuntimeError: an env could not be reset in `max_retry` attempts; the manager is closed.
            Exception: raised by an earlier step of another env; the resets are complete.
        """
        self._manager_pool.require_pool("reset")
        ids = self._resets.read(reset_param)
        self._drop_answers(ids)
        failures: list[Exception] = []
        while ids:
            ids = self._resets.begin_requested(ids)
            failures += self._wait_for_resets(ids)
        _raise_first(failures)

    def _drop_answers(self, ids: Sequence[int]) -> None:
        """Drop the answers of these envs to earlier steps: they are about to be reset."""

    def _wait_for_resets(self, ids: Sequence[int] = ()) -> list[Exception]:
        """Wait for the first observation of these envs (default: all); close if a reset failed in all attempts.

        Returns:
            Exceptions raised by steps of other envs, to be raised once the resets are complete.
        """
        failures: list[Exception] = []
        while not self._resets.attempts.keys().isdisjoint(ids) if ids else self._resets.attempts:
            try:
                self._receive_resets()
            except Exception as error:
                if self._counts.closed or "timesteps" not in vars(error):  # the attribute that failed steps add
                    raise
                failures.append(error)
        return failures

    # ---- attributes and methods of envs --------------------------------------------------------

    def _call_envs(self, function: Callable[[Any], Any], what: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        is_pure = isinstance(function, FindAttribute | Render)
        if function is disable_autoreset and not self._manager_pool.has_workers:
            is_pure = True  # for the pool: a saved driver contains the change
        is_lasting = function in LASTING_CALLS
        while True:
            pool = self._manager_pool.require_pool(what)
            if env_ids is not None and not len(env_ids):
                return []
            try:
                return pool.call(function, env_ids, pure=is_pure, name=function.__name__ if is_lasting else None)
            except (WorkerTimeoutError, WorkerDiedError) as error:
                if not self._manager_pool.has_workers:
                    raise
                # The reset of an env may have hung. Other calls may have been made already, and are not made twice.
                if not (is_pure or is_lasting) or error.op != "reset" or not self._handle(error):
                    self._close_after_failure(error)
                    raise
                if function is rebuild_env:  # the worker makes this call before the env's next reset
                    return []

    def _read_attribute(self, name: str) -> Any:
        unknown = AttributeError(f"neither {type(self).__name__} nor its envs have an attribute {name!r}")
        if self._manager_pool.pool is None and not self._manager_pool.has_workers:
            missing = object()
            if find_attr(self._spaces.reference(), name, missing) is missing:
                raise unknown
        found = self._call_envs(FindAttribute(name), f"attribute {name!r}")
        kind, _ = found[0]
        if kind == "missing":
            raise unknown
        if kind == "method":
            names = self.method_name_list
            if name not in names:
                raise RuntimeError(f"{name!r} is a method of the envs and is not in method_name_list: {names}")
            return lambda *args, **kwargs: self._call_envs(CallEnvMethod(name, args, kwargs), name)
        return [value for _, value in found]

    # ---- steps -----------------------------------------------------------------------------

    def step(self, actions: Any) -> Any:
        """Step envs and wait for all of them.

        Args:
            actions: {env_id: action}. An env gets an action of the same type as the caller's.

        Returns:
            {env_id: BaseEnvTimestep}, in the order of `actions`:

            * `obs` is a copy of the env's observation. At the end of an episode it is the final observation, and
              `ready_obs` has the first one of the next episode.
            * `reward` is float32 with the shape of the reward space, (1,) by default. With shared_memory=False it is
              the env's own value.
            * `done` is a bool.
            * `info` is the env's dict. At the end of an episode it has `terminated`, `truncated` and
              `TimeLimit.truncated`. If an env returns a list or tuple of infos, one per agent, so does the manager,
              and items that the manager adds are in each of them.

        Raises:
            ClosedError: the manager has not been launched, or is closed.
            StateError: an env is not in RUN. Or there are no actions, and all envs that are not DONE are in ERROR.
            ConfigError: not a dict, or an env does not exist.
            RuntimeError: an env raised in every attempt. It is in ERROR; other envs continue. The attribute `timesteps`
                of the exception has the timesteps of the other envs, {env_id: timestep}. So has an exception of an
                automatic reset that failed in every attempt; the manager is closed then.
        """
        if self._counts.closed:
            self._manager_pool.require_pool("step")
        if type(actions) is not dict and not isinstance(actions, Mapping):
            raise ConfigError(f"step: expected a dict of actions by env id, got {type(actions).__name__}")
        ids = list(actions)
        if not ids:
            self._check_any_running()
            return {}
        timesteps = self._step_envs(ids, list(actions.values()))
        return dict(zip(ids, timesteps))

    def _check_any_running(self) -> None:
        """Raise StateError if all envs wait for a reset by the caller: a loop that only steps would not end."""
        states = self._counts.states
        failed = [env_id for env_id, state in states.items() if state is EnvState.ERROR]
        if failed and {EnvState.ERROR, EnvState.DONE}.issuperset(states.values()):
            raise StateError(
                f"step: no env can be stepped: envs {failed} are in ERROR, the others are DONE; reset them"
            )

    def _check_running(self, ids: Sequence[int]) -> None:
        counts = self._counts
        if not counts.not_running.isdisjoint(ids):
            states = {env_id: counts.states[env_id].name for env_id in ids if env_id in counts.not_running}
            raise StateError(f"step: envs must be in RUN, but these are not: {states}; reset them first")

    def _step_envs(self, ids: list[int], actions: list[Any]) -> list[Any]:
        """Step envs and return their timesteps in the order of `ids`."""
        if self._counts.not_running:
            self._check_running(ids)
        batch, buffers = self._exchange(ids, actions)
        if batch.flags & RowFlag.ERROR:
            return self._step_with_errors(actions, batch, buffers)
        return self._make_timesteps(batch, buffers)

    def _exchange(self, ids: list[int], actions: list[Any]) -> tuple[Batch, TimestepBuffers]:
        self._send(ids, actions, ordered=True)
        buffers = self._buffers_class(ids, self._layout)  # while the envs are stepped
        batch = self._recv(len(ids))
        assert batch is not None, "only a reset under way gets another attempt"
        return batch, buffers

    def _send(self, ids: list[int], actions: list[Any], *, ordered: bool) -> None:
        pool = self._manager_pool.pool or self._manager_pool.require_pool("step")
        counts = self._counts
        is_all = ids == counts.all_ids
        if not is_all and not all(map(counts.states.__contains__, ids)):
            unknown = [env_id for env_id in ids if env_id not in counts.states]
            raise ConfigError(f"step: no env {unknown[0]!r}; env ids are 0..{self.env_num - 1}")
        packed = self._pack(actions)
        if packed is None:
            pool.send_objects(actions, ids, ordered=ordered)
        else:
            batch, form = packed
            pool.send(batch, None if is_all else ids, ordered=ordered, form=form)
        if self._resets.unstepped:
            self._resets.unstepped.difference_update(ids)

    # ---- rows ------------------------------------------------------------------------------

    def _recv(self, min_count: int, timeout: float | None = None) -> Batch | None:
        """Wait for rows; close if workers failed. Return None for a failure that the manager has dealt with."""
        pool = self._manager_pool.pool or self._manager_pool.require_pool("recv")
        try:
            return pool.recv(min_count, timeout=timeout)
        except (WorkerTimeoutError, WorkerDiedError) as error:
            if not self._handle(error):
                self._close_after_failure(error)
                raise
            return None
        except Exception as error:
            if pool.has_dead_workers():
                self._close_after_failure(error)
            raise

    def _receive_resets(self) -> None:
        """Receive all outstanding rows, and process those of resets."""
        batch = self._recv(self._manager_pool.require_pool("reset").outstanding())
        if batch is not None:
            self._on_resets(batch)

    def _on_resets(self, batch: Batch) -> None:
        failed = self._resets.on_rows(batch, self._layout.spec)
        if failed:
            with self._closing_after_reset():
                self._try_again(failed)

    def _try_again(self, failed: dict[int, Exception]) -> None:
        """Begin another attempt of each failed reset; raise EnvError if one has no attempts left."""
        for env_id, error in failed.items():
            self._resets.use_attempt(env_id, error)
        self._resets.wait()
        if self._retry_type == "renew":
            has_raised = False
            for env_id in failed:
                constructor_error = None if self._resets.is_sent(env_id) else self._rebuild([env_id])
                if constructor_error is not None:  # it uses an attempt, and the next reset tries again
                    self._resets.use_attempt(env_id, constructor_error)
                    has_raised = True
            if has_raised:
                self._resets.wait()
        unsent = [env_id for env_id in failed if not self._resets.is_sent(env_id)]  # their workers were not replaced
        if unsent:
            self._resets.send(unsent)

    # ---- failing workers -----------------------------------------------------------------------

    def _handle(self, error: WorkerError) -> bool:
        """Replace a worker in which a reset hung, and return True; return False for other failures of workers."""
        is_hung_reset = isinstance(error, WorkerTimeoutError) and error.op == "reset" and error.worker_id is not None
        if self._backend != "process" or not is_hung_reset or self._manager_pool.num_spares_per_env:
            return False  # With spare envs, the reset may belong to an episode that no env waits for.
        with self._closing_after_reset():
            abandoned = self._resets.replace_hung_worker(error)
        if abandoned:
            self._on_abandoned(abandoned, error)
        return True

    def _on_abandoned(self, env_ids: list[int], error: WorkerError) -> None:
        """Warn that the episodes of these envs are abandoned: their worker had to be replaced."""
        warn_caller(
            f"the reset of env {error.env_ids[0]} hung, so worker {error.worker_id} was replaced; envs {env_ids} were "
            "in the middle of episodes there and are in ERROR: reset them. num_workers=num_envs keeps envs apart",
            RuntimeWarning,
        )

    def _close_after_failure(self, error: Exception) -> None:
        """Close because of an error of a worker, whose envs are in ERROR."""
        for env_id in getattr(error, "env_ids", ()):
            self._counts.set_state(env_id, EnvState.ERROR)
        self._close_after(error)

    @contextlib.contextmanager
    def _closing_after_reset(self) -> Iterator[None]:
        """Close if a reset failed in its last attempt; its exception gets the timesteps that were not returned."""
        try:
            yield
        except EnvError as failure:
            vars(failure).setdefault("timesteps", self._received_timesteps())
            self._close_after(failure.__cause__ or failure)
            raise

    def _received_timesteps(self) -> dict[int, Any]:
        """Return {env_id: timestep} of earlier steps that have not been returned; a step adds its own ones."""
        return {}

    # ---- from rows to timesteps ----------------------------------------------------------------

    def _make_timesteps(self, batch: Batch, buffers: TimestepBuffers, skip: Collection[int] = ()) -> list[Any]:
        """Make timesteps of rows; update states, counts, and last observations. Rows of `skip` have an error.

        An exception of an automatic reset is raised with the attribute `timesteps`.
        """
        ids, failed = buffers.ids, skip
        views = buffers.put_batch(batch)
        if batch.flags & RowFlag.MESSAGE:
            # The row of an env that continues after an abnormal timestep has a placeholder: the last observation stays.
            abnormal = [row for row, info in enumerate(buffers.infos) if ABNORMAL in info]
            skip = {*skip, *(ids[row] for row in abnormal if not (views.terminated[row] or views.truncated[row]))}
        self._last_obs.put(ids, buffers.batch, buffers.rows, skip)
        if not batch.flags and self._manager_pool.may_autoreset:  # workers flag rows that end an episode
            return buffers.finish()
        ended = (views.terminated | views.truncated).nonzero()[0]
        rows = ended.tolist()
        if rows:
            # With autoresets, `obs` of the row is the first observation of the next episode.
            is_autoreset, spec = self._manager_pool.may_autoreset, self._layout.spec
            finals = final_rows(spec, batch, ended) if is_autoreset else [buffers.rows[row] for row in rows]
            ends = zip(rows, views.terminated[ended].tolist(), views.truncated[ended].tolist())
            buffers.end(finals, ends, keeps_final=self._reset_inplace)
        if batch.flags & HAS_INFO:
            self._read_infos(buffers)
        if rows:
            try:
                self._end_episodes([ids[row] for row in rows])
            except Exception as error:  # A reset failed; the envs have been stepped.
                self._agent_infos.restore(ids, buffers.infos, buffers.put_info)
                made = zip(ids, buffers.finish())
                self._attach(error, {env_id: timestep for env_id, timestep in made if env_id not in failed}, ids)
                raise
            for row in rows if self._reset_inplace else ():
                if self._counts.states[ids[row]] is EnvState.RUN:  # the next episode has begun
                    buffers.replace(row, self._last_obs.rows[ids[row]], buffers.rewards[row], True)
        if batch.flags & RowFlag.MESSAGE:
            self._agent_infos.restore(ids, buffers.infos, buffers.put_info)
        return buffers.finish()

    def _read_infos(self, buffers: TimestepBuffers) -> None:
        """Record which envs are new, and put the values of abnormal timesteps back."""
        ids = buffers.ids
        for row, info in enumerate(buffers.infos):
            if info.get("recovered") in REBUILT and ids[row] not in self._resets.rebuilt:
                self._resets.on_rebuilt([ids[row]])
            if info.get("abnormal", False):
                own = abnormal_values(info)
                if own is not None:
                    buffers.replace(row, *own)
                if self._manager_pool.has_workers:
                    self._counts.set_state(ids[row], EnvState.ERROR)

    def _end_episodes(self, ended_ids: list[int]) -> None:
        """Count the episodes that have ended, and begin the next ones."""
        to_reset = []
        for env_id in ended_ids:
            if self._counts.states[env_id] is EnvState.ERROR or not self._counts.count_end(env_id):
                continue
            if not self._auto_reset:
                self._counts.set_state(env_id, EnvState.NEED_RESET)
            elif self._manager_pool.is_autoreset and env_id not in self._resets.rebuilt:
                self._resets.on_autoreset(env_id)
            else:
                to_reset.append(env_id)
        if to_reset:
            self._begin_next(to_reset)

    def _begin_next(self, ids: Sequence[int]) -> None:
        """Begin the next episodes of these envs, and wait for them."""
        self._resets.begin_next(ids)
        _raise_first(self._wait_for_resets())

    # ---- failing steps ---------------------------------------------------------------------------

    def _step_with_errors(self, actions: list[Any], batch: Batch, buffers: TimestepBuffers) -> list[Any]:
        ids = buffers.ids
        given = dict(zip(ids, actions))
        made: dict[int, Any] = {}
        try:
            for attempts_left in reversed(range(1 if self._manager_pool.has_workers else self._max_retry)):
                errors = batch.errors()
                timesteps = zip(buffers.ids, self._make_timesteps(batch, buffers, skip=errors))
                made.update((env_id, timestep) for env_id, timestep in timesteps if env_id not in errors)
                self._check_autoresets(errors)
                if not errors or not attempts_left:
                    break
                self._resets.wait()
                batch, buffers = self._exchange(list(errors), [given[env_id] for env_id in errors])
        except Exception as error:
            self._attach(error, made, ids)
            raise
        made = {env_id: made[env_id] for env_id in ids if env_id in made}
        if errors:
            self._fail_steps(errors, made)
        return list(made.values())

    def _attach(self, error: Exception, timesteps: dict[int, Any], ids: Iterable[int]) -> None:
        """Add timesteps to the attribute `timesteps` of an exception, in the order of `ids`."""
        known = vars(error).get("timesteps", {})
        known = {**dict(zip(timesteps, self._present(list(timesteps.values())))), **known}
        vars(error)["timesteps"] = {env_id: known[env_id] for env_id in ids if env_id in known}

    def _present(self, timesteps: list[Any]) -> list[Any]:
        """Return timesteps in the form that `step` returns."""
        return timesteps

    def _fail_steps(self, errors: dict[int, Exception], timesteps: dict[int, Any]) -> NoReturn:
        """Raise the exceptions of envs, with the timesteps of other envs, after the action of `on_step_error`."""
        policy = self._cfg["on_step_error"]
        for env_id in errors:
            self._counts.set_state(env_id, EnvState.ERROR)
        constructor_error = self._rebuild(sorted(errors)) if policy == "renew" else None
        if policy == "close":
            self._close_after(next(iter(errors.values())))
        raised = errors if self._manager_pool.has_workers else self._describe_errors(errors)
        first = raised[min(raised)]
        if constructor_error is not None:
            first.__context__ = constructor_error
            text = f"{type(constructor_error).__name__}: {constructor_error}"
            add_notes(first, [f"it could not be rebuilt either, which its next reset tries again: {text}"])
        self._attach(first, timesteps, timesteps)
        raise_first(raised)

    def _check_autoresets(self, errors: Mapping[int, Exception]) -> None:
        """Close and raise if one of these errors of steps is of an autoreset in the worker."""
        with self._closing_after_reset():
            self._resets.fail_on_autoreset_error(errors)

    def _rebuild(self, env_ids: list[int]) -> Exception | None:
        """Replace envs by new ones; return the exception of a constructor, if one raised."""
        try:
            self._call_envs(rebuild_env, "renew", env_ids)
        except Exception as error:
            if self._counts.closed or isinstance(error, WorkerTimeoutError | WorkerDiedError):
                raise
            return error
        return None

    def _describe_errors(self, errors: dict[int, Exception]) -> dict[int, Exception]:
        """Return the exceptions that the caller gets for envs in this process."""
        described: dict[int, Exception] = {}
        state = "the manager is closed" if self._counts.closed else "it is in ERROR until it is reset"
        for env_id, error in errors.items():
            failure = EnvError(
                f"step of env {env_id} failed in {self._max_retry} attempts; {state}. "
                f"Last: {type(error).__name__}: {error}",
                exception_type=type(error).__qualname__,
            )
            described[env_id] = locate(failure, **{**place_of(error), "env_ids": (env_id,), "op": "step"})
            described[env_id].__cause__ = error
        return described


def _raise_first(failures: list[Exception]) -> None:
    """Raise the first of these exceptions, if there is one, with a note for each other."""
    if failures:
        first, *rest = failures
        add_notes(first, [f"then a step raised {type(error).__name__}: {error}" for error in rest])
        raise first
