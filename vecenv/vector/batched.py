"""BatchedVectorEnv: vector envs of k envs each, in worker processes, as one vector env of all these envs.

    env_fn()   a gymnasium.vector.VectorEnv of k envs, in a worker        W of them
    step       one command per batch, one call of its `step`, one copy of each of its arrays
    caller     W * k envs: env w * k + j is number j of batch w

`envs/batched.py` is its counterpart in the workers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

from ..core.advice.facts import SettingNames
from ..core.layout.flags import Autoreset, Op, RowFlag
from ..core.layout.rows import RowRange
from ..core.layout.spec import Array, Leaf, copy_spaces
from ..core.options import DEFAULT_START_METHOD, PoolOptions
from ..core.parent.batch import Batch
from ..core.parent.leases import NUM_LEASES
from ..core.pool.recipe import PoolRecipe
from ..envs.batched import VectorEnvDescription, adapt_batched, describe_vector_env, read_drawn_seeds
from ..envs.remote import CallBatch, SetBatchAttribute, render
from ..envs.state.state import SNAPSHOTTER
from ..errors import ConfigError, StateError, convert_rows
from ..gymnasium_api.reward_spaces import reward_shape_of
from ..options import EngineLike, FailuresLike, TimeoutsLike
from ..ray_options import RayOptions
from ..saved_state import SavedState, StateLike
from ..statistics import Shards, Statistics
from ..values.checks import check_flag
from ..values.nested import map_structure
from .arguments import check_without_mask, one_of, read_env_ids, read_mask, read_seeds
from .base import BaseVectorEnv, check_method, check_name
from .batched_data import final_infos, flatten, join_infos, pick_rows, split_actions
from .nested import merge, own, view
from .options import read_pool_options
from .results import Step

__all__ = ["BatchedVectorEnv"]

#: Largest number of blocks whose views are cached; a ring has fewer.
_MAX_VIEWS = 64
#: Steps between two snapshots of the vector envs. The pool sees no ends of their episodes, so none can trigger one.
_SNAPSHOT_INTERVAL = 500
#: Rows of observations (W, k, *S); observations, rewards, terminations, truncations (N, ...).
_Views = tuple[Any, Any, Array, Array, Array]


class BatchedVectorEnv(BaseVectorEnv, gymnasium.vector.VectorEnv[Any, Any, Any]):  # named twice, as in `VectorEnv`
    """W vector envs of k envs each, in worker processes, stepped together.

    For envs that are vectorised themselves: in NumPy, in C++, on a GPU. The vector envs do the autoresets and produce
    the infos. Observations have the dtypes of their spaces, rewards are float64, terminations and truncations bool.

    A worker that dies or hangs is replaced, and its batches are restored: the new worker repeats the commands since
    the batch's last reset with seeds for all its envs, or since its last snapshot. Snapshots are taken every 500 steps
    of Gymnasium's CartPoleVectorEnv, of classes with `get_state()` and `set_state(state)`, and of classes with a state
    adapter (`vecenv.register_state_adapter`, `vecenv.register_pickled_state`). A state must include the episodes in
    progress. Without such a reset or snapshot, or if the repeated results differ, all episodes of the batch that have
    not ended are truncated, and new ones begin according to the autoreset mode. Errors, log lines and reports number
    the batches, not the envs in them.

    Example:
        >>> import functools
        >>> from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
        >>> envs = BatchedVectorEnv([functools.partial(CartPoleVectorEnv, 8)] * 2, backend="serial")
        >>> obs, infos = envs.reset(seed=7)
        >>> obs, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
        >>> obs.shape, rewards.shape, infos
        ((16, 4), (16,), {})
        >>> envs.close()

    Attributes:
        num_envs: number of envs in all batches.
        batch_size: k, number of envs in one batch.
        seeds: the seed that each batch was given last: an int, a list of k, or None. Seeds that were drawn in a first
            reset without seeds are here, too, so `reset(seed=envs.seeds[0])` repeats a run that began unseeded.
        implementation: 'native' or 'python', the code that moves the data.
    """

    _setting_names = SettingNames(overlap="", spare_envs="", infos="", collect="")

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.vector.VectorEnv[Any, Any, Any]]],
        *,
        backend: str | RayOptions = "process",
        num_workers: int | str | None = None,
        copy: bool = True,
        mark_autoreset: bool = False,
        context: str | None = None,
        timeouts: TimeoutsLike = None,
        failures: FailuresLike = None,
        checks: str | None = None,
        engine: EngineLike = None,
        resume: StateLike | None = None,
        **moved: Any,
    ) -> None:
        """Start the workers and build all vector envs.

        Args:
            env_fns: one constructor per batch; all batches have the same size and spaces.
            backend, num_workers, copy, mark_autoreset, context, timeouts, failures, checks, engine, resume, **moved: as
                for `vecenv.VectorEnv`. A limit of one env is here the limit of one batch, `infos["recovered"]` is the
                same for all envs of a batch, and of `recycle_after` only 'rss_mb' can be used.

        Raises:
            ConfigError: an argument is wrong, an option is given twice, or there are too few resources.
            WrongTypeError: a keyword is unknown (also a ConfigError and a TypeError).
            SpaceError: the batches' sizes or spaces differ (also a RuntimeError).
            TypeError: a constructor returned an object that is not a vector env.
            WorkerTimeoutError, WorkerDiedError: a constructor hung or died.
            Exception: raised by a constructor, with the remote traceback as its cause.
        """
        self.copy = check_flag("copy", copy)
        marks_autoreset = check_flag("mark_autoreset", mark_autoreset)
        backend, common = read_pool_options(
            BatchedVectorEnv, moved, backend=backend, timeouts=timeouts, failures=failures, checks=checks, engine=engine
        )
        if "episodes" in (common["failures"].recycle_after or ()):
            raise ConfigError(
                "recycle_after: episodes of batched envs are not counted, as they begin and end within a batch; use "
                "'rss_mb'",
                key="recycle_after",
            )
        options = PoolOptions(
            num_workers=num_workers,
            autoreset=Autoreset.NEXT_STEP,  # The pool resets abandoned batches only.
            leases=NUM_LEASES if self.copy else 0,
            context=DEFAULT_START_METHOD if context is None else context,
            warns_of_views=not self.copy,
            **common,
        )
        self._recipe_of_pool = PoolRecipe("BatchedVectorEnv", backend, env_fns, options, SNAPSHOTTER, adapt_batched)
        saved = None if resume is None else SavedState.read(resume)
        pool = self._make_pool(saved)
        self._start()
        self.seeds: tuple[Any, ...] = (None,) * pool.num_envs
        self._new_batches = set(range(pool.num_envs))  # no reset of them was received yet
        self._reset_batches: Array | None = None  # batches of the pending reset, None for all
        self._partial_batches: list[int] = []  # batches in which only some envs are reset
        self._last_obs_rows: Any = None
        self._num_steps = 0
        # Bool (N,), True where the last step ended an episode that the next step resets; None if rows are not marked.
        self._ended = np.zeros(self.num_envs, np.bool_) if marks_autoreset else None
        self._continue(saved)
        self.closed = False

    def _start(self) -> None:
        pool = self._pool
        self._start_pool()
        try:
            found: list[VectorEnvDescription] = pool.call(describe_vector_env, pure=True)
            inner = found[0]
            for batch_id, other in enumerate(found):
                if other.autoreset_mode != inner.autoreset_mode:
                    raise ConfigError(
                        f"env_fns[{batch_id}]: its autoreset mode is {other.autoreset_mode}, that of env_fns[0] "
                        f"{inner.autoreset_mode}",
                        key="env_fns",
                    )
        except BaseException:
            pool.close()
            raise
        self._views: dict[Any, _Views] = {}
        self._node = pool.obs_spec.root.children[0]  # type: ignore[union-attr]  # a tuple, see BatchedEnv
        self._is_plain = isinstance(self._node, Leaf)
        self.batch_size = inner.num_envs
        self.num_envs = inner.num_envs * pool.num_envs
        self._obs_space, self._action_space = inner.observation_space, inner.action_space
        shown = copy_spaces(inner.observation_space, inner.action_space)  # the caller may change these
        self.single_observation_space, self.single_action_space = shown
        self.reward_space = inner.reward_space if reward_shape_of(inner.reward_space) else None
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        # The shape of an action that is one array, for the fast path in `_rows_of`; None for nested actions.
        shape = getattr(inner.action_space, "shape", None) if isinstance(pool.action_spec.root, Leaf) else None
        self._plain_shape = None if shape is None else (self.num_envs, *shape)
        self.autoreset_mode = inner.autoreset_mode
        # In DISABLED mode ended envs are reset by mask, which repeats the other batches' last observations. The caller
        # could change these if they were lent, so nothing is lent.
        is_reset_by_mask = inner.autoreset_mode == AutoresetMode.DISABLED
        self._resets_in_next = inner.autoreset_mode == AutoresetMode.NEXT_STEP
        self._resets_at_once = inner.autoreset_mode == AutoresetMode.SAME_STEP
        make_views = functools.partial(_make_views, self._obs_space)
        self._leases = pool.lend(make_views) if self.copy and not is_reset_by_mask else None
        self._row_shape = (pool.num_envs, self.batch_size, *(shape or ()))

    def _release_views(self) -> None:
        self._views.clear()
        self._leases = self._last_obs_rows = None

    def _save_front_end(self) -> dict[str, Any]:
        last = self._last_obs_rows
        return {
            "last_obs": None if last is None else own(self._node, last),
            "ended": self._ended,
            "seeds": self.seeds,
            "new_batches": self._new_batches,
            "num_steps": self._num_steps,
        }

    def _load_front_end(self, saved: dict[str, Any]) -> None:
        self._last_obs_rows, self.seeds, self._num_steps = saved["last_obs"], saved["seeds"], saved["num_steps"]
        self._new_batches = set(saved["new_batches"])
        if self._ended is not None and saved["ended"] is not None:
            self._ended = saved["ended"].copy()

    def statistics(self) -> Statistics:
        """Return counts and times since the start, as `VectorEnv.statistics`.

        Times are those of whole batches, by batch, and restored episodes count once per batch.
        """
        found = self._pool.statistics()
        return dataclasses.replace(found, steps=found.steps * self.batch_size)

    def shards(self) -> Shards:
        """Return the state of every shard, as `VectorEnv.shards`; `env_ids` are those of single envs."""
        size, found = self.batch_size, Shards()
        for info in self._pool.shards():
            env_ids = tuple(i * size + row for i in info.env_ids for row in range(size))
            found.append(info._replace(env_ids=env_ids))
        return found

    # ---- stepping ----------------------------------------------------------------------------

    def step(self, actions: Any) -> Step:
        """Step all envs and wait for them.

        Args:
            actions: nested like the action space, leaves (N, *S): one row per env.

        Returns:
            (obs, rewards, terminations, truncations, infos): observations nested like the observation space, leaves
            (N, *S); rewards float64 (N,), or (N, *K) with a `reward_space` of several numbers; terminations and
            truncations bool (N,); and a dict of arrays (N, ...).

        Raises:
            Exception: as `VectorEnv.step`.
        """
        # The same as step_async and step_wait, with less work between waking the workers and the wait: a worker may
        # have no core until this process sleeps.
        if self._pending is not None:
            self._check_idle("step")
        rows = self._rows_of(actions)
        try:
            batch = self._pool.step(rows)
        except StateError as error:
            self._raise_as_gymnasium("step", error)
        return self._deliver_step(batch)

    def _send(self, what: str, actions: Any) -> None:
        self._ask(what, self._pool.send, self._rows_of(actions))

    def _rows_of(self, actions: Any) -> Any:
        """Return actions of N envs as rows of W batches, and request snapshots if they are due before this step."""
        self._num_steps += 1
        if self._num_steps % _SNAPSHOT_INTERVAL == 0 and not self._pool.outstanding():  # else the step will be refused
            self._pool.take_snapshots()
        if type(actions) is np.ndarray and actions.shape == self._plain_shape:
            return actions.reshape(self._row_shape)
        return split_actions(self._action_space, actions, self.batch_size, self.num_envs)

    def _deliver_step(self, batch: Batch) -> Step:
        if batch.flags & RowFlag.ERROR:
            self._raise_errors(batch, self._deliver_step)
        if batch.flags and (batch.flags & RowFlag.REPEATS or batch.truncated.any()):  # set by the pool only
            return self._deliver_abandoned(batch)
        views = self._views.get(batch.rows) or self._cached_views(batch)
        self._last_obs_rows, obs, rewards, terminations, truncations = views
        infos = join_infos(self._infos_by_batch(batch), self.batch_size) if batch.flags else {}
        if self._ended is not None:
            infos["autoreset"], self._ended = self._ended, self._will_reset(terminations | truncations)
        if not self.copy:
            return obs, rewards, terminations, truncations, infos
        lent = None if self._leases is None else self._leases.take(batch.rows)
        if lent is not None:
            rows, obs, rewards, terminations, truncations = lent
            if self._is_plain:
                obs = obs[:]
            else:
                obs = flatten(self._obs_space, view(self._node, rows, slice(None)))
            return obs, rewards[:], terminations[:], truncations[:], infos
        timer = self._pool.copy_timer
        if timer is not None:
            obs = timer.run(len(batch), self._own, self._last_obs_rows)
        else:
            obs = obs.copy() if self._is_plain else self._own(self._last_obs_rows)
        return obs, rewards.copy(), terminations.copy(), truncations.copy(), infos

    def _deliver_abandoned(self, batch: Batch) -> Step:
        """Deliver a step in which some batches could not be restored, or have raised.

        All episodes of a batch that the pool has truncated are truncated. In NEXT_STEP mode, episodes whose end was
        delivered in the step before are not ended again. If these are all episodes of a batch, its next ones begin in
        this step, and in SAME_STEP mode they always do. If their reset raises, the next step resets that batch again,
        and `rows` of the exception contain the ends of the episodes.
        """
        rows, _, rewards, terminations, truncations = _make_views(self._obs_space, batch)
        ends = np.repeat(batch.truncated, self.batch_size)
        already_ended: Array = ends & (terminations | truncations) & self._resets_in_next  # ends of the last step
        is_all_ended = np.all(already_ended.reshape(-1, self.batch_size), axis=1)
        has_raised = np.repeat((batch.row_flags & RowFlag.REPEATS) != 0, self.batch_size) & ~ends
        terminations = terminations & ~(ends | has_raised)
        truncations, rewards = ((truncations & ~has_raised) | ends) & ~already_ended, rewards.copy()
        infos = self._infos_by_batch(batch)
        abandoned = np.flatnonzero(batch.truncated)
        rows = own(self._node, rows)
        first: Batch | None = None
        begins = abandoned if self._resets_at_once else abandoned[is_all_ended[abandoned]]
        if len(begins):
            last = flatten(self._obs_space, own(self._node, rows))
            finals = list(iterate(batch_space(self._obs_space, self.num_envs), last))
            # To the pool, the step after an end is a reset that ignores its action. If it raises, the next step is
            # a reset, too.
            self._pool.send_objects([None] * len(begins), begins)
            first = self._pool.recv()
            has_begun = (first.row_flags & RowFlag.ERROR) == 0
            rows = merge(self._node, rows, first.obs[0], begins)
            begins = begins[has_begun]
            for i, info in zip(begins.tolist(), self._infos_by_batch(first.take(np.flatnonzero(has_begun)))):
                own_finals = finals[i * self.batch_size : (i + 1) * self.batch_size]
                infos[i] = info if is_all_ended[i] else {**(info or {}), **final_infos(own_finals, infos[i] or {})}
        self._last_obs_rows = rows
        obs = flatten(self._obs_space, rows)
        joined = join_infos(infos, self.batch_size)
        if self._ended is not None:
            ended = terminations | truncations | ends  # the next step resets all envs of a lost batch
            ended.reshape(-1, self.batch_size)[begins] = False
            joined["autoreset"], self._ended = self._ended, self._will_reset(ended)
        result = obs, rewards, terminations, truncations, joined
        if first is not None and first.flags & RowFlag.ERROR:
            first.raise_errors(lambda _: result, num_rows=len(batch), rows_per_env=self.batch_size)
        return result

    def _will_reset(self, ended: Array) -> Array:
        """Return the envs that the next step resets, of those whose episode has ended; bool (N,)."""
        return ended if self._resets_in_next else np.zeros_like(ended)

    def _raise_errors(self, batch: Batch, deliver: Callable[[Batch], Any]) -> None:
        """Raise the exception of the first batch that raised; its `rows` are what `deliver` returns."""
        is_known = self._last_obs_rows is not None
        try:
            batch.raise_errors(deliver, num_rows=self._pool.num_envs, rows_per_env=self.batch_size)
        finally:
            if not is_known:  # a batch that raised may have had no observation yet
                self._last_obs_rows = None

    def _cached_views(self, batch: Batch) -> _Views:
        """Return views of a batch, cached per block: to make them costs more than to copy the data."""
        views = _make_views(self._obs_space, batch)
        if type(batch.rows) is RowRange and not self._pool.obs_spec.num_objects and len(self._views) < _MAX_VIEWS:
            self._views[batch.rows] = views
        return views

    def _own(self, rows: Any) -> Any:
        """Return W rows of k envs as observations of N envs, copied if `copy` is True."""
        return flatten(self._obs_space, own(self._node, rows) if self.copy else rows)

    def _infos_by_batch(self, batch: Batch) -> list[dict[str, Any] | None]:
        """Return the infos of each batch, or None; add a mask to the pool's "recovered", as envs' infos have one."""
        found = [info or None for info in batch.infos()]
        for info in found:
            if info is not None and "recovered" in info:
                info["_recovered"] = np.ones(self.batch_size, np.bool_)
        return found

    # ---- resetting ---------------------------------------------------------------------------

    def reset(
        self, env_id: Any = None, *, seed: Any = None, options: dict[str, Any] | None = None, env_ids: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every env, or in some of them; returns and raises as `VectorEnv.reset` does.

        Operations of these batches that exceeded a `timeout` of a `..._wait` are cancelled.

        Args:
            env_id, env_ids: distinct ids of the envs to reset, or a single id. The result has rows of these envs only,
                in this order. Their batches are reset by `reset_mask`. None (default): all envs, or those of a mask.
            seed: if an int, batch w gets `seed + w * k`. A vector env that counts up from its seed then gives env i
                `seed + i`. If a list of N, batch w gets its k items as a list, or no seed if all are None. None
                (default): generators continue; the first reset draws seeds, see `seeds`.
            options: passed to every batch. `reset_mask`, bool (N,), selects the envs to reset: each batch gets its k
                items, and a batch without a True is not reset. Its rows repeat the last observations; if these were
                lent without a copy, the caller's changes to them appear here, except in DISABLED autoreset mode. If a
                batch cannot be restored during a reset, all its envs begin new episodes and `infos["recovered"]`
                contains 'restarted' for them.
        """
        self._check_idle("reset")
        ids = read_env_ids("reset", one_of("reset", env_id, env_ids), self.num_envs)
        if ids is not None:
            check_without_mask("reset", options)
            options = {**(options or {}), "reset_mask": np.isin(np.arange(self.num_envs), ids)}
        with self._sync_call("reset"):
            self._begin_reset("reset", seed, options)
            if ids is None:
                return self.reset_wait()
            try:
                return self._pick(self.reset_wait(), ids)
            except Exception as error:
                convert_rows(error, lambda result: self._pick(result, ids), ids)
                raise

    def _pick(self, result: tuple[Any, dict[str, Any]], ids: Array) -> tuple[Any, dict[str, Any]]:
        obs, infos = result
        return pick_rows(self._obs_space, obs, ids), {**map_structure(lambda column: column[ids], infos), "env_id": ids}

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Begin a reset; `reset_wait` returns its results. Arguments are those of `reset`."""
        self._begin_reset("reset_async", seed, options)

    def _begin_reset(self, what: str, seed: Any, options: dict[str, Any] | None) -> None:
        self._check_idle(what)
        env_ids, rest = read_mask(options, self.num_envs)
        each: list[dict[str, Any]] = [{} if rest is None else {"options": rest} for _ in range(self._pool.num_envs)]
        asked, partial_batches = None, []
        if env_ids is not None:
            masks = np.isin(np.arange(self.num_envs), env_ids).reshape(-1, self.batch_size)
            asked = np.flatnonzero(masks.any(1))
            for i, own_mask in enumerate(masks):
                if not own_mask.all():
                    partial_batches.append(i)
                    each[i] = {"options": {**(rest or {}), "reset_mask": own_mask}}
            if self._last_obs_rows is None:
                raise StateError(f"{what}: envs outside reset_mask have no observation yet; reset all envs first")
        seeds = self._read_seeds(seed)
        for kwargs, one in zip(each, seeds):
            if one is not None:
                is_of_all = "reset_mask" not in (kwargs.get("options") or {})
                is_of_all = is_of_all and not (isinstance(one, list) and None in one)
                kwargs["seed" if is_of_all else "seed_of_some"] = one
        chosen = range(self._pool.num_envs) if asked is None else asked.tolist()
        if self._pool.outstanding():
            self._cancel_outstanding(what, chosen, [Op.STEP, Op.RESET], "batches")
        self._ask(what, self._pool.reset, asked, kwargs=[each[i] for i in chosen], seeds_per_env=self.batch_size)
        self._record_seeds({i: seeds[i] for i in chosen})
        if self._ended is not None:
            self._ended[slice(None) if env_ids is None else env_ids] = False
        self._reset_batches, self._partial_batches, self._pending = asked, partial_batches, "reset"

    def _read_seeds(self, seed: Any) -> list[Any]:
        """Return the seed of each batch: an int, a list of k, or None."""
        size, count = self.batch_size, self._pool.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + i * size for i in range(count)]
        seeds = read_seeds(seed, self.num_envs)
        shares = [seeds[start : start + size] for start in range(0, self.num_envs, size)]
        return [None if all(one is None for one in share) else share for share in shares]

    def _record_seeds(self, given: dict[int, Any]) -> None:
        """Keep the seeds that were sent to batches in `seeds`. An env without a new seed keeps its old one."""
        known = list(self.seeds)
        for i, one in given.items():
            before = known[i]
            if isinstance(one, list) and None in one and before is not None:
                each = before if isinstance(before, list) else range(before, before + self.batch_size)
                one = [old if new is None else new for new, old in zip(one, each)]
            known[i] = before if one is None else one
        self.seeds = tuple(known)

    def _note_drawn_seeds(self, batch_ids: list[int]) -> None:
        """Keep the seeds that were drawn in the first reset of batches that lacked seeds."""
        new = [(i, self.seeds[i]) for i in batch_ids if i in self._new_batches]
        lacking = [i for i, seed in new if seed is None or (isinstance(seed, list) and None in seed)]
        self._new_batches.difference_update(batch_ids)
        if lacking:
            found = self._pool.call(read_drawn_seeds, lacking, pure=True)
            self._record_seeds(dict(zip(lacking, found)))

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the reset that `reset_async` began; see `VectorEnv.reset_wait`."""
        self._check_pending("reset")
        asked = self._reset_batches
        last = None if self._last_obs_rows is None else own(self._node, self._last_obs_rows)
        batch = self._recv("reset_wait", timeout)  # may end the validity of views of the ring
        deliver = functools.partial(self._deliver_reset, asked=asked, last=last)
        if batch.flags & RowFlag.ERROR:
            self._raise_errors(batch, deliver)
        return deliver(batch)

    def _deliver_reset(self, batch: Batch, asked: Array | None, last: Any) -> tuple[Any, dict[str, Any]]:
        """Return the results of a reset: a row per batch of `asked` (None: all); `last`: the rows before, or None."""
        self._note_drawn_seeds(batch.env_ids[(batch.row_flags & RowFlag.REPEATS) == 0].tolist())
        rows = batch.obs[0]
        if asked is not None and last is not None:
            rows = merge(self._node, last, rows, asked)
        self._last_obs_rows = rows
        infos = self._infos_by_batch(batch)
        if asked is not None:
            by_id = dict(zip(asked.tolist(), infos))
            infos = [by_id.get(i) for i in range(self._pool.num_envs)]
        for i in self._partial_batches:  # an abandoned batch is reset as a whole, also outside the mask
            if (info := infos[i]) is not None and info.get("recovered") == "truncated":
                info["recovered"] = "restarted"
                if self._ended is not None:
                    self._ended.reshape(-1, self.batch_size)[i] = False
        return self._own(rows), join_infos(infos, self.batch_size)

    # ---- calling -----------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method, or read an attribute, of every env; blocks until all batches have answered.

        Arguments and errors are those of `VectorEnv.call`, without `env_id`.

        Returns:
            One result per env if the vector envs have a `call` method, as Gymnasium's have. Otherwise one result per
            batch: the value of the vector env's own method or attribute.
        """
        return self._call("call", name, *args, **kwargs)

    def _call(self, what: str, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call as `call` does for a method of the name `what`, which error messages begin with."""
        self._check_idle(what)
        check_method(what, name)
        functions = [CallBatch(name, args, kwargs)] * self._pool.num_envs
        results = self._ask(what, self._pool.call_each, functions, pure=what == "get_attr")
        if all(is_each for is_each, _ in results):
            return tuple(value for _, values in results for value in values)
        return tuple(values for _, values in results)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every env, or of every batch; see `call`."""
        return self._call("get_attr", name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env, or of every batch if the vector envs have no `set_attr` of their own.

        `values` is a list or tuple with one value per env, or one value for all.

        Raises:
            ConfigError: the list does not have one value per env; or it is a list and the vector envs have no
                `set_attr`, so that they accept only one value for all.
        """
        self._check_idle("set_attr")
        check_name("set_attr", name)
        each = [values] * self._pool.num_envs
        is_each = isinstance(values, list | tuple)
        if is_each:
            if len(values) != self.num_envs:
                raise ConfigError(
                    f"set_attr: expected {self.num_envs} values, one per env, got {len(values)}", key=name
                )
            size = self.batch_size
            each = [values[i : i + size] for i in range(0, self.num_envs, size)]
        assignments = [SetBatchAttribute(name, value, is_each) for value in each]
        # Kept beyond the next reset.
        self._ask("set_attr", self._pool.call_each, assignments, name=f"set_attr {name}")

    def render(self) -> tuple[Any, ...]:
        """Return one frame per env; None for each env of a batch that renders nothing."""
        self._check_idle("render")
        found = self._ask("render", self._pool.call_each, [render] * self._pool.num_envs, pure=True)
        return tuple(frame for frames in found for frame in ([None] * self.batch_size if frames is None else frames))


def _make_views(space: Any, batch: Batch) -> _Views:
    """Return views of a batch; `space` is the observation space of one env."""
    rows, terminations, truncations = batch.obs
    obs = flatten(space, rows)
    rewards = batch.rewards
    rewards = rewards.reshape(-1, *rewards.shape[2:])  # (W, k, *K), or (W,) with k = 1
    return rows, obs, rewards, terminations.reshape(-1), truncations.reshape(-1)
