"""VectorEnv: the engine as a `gymnasium.vector.VectorEnv`, a drop-in for `AsyncVectorEnv`.

    obs, infos = envs.reset(seed=0)                      Gymnasium: everybody waits for everybody
    obs, rewards, terminations, truncations, infos = envs.step(actions)

    envs.async_reset()                                   EnvPool: go on with whoever is done
    obs, rewards, terminations, truncations, infos = envs.recv(32)
    envs.send(actions, infos["env_id"])

Stands above the waist: it turns batches into Gymnasium's tuples, and holds Gymnasium's rules
about which call may follow which. All mechanism is the pool's.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from ..core.batch import Batch
from ..core.options import Limits, PoolOptions
from ..core.pool import Pool
from ..core.process import ProcessPool
from ..core.rows import Autoreset, Op
from ..core.serial import SerialPool
from ..envs.adapt import adapt
from ..errors import ClosedError, ConfigError, SpaceError, StateError
from .arguments import combine_spaces, read_autoreset_mode, read_mask, read_seeds, wants_same_spaces
from .errors import ClosedVectorEnvError, DifferentSpacesError, NoCallError, PendingCallError
from .inside import Assignment, Call, disguise, has_generator
from .results import Results, Step

__all__ = ["VectorEnv"]

_BACKENDS: dict[str, type[Pool]] = {"process": ProcessPool, "serial": SerialPool}
_LOG = logging.getLogger(__name__)
#: What is pending after `close`, for ever.
_CLOSED = "close"
#: Seeds drawn here stay below this, as some simulators ask.
_SEED_LIMIT = 2**31
#: Methods that `call` refuses: the engine has to know about them.
_NOT_BY_CALL = ("reset", "step", "close")


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """N envs in worker processes, stepped together or as they finish.

    The same seeds and actions give the same results as `gymnasium.vector.SyncVectorEnv`, whatever
    the backend and the number of workers. Rewards are float64, terminations and truncations bool.

    Example:
        >>> import gymnasium
        >>> envs = VectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2, backend="serial")
        >>> obs, infos = envs.reset(seed=7)
        >>> obs, rewards, terminations, truncations, infos = envs.step([0, 1])
        >>> obs.shape, rewards.tolist(), infos
        ((2, 4), [1.0, 1.0], {})
        >>> envs.close()

    Attributes:
        seeds: the seed that each env was last given, None where it got none. An unseeded first
            reset draws them: `reset(seed=envs.seeds[0])` then repeats the run.
        implementation: 'native' or 'python', what moves the data.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        *,
        backend: str = "process",
        num_workers: int | None = None,
        threads_per_worker: int = 1,
        copy: bool = True,
        context: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        depth: int = 3,
        step_timeout: float | None = None,
        reset_timeout: float | None = None,
        construct_timeout: float | None = 60.0,
        call_timeout: float | None = None,
        close_timeout: float = 5.0,
        strict: bool = False,
        debug: bool = False,
        max_concurrency: int | None = None,
        shared_memory: bool = True,
        daemon: bool = True,
        worker: None = None,
    ) -> None:
        """Build all envs; blocks at most `construct_timeout` seconds.

        Args:
            env_fns: one constructor per env; they travel to the workers by value.
            backend: 'process', or 'serial' for envs in this thread.
            num_workers: processes; None: one per usable core, at most one per env.
            threads_per_worker: envs that sleep or wait share a worker's threads.
            copy: whether arrays are yours; False: they are views, valid until `depth - 1` later
                batches have been received.
            context: start method, 'forkserver' (the default), 'spawn' or 'fork'.
            autoreset_mode: Gymnasium's.
            observation_mode: 'same', 'different' (same shapes and dtypes, other bounds), or
                (observation_space, single_observation_space).
            depth: batches that may be looked at with `copy=False`, at least 2.
            step_timeout, reset_timeout, construct_timeout, call_timeout, close_timeout: seconds
                that one operation of one env may take; None: no limit.
            strict: refuse actions and observations of other dtypes instead of converting them.
            debug: overwrite views when they expire.
            max_concurrency: as `num_workers`, by AsyncVectorEnv's name.
            shared_memory, daemon, worker: accepted for AsyncVectorEnv's callers; memory is always
                shared, workers always end with this process and may have children of their own.

        Raises:
            ConfigError: an argument is wrong, or there are too few resources.
            SpaceError: the envs' spaces differ (also a RuntimeError).
            WorkerTimeoutError, WorkerDiedError: a constructor hung or died.
            Exception: what a constructor raised, with the remote traceback as its cause.
        """
        self.closed = True  # until there is something to close
        if worker is not None:
            raise ConfigError("worker: vecenv runs workers of its own; wrap the env instead", key="worker")
        if backend not in _BACKENDS:
            raise ConfigError(f"backend: expected one of {tuple(_BACKENDS)}, got {backend!r}", key="backend")
        self.copy = copy
        self.observation_mode = observation_mode
        self.autoreset_mode = read_autoreset_mode(autoreset_mode)
        is_same = wants_same_spaces(observation_mode)
        options = PoolOptions(
            num_workers=max_concurrency if num_workers is None else num_workers,
            threads_per_worker=threads_per_worker,
            autoreset=Autoreset[self.autoreset_mode.name],
            depth=depth,
            strict=strict,
            context=context or "forkserver",
            debug=debug,
            limits=Limits(construct_timeout, reset_timeout, step_timeout, call_timeout, close_timeout),
        )
        pool = self._pool = _BACKENDS[backend](env_fns, options, adapt=adapt if is_same else disguise)
        self.env_fns = pool.env_fns
        self.num_envs = pool.num_envs
        self._start(is_same)
        self.metadata = {**(pool.properties.get("metadata") or {}), "autoreset_mode": self.autoreset_mode}
        self.render_mode = pool.properties.get("render_mode")
        self.implementation = pool.implementation
        self.worker_pids = pool.worker_pids
        self.seeds: tuple[int | None, ...] = (None,) * self.num_envs
        # The call that its `..._wait` has to end, with what that needs; _CLOSED in the end.
        self._pending: str | None = None
        self._waiting: Any = None
        self._was_reset = False
        self.closed = False

    def _start(self, is_same: bool) -> None:
        pool = self._pool
        try:
            pool.start()
        except SpaceError as error:
            raise DifferentSpacesError(str(error), path=error.path) from error
        try:
            found = [pool.observation_space] * self.num_envs
            if not is_same:
                found = pool.call(Call("observation_space"))
            self.observation_space, self.single_observation_space = combine_spaces(self.observation_mode, found)
        except BaseException:
            pool.close()
            raise
        self.single_action_space = pool.action_space
        self.action_space = batch_space(pool.action_space, self.num_envs)
        self._checks_ends = self.autoreset_mode == AutoresetMode.DISABLED
        self._results = Results(pool, found[0], self.copy, self._checks_ends)

    # ---- stepping ----------------------------------------------------------------------------

    def step(self, actions: Any, env_id: Any = None) -> Step:
        """Step envs and wait for them.

        Args:
            actions: nested like the action space, one row per env.
            env_id: the envs to step, as EnvPool has it; None: all. Infos then have `env_id`, and
                rows stand in this order unless other envs are under way as well.

        Returns:
            (obs, rewards, terminations, truncations, infos).

        Raises:
            SpaceError: the actions do not fit; nothing was stepped.
            AlreadyPendingCallError: an earlier call is not answered yet.
            StateError: an episode is over and autoreset_mode is DISABLED.
            WorkerTimeoutError: an env is over `step_timeout`; reset before the next step.
            WorkerDiedError: a worker has gone.
            Exception: what an env raised, with the remote traceback as its cause.
        """
        if self._pending is not None or self._checks_ends or env_id is not None:
            return self._step_with_care(actions, env_id)
        pool = self._pool
        try:
            pool.send(actions)
            batch = pool.recv()
        except StateError as error:
            self._explain("step", error)
        return self._results.deliver(batch)

    def _step_with_care(self, actions: Any, env_id: Any) -> Step:
        self._check_idle("step")
        if env_id is None:
            self._send("step", actions, None, ordered=True)
            return self._results.deliver(self._recv("step", None))
        self._send("step", actions, env_id, ordered=self._pool.outstanding() == 0)
        try:
            return self._results.deliver_some(self._pool.recv(len(env_id), exact=True))
        except StateError as error:
            self._explain("step", error)

    def step_async(self, actions: Any) -> None:
        """Begin a step of all envs; `step_wait` gives its results."""
        self._check_idle("step_async")
        self._send("step_async", actions, None, ordered=True)
        self._pending = "step"

    def step_wait(self, timeout: float | None = None) -> Step:
        """Wait for the step that `step_async` began; return and raise as `step` does.

        Args:
            timeout: seconds to wait; then the step is given up, and a reset must come next.
        """
        self._check_pending("step")
        return self._results.deliver(self._recv("step_wait", timeout))

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Begin to step envs without waiting; their results come by `recv`.

        Args:
            actions: one row per env asked, in the order of `env_ids`.
            env_ids: distinct ids; None: all.

        Raises:
            SpaceError: the actions do not fit; nothing was sent.
            AlreadyPendingCallError: one of these envs still owes an answer.
        """
        if self._pending is not None or self._checks_ends:
            self._check_idle("send")
            self._results.check_not_ended("send", env_ids)
        try:
            self._pool.send(actions, env_ids, ordered=False)
        except StateError as error:
            self._explain("send", error)

    def recv(self, min_count: int | None = None, timeout: float | None = None) -> Step:
        """Wait for results of `send` and `async_reset`, in the order in which envs finish.

        Args:
            min_count: return as soon as so many envs have answered, with all that have; None:
                all that owe an answer.
            timeout: seconds to wait; what was sent stays under way.

        Returns:
            (obs, rewards, terminations, truncations, infos) with B >= min_count rows;
            `infos["env_id"]`, int64 (B,), says whose.

        Raises:
            StateError: fewer than min_count envs owe an answer.
            WorkerTimeoutError: too few answers in time, or an env is over its limit.
            WorkerDiedError, Exception: as `step`.
        """
        if self._pending is not None:
            self._check_idle("recv")
        try:
            batch = self._pool.recv(min_count, timeout=timeout)
        except StateError as error:
            self._explain("recv", error)
        return self._results.deliver_some(batch)

    def _send(self, what: str, actions: Any, env_ids: Any, ordered: bool) -> None:
        self._results.check_not_ended(what, env_ids)
        try:
            self._pool.send(actions, env_ids, ordered=ordered)
        except StateError as error:
            self._explain(what, error)

    def _recv(self, what: str, timeout: float | None) -> Batch:
        self._pending = None
        try:
            return self._pool.recv(timeout=timeout)
        except StateError as error:
            self._explain(what, error)

    # ---- resetting ---------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every env, or in those of a mask.

        Steps that are under way by `send` are given up, and so is what has not answered in time.

        Args:
            seed: env i gets `seed + i`, or `seed[i]`; None: generators go on from where they are.
            options: passed to every env; `reset_mask`, bool (N,), is taken out before and says
                which envs are meant. The other rows of the result repeat the last observations.

        Returns:
            (obs, infos).

        Raises:
            ConfigError, TypeError: wrong number of seeds, or no proper mask.
            AlreadyPendingCallError, WorkerTimeoutError, WorkerDiedError, Exception: as `step`.
        """
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin a reset; `reset_wait` gives its results."""
        self._check_idle("reset_async")
        env_ids, options = read_mask(options, self.num_envs)
        if env_ids is not None and not self._results.has_last():
            raise StateError(
                "reset: rows outside reset_mask repeat the last observations of all envs, but the last batch was not "
                "of all; reset all envs, or some by async_reset(env_id)"
            )
        self._reset("reset_async", seed, options, env_ids, ordered=True)
        self._pending = "reset"
        self._waiting = env_ids

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the reset that `reset_async` began; return and raise as `reset` does.

        Args:
            timeout: seconds to wait; then the reset is given up, and another must come next.
        """
        self._check_pending("reset")
        env_ids, results = self._waiting, self._results
        if env_ids is None:
            obs, _, _, _, infos = results.deliver(self._recv("reset_wait", timeout))
            return obs, infos
        last = results.copy_last()  # a view of the ring may end with the next batch
        return results.deliver_into(last, self._recv("reset_wait", timeout), env_ids)

    def async_reset(
        self,
        env_id: Any = None,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Begin to reset envs without waiting; their first observations come by `recv`.

        Args:
            env_id: distinct ids; None: all.
            seed: as for `reset`; a list has one for each of the N envs, asked or not.
            options: passed to every env asked.
        """
        self._check_idle("async_reset")
        env_ids = None if env_id is None else np.atleast_1d(np.asarray(env_id, np.int64))
        self._reset("async_reset", seed, options, env_ids, ordered=False)

    def _reset(self, what: str, seed: Any, options: dict[str, Any] | None, env_ids: Any, ordered: bool) -> None:
        seeds = read_seeds(seed, self.num_envs)
        if ordered and self._pool.outstanding():
            self._give_up_resets()
        if seed is None and not self._was_reset:
            seeds = self._draw_seeds()
        chosen = range(self.num_envs) if env_ids is None else env_ids.tolist()
        asked = [seeds[env_id] for env_id in chosen]
        kwargs = None if options is None else [{"options": options}] * len(asked)
        try:
            self._pool.reset(env_ids, seeds=asked, kwargs=kwargs, ordered=ordered)
        except StateError as error:
            self._explain(what, error)
        given = {env_id: one for env_id, one in zip(chosen, asked) if one is not None}
        self.seeds = tuple(given.get(env_id, known) for env_id, known in enumerate(self.seeds))
        self._was_reset = True

    def _give_up_resets(self) -> None:
        """Forget resets that were not answered in time; the pool itself lets only steps be overtaken."""
        for env_id in range(self.num_envs):
            if self._pool._hub.owed(env_id)[0] == Op.RESET:
                self._pool._hub.cancel(env_id)

    def _draw_seeds(self) -> list[int | None]:
        """Draw the seeds of an unseeded first reset, so that they can be told.

        An env that has its generator already, as after a reset in its env_fn, keeps it.
        """
        first = secrets.randbelow(_SEED_LIMIT - self.num_envs)
        _LOG.info("unseeded reset: env i gets seed %d + i", first)
        has_own = self._pool.call(has_generator)
        return [None if has_own[env_id] else first + env_id for env_id in range(self.num_envs)]

    # ---- calling -----------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute; return the results by env_id."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Begin a call of a method, or the reading of an attribute; `call_wait` gives the results."""
        self._check_idle("call_async")
        if name in _NOT_BY_CALL:
            raise ConfigError(f"call: {name!r} is a method of the vector env itself, use envs.{name}()", key=name)
        try:
            self._pool.post([Call(name, *args, **kwargs)] * self.num_envs)
        except StateError as error:
            self._explain("call", error)
        self._pending = "call"

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the results of the call that `call_async` began.

        Args:
            timeout: seconds to wait for all of them; then they are given up.

        Raises:
            Exception: what the method raised in the lowest env, with the remote traceback.
        """
        self._check_pending("call")
        self._pending = None
        try:
            return tuple(self._pool.wait_calls(timeout))
        except StateError as error:
            self._explain("call", error)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every env or of the layers under it."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env.

        Args:
            name: set where it is found among the env's layers, else on the outermost.
            values: a list or tuple with one value per env, or one value for all.
        """
        self._check_idle("set_attr")
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ConfigError(f"set_attr: expected {self.num_envs} values, one per env, got {len(each)}", key=name)
        try:
            self._pool.call_each([Assignment(name, value) for value in each])
        except StateError as error:
            self._explain("set_attr", error)

    def render(self) -> tuple[Any, ...]:
        """Return what each env's `render` returns."""
        return self.call("render")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Copies of the envs' generators."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the envs' generators."""
        return self.get_attr("np_random_seed")

    # ---- states ------------------------------------------------------------------------------

    def _check_idle(self, what: str) -> None:
        """Raise if the vector env is closed, or waits for a `..._wait`."""
        if self._pending == _CLOSED:
            raise ClosedVectorEnvError(f"{what}: the vector env is closed")
        if self._pending is not None:
            name = self._pending
            raise PendingCallError(f"{what}: {name}_async was called before; call {name}_wait first", name=name)

    def _check_pending(self, name: str) -> None:
        if self._pending == _CLOSED:
            raise ClosedVectorEnvError(f"{name}_wait: the vector env is closed")
        if self._pending != name:
            raise NoCallError(f"{name}_wait: call {name}_async first", name=name)

    def _explain(self, what: str, error: StateError) -> NoReturn:
        """Raise the pool's complaint in Gymnasium's words."""
        if isinstance(error, ClosedError):
            raise ClosedVectorEnvError(str(error)) from error
        if what != "recv" and self._pool.outstanding():
            raise PendingCallError(str(error), name=what) from error
        raise error

    # ---- end ---------------------------------------------------------------------------------

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End envs and workers, by force if need be; `close` passes its arguments on to this.

        Args:
            timeout: seconds that workers have to end what they are doing and to close their envs,
                then they are killed; None: the constructor's `close_timeout`.
            terminate: kill the workers at once; their envs are not closed.
        """
        self._pending = _CLOSED
        self._pool.close(0.0 if terminate else timeout)

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            with contextlib.suppress(Exception):  # the interpreter may be half gone
                self.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError("a VectorEnv cannot be pickled or copied; build one from its env_fns")
