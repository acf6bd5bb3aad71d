"""ParallelAlfEnvironment: many environments in worker processes as one batched environment.

    step(action) -> Pool.send -> workers step -> rows in shared memory -> Assembler -> TimeStep

Two ways to begin the next episode of an env that has ended:

    in lockstep    with the next step: the worker resets it while the others step
    ahead          right after its LAST step, while the caller thinks; see `spare_envs`. With spare
                   envs one that stands ready takes its seat, so the next step does not wait

Results are the same either way, resets in between included: one that finds an episode begun ahead and
not yet shown shows that. In lockstep a step costs less (20 % with 64 CartPoles), ahead a slow reset
does; so which one is taken follows from how long the first resets took. Not the same are resets with
spare envs or with new seeds: ahead, the envs may have begun an episode that nobody sees. How many have
does not depend on time.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from vecenv.alf.base.actions import fit_action, fit_actions
from vecenv.alf.base.environment import AlfEnvironment
from vecenv.alf.base.infos import to_alf_infos
from vecenv.alf.base.options import pool_options
from vecenv.alf.base.spec import zeros_of
from vecenv.alf.base.tensors import to_arrays, to_tensors, wants_tensors
from vecenv.alf.base.timestep import TimeStep
from vecenv.alf.batched.adapter import adapt, describe
from vecenv.alf.batched.assemble import Assembler
from vecenv.alf.batched.spare_envs import SpareEnvs
from vecenv.checks import check_choice, check_flag, check_whole
from vecenv.core.layout.rows import Autoreset, RowFlag
from vecenv.core.layout.spec import Leaf
from vecenv.core.options import check_env_fns
from vecenv.core.parent.batch import Batch
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.core.system.clock import now_ns
from vecenv.envs.factory import EnvFactory
from vecenv.envs.remote import CallMethod
from vecenv.envs.seeding import check_seed
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.errors import ConfigError, SpaceError
from vecenv.nested import map_structure
from vecenv.options import FailurePolicy, Timeouts
from vecenv.vector.infos import InfoReader

__all__ = ["ParallelAlfEnvironment"]

_BACKENDS: dict[str, Callable[..., Pool]] = {"process": ProcessPool, "serial": SerialPool}
_LOG = logging.getLogger(__name__)
_SEED_LIMIT = 2**31
#: What envs in workers cannot be asked for: they may be stepped below their time steps.
_RESERVED_METHODS = ("reset", "step", "close", "seed", "get_info", "current_time_step")
#: Reset of one env from which on it pays to reset ahead.
_SLOW_RESET_NS = 1_000_000
_INFO_FLAGS = RowFlag.INFO | RowFlag.MESSAGE


class ParallelAlfEnvironment(AlfEnvironment):
    """B environments, stepped together, several in each worker process.

    Time steps are batched and belong to the caller. A step after an env's LAST one returns the
    FIRST of its next episode and ignores its action. A worker that dies or hangs is replaced, and its
    envs go on where they were; an episode that cannot be brought back ends with a LAST step of discount 1,
    all k of them where a batch of k was lost. An exception of an env is raised as itself,
    with the remote traceback; the next `step` or `reset` then starts all episodes anew. An action that
    does not fit is refused before anything is stepped, and changes nothing.

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
        seeds: the seed that each env was last given, None where it got none; spare envs last.
        implementation: 'native' or 'python', the code that moves the data.
    """

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
        timeouts: Timeouts | Mapping[str, Any] | None = None,
        failures: FailurePolicy | Mapping[str, Any] | None = None,
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
                and take the place of envs that end, which are reset and become spare.
            torch_num_threads_per_env: threads that numeric libraries may use in a worker, 1 by default.
            reset_ahead: whether envs that have ended are reset at once, while the caller computes the next actions.
                None (default): yes with spare envs, and if a reset of one env takes more than 1 ms when all are reset.
            tensors: whether time steps contain torch tensors. None (default): if torch is installed. Actions may be
                arrays or tensors.
            backend: 'process' (default), or 'serial' for envs in this thread.
            timeouts: time limits, a `vecenv.Timeouts` or a dict of its fields. Default: `construct` 60 s, `close` 5 s,
                no limit for the others.
            failures: the policy for workers that die or hang, a `vecenv.FailurePolicy` or a dict of its fields.
                Default: both are recovered.
            **options: options of the pool (`num_workers`, `threads_per_worker`, `context`, `depth`, ...), as for
                `vecenv.VectorEnv`, and the fields of the two above one by one: `step_timeout`, `reset_timeout`,
                `construct_timeout`, `call_timeout`, `close_timeout` (seconds, None: no limit), `on_failure`,
                `max_restarts`, ... With spare envs each env has a worker of its own unless `num_workers` is given, so
                that a slow reset delays no other env.

        Raises:
            ConfigError: an argument is wrong, an option is given twice, or the environments differ (a ValueError, and
                an AssertionError too).
            SpaceError: the specs of two environments differ (a ValueError).
            WorkerTimeoutError, WorkerDiedError: a constructor hung or died.
            Exception: raised by a constructor.
        """
        constructors = check_env_fns(env_constructors, "env_constructors")
        for name, value in (("start_serially", start_serially), ("blocking", blocking), ("flatten", flatten)):
            check_flag(name, value)
        if reset_ahead is not None:
            check_flag("reset_ahead", reset_ahead)
        self._num_spares = _check_spares(num_spare_envs_for_reload, len(constructors), blocking)
        self._wants_ahead = False if blocking else (self._num_spares > 0 or reset_ahead)
        check_choice("backend", backend, tuple(_BACKENDS))
        self._tensors = wants_tensors(tensors)
        if self._num_spares and options.get("num_workers") is None:
            options["num_workers"] = len(constructors)
        options.setdefault("num_threads", check_whole("torch_num_threads_per_env", torch_num_threads_per_env, 1))
        env_fns = [EnvFactory(build, kwargs={"env_id": env_id}) for env_id, build in enumerate(constructors)]
        fixed = pool_options(options, timeouts, failures, autoreset=Autoreset.NEXT_STEP)
        self._pool = _BACKENDS[backend](env_fns, fixed, adapt=adapt, snapshotter=SNAPSHOTTER)
        self._pool.start()
        try:
            self._read_descriptions()
        except BaseException:
            self._pool.close()
            raise
        self.implementation = self._pool.implementation
        self.seeds: tuple[int | None, ...] = (None,) * len(constructors)
        self._next_seeds: list[int | None] | None = None
        self._was_reset = False

    def _read_descriptions(self) -> None:
        """Ask the environments what they are like, and prepare for it."""
        pool = self._pool
        found = pool.call(describe)
        description = self._description = found[0]
        for env_id, other in enumerate(found):
            if other.specs != description.specs or other.batch_size != description.batch_size:
                raise ConfigError(f"env {env_id}: its specs or batch size differ from those of env 0")
        if description.batch_size is not None and self._wants_ahead:
            raise ConfigError("reset_ahead, spare envs: for single envs only; a batch resets its own")
        num_rows = pool.num_envs - self._num_spares
        self._size = num_rows * (description.batch_size or 1)
        self._assembler = Assembler(pool, description, self._size)
        self._infos = InfoReader(pool.observation_space)
        self._spare_envs = SpareEnvs(pool, num_rows)
        self._resets_ahead = bool(self._wants_ahead)
        root = pool.action_spec.root
        self._action_dtype = root.dtype if isinstance(root, Leaf) and description.batch_size is None else None
        self._action_shape = (self._size, *root.shape) if isinstance(root, Leaf) else None
        self._spec_dtype = getattr(description.specs.prev_action, "dtype", None)

    # ---- stepping ----------------------------------------------------------------------------

    def step(self, action: Any) -> TimeStep:
        """Step all envs; return their time steps as one batch.

        Args:
            action: nested like the action spec, arrays or tensors with B rows.

        Raises:
            SpaceError: the action does not fit; nothing was stepped.
            WorkerTimeoutError, WorkerDiedError: an env is over its limit, or its worker has gone.
            Exception: raised by an env.
        """
        if self._current_time_step is None:
            return self.reset()
        given, prev_action = self._read(to_arrays(action))
        before, self._current_time_step = self._current_time_step, None  # until this has gone well
        try:
            (self._spare_envs if self._resets_ahead else self._pool).send(given)
        except SpaceError:  # nothing was stepped
            self._current_time_step = before
            raise
        if self._resets_ahead:
            time_step = self._build(self._spare_envs, self._spare_envs.recv(), prev_action, self._spare_envs.infos())
        else:
            time_step = self._build_batch(self._pool.recv(), prev_action)
        self._current_time_step = time_step
        return time_step

    def _step(self, action: Any) -> TimeStep:
        return self.step(action)

    def _build_batch(self, batch: Batch, prev_action: Any) -> TimeStep:
        infos: dict[str, Any] = {}
        if batch.flags & (_INFO_FLAGS | RowFlag.ERROR):
            batch.raise_errors()
            infos = self._infos.read(batch)
        return self._build(batch.rows, batch.flags, prev_action, infos)

    def _build(self, rows: Any, flags: int, prev_action: Any, infos: dict[str, Any]) -> TimeStep:
        if infos:
            infos = to_alf_infos(infos, self._description.batch_size)
        time_step = self._assembler.build(rows, flags, prev_action, infos)
        return to_tensors(time_step) if self._tensors else time_step

    def _read(self, action: Any) -> tuple[Any, Any]:
        """Return an action as the pool wants it, and as the previous one of the next time step."""
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
            shape = (self._pool.num_envs, self._description.batch_size)  # both: -1 fails for empty arrays
            return map_structure(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), prev_action), prev_action
        # the env's own dtypes, which may be wider than the specs'
        leaves = iter(self._pool.action_spec.leaves)
        given = map_structure(lambda spec, leaf: fit_action(spec, leaf, next(leaves).dtype, outer), specs, action)
        return given, prev_action

    # ---- resetting ---------------------------------------------------------------------------

    def _reset(self) -> TimeStep:
        pool = self._pool
        has_time_step, self._current_time_step = self._current_time_step is not None, None
        no_action = zeros_of(self.action_spec(), (self._size,))
        if has_time_step and self._resets_ahead:
            self._spare_envs.wait_for_resets()  # how far an env is must not depend on how fast it was
            if self._next_seeds is None and not self._num_spares and self._spare_envs.has_undelivered():
                flags = self._spare_envs.reset_others()
                return self._build(self._spare_envs, flags, no_action, self._spare_envs.infos())
        elif pool.outstanding():  # something failed
            pool.cancel()
        seeds = self._next_seeds
        if seeds is None and not self._was_reset and self._description.can_seed:
            first = secrets.randbelow(_SEED_LIMIT - pool.num_envs)
            _LOG.info("unseeded reset: env i gets seed %d + i", first)
            seeds = [first + env_id for env_id in range(pool.num_envs)]
        start_ns = now_ns()
        pool.reset(seeds=seeds, draw_seeds=self.can_seed)
        batch = pool.recv()
        reset_ns = (now_ns() - start_ns) * max(1, self.num_workers) / pool.num_envs
        batch.raise_errors()
        if seeds is not None:
            self.seeds, self._next_seeds = tuple(seeds), None
        self._was_reset = True
        if self._wants_ahead is None and self._description.batch_size is None:
            self._resets_ahead = reset_ns > _SLOW_RESET_NS
        if not self._resets_ahead:
            return self._build_batch(batch, no_action)
        self._spare_envs.start(batch)
        return self._build(self._spare_envs, batch.flags, no_action, self._spare_envs.infos())

    def seed(self, seed: Sequence[int] | int) -> None:
        """Seed the envs at the next reset; if that raises, at the one after it.

        Args:
            seed: one per constructor, spare envs included, or a number s for s + i.

        Raises:
            ConfigError: another number of seeds, or one that is no integer of at least 0 (a ValueError).
            NotImplementedError: the envs cannot be seeded.
        """
        if not self.can_seed:
            raise NotImplementedError(f"{self.task_names[0]} has no seed")
        count = self._pool.num_envs
        seeds = [seed + i for i in range(count)] if isinstance(seed, int | np.integer) else list(seed)
        if len(seeds) != count:
            raise ConfigError(f"seed: expected {count}, one per env, spare ones included, got {len(seeds)}", key="seed")
        self._next_seeds = [check_seed(one) for one in seeds]

    # ---- what it is ----------------------------------------------------------------------------

    def observation_spec(self) -> Any:
        """Return the specs of one env."""
        return self._description.specs.observation

    def action_spec(self) -> Any:
        """Return the specs of one env."""
        return self._description.specs.prev_action

    def reward_spec(self) -> Any:
        """Return the spec of one env."""
        return self._description.specs.reward

    def env_info_spec(self) -> Any:
        """Return the specs of one env."""
        return self._description.specs.env_info

    @property
    def batched(self) -> bool:
        """True."""
        return True

    @property
    def batch_size(self) -> int:
        """B, spare envs not counted."""
        return self._size

    @property
    def is_tensor_based(self) -> bool:
        """Whether time steps hold tensors."""
        return self._tensors

    @property
    def num_tasks(self) -> int:
        """As env 0."""
        return int(self._description.num_tasks)

    @property
    def task_names(self) -> list[str]:
        """As env 0."""
        return list(self._description.task_names)

    @property
    def can_seed(self) -> bool:
        """Whether the envs can be seeded."""
        return bool(self._description.can_seed)

    @property
    def metadata(self) -> dict[str, Any]:
        """As env 0."""
        return dict(self._description.metadata)

    @property
    def num_spare_envs_for_reload(self) -> int:
        """How many envs wait for another's end."""
        return self._num_spares

    @property
    def num_workers(self) -> int:
        """How many worker processes there are; 0 with the serial backend."""
        return len(self._pool.worker_pids)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker."""
        return self._pool.worker_pids

    # ---- further -------------------------------------------------------------------------------

    def call_envs_with_same_args(self, func_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every env, spare ones last; return the results by env.

        Raises:
            ConfigError: a method that this environment has to know about.
            AttributeError: the envs have no such method.
            Exception: raised by the method.
        """
        if func_name in _RESERVED_METHODS:
            raise ConfigError(f"call: use {func_name}() of the batched environment itself", key=func_name)
        return self._pool.call(CallMethod(func_name, args, kwargs))

    def render(self, mode: str = "rgb_array") -> Any:
        """Render what env 0 shows."""
        return self._pool.call(CallMethod("render", (mode,)), [int(self._spare_envs.env_ids[0])])[0]

    def sync_progress(self) -> None:
        """Tell every env."""
        self.call_envs_with_same_args("sync_progress")

    def close(self) -> None:
        """End all workers within `close_timeout` seconds, by force if need be; may be called again."""
        self._pool.close()

    def __del__(self) -> None:
        if "_pool" in self.__dict__:
            with contextlib.suppress(Exception):  # the interpreter may be half gone
                self.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError("a ParallelAlfEnvironment cannot be pickled or copied; build one from its env_constructors")


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
