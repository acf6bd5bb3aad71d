"""`create_environment`: builds a batched environment by name, over a pool, in a thread or in the caller's thread."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from vecenv.alf.base.options import pool_options
from vecenv.alf.base.tensors import wants_tensors
from vecenv.alf.batched.parallel import ParallelAlfEnvironment
from vecenv.alf.batched.thread import ThreadEnvironment
from vecenv.alf.suite import apply_wrappers, load
from vecenv.alf.wrappers.batch import BatchedTensorWrapper, BatchEnvironmentWrapper, TensorWrapper
from vecenv.alf.wrappers.task import MultitaskWrapper
from vecenv.core.layout.flags import Autoreset
from vecenv.core.pool.backends import CHOOSING_BACKENDS
from vecenv.envs.seeding import check_seed
from vecenv.errors import ConfigError
from vecenv.saved_state import SavedState, StateLike
from vecenv.values.checks import check_callable, check_callables, check_flag, check_whole
from vecenv.values.signatures import parameters_of

_SEED_LIMIT = 2**31 - 1


def create_environment(
    env_name: str | Sequence[str] = "CartPole-v0",
    env_load_fn: Callable[..., Any] = load,
    eval_env_load_fn: Callable[..., Any] | None = None,
    for_evaluation: bool = False,
    num_parallel_environments: int = 30,
    batch_size_per_env: int | None = None,
    eval_batch_size_per_env: int | None = None,
    nonparallel: bool = False,
    flatten: bool = True,
    start_serially: bool = True,
    num_spare_envs: int = 0,
    torch_num_threads_per_env: int = 1,
    parallel_environment_ctor: Callable[..., Any] | None = None,
    seed: int | None = None,
    batched_wrappers: Sequence[Callable[[Any], Any]] = (),
    *,
    tensors: bool | None = None,
    resume: StateLike | None = None,
    **options: Any,
) -> Any:
    """Create a batched environment of `num_parallel_environments` envs.

    The result is a `ParallelAlfEnvironment`, with two exceptions. With `nonparallel`, the single env runs in a
    `ThreadEnvironment`, or in the caller's thread if the load function has an attribute `no_thread_env = True`. And a
    load function with an attribute `batched = True` builds batches itself: it is called with `batch_size=` and, in
    workers, with `env_id=` of its first env. If one such batch contains all envs, it is used directly, without workers.
    Both attributes are also found inside `functools.partial`.

    Args:
        env_name: passed to the load function. With a list of names each env is a `MultitaskWrapper` of these tasks.
        env_load_fn: called as `env_load_fn(env_name, env_id)`, or as described above. If its signature has
            `num_parallel_environments`, that is passed, too.
        eval_env_load_fn, eval_batch_size_per_env: used for evaluation instead of the other two. None (default): the
            same as for training.
        for_evaluation: whether the environment is for evaluation. Default: False.
        num_parallel_environments: number of envs in the batch, 30 by default.
        batch_size_per_env: number of envs that share a worker and are stepped there one after the other; a divisor of
            `num_parallel_environments`. None (default): all envs for a batched load function, else one worker
            per core.
        nonparallel: one env and no worker process. Default: False.
        num_spare_envs: number of additional envs that take the place of ended envs while these are reset, 0 by default.
        start_serially, flatten, torch_num_threads_per_env: as for `ParallelAlfEnvironment`.
        parallel_environment_ctor: called instead of `ParallelAlfEnvironment`.
        seed: env i gets seed + i if it can be seeded. Workers also seed the global generators of `random`, NumPy and
            torch with it before they build the env; if the env imports torch itself, torch's is seeded after that. None
            (default): different seeds, drawn from NumPy's global generator, so a `numpy.random.seed` before the call
            makes them reproducible.
        batched_wrappers: applied to the result in this order.
        tensors: whether time steps contain torch tensors. None (default): if torch is installed.
        resume: a file of the result's `save`, or what its `state_dict` has returned, where the environment continues;
            the other arguments must be the same, and `seed` not None if constructors draw. All envs are built twice.
            None (default): the environment is new.
        **options: options of `ParallelAlfEnvironment`, or of the constructor that replaces it: `timeouts`, `failures`,
            `num_workers`, `step_timeout` and so on. Without workers they are checked and have no effect.

    Example:
        >>> env = create_environment("CartPole-v1", num_parallel_environments=2, seed=3, tensors=False)
        >>> env.reset().observation.shape, env.seeds
        ((2, 4), (3, 4))
        >>> env.close()

    Raises:
        ConfigError: an argument is wrong, or two arguments contradict (a ValueError, and an AssertionError too).
        Exception: any error of the constructor of `ParallelAlfEnvironment` or of the load function.
    """
    check_callable("env_load_fn", env_load_fn)
    if eval_env_load_fn is not None:
        check_callable("eval_env_load_fn", eval_env_load_fn)
    if parallel_environment_ctor is not None:
        check_callable("parallel_environment_ctor", parallel_environment_ctor)
    wrappers = check_callables("batched_wrappers", batched_wrappers)
    per_eval = eval_batch_size_per_env
    if per_eval is not None:
        per_eval = check_whole("eval_batch_size_per_env", per_eval, 1)
    if check_flag("for_evaluation", for_evaluation):
        env_load_fn = eval_env_load_fn or env_load_fn
        batch_size_per_env = per_eval or batch_size_per_env
    is_batched = bool(_attribute(env_load_fn, "batched"))
    size = check_whole("num_parallel_environments", num_parallel_environments, 1)
    num_spare_envs = check_whole("num_spare_envs", num_spare_envs, 0)
    if batch_size_per_env is None:
        per_env = size if is_batched else 1
    else:
        per_env = check_whole("batch_size_per_env", batch_size_per_env, 1)
    nonparallel = check_flag("nonparallel", nonparallel)
    _check(size, per_env, num_spare_envs, nonparallel)
    if _asks_for(env_load_fn, "num_parallel_environments"):
        env_load_fn = functools.partial(env_load_fn, num_parallel_environments=size)
    if not isinstance(env_name, str):
        if not isinstance(env_name, Sequence) or not env_name:
            raise ConfigError(f"env_name: expected a name or a list of names, got {env_name!r}", key="env_name")
        if is_batched:
            raise ConfigError("env_name: a list of tasks needs a load function of single envs", key="env_name")
        env_load_fn = functools.partial(MultitaskWrapper.load, env_load_fn)
    if parallel_environment_ctor is None:
        _check_options(options)
    saved = None if resume is None else SavedState.read(resume)
    seeds = _draw_seeds(size + num_spare_envs, seed, per_env)
    if nonparallel or (is_batched and per_env == size):
        env = _create_without_workers(env_name, env_load_fn, size if is_batched else None, tensors)
        if env.can_seed:
            env.seed(seeds[0])
    else:
        # The pool lets envs share a worker without a batch of their own; other constructors may not.
        group = per_env if is_batched or parallel_environment_ctor is not None else 1
        constructors = [
            _Constructor(env_load_fn, env_name, group, is_batched, seeds[first])
            for first in range(0, size + num_spare_envs, group)
        ]
        kwargs: dict[str, Any] = {
            "start_serially": start_serially,
            "flatten": flatten,
            "num_spare_envs_for_reload": num_spare_envs,
            "torch_num_threads_per_env": torch_num_threads_per_env,
        }
        if parallel_environment_ctor is not None:
            env = parallel_environment_ctor(constructors, **kwargs, **options)
        else:
            if per_env > 1 and options.get("backend") not in CHOOSING_BACKENDS:
                options.setdefault("num_workers", size // per_env)
            env = ParallelAlfEnvironment(constructors, **kwargs, tensors=tensors, **options)
        if getattr(env, "can_seed", True):
            env.seed(seeds[::group])
    try:
        env = apply_wrappers("batched_wrappers", wrappers, env)
        if saved is not None:
            env.load_state_dict(saved.as_dict())
        return env
    except BaseException:
        env.close()
        raise


@dataclasses.dataclass(eq=False)
class _Constructor:
    """Loads one env, or a batch, after it has seeded the global generators, from which constructors may draw."""

    load_fn: Callable[..., Any]
    env_name: Any
    batch_size: int
    is_batched: bool
    seed: int
    maker: int = dataclasses.field(default_factory=os.getpid)

    def __call__(self, env_id: int) -> Any:
        """Load env `env_id`, in a worker, or in the caller's process, where the pool restores the global generators."""
        random.seed(self.seed)
        np.random.seed(self.seed % 2**32)
        with _torch_seeded(self.seed, is_guest=os.getpid() == self.maker):
            return self._load(env_id)

    def _load(self, env_id: int) -> Any:
        first = env_id * self.batch_size
        if self.is_batched:
            return self.load_fn(self.env_name, env_id=first, batch_size=self.batch_size)
        if self.batch_size == 1:
            return self.load_fn(self.env_name, env_id)
        return BatchEnvironmentWrapper([self.load_fn(self.env_name, first + i) for i in range(self.batch_size)])


