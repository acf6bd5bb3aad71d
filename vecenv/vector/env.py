"""VectorEnv: the engine as a `gymnasium.vector.VectorEnv`, a drop-in for `AsyncVectorEnv`.

    obs, infos = envs.reset(seed=0)                      Gymnasium: each call waits for all envs
    obs, rewards, terminations, truncations, infos = envs.step(actions)

    envs.async_reset()                                   EnvPool: continue with the envs that have finished
    obs, rewards, terminations, truncations, infos = envs.recv(32)
    envs.send(actions, infos["env_id"])
    obs, infos = envs.reset(env_id=[5, 2])               some envs, while others are under way

`VectorEnv` turns the batches of a pool into Gymnasium's tuples and checks Gymnasium's rules about the order of calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

from ..core.layout.flags import Autoreset, Op, RowFlag
from ..core.layout.spec import copy_spaces
from ..core.options import DEFAULT_START_METHOD, PoolOptions
from ..core.parent.batch import Batch
from ..core.parent.leases import NUM_LEASES
from ..core.pool.recipe import PoolRecipe
from ..core.spares.resets import SpareRule
from ..core.system.clock import check_timeout
from ..env_snapshot import EnvSnapshot
from ..envs.adapt import adapt_and_build
from ..envs.remote import GetAttribute, GetOrCall, SetAttribute, without_bounds
from ..envs.seeding import episode_seed
from ..envs.state.state import SNAPSHOTTER
from ..errors import ConfigError, DifferentSpacesError, StateError, converted
from ..gymnasium_api.registrations import has_own_batches
from ..options import EngineLike, FailuresLike, TimeoutsLike
from ..ray_options import RayOptions
from ..saved_state import SavedState, StateLike
from ..values.checks import check_flag, check_whole
from .arguments import (
    ResetOptionsLike,
    SeedsLike,
    check_without_mask,
    combine_spaces,
    one_of,
    read_autoreset_mode,
    read_count,
    read_env_ids,
    read_infos,
    read_mask,
    read_options,
    read_seeds,
    wants_same_spaces,
)
from .base import BaseVectorEnv, check_method, check_name
from .branches import Branches
from .infos import InfoReader, LegacyInfoReader
from .options import find_names, read_pool_options, suggest
from .results import ConcatenatedResults, Results, Step

__all__ = [
    "OPTION_NAMES",
    "EnvSeeds",
    "VectorEnv",
    "check_adapter_options",
    "check_options",
    "describe_wrong_vector_env",
]

#: End of the error for observation spaces that differ; the first sentences are those of Gymnasium, for searches.
_HOW_TO_DIFFER = (
    "In Gymnasium: SyncVectorEnv(..., observation_mode='same') however the sub-environments observation spaces are not "
    "equivalent. If this is intentional, use `observation_mode='different'` instead. Shapes and dtypes must be equal"
)
#: Methods that read the envs of the rows only.
_READS = ("get_attr", "render")


class VectorEnv(BaseVectorEnv, gymnasium.vector.VectorEnv[Any, Any, Any]):  # named again: skrl looks at these only
    """N envs in worker processes, stepped together or as they finish.

    The same seeds and actions give the same results as `gymnasium.vector.SyncVectorEnv`, for every backend and number
    of workers. One difference: an array of infos holds fractions unchanged, where Gymnasium takes the dtype of the
    first env and cuts them off if that is a whole number. Rewards are float64, terminations and truncations bool.

    Envs get actions in the dtype of their space. Actions of another dtype of the same kind are converted, with one
    warning per leaf. Only wider floats, such as float64 for a space of float32, reach the envs unchanged; they are
    pickled, which is slower. A `with` statement closes the vector env. One thread may use it at a time.

    Example:
        >>> import gymnasium
        >>> envs = VectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, backend="serial")
        >>> obs, infos = envs.reset(seed=7)
        >>> obs, rewards, terminations, truncations, infos = envs.step([0, 1])
        >>> obs.shape, rewards.tolist(), infos
        ((2, 4), [1.0, 1.0], {})
        >>> envs.close()

    Attributes:
        implementation: 'native' or 'python', the code that moves the data.
    """

    _batches_before = 0  # batches that were received before the state was saved that this object continues

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        backend: str | RayOptions = "process",
        num_workers: int | str | None = None,
        threads_per_worker: int = 1,
        infos: str = "all",
        num_spare_envs: int = 0,
        episode_statistics: bool = False,
        mark_autoreset: bool = False,
        batch_size: int | None = None,
        timeouts: TimeoutsLike = None,
        failures: FailuresLike = None,
        checks: str | None = None,
        engine: EngineLike = None,
        resume: StateLike | None = None,
        **moved: Any,
    ) -> None:
        """Start the workers and build all envs.

        The arguments up to `max_concurrency` are those of AsyncVectorEnv, in its order.

        Args:
            env_fns: one constructor per env. They are sent to the workers by value.
            shared_memory, daemon, worker: for callers of AsyncVectorEnv, and without effect. Memory is always shared,
                workers always end with this process and may have child processes, and a `worker` is refused.
            copy: if True (default) arrays are yours. Batches under 16 KiB are copied. Larger ones are lent without a
                copy and reused once you drop them; beyond three on loan, they are copied. If False, arrays are views
                of shared memory, valid until `depth - 1` later batches have been received; see `engine`.
            context: start method of the workers: 'forkserver' (default), 'spawn' or 'fork'. If the
                system cannot fork, 'spawn' is the only one, and the default.
            observation_mode: 'same' (default); 'different' for spaces of the same shapes and dtypes with other bounds;
                or a pair (observation_space, single_observation_space).
            autoreset_mode: when an ended env is reset: NEXT_STEP (default), SAME_STEP or DISABLED, as in Gymnasium.
            max_concurrency: AsyncVectorEnv's name of `num_workers`.
            backend: 'process' (default), or 'serial' for envs in this thread. 'auto' measures as `num_workers='auto'`,
                and may choose 'serial' where steps are cheap and few. Serial envs survive no segmentation fault, and
                a hang of one does not end. 'ray', or a `vecenv.RayOptions`: workers on the nodes of a Ray cluster, see
                docs/ray.md.
            num_workers: number of processes. None (default): one per usable core, at most one per env; with spare envs
                one per env, N + S, so that a slow reset delays no step. Envs whose constructors or steps wait get
                further workers, up to one per env; see docs/workers.md. Envs with process-wide state, such as a
                module-level counter or globals of a C library, disturb each other in one process: they need
                `num_workers=num_envs`. `vecenv check` finds them.
                'auto': env 0 is built in a worker of its own first, reset, stepped 100 times with random actions, and
                closed; then workers and threads are chosen (no threads for an env that draws from global random
                generators). The reason is in `statistics()["choice"]` and in the log. Results do not depend on it.
            threads_per_worker: envs that a worker steps at the same time, 1 by default. More than one pays for envs
                that sleep or wait. With one worker per core its threads stay on that core while they mostly wait.
            infos: which info dicts arrive.
                'all' (default): everything, in the form of Gymnasium's vector envs. Numbers, arrays of up to 8
                numbers, and dicts of those travel in shared memory; infos that contain anything else are pickled.
                'columns': only values that travel in shared memory, and dicts that contain some.
                'done': only the info of a step that ends an episode, in its row, or as `final_info` in SAME_STEP mode.
                'none': no infos; workers do not read them. `final_obs` still arrives.
                'legacy': everything, in the form of Gymnasium 0.29, for programs that read `infos["final_observation"]`
                and `infos["final_info"]`: object arrays (N,), None where no episode has ended, with bool masks
                `_final_observation` and `_final_info`. An item of `final_info` is the info dict of one env. Infos that
                are dicts or arrays are object arrays (N,), too. SAME_STEP mode only.
            num_spare_envs: number of envs beside the N envs that are reset ahead, 0 by default. When an episode ends, a
                spare env continues its row, and its env is reset and becomes a spare env. So no step waits for a slow
                reset. See `vecenv.VectorEnv.num_spare_envs`.
            episode_statistics: add `infos["episode"]` and `infos["_episode"]` to steps that end episodes, as
                `gymnasium.wrappers.vector.RecordEpisodeStatistics` does: return "r" (float64), length "l" (int64) and
                seconds "t" (float64), each of shape (N,), 0 where no episode has ended. The workers count them. If
                rewards have several numbers, "r" has the sum of each, (N, *K).
            mark_autoreset: add `infos["autoreset"]` to the results of `step`, bool (N,), as `recv` does in NEXT_STEP
                mode. It is True for rows that only begin an episode: they ignored their action and have reward 0, so
                they are no transitions. If False (default), the results of `step` equal those of Gymnasium.
            batch_size: number of rows that `recv()` returns, as in EnvPool. None (default): the rows of all envs with
                an outstanding step or reset.
            timeouts: time limits: seconds for a step or a reset, a `vecenv.Timeouts`, or a dict of its fields. Default:
                `construct` 60 s, `close` 5 s, no limit for the others.
            failures: the policy for workers that die or hang: a `vecenv.FailurePolicy`, a dict of its fields, or a
                value of `on_failure`. 'raise': WorkerDiedError or WorkerTimeoutError. 'recover' (default): a worker
                that dies, or hangs beyond a limit, is replaced, its envs are restored, and the call continues.
                `infos["recovered"]` marks the rows. 'replayed': the episode continues as before. 'unproven': it
                continues from a state that may be incomplete, or with code that has changed on disk. 'truncated': the
                episode could not be recovered and ends here; the next one is marked 'restarted'. If the lost episode
                had already ended, only 'restarted' appears.
            checks: None (default), 'strict', 'debug', or 'all' for both.
                'strict': refuse actions and observations of other dtypes, or with keys that their space lacks, and
                actions outside their space. Without it, dtypes are converted and such keys left out, each with one
                warning, and envs get actions outside their space.
                'debug': find code that uses views too long, and refuse actions outside their space. Views are
                overwritten when they expire: floats with NaN, bytes of integers with 0xA5, bools alternately. If an
                observation is still referenced when its memory is used again, one RuntimeWarning names its leaf.
            engine: options that most programs leave alone, such as `depth`, `monitor`, `worker_output` and
                `worker_init`: a `vecenv.EngineOptions` or a dict of its fields.
            resume: a file of `save`, or the result of `state_dict`, whose episodes are continued; see `save`. None
                (default): all envs are new.
            **moved: keywords of earlier releases, each with a DeprecationWarning that names the new argument.

        Raises:
            ConfigError: an argument is wrong, an option is given twice, there are too few resources, or `resume` is
                damaged or does not fit.
            WrongTypeError: a keyword is unknown (also a ConfigError and a TypeError).
            DependencyError: with `backend="ray"`, Ray is not installed.
            SpaceError: the envs' spaces differ (also a RuntimeError).
            WorkerTimeoutError, WorkerDiedError: a constructor hung or died.
            Exception: raised by a constructor, with the remote traceback as its cause.
        """
        if worker is not None:
            raise ConfigError("worker: vecenv runs workers of its own; wrap the env instead", key="worker")
        check_flag("shared_memory", shared_memory)
        self.copy, self.daemon = check_flag("copy", copy), check_flag("daemon", daemon)
        self.shared_memory, self.context, self.worker = True, context, None
        has_statistics = check_flag("episode_statistics", episode_statistics)
        self.observation_mode = observation_mode
        self.autoreset_mode = read_autoreset_mode(autoreset_mode)
        self._marks_autoreset = check_flag("mark_autoreset", mark_autoreset)
        self._marks_received = self._marks_autoreset or self.autoreset_mode == AutoresetMode.NEXT_STEP
        self.max_concurrency = read_count("max_concurrency", max_concurrency)
        is_same = wants_same_spaces(observation_mode)
        backend, common = read_pool_options(
            VectorEnv, moved, backend=backend, timeouts=timeouts, failures=failures, checks=checks, engine=engine
        )
        options = PoolOptions(
            num_workers=self.max_concurrency if num_workers is None else num_workers,
            threads_per_worker=threads_per_worker,
            autoreset=Autoreset[self.autoreset_mode.name],
            infos=read_infos(infos, self.autoreset_mode),
            # In DISABLED mode ended envs are reset by mask, which repeats the other envs' last observations. The caller
            # could change these if they were lent, so nothing is lent.
            leases=NUM_LEASES if self.copy and self.autoreset_mode != AutoresetMode.DISABLED else 0,
            context=DEFAULT_START_METHOD if context is None else context,
            warns_of_views=not self.copy,
            **common,
        )
        adapt = adapt_and_build if is_same else without_bounds
        num_spares = check_whole("num_spare_envs", num_spare_envs, 0)
        spares = SpareRule(num_spares, episode_seed) if num_spares else None
        self._is_same, self._has_statistics = is_same, has_statistics
        self._make_reader = LegacyInfoReader if infos == "legacy" else InfoReader
        self._recipe_of_pool = PoolRecipe("VectorEnv", backend, env_fns, options, SNAPSHOTTER, adapt, spares)
        saved = None if resume is None else SavedState.read(resume)
        pool = self._make_pool(saved)
        self.num_envs = pool.num_envs
        self.batch_size = read_count("batch_size", batch_size, self.num_envs)
        if num_spares % self.num_envs and self.batch_size not in (None, self.num_envs):
            raise ConfigError(
                f"num_spare_envs: with batch_size={self.batch_size} expected a multiple of num_envs={self.num_envs}, "
                f"got {num_spares}; else the order in which envs finish would decide which spare env takes over",
                key="num_spare_envs",
            )
        self._num_spares = num_spares
        self.env_seeds = EnvSeeds(pool.num_envs)
        self._start()
        self._continue(saved)
        self._reset_ids: Any = None  # env ids of the pending reset, None for all
        self._resets_some = False  # whether the pending reset returns the rows of `_reset_ids` only
        self.closed = False

    def _start(self) -> None:
        pool, is_same = self._pool, self._is_same
        try:
            self._start_pool()
        except DifferentSpacesError as error:
            if is_same and (error.path or "").startswith("observation_space"):
                raise DifferentSpacesError(f"{error}. {_HOW_TO_DIFFER}", path=error.path) from error
            raise
        try:
            space = pool.spaces.observation_space
            if is_same:
                self.single_observation_space = pool.observation_space
            else:
                found = pool.call(GetAttribute("observation_space"), pure=True)
                (space,) = copy_spaces(found[0])
                self.observation_space, self.single_observation_space = combine_spaces(self.observation_mode, found)
        except BaseException:
            pool.close()
            raise
        self.single_action_space = pool.action_space
        self.reward_space = pool.reward_space if pool.spaces.reward_shape else None
        self.action_space = batch_space(pool.action_space, self.num_envs)
        self._checks_ends = self.autoreset_mode == AutoresetMode.DISABLED
        self._splits_actions = has_own_batches(pool.action_space)
        self._is_plain_step = not (self._checks_ends or self._splits_actions)
        make_results = ConcatenatedResults if has_own_batches(space) else Results
        results = self.results = make_results(
            pool, self._make_reader(space), space, self.copy, self._checks_ends, self._has_statistics
        )
        vars(self).pop("_branches", None)  # it belongs to an earlier pool
        self._deliver_step = results.deliver_marked if self._marks_autoreset else results.deliver
        self.metadata["autoreset_mode"] = self.autoreset_mode

    @functools.cached_property
    def observation_space(self) -> Space[Any]:  # type: ignore[override]
        """The space of the observations of all envs. It is built when it is first read: large bounds take long."""
        return batch_space(self._pool.spaces.observation_space, self.num_envs)

    def _release_views(self) -> None:
        self.results.release_views()

    # ---- saving ------------------------------------------------------------------------------

    def _save_front_end(self) -> dict[str, Any]:
        return {"results": self.results.save(), "seeds": self.env_seeds.last, "num_batches": self.num_batches}

    def _load_front_end(self, saved: dict[str, Any]) -> None:
        self.results.load(saved["results"])
        self.env_seeds.last, self._batches_before = saved["seeds"], saved["num_batches"]

    @property
    def num_spare_envs(self) -> int:
        """Number of spare envs: the argument of this name.

        The engine then hosts N + S envs. Spare env j is built by `env_fns[j % N]`. With a reset of all envs, the spare
        envs are reset too. When an episode ends, its env joins the end of a queue of spare envs and is reset, and the
        first env of that queue continues the row:

        * S is a multiple of N: each row has a queue of its own, with spare envs i, i + N, ... for row i.
        * Any other S: all rows share one queue. Envs whose episodes end in one batch join it in the order of rows.
          `recv` and `step` must then receive all outstanding envs, and `env_fns` should build equal envs.

        So results are a function of seeds, N, S and the calls, for any number of workers, timing and failures. They
        equal those without spare envs if an episode depends on its env's constructor and its actions only. A reset with
        seeds gives spare env k = 1, 2, ... of a row with seed s the seed `vecenv.envs.seeding.episode_seed(s, k)`. In a
        shared queue, the env at position j gets the seed of row `j % N` and k = 1 + j // N.

        In NEXT_STEP mode the step after the end returns the first observation of the spare env, in SAME_STEP mode the
        step that ends the episode. In DISABLED mode a reset by mask, without seed and options, takes the spare envs;
        other resets reset the envs that serve the rows. Envs begin an episode earlier than without spare envs, so
        attributes and calls that change an env first show in the episode after the next one.

        `call`, `call_async` and `set_attr` reach spare envs too and return the results of rows; spare env j gets the
        value of env `j % N`. `get_attr`, `render` and `envs` are those of the N envs that serve the rows. `statistics`
        and errors of workers count all N + S envs; env N + j was spare at the start. Batches are copied, not lent.
        """
        return self._num_spares

    @property
    def num_batches(self) -> int:
        """The number of batches received so far: one per `step`, `reset` and `recv`. 0 after `close`."""
        return 0 if self._pool.closed else self._batches_before + self._pool.num_batches

    @property
    def num_outstanding(self) -> int:
        """The number of envs whose step or reset was begun and not received yet; 0 after `close`."""
        return self._pool.outstanding()

    def note_steps_in_shards(self) -> None:
        """Note that tasks step the envs in their shards: the last observations are not known, as after a `recv`."""
        self._batches_before += 1
        self.results.forget_last(np.zeros(self.num_envs, np.bool_), np.nan)

    # ---- stepping ----------------------------------------------------------------------------

    def step(self, actions: Any, env_id: Any = None, *, env_ids: Any = None) -> Step:
        """Step envs and wait for them.

        Args:
            actions: nested like the action space, leaves (B, *S): one row per stepped env.
            env_id, env_ids: distinct ids of the envs to step, or a single id, as in EnvPool. None (default): all envs.
                With ids, `infos["env_id"]` contains the id of each row. Rows are ordered as `env_id`, unless other envs
                have outstanding steps or resets: then, as in EnvPool, the first rows of any envs are returned.

        Returns:
            (obs, rewards, terminations, truncations, infos): observations nested like the observation space, leaves
            (B, *S); rewards float64 (B,), or (B, *K) with a `reward_space` of several numbers; terminations and
            truncations bool (B,); and a dict of arrays (B, ...). The constructor's `copy` decides for how long the
            arrays are valid.

        Raises:
            SpaceError: the actions do not fit; nothing was stepped. Also a TypeError if they are a single value.
            AlreadyPendingCallError: an earlier call has not been waited for.
            ClosedEnvironmentError: the vector env is closed.
            StateError: an episode is over and autoreset_mode is DISABLED; ResetNeeded: an env was never reset.
            WorkerTimeoutError: an env exceeded its limit, and `on_failure` is 'raise'; reset before the next step.
            WorkerDiedError: a worker died and `on_failure` is 'raise', or it could not be replaced.
            ConfigError: there is no such env.
            Exception: raised by an env, with the remote traceback as its cause. The answers of the other envs are its
                attribute `rows`, a `vecenv.ErrorRows`, unless `failures` end that env's episode only.
        """
        if self._pending is not None or not self._is_plain_step or env_id is not None or env_ids is not None:
            return self._step_checked(actions, one_of("step", env_id, env_ids))
        try:
            batch = self._pool.step(actions)
        except StateError as error:
            self._raise_as_gymnasium("step", error)
        return self._deliver_step(batch)

    def _step_checked(self, actions: Any, env_id: Any) -> Step:
        self._check_idle("step")
        if env_id is None:
            self._send("step", actions)
            return self._deliver_step(self._recv("step", None))
        env_ids = np.atleast_1d(env_id)
        self._send("step", actions, env_ids, ordered=self._pool.outstanding() == 0)
        batch = self._ask("step", self._pool.recv, len(env_ids), exact=True)
        return self._deliver_some(batch, self._marks_autoreset)

    def send(self, actions: Any, env_id: Any = None, *, env_ids: Any = None) -> None:
        """Begin to step envs without waiting; `recv` returns their results.

        Args:
            actions: nested like the action space, leaves (B, *S): one row per env, ordered as `env_id`.
            env_id, env_ids: distinct ids, or a single id. None (default): all envs.

        Raises:
            SpaceError: the actions do not fit; nothing was sent.
            AlreadyPendingCallError: one of these envs has an outstanding step or reset.
            StateError: an episode is over and autoreset_mode is DISABLED.
            ConfigError: there is no such env.
        """
        if env_ids is not None:
            env_id = one_of("send", env_id, env_ids)
        if self._pending is not None or not self._is_plain_step:
            self._check_idle("send")
            self._send("send", actions, env_id, ordered=False)
            return
        try:
            self._pool.send(actions, env_id, ordered=False)
        except StateError as error:
            self._raise_as_gymnasium("send", error)

    def recv(
        self, min_count: int | None = None, timeout: float | None = None, *, env_id: Any = None, env_ids: Any = None
    ) -> Step:
        """Wait for results of `send` and `async_reset`, in the order in which envs finish, or of particular envs.

        Args:
            min_count: return as soon as this many envs have finished, with the rows of all that have. None (default):
                exactly `batch_size` rows; or, if the constructor was given none, the rows of all outstanding envs.
            timeout: seconds to wait. None (default): no limit. After a timeout the envs continue, and a later `recv`
                returns their results.
            env_id, env_ids: wait for exactly these envs, distinct ids or a single id, and return their rows in this
                order. Other rows that arrive before are copied, so they count against no `depth`. The next `recv`
                returns them first, in the order in which they finished. None (default): any envs. Excludes
                `min_count`; `batch_size` has no effect.

        Returns:
            (obs, rewards, terminations, truncations, infos) as from `step`, with B >= min_count rows.
            `infos["env_id"]`, int64 (B,), contains the env of each row. In NEXT_STEP mode `infos["autoreset"]`, bool
            (B,), marks the rows of autoresets, see `mark_autoreset`; rows of `async_reset` are not marked.

        Raises:
            StateError: fewer than min_count envs, or not all envs of `env_id`, are outstanding.
            ConfigError: `min_count` is not a number, there is no such env, or `env_id` and `min_count` are both given.
            WrongTypeError: `min_count` is a bool, as EnvPool's `reset` is (also a ConfigError and a TypeError).
            WorkerTimeoutError: too few envs finished within `timeout`, or as from `step`.
            WorkerDiedError, Exception: as from `step`.
        """
        if self._pending is not None:
            self._check_idle("recv")
        try:
            if env_id is not None or env_ids is not None:
                ids = read_env_ids("recv", one_of("recv", env_id, env_ids), self.num_envs)
                if min_count is not None:
                    raise ConfigError("recv: env_id excludes min_count: all of these envs are awaited", key="min_count")
                batch = self._pool.recv(timeout=timeout, env_ids=ids)
            elif min_count is None and self.batch_size is not None:
                batch = self._pool.recv(self.batch_size, exact=True, timeout=timeout)
            else:
                batch = self._pool.recv(min_count, timeout=timeout)
        except StateError as error:
            self._raise_as_gymnasium("recv", error)
        return self._deliver_some(batch, self._marks_received)

    def _deliver_some(self, batch: Batch, marks_autoreset: bool) -> Step:
        if batch.flags & RowFlag.RESET:
            self.env_seeds.note(batch)
        return self.results.deliver_some(batch, marks_autoreset)

    def _send(self, what: str, actions: Any, env_ids: Any = None, ordered: bool = True) -> None:
        self.results.check_not_ended(what, env_ids)
        if self._splits_actions:
            ids = np.arange(self.num_envs) if env_ids is None else np.atleast_1d(env_ids)
            rows = list(iterate(batch_space(self._pool.spaces.action_space, len(ids)), actions))
            self._ask(what, self._pool.send_objects, rows, ids, ordered=ordered)
        else:
            self._ask(what, self._pool.send, actions, env_ids, ordered=ordered)

    # ---- resetting ---------------------------------------------------------------------------

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """The seed that each env was given last, or None; ordered by env_id.

        If the first reset of an env has no seed, one is drawn for its generator, unless that exists, and is here once
        the reset is received. `reset(seed=envs.seeds[0])` repeats the run of envs that draw from `np_random` only.
        """
        return self.env_seeds.last

    def reset(
        self, env_id: Any = None, *, seed: SeedsLike = None, options: ResetOptionsLike = None, env_ids: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every env, or in some of them, and wait for the first observations.

        Outstanding steps of these envs are abandoned, and so are operations that exceeded a timeout. As in
        Gymnasium's classes, envs without a seed get `seed=None`, and `options` is passed also if it is None, except to
        an env whose `reset` does not accept it.

        Args:
            env_id, env_ids: distinct ids of the envs to reset, or a single id. The result has rows of these envs only,
                in this order. Other envs may be outstanding; their results stay for the next `recv`. None (default):
                all envs, or those of a mask.
            seed: env i gets `seed + i`, or `seed[i]` from a list of N, also if only some envs are reset. None
                (default): generators continue. In a first reset, generators that do not exist yet are made from drawn
                seeds, see `seeds`.
            options: a dict that is passed to every env, without `reset_mask`; or a list with one dict or None for each
                env that is reset, ordered as `env_id`. `reset_mask`, bool (N,), selects the envs to reset, instead of
                `env_id`. The other rows of the result repeat the last observations; if these were lent without a copy,
                the caller's changes to them appear here, except if autoreset_mode is DISABLED.

        Returns:
            (obs, infos) of all envs: leaves (N, *S), and a dict of arrays (N, ...). With `env_id`, of these B envs, and
            `infos["env_id"]` contains the ids, int64 (B,).

        Raises:
            ConfigError, TypeError: the number of seeds is not N, the number of options is wrong, there is no such env,
                or the mask is wrong.
            AlreadyPendingCallError: an earlier call has not been waited for, or an env outside the mask is
                outstanding.
            ClosedEnvironmentError: the vector env is closed.
            StateError: a mask was given, but an env outside it has no last observation.
            WorkerTimeoutError, WorkerDiedError, Exception: as from `step`.
        """
        with self._sync_call("reset"):
            self._begin_reset("reset", seed, options, one_of("reset", env_id, env_ids))
            return self.reset_wait()

    def reset_async(
        self, seed: SeedsLike = None, options: ResetOptionsLike = None, *, env_id: Any = None, env_ids: Any = None
    ) -> None:
        """Begin a reset; `reset_wait` returns its results. Arguments are those of `reset`."""
        self._begin_reset("reset_async", seed, options, one_of("reset_async", env_id, env_ids))

    def _begin_reset(self, what: str, seed: Any, options: Any, env_id: Any) -> None:
        self._check_idle(what)
        env_ids, ordered, superseded = read_env_ids(what, env_id, self.num_envs), True, []
        if env_ids is not None:  # the other envs may be outstanding
            check_without_mask(what, options)
            ordered = not self._pool.outstanding()
            superseded = [i for i in env_ids.tolist() if self._pool.owes(i) == Op.RESET]
        elif not isinstance(options, list | tuple):
            env_ids, options = read_mask(options, self.num_envs)
            if env_ids is not None and not self.results.has_last_obs(env_ids):
                raise StateError(
                    f"{what}: rows outside reset_mask repeat the last observations of all envs, but the last batch was "
                    "not of all, or some failed before their first one; reset all envs, or some by async_reset(env_id)"
                )
        self._reset(what, seed, options, env_ids, ordered, superseded)
        self._pending, self._reset_ids, self._resets_some = "reset", env_ids, env_id is not None

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the reset that `reset_async` began; return and raise as `reset` does.

        Args:
            timeout: seconds to wait. After that the reset is abandoned, and another reset of all these envs must come
                next. None (default): no limit.

        Raises:
            NoAsyncCallError: `reset_async` was not called before.
        """
        self._check_pending("reset")
        env_ids, results = self._reset_ids, self.results
        if self._resets_some:
            batch = self._recv("reset_wait", timeout, env_ids)
            return _first_of(self._deliver_some, batch, False)
        # A view of the ring may be invalid after the next batch.
        last = None if env_ids is None else results.copy_last_obs()
        batch = self._recv("reset_wait", timeout)
        self.env_seeds.note(batch)
        if env_ids is not None:
            return results.deliver_into(last, batch, env_ids)
        return _first_of(results.deliver, batch)

    def async_reset(
        self, env_id: Any = None, *, seed: SeedsLike = None, options: ResetOptionsLike = None, env_ids: Any = None
    ) -> None:
        """Begin to reset envs without waiting; `recv` returns their first observations.

        Outstanding steps of these envs are superseded.

        Args:
            env_id, env_ids: distinct ids, or a single id. None (default): all envs.
            seed: as for `reset`; a list has one item for each of the N envs, also for those not reset.
            options: as for `reset`, without a mask.

        Raises:
            ConfigError: there is no such env, the number of seeds is not N, or that of the options is wrong.
            AlreadyPendingCallError: one of these envs has an outstanding reset.
        """
        self._check_idle("async_reset")
        ids = read_env_ids("async_reset", one_of("async_reset", env_id, env_ids), self.num_envs)
        self._reset("async_reset", seed, options, ids, ordered=False)

    def _reset(
        self, what: str, seed: Any, options: Any, env_ids: Any, ordered: bool, superseded: Sequence[int] = ()
    ) -> None:
        seeds = read_seeds(seed, self.num_envs)
        chosen = range(self.num_envs) if env_ids is None else env_ids.tolist()
        each = read_options(what, options, len(chosen))
        if ordered and self._pool.outstanding():
            self._cancel_outstanding(what, chosen, [Op.RESET], "envs")
        if superseded:
            self._pool.cancel(superseded)
        asked = [seeds[env_id] for env_id in chosen]
        kwargs = [{"options": one} for one in each]
        self._ask(what, self._pool.reset, env_ids, seeds=asked, kwargs=kwargs, ordered=ordered)
        self.env_seeds.record(asked, chosen)

    # ---- branches ----------------------------------------------------------------------------

    def get_states(self, env_id: Any = None) -> tuple[EnvSnapshot, ...]:
        """Return the state of every env, or of some; nothing changes.

        The state of an env of an unknown class cannot be captured: call `vecenv.register_pickled_state` for the class,
        or define `get_state()` and `set_state(state)` in it. These two, and functions of
        `vecenv.register_state_adapter`, are called in the middle of episodes here.

        Args:
            env_id: distinct ids of envs, or a single id. None (default): all envs. Other envs may be outstanding.

        Returns:
            One snapshot per env, ordered by env_id, or as the argument `env_id`.

        Raises:
            StateError: the class of a layer of an env is unknown, or its state is not known now.
            ResetNeeded: an env was never reset.
            AlreadyPendingCallError: an earlier call has not been waited for, or one of these envs is outstanding.
            ConfigError: there is no such env.
            Exception: raised by a function of the env, with its remote traceback.
        """
        with self._sync_call("get_states"):
            ids = self._chosen_ids("get_states", env_id)
            self._pool.abandon_calls()  # calls of an interrupted `call_wait`
            results = self.results
            return self._ask("get_states", self._branches.get, ids, results.ended, results.returns)

    def set_states(self, states: EnvSnapshot | Sequence[EnvSnapshot], env_id: Any = None) -> Any:
        """Put states into every env, or into some; each env then continues the episode of its state.

        With the same actions, the next rows equal those that the env gave after `get_states`: observations, rewards,
        ends, autoresets, infos, random numbers, and the statistics of the episode. A state whose episode is over is
        followed by a reset, as it was there. After a crash, the env is restored from the state. Attributes that the
        state does not contain stay those of the env, such as values that are no plain data.

        With spare envs, the next episode of an env is still the one that its next spare env has begun. So the rows are
        equal until the episode ends. A state whose episode is over has the generators of the env that follows.

        Args:
            states: snapshots of `get_states`, one per env, ordered as `env_id`; or a single one for all of these envs.
                They may come from other envs, and from another vector env, of the same classes and spaces.
            env_id: distinct ids of envs, or a single id. None (default): all envs. Other envs may be outstanding.

        Returns:
            The observations that belong to the states, ordered as `env_id`, leaves (B, *S): the next actions depend on
            them, as after a `reset`.

        Raises:
            ConfigError: there is no such env, the number of states is wrong, or a state has another class or other
                spaces than its env; no env was changed.
            WrongTypeError: a state is not a snapshot (also a ConfigError and a TypeError).
            AlreadyPendingCallError: an earlier call has not been waited for, or one of these envs is outstanding.
            Exception: raised by a function of an env, with its remote traceback; reset this env, or set its state
                again. The other envs have their states.
        """
        with self._sync_call("set_states"):
            ids, pool, results = self._chosen_ids("set_states", env_id), self._pool, self.results
            pool.abandon_calls()  # calls of an interrupted `call_wait`
            given = self._ask("set_states", self._branches.read, states, ids)
            last = results.copy_last_obs() if results.has_last_obs(ids) else None  # a view may be invalid later
            self._ask("set_states", self._branches.put, given, ids, ordered=not pool.outstanding())
            batch = self._recv("set_states", None, ids)
            return results.deliver_states(last, batch, ids, [np.frombuffer(state.returns) for state in given])

    def _chosen_ids(self, what: str, env_id: Any) -> Any:
        ids = read_env_ids(what, env_id, self.num_envs)
        return np.arange(self.num_envs) if ids is None else ids

    @functools.cached_property
    def _branches(self) -> Branches:
        return Branches(self._pool)

    # ---- calling -----------------------------------------------------------------------------

    def call(self, name: str, *args: Any, env_id: Any = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute; blocks until all envs have answered.

        Args:
            name: name of the method or attribute, looked up from the outermost wrapper inwards. 'reset', 'step' and
                'close' are refused.
            *args, **kwargs: passed to the method. Arguments and results are copies, with `backend="serial"` too. There,
                values that cannot be pickled are shared.
            env_id: distinct ids of the envs to call, or a single id. None (default): all envs. A method of an env with
                an argument of this name gets it by position.

        Returns:
            One result per env, ordered by env_id, or as the argument `env_id`.

        Raises:
            ConfigError: the method is refused, or there is no such env.
            TypeError: the name is not a string.
            AlreadyPendingCallError: an earlier call has not been waited for.
            Exception: raised by the method; of several, that of the lowest env, with its remote traceback.
        """
        return self._call("call", name, env_id, args, kwargs)

    def _call(self, what: str, name: str, env_id: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Call as `call` does for a method of the name `what`, which error messages begin with."""
        with self._sync_call(what):
            self._begin_call(what, name, env_id, args, kwargs)
            return self.call_wait()

    def call_async(self, name: str, /, *args: Any, env_id: Any = None, **kwargs: Any) -> None:
        """Begin to call a method, or to read an attribute, as `call` does; `call_wait` returns the results."""
        self._begin_call("call_async", name, env_id, args, kwargs)

    def _begin_call(self, what: str, name: str, env_id: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._check_idle(what)
        check_method(what, name)
        env_ids = read_env_ids(what, env_id, self.num_envs)
        self._pool.abandon_calls()  # calls of an interrupted `call_wait`
        count = self.num_envs if env_ids is None else len(env_ids)
        functions = [GetOrCall(name, tuple(args), dict(kwargs))] * count
        is_pure = what in _READS  # other calls may change the env, and reach spare envs, too
        self._ask(what, self._pool.submit_calls, functions, env_ids, pure=is_pure)
        self._pending = "call"

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the call that `call_async` began; return one result per env that was called, as `call` does.

        Args:
            timeout: seconds to wait for all results; after that they are abandoned. None (default): no limit.

        Raises:
            NoAsyncCallError: `call_async` was not called before.
            WorkerTimeoutError: the results did not arrive within the timeout.
            Exception: raised by the method, as by `call`.
        """
        self._check_pending("call")
        check_timeout("timeout", timeout)
        self._pending = None
        return tuple(self._ask("call", self._pool.collect_calls, timeout))

    def get_attr(self, name: str, env_id: Any = None) -> tuple[Any, ...]:
        """Return an attribute of every env, or of the envs `env_id` in their order; see `call`."""
        return self._call("get_attr", name, env_id, (), {})

    def set_attr(self, name: str, values: Any, env_id: Any = None) -> None:
        """Set an attribute of every env, or of some.

        Args:
            name: name of the attribute. It is set on the wrapper or env that has it, else on the outermost wrapper.
            values: a list or tuple with one value per env, ordered as `env_id`, or one value for all.
            env_id: as for `call`.

        Raises:
            ConfigError: the list does not have one value per env.
            Exception: as `call`.
        """
        self._check_idle("set_attr")
        check_name("set_attr", name)
        env_ids = read_env_ids("set_attr", env_id, self.num_envs)
        self._pool.abandon_calls()  # calls of an interrupted `call_wait`
        count = self.num_envs if env_ids is None else len(env_ids)
        each = values if isinstance(values, list | tuple) else [values] * count
        if len(each) != count:
            raise ConfigError(f"set_attr: expected {count} values, one per env, got {len(each)}", key=name)
        functions = [SetAttribute(name, value) for value in each]
        self._ask("set_attr", self._pool.call_each, functions, env_ids, name=f"set_attr {name}")

    def render(self, env_id: Any = None) -> tuple[Any, ...]:
        """Return the result of the `render` of each env, ordered by env_id, or of those of `env_id` in this order."""
        return self._call("render", "render", env_id, (), {})

    @property
    def observations(self) -> Any:
        """A copy of the last observations of all envs. An env that raised has its observation from before that.

        None after a `recv` or `step` of some envs, and if an env raised before its first observation.
        """
        return self.results.observations


class EnvSeeds:
    """The seeds of a pool's envs: `last` has the one that each env was given last, or None if it is unknown."""

    def __init__(self, num_envs: int) -> None:
        self.last: tuple[int | None, ...] = (None,) * num_envs

    def record(self, seeds: Sequence[int | None], env_ids: Sequence[int]) -> None:
        """Keep the seeds of resets that were sent, one seed or None per env."""
        self._keep({env_id: seed for env_id, seed in zip(env_ids, seeds) if seed is not None})

    def note(self, batch: Batch) -> None:
        """Keep the seeds in the rows of resets; among them are those that were drawn."""
        flags = batch.row_flags & (RowFlag.RESET | RowFlag.ERROR)
        rows = np.flatnonzero((flags == RowFlag.RESET) & (batch.seeds >= 0))
        if len(rows):
            self._keep(dict(zip(batch.env_ids[rows].tolist(), batch.seeds[rows].tolist())))

    def _keep(self, given: dict[int, int]) -> None:
        self.last = tuple(given.get(env_id, known) for env_id, known in enumerate(self.last))


def _first_of(deliver: Callable[..., Step], *args: Any) -> tuple[Any, dict[str, Any]]:
    """Return the observations and infos of a step, as a reset does."""
    return converted(lambda step: (step[0], step[4]), deliver, *args)


#: Names of the options of `VectorEnv`, and of those that have moved.
OPTION_NAMES = find_names(VectorEnv)
#: Options that would have no effect on most frameworks, or give results that these do not read.
FIXED_BY_ADAPTERS = ("autoreset_mode", "batch_size", "copy", "episode_statistics", "mark_autoreset")


def check_options(what: str, options: Mapping[str, Any], others: Iterable[str] = ()) -> None:
    """Raise ConfigError if `VectorEnv` lacks one of these options.

    The message begins with `what`; `others` are names of other arguments, one of which may have been meant.
    """
    for name in options:
        if name not in OPTION_NAMES:
            hint = suggest(name, {*OPTION_NAMES, *others})
            raise ConfigError(f"{what}: VectorEnv has no option {name!r}{hint}", key=str(name))


def check_adapter_options(
    what: str, framework: str, options: Mapping[str, Any], fixed: Iterable[str] = FIXED_BY_ADAPTERS
) -> None:
    """Raise ConfigError if `VectorEnv` lacks one of these options, or if the adapter of a framework sets it itself.

    The message begins with `what`; `fixed` are the names of the options that the adapter sets.
    """
    check_options(what, options)
    for name in fixed:
        if name in options:
            raise ConfigError(f"{what}: {name!r} has no effect on {framework}; leave it out", key=name)


def describe_wrong_vector_env(value: Any) -> str:
    """Describe an object that was given instead of a `VectorEnv`, for errors."""
    kind = type(value).__name__
    if isinstance(getattr(value, "unwrapped", None), VectorEnv):
        return f"got {kind}, a wrapper of one; give its `unwrapped`"
    return f"got {kind}"
