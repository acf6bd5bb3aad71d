"""ParallelAlfEnvironment: many environments in worker processes as one batched environment.

    step(action) -> Pool.send -> workers step -> rows in shared memory -> Assembler -> TimeStep

There are two ways to reset an env that has ended:

    in lockstep    within the next step: its worker resets it while the other envs step
    ahead          right after its LAST step, while the caller computes the next actions; see `SpareEnvs` of the pool.
                   With spare envs, one that is already reset takes its row, so the next step does not wait

In lockstep a step is cheaper (by 40 % with 64 CartPoles). Ahead, a slow reset costs less time. Without spare envs, both
ways give the same results. A reset by the caller delivers an episode that was begun ahead, unless it has new seeds.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vecenv.alf.base.actions import fit_action, fit_actions
from vecenv.alf.base.environment import AlfEnvironment, FixedSpecs
from vecenv.alf.base.infos import to_alf_infos
from vecenv.alf.base.options import pool_options
from vecenv.alf.base.spec import zeros_of
from vecenv.alf.base.tensors import to_arrays, to_tensors, wants_tensors
from vecenv.alf.base.timestep import TimeStep
from vecenv.alf.batched.adapter import adapt, describe
from vecenv.alf.batched.assemble import Assembler
from vecenv.alf.wrappers.base import forwarded
from vecenv.core.advice.facts import SettingNames
from vecenv.core.layout.flags import Autoreset, RowFlag
from vecenv.core.layout.messages import copy_value
from vecenv.core.layout.spec import Leaf
from vecenv.core.options import check_env_fns
from vecenv.core.parent.batch import Batch
from vecenv.core.pool.backends import BACKENDS
from vecenv.core.pool.face import PoolFace
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.recipe import PoolRecipe, values_of
from vecenv.core.spares.resets import SpareRule
from vecenv.envs.factory import EnvFactory
from vecenv.envs.remote import CallMethod
from vecenv.envs.seeding import check_seed, episode_seed
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.errors import ClosedError, ConfigError, SpaceError
from vecenv.options import FailuresLike, TimeoutsLike
from vecenv.ray_options import RayOptions, read_backend
from vecenv.saved_state import SavedState, StateLike
from vecenv.values.checks import check_choice, check_flag, check_whole
from vecenv.values.nested import map_structure
from vecenv.vector.infos import InfoReader

#: Methods that cannot be called in workers: these may step the Gymnasium env below the AlfEnvironment.
_RESERVED_METHODS = ("reset", "step", "close", "seed", "get_info", "current_time_step")
_INFO_FLAGS = RowFlag.INFO | RowFlag.MESSAGE
_description_of = operator.attrgetter("_description")


class ParallelAlfEnvironment(PoolFace, FixedSpecs, AlfEnvironment):
    """B environments in worker processes, stepped together.

    Time steps have a batch axis (B, ...) and belong to the caller. The step after an env's LAST step returns the FIRST
    step of its next episode and ignores its action.

    A worker that dies or hangs is replaced, and its envs are restored. An episode that cannot be restored ends with a
    LAST step of discount 1; in a batch of k envs, all k episodes end. An exception of an env is raised unchanged, with
    the remote traceback as its cause, and the next `step` or `reset` starts new episodes in all envs. An action that
    does not fit is refused before any env is stepped, and changes nothing.

    Example:
        >>> import functools
        >>> from vecenv.alf import load
        >>> constructor = functools.partial(load, "CartPole-v1")
        >>> with ParallelAlfEnvironment([constructor] * 3, tensors=False, backend="serial") as env:
        ...     env.seed([1, 2, 3])
        ...     first = env.reset()
        ...     second = env.step(np.zeros(3, np.int64))
        >>> first.observation.shape, second.step_type.tolist(), second.discount.tolist()
        ((3, 4), [1, 1, 1], [1.0, 1.0, 1.0])

    Attributes:
        seeds: the seed that each env was given last, or None, ordered by row; without spare envs.
        implementation: 'native' or 'python', the code that moves the data.
        num_spare_envs_for_reload: number of spare envs.
    """

    _setting_names = SettingNames(
        overlap="", spare_envs="num_spare_envs_for_reload=...", infos="", views="", collect=""
    )
    _recipe = "build one from its env_constructors"
    batched = True

    def __init__(
        self,
        env_constructors: Sequence[Callable[..., Any]],
        start_serially: bool = True,
        blocking: bool = False,
        flatten: bool = True,
        num_spare_envs_for_reload: int = 0,
        torch_num_threads_per_env: int = 1,
        *,
        reset_ahead: bool | None = None,
        tensors: bool | None = None,
        backend: str = "process",
        timeouts: TimeoutsLike = None,
        failures: FailuresLike = None,
        ray: RayOptions | Mapping[str, Any] | None = None,
        resume: StateLike | None = None,
        **options: Any,
    ) -> None:
        """Start the workers and build all environments.

        Args:
            env_constructors: each is called with `env_id=` in its worker and returns an `AlfEnvironment` of arrays,
                single or batched.
            start_serially, flatten: for callers of ALF, and without effect. Workers start at once, data travels flat.
            blocking: if True, an env that has ended is reset within the next step even if that takes long. Default:
                False.
            num_spare_envs_for_reload: how many of the envs are spare, 0 by default. Spare envs are reset in advance
                and take the place of envs that end, which are reset and become spare. Their order of use is that of
                `vecenv.VectorEnv.num_spare_envs`.
            torch_num_threads_per_env: threads that numeric libraries may use in a worker, 1 by default. Environment
                variables of these libraries, such as `OMP_NUM_THREADS`, win.
            reset_ahead: whether envs that have ended are reset at once, while the caller computes the next actions.
                None (default): only with spare envs, which are always reset at once. Slow resets cost less time with
                True, and fast ones with False. `blocking` excludes it.
            tensors: whether time steps contain torch tensors. None (default): if torch is installed. Actions may be
                arrays or tensors.
            backend: 'process' (default), 'serial' for envs in this thread, or 'auto' or 'ray' as for
                `vecenv.VectorEnv`.
            timeouts: time limits: seconds for a step or a reset, a `vecenv.Timeouts`, or a dict of its fields. Default:
                `construct` 60 s, `close` 5 s, no limit for the others.
            failures: the policy for workers that die or hang: a `vecenv.FailurePolicy`, a dict of its fields, or a
                value of `on_failure`. Default: both are recovered.
            ray: options of `backend="ray"`, a `vecenv.RayOptions` or a dict of its fields. Default: its defaults.
            resume: a file of `save`, or the result of `state_dict`, where the environment continues. The constructors
                must be the same; the number of workers and the backends 'process' and 'serial' may differ. None
                (default): all envs are new.
            **options: options of the pool (`num_workers`, `threads_per_worker`, `build`, `context`, `depth`, ...), as
                for `vecenv.VectorEnv`, and the fields of the two above one by one: `step_timeout`, `reset_timeout`,
                `construct_timeout`, `call_timeout`, `close_timeout` (seconds, None: no limit), `on_failure`,
                `max_restarts`, ... With spare envs each env has a worker of its own unless `num_workers` is given, so
                that a slow reset delays no other env.

        Raises:
            ConfigError: an argument is wrong, an option is given twice, the environments differ, or `resume` is damaged
                or does not fit (a ValueError, and an AssertionError too).
            SpaceError: the specs of two environments differ (a ValueError).
            WorkerTimeoutError, WorkerDiedError: a constructor hung or died.
            Exception: raised by a constructor.
        """
        constructors = check_env_fns(env_constructors, "env_constructors", "lambda env_id: vecenv.alf.load")
        for name, value in (("start_serially", start_serially), ("blocking", blocking), ("flatten", flatten)):
            check_flag(name, value)
        if reset_ahead is not None:
            check_flag("reset_ahead", reset_ahead)
        num_spares = _check_spares(num_spare_envs_for_reload, len(constructors), blocking)
        self.num_spare_envs_for_reload = num_spares
        num_rows = len(constructors) - num_spares
        check_choice("backend", backend, BACKENDS)
        self.is_tensor_based = wants_tensors(tensors)
        options.setdefault("num_threads", check_whole("torch_num_threads_per_env", torch_num_threads_per_env, 1))
        env_fns = [EnvFactory(build, kwargs={"env_id": env_id}) for env_id, build in enumerate(constructors)]
        fixed = pool_options(options, timeouts, failures, autoreset=Autoreset.NEXT_STEP)
        is_ahead = not blocking and bool(num_spares or reset_ahead)
        spares = SpareRule(num_spares, episode_seed, env_fns=env_fns[num_rows:]) if is_ahead else None
        self._is_ahead = is_ahead
        self._recipe_of_pool = PoolRecipe(
            "ParallelAlfEnvironment",
            read_backend(backend, ray),
            env_fns[:num_rows],
            fixed,
            SNAPSHOTTER,
            adapt,
            spares,
        )
        saved = None if resume is None else SavedState.read(resume)
        self._open(self._recipe_of_pool.make(saved), saved)

    def _open(self, pool: Pool, saved: SavedState | None) -> None:
        """Start a pool, and continue a saved state if there is one."""
        self._pool = pool
        pool.start()
        try:
            self._read_descriptions(self._is_ahead)
            values = {} if saved is None else values_of(saved)
            time_step = values.get("time_step")
            if time_step is not None and self.is_tensor_based:
                time_step = to_tensors(time_step)
            self._current_time_step = time_step
            self._assembler.known_infos = values.get("known_infos", self._assembler.known_infos)
        except BaseException:
            pool.close()
            raise
        self.implementation = pool.implementation
        self.seeds: tuple[int | None, ...] = values.get("seeds", (None,) * pool.num_envs)
        self._next_seeds: list[int] | None = values.get("next_seeds")
        self._was_reset = values.get("was_reset", False)

    def _read_descriptions(self, is_ahead: bool) -> None:
        """Get the descriptions of all rows' envs, check that they are equal, and build the parts that need them."""
        pool = self._pool
        found = pool.call(describe, pure=True)
        description = self._description = found[0]
        self._specs = copy_value(description.specs)  # the caller may change the nests
        for env_id, other in enumerate(found):
            if other.specs != description.specs or other.batch_size != description.batch_size:
                raise ConfigError(f"env {env_id}: its specs or batch size differ from those of env 0")
        if description.batch_size is not None and is_ahead:
            raise ConfigError("reset_ahead, spare envs: for single envs only; a batch resets its own")
        self._size = pool.num_envs * (description.batch_size or 1)
        self._assembler = Assembler(pool, description, self._size)
        self._infos = InfoReader(pool.spaces.observation_space)
        root = pool.action_spec.root
        self._action_dtype = root.dtype if isinstance(root, Leaf) and description.batch_size is None else None
        self._action_shape = (self._size, *root.shape) if isinstance(root, Leaf) else None
        self._spec_dtype = getattr(description.specs.prev_action, "dtype", None)

    # ---- stepping ----------------------------------------------------------------------------

    def step(self, action: Any) -> TimeStep:
        """Step all envs and wait for them; before the first reset, and after an error, reset instead.

        Args:
            action: nested like the action spec, arrays or tensors (B, *S).

        Returns:
            The time steps of all envs as one batch, ordered by env; arrays or tensors that belong to the caller.

        Raises:
            SpaceError: the action does not fit; nothing was stepped.
            WorkerTimeoutError: an env exceeded its limit and `on_failure` is 'raise'.
            WorkerDiedError: a worker died and `on_failure` is 'raise', or it could not be replaced.
            Exception: raised by an env, with the remote traceback as its cause.
        """
        if self._current_time_step is None:
            return self.reset()
        given, prev_action = self._read(to_arrays(action))
        before, self._current_time_step = self._current_time_step, None  # None if this step fails
        try:
            self._pool.send(given)
        except ClosedError:
            raise ClosedError("step: the environment is closed") from None
        except SpaceError:  # nothing was stepped
            self._current_time_step = before
            raise
        time_step = self._current_time_step = self._build_batch(self._pool.recv(), prev_action)
        return time_step

    def _step(self, action: Any) -> TimeStep:
        return self.step(action)

    def _build_batch(self, batch: Batch, prev_action: Any) -> TimeStep:
        infos: dict[str, Any] = {}
        if batch.flags & (_INFO_FLAGS | RowFlag.ERROR):
            if batch.flags & RowFlag.ERROR:
                deliver = functools.partial(self._build_batch, prev_action=prev_action)
                batch.raise_errors(deliver, rows_per_env=self._description.batch_size or 1)
            infos = to_alf_infos(self._infos.read(batch), self._description.batch_size)
        time_step = self._assembler.build(batch, prev_action, infos)
        return to_tensors(time_step) if self.is_tensor_based else time_step

    def _read(self, action: Any) -> tuple[Any, Any]:
        """Return an action in the pool's dtypes and shapes, and a copy of it as `prev_action` of the next time step."""
        dtype = self._action_dtype
        if (
            dtype is not None
            and type(action) is np.ndarray
            and action.dtype == dtype == self._spec_dtype
            and action.shape == self._action_shape
        ):
            return action, action.copy()
        specs, outer = self._description.specs.prev_action, (self._size,)
        prev_action = fit_actions(specs, action, outer)
        if self._description.batch_size is not None:
            shape = (self._pool.num_envs, self._description.batch_size)  # no -1, which fails for empty arrays
            return map_structure(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), prev_action), prev_action
        # the env's own dtypes may be wider than those of the specs
        leaves = iter(self._pool.action_spec.leaves)
        given = map_structure(lambda spec, leaf: fit_action(spec, leaf, next(leaves).dtype, outer), specs, action)
        return given, prev_action

    # ---- resetting ---------------------------------------------------------------------------

    def _reset(self) -> TimeStep:
        pool = self._pool
        self._current_time_step = None
        if pool.outstanding():  # an earlier step or reset failed
            pool.cancel()
        seeds = self._next_seeds
        pool.reset(seeds=seeds)
        batch = pool.recv()
        time_step = self._build_batch(batch, zeros_of(self.action_spec(), (self._size,)))
        if seeds is not None:
            self.seeds, self._next_seeds = tuple(seeds), None
        elif not self._was_reset:  # drawn by the pool
            self.seeds = tuple(None if one < 0 else one for one in batch.seeds.tolist())
        self._was_reset = True
        return time_step

    def seed(self, seed: Sequence[int] | int) -> None:
        """Set the seeds for the next reset; they are kept until a reset has succeeded.

        The seeds of spare envs are derived from those of rows; see `vecenv.VectorEnv.num_spare_envs`.

        Args:
            seed: a list with one seed per row; or an int, so that row i gets `seed + i`. The list may also have one
                seed per constructor; those of spare envs, which come last, are checked and not used.

        Raises:
            ConfigError: the number of seeds is wrong, or a seed is not an integer of at least 0 (a ValueError).
            NotImplementedError: the envs cannot be seeded.
        """
        if not self.can_seed:
            raise NotImplementedError(f"{self.task_names[0]} has no seed")
        count = self._pool.num_envs
        seeds = [seed + i for i in range(count)] if isinstance(seed, int | np.integer) else list(seed)
        with_spares = count + self.num_spare_envs_for_reload
        if len(seeds) not in (count, with_spares):
            hint = f", or {with_spares} with spare envs" if with_spares > count else ""
            raise ConfigError(f"seed: expected {count}, one per env{hint}, got {len(seeds)}", key="seed")
        self._next_seeds = [*map(check_seed, seeds)][:count]

    # ---- saving --------------------------------------------------------------------------------

    def _save_state(self, what: str) -> SavedState:
        self._check_open(what)
        return self._recipe_of_pool.save(self._pool, self._values)

    def _values(self) -> dict[str, Any]:
        return {
            "time_step": None if self._current_time_step is None else to_arrays(self._current_time_step),
            "known_infos": self._assembler.known_infos,
            "seeds": self.seeds,
            "next_seeds": self._next_seeds,
            "was_reset": self._was_reset,
        }

    def _check_state(self, saved: SavedState) -> None:
        self._check_open("load_state_dict")  # the recipe checks the state

    def _load_state(self, saved: SavedState) -> None:
        pool = self._recipe_of_pool.make(saved)
        self._pool.close()
        self._open(pool, saved)

    def _state_spaces(self) -> tuple[Any, Any]:
        return self._pool.spaces.observation_space, self._pool.spaces.action_space

    def _check_open(self, what: str) -> None:
        if self._pool.closed:
            raise ClosedError(f"{what}: the environment is closed")

    # ---- properties ----------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """B, the number of rows of a time step; spare envs are not counted."""
        return self._size

    num_tasks = forwarded("num_tasks", _description_of)
    can_seed = forwarded("can_seed", _description_of)

    @property
    def task_names(self) -> list[str]:
        return list(self._description.task_names)

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self._description.metadata)

    @property
    def num_workers(self) -> int:
        """Number of worker processes; 0 with the serial backend."""
        return len(self._pool.worker_pids)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker, by worker_id. The id changes when a worker is replaced."""
        return self._pool.worker_pids

    # ---- further -------------------------------------------------------------------------------

    def call_envs_with_same_args(self, func_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every env and wait for all results.

        Args:
            func_name: name of the method. 'reset', 'step', 'close', 'seed', 'get_info' and 'current_time_step' are
                refused.
            *args, **kwargs: passed to the method.

        Returns:
            One result per row; spare envs are called, too.

        Raises:
            ConfigError: the method is refused; call it on this environment instead.
            AttributeError: the envs have no such method.
            Exception: raised by the method.
        """
        if func_name in _RESERVED_METHODS:
            raise ConfigError(f"call: use {func_name}() of the batched environment itself", key=func_name)
        return self._pool.call(CallMethod(func_name, args, kwargs))

    def render(self, mode: str = "rgb_array") -> Any:
        """Render the env in row 0; `mode` is one of Gymnasium's render modes."""
        return self._pool.call(CallMethod("render", (mode,)), [0], pure=True)[0]

    def sync_progress(self) -> None:
        self.call_envs_with_same_args("sync_progress")

    def close(self) -> None:
        """Close the envs and end the workers; kill those that take longer than `close_timeout`. May be called again."""
        self._pool.close()

    def __del__(self) -> None:
        if "_pool" in self.__dict__:
            with contextlib.suppress(Exception):  # the interpreter may be shutting down
                self.close()


def _check_spares(num_spares: int, num_envs: int, blocking: bool) -> int:
    num_spares = check_whole("num_spare_envs_for_reload", num_spares, 0)
    if num_spares >= num_envs:
        raise ConfigError(
            f"num_spare_envs_for_reload: expected 0 .. {num_envs - 1}, less than there are envs, got {num_spares}",
            key="num_spare_envs_for_reload",
        )
    if num_spares and blocking:
        raise ConfigError("num_spare_envs_for_reload: spare envs need blocking=False", key="blocking")
    return num_spares