@contextlib.contextmanager
def _torch_seeded(seed: int, is_guest: bool) -> Iterator[None]:
    """Seed torch's global generator before the body if torch is imported, or after the body if that imports torch.

    In the caller's process (`is_guest`) the generator is restored afterwards.
    """
    torch = sys.modules.get("torch")
    seed %= 2**64  # torch accepts no larger seeds
    if torch is not None and is_guest:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
        return
    if torch is not None:
        torch.manual_seed(seed)
    yield
    late = sys.modules.get("torch")
    if torch is None and late is not None and not is_guest:
        late.manual_seed(seed)


def _create_without_workers(
    env_name: Any, load_fn: Callable[..., Any], batch_size: int | None, tensors: bool | None
) -> Any:
    """Return the batch that a batched load function loads; or, without `batch_size`, one env as a batch."""
    if batch_size is not None:
        env = load_fn(env_name, batch_size=batch_size)
        return TensorWrapper(env) if wants_tensors(tensors) and not env.is_tensor_based else env
    if not _attribute(load_fn, "no_thread_env"):
        return ThreadEnvironment(functools.partial(load_fn, env_name), tensors=tensors)
    if wants_tensors(tensors):
        return BatchedTensorWrapper(load_fn(env_name))
    return BatchEnvironmentWrapper([load_fn(env_name)])


def _attribute(function: Any, name: str) -> Any:
    """Return an attribute of a function or of the functions inside its `functools.partial`s, or None."""
    while function is not None:
        if hasattr(function, name):
            return getattr(function, name)
        function = function.func if isinstance(function, functools.partial) else None
    return None


def _asks_for(function: Any, name: str) -> bool:
    """Return whether a function has an argument of this name that no `functools.partial` has set."""
    outer = function
    while isinstance(outer, functools.partial):
        if name in outer.keywords:
            return False
        outer = outer.func
    return name in (parameters_of(function) or ())


def _draw_seeds(count: int, seed: int | None, per_env: int) -> list[int]:
    """Return `count` different seeds; the `per_env` seeds of one batch are consecutive."""
    if seed is not None:
        seed = check_seed(seed)  # an integer that the module random accepts
        return [seed + i for i in range(count)]
    generator = np.random.default_rng(int(np.random.randint(_SEED_LIMIT)))
    firsts = generator.choice(_SEED_LIMIT // per_env, count // per_env, replace=False) * per_env
    return [first + i for first in firsts.tolist() for i in range(per_env)]


def _check_options(options: dict[str, Any]) -> None:
    """Raise ConfigError for an unknown option, also if the environment will have no workers."""
    own = inspect.signature(ParallelAlfEnvironment).parameters
    given = {name: value for name, value in options.items() if name not in own}
    others = {*own, *inspect.signature(create_environment).parameters}
    pool_options(given, options.get("timeouts"), options.get("failures"), others, autoreset=Autoreset.NEXT_STEP)


def _check(size: int, per_env: int, num_spares: int, nonparallel: bool) -> None:
    if size % per_env:
        raise ConfigError(
            f"batch_size_per_env: expected a divisor of {size} parallel environments, got {per_env}",
            key="batch_size_per_env",
        )
    if per_env > 1 and num_spares:
        raise ConfigError("num_spare_envs: spare envs need batch_size_per_env=1", key="num_spare_envs")
    if nonparallel and size != 1:
        raise ConfigError(
            f"nonparallel: expected num_parallel_environments=1, got {size}", key="num_parallel_environments"
        )


def no_thread_env_for_conf(
    no_thread_env_for_conf: bool, evaluate: bool, is_training_env_parallel: bool
) -> tuple[str | None, str | None]:
    """Return which environments a trainer creates in addition to its training environment.

        flag     evaluate   evaluation env   env for configurations
        True     True       'parallel'       None
        True     False      None             None
        False    True       'thread'         None: the evaluation env is used
        False    False      None             'thread' beside a parallel training env, else None

    Args:
        no_thread_env_for_conf: the flag of the table. True: do not create a thread env only to read configurations.
        evaluate: whether there will be evaluation.
        is_training_env_parallel: whether the training env is a `ParallelAlfEnvironment`.

    Returns:
        (evaluation env, env for configurations): 'parallel' for a `ParallelAlfEnvironment` of one env, 'thread' for a
        `ThreadEnvironment`, or None.

    Example:
        >>> no_thread_env_for_conf(False, evaluate=False, is_training_env_parallel=True)
        (None, 'thread')
    """
    if no_thread_env_for_conf:
        return ("parallel" if evaluate else None), None
    if evaluate:
        return "thread", None
    return None, ("thread" if is_training_env_parallel else None)
