"""BaseVectorEnv: the common base of the vector envs over a pool; it checks the order of asynchronous calls.

idle  --step_async, reset_async, call_async-->  pending  --the same `..._wait`-->  idle
idle or pending  --close-->  closed
"""

from __future__ import annotations

import abc
import contextlib
import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, ParamSpec, TypeVar

import gymnasium
import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded

from ..core.layout.flags import Op
from ..core.parent.batch import Batch
from ..core.pool.face import PoolFace
from ..core.pool.pool import Pool
from ..core.pool.recipe import PoolRecipe, values_of
from ..core.system.clock import check_timeout
from ..envs.state.generators import restore_generators, save_generators
from ..errors import ClosedError, ConfigError, DifferentSpacesError, SpaceError, StateError, warn_caller
from ..saved_state import SavedState
from .results import Step

__all__ = [
    "BaseVectorEnv",
    "ClosedVectorEnvError",
    "NoCallError",
    "PendingCallError",
    "check_method",
    "check_name",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Names of the spaces that callers may hold.
_SPACES = ("observation_space", "action_space", "single_observation_space", "single_action_space")
_NO_SPACES: Mapping[str, Any] = MappingProxyType({})
#: Value of `_pending` after `close`.
_CLOSED = "close"
#: Names of calls at the beginning of errors of pools.
_CALLS_OF_POOLS = ("send", "recv", "reset")
#: Methods that `call` refuses: the engine must see these calls.
_RESERVED_METHODS = ("reset", "step", "close")


class ClosedVectorEnvError(ClosedError, ClosedEnvironmentError):
    """A method was called after `close`. As all errors here, it is also that of `AsyncVectorEnv`."""


class PendingCallError(StateError, AlreadyPendingCallError):
    """An earlier call, `name`, such as 'step', is still outstanding and must be waited for first; or it was refused."""

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class NoCallError(StateError, NoAsyncCallError):
    """A `..._wait` was called without its `..._async`; `name` is 'step', 'reset' or 'call'."""

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


def check_method(what: str, name: str) -> None:
    """Raise ConfigError if `call` must not call this method, TypeError if `name` is no string."""
    check_name(what, name)
    if name in _RESERVED_METHODS:
        raise ConfigError(f"{what}: {name!r} is a method of the vector env itself, use envs.{name}()", key=name)


def check_name(what: str, name: Any) -> None:
    """Raise TypeError if `name` is not a string; `what` names the calling method."""
    if not isinstance(name, str):
        raise TypeError(f"{what}: expected the name of an attribute, got {name!r}")


class BaseVectorEnv(PoolFace, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector env over a pool: order of calls, and closing."""

    #: The asynchronous call whose `..._wait` must come next: 'step', 'reset' or 'call'; _CLOSED after `close`.
    _pending: str | None = None
    #: The space of one env's rewards, as the env or a layer under it declares it; None if a reward is one number.
    reward_space: Any = None
    closed = True  # True until the workers have started
    _recipe_of_pool: PoolRecipe
    _deliver_step: Callable[[Batch], Step]

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker, by worker_id. The id changes when a worker is replaced."""
        return self._pool.worker_pids

    @property
    def envs(self) -> list[Any]:
        """The objects that `env_fns` returned, in their order; only with `backend="serial"`.

        The list is a copy; the envs in it are those that are stepped.

        Raises:
            AttributeError: the envs live in worker processes.
        """
        envs: list[Any] | None = getattr(self._pool, "envs", None)
        if envs is None:
            raise AttributeError(
                f"{type(self).__name__} has no envs in this process: they live in its workers. Use call, get_attr and "
                "set_attr, or backend='serial'"
            )
        return envs

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """A copy of each env's random generator. Calls the envs, so it blocks as `get_attr` does."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each env's random generator. Calls the envs, so it blocks as `get_attr` does."""
        return self.get_attr("np_random_seed")

    @abc.abstractmethod
    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every env."""

    @property
    def pool(self) -> Pool:
        """The pool below, for the parts of vecenv that stand above vector envs; its calls are not checked here."""
        return self._pool

    # ---- start -------------------------------------------------------------------------------

    def _make_pool(self, saved: SavedState | None) -> Pool:
        """Make the pool, which continues a saved state if there is one."""
        pool = self._pool = self._recipe_of_pool.make(saved)
        self.env_fns = pool.env_fns
        return pool

    def _start_pool(self) -> None:
        pool = self._pool
        try:
            pool.start()
        except SpaceError as error:
            raise DifferentSpacesError(str(error), path=error.path) from error
        self.metadata = dict(pool.properties.get("metadata") or {})
        self.render_mode = pool.properties.get("render_mode")
        self.implementation = pool.implementation

    # ---- saving ------------------------------------------------------------------------------

    @functools.cached_property
    def extra_state(self) -> dict[str, Any]:
        """States of the parts of vecenv above this object, by name: saved with it, and replaced by a load."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all envs and of this object, from which another one continues; see `save`.

        Returns:
            A dict of plain values, for `torch.save({"model": model.state_dict(), "envs": envs.state_dict()}, path)`.

        Raises:
            StateError: as for `save`.
        """
        return self._save("state_dict").as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called: all envs are built again, and restored.

        Args:
            state: the result of `state_dict` of a vector env with the same `env_fns`.

        Raises:
            ConfigError: the state is damaged, or it does not fit; nothing was changed if it has another number of envs
                or another autoreset mode.
            Exception: as for the constructor; the vector env is closed then.
        """
        self._check_idle("load_state_dict")
        saved = SavedState.read(state)
        pool, spaces = self._pool, {name: space for name, space in vars(self).items() if name in _SPACES}
        self._make_pool(saved)
        try:
            pool.close()
            self._release_views()
            self._start()
            self._continue(saved, spaces)
        except BaseException:
            self._pending, self.closed = _CLOSED, True
            raise

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state into one file; another object with `resume=path` continues with the same results.

        The state contains all that decides the next results: each env and its random generators, seeds that are still
        to be given, lasting calls and attributes, and the generators of the spaces of this object. Envs of known
        classes are saved as they are. Others are saved by the actions since the start of their episode, which are
        repeated at the load and compared. `send` without `recv`: these steps are made again after the load. The number
        of workers and shards, threads, the start method and the backend may differ.

        The file replaces an older one when it is complete. It contains pickles, so load only files that you trust.
        `vecenv inspect FILE` prints its header.

        Raises:
            StateError: a `..._wait` is missing. With `backend="serial"` or `failures="raise"`: the class of an env is
                unknown, or calls have changed an env.
            ClosedEnvironmentError: the vector env is closed.
            OSError: the file cannot be written.
        """
        self._save("save").write(path)

    def _save(self, what: str) -> SavedState:
        self._check_idle(what)
        return self._ask(what, self._recipe_of_pool.save, self._pool, self._values)

    def _values(self) -> dict[str, Any]:
        return {"generators": save_generators(self), **self._save_front_end(), "extra_state": self.extra_state}

    def _continue(self, saved: SavedState | None, spaces: Mapping[str, Any] = _NO_SPACES) -> None:
        """Continue where a saved state ends, if there is one; called after the start.

        Args:
            saved: as for `_make_pool`.
            spaces: objects that the caller has, to be used in place of equal ones, by name.
        """
        vars(self).update(spaces)
        if saved is None:
            return
        try:
            values = values_of(saved)
            paths, generators = values["generators"]
            for _, path, _ in paths:
                getattr(self, path[0])  # some spaces are made when they are first read
            restore_generators([self], paths, generators)
            self._load_front_end(values)
            self.extra_state = values["extra_state"]
        except BaseException:
            self._pool.close()
            raise

    @abc.abstractmethod
    def _start(self) -> None:
        """Start the pool, and read its spaces."""

    @abc.abstractmethod
    def _save_front_end(self) -> dict[str, Any]:
        """Return the values beside those of the pool that the next results depend on; they can be pickled."""

    @abc.abstractmethod
    def _load_front_end(self, saved: dict[str, Any]) -> None:
        """Continue with the result of `_save_front_end`."""

    # ---- states ------------------------------------------------------------------------------

    def _check_idle(self, what: str) -> None:
        """Raise if the vector env is closed, or if the `..._wait` of an earlier call must come first."""
        if self._pending == _CLOSED:
            raise ClosedVectorEnvError(f"{what}: the vector env is closed")
        if self._pending is not None:
            name = self._pending
            raise PendingCallError(
                f"Calling `{what}` while waiting for a pending call to `{name}` to complete: call {name}_wait first",
                name=name,
            )

    @contextlib.contextmanager
    def _sync_call(self, what: str) -> Iterator[None]:
        """Run an asynchronous call and its wait as one: after an exception, such as Ctrl-C, no call is pending."""
        self._check_idle(what)
        try:
            yield
        except BaseException:
            if self._pending != _CLOSED:
                self._pending = None
            raise

    def _check_pending(self, name: str) -> None:
        """Raise unless `name` is the pending asynchronous call."""
        if self._pending == _CLOSED:
            raise ClosedVectorEnvError(f"{name}_wait: the vector env is closed")
        if self._pending != name:
            raise NoCallError(
                f"Calling `{name}_wait` without any prior call to `{name}_async`. Call {name}_async first", name=name
            )

    def _raise_as_gymnasium(self, what: str, error: StateError) -> NoReturn:
        """Raise the pool's StateError as the matching error of Gymnasium; its text begins with the caller's call."""
        name, _, text = str(error).partition(": ")
        if name in _CALLS_OF_POOLS and name != what and not isinstance(error, ResetNeeded):
            error.args = (f"{what}: {text}", *error.args[1:])
        if isinstance(error, ClosedError):
            raise ClosedVectorEnvError(str(error)) from error
        if what != "recv" and self._pool.outstanding() and not isinstance(error, ResetNeeded):
            raise PendingCallError(str(error), name=what) from error
        raise error

    def _ask(self, what: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a method of the pool; see `_raise_as_gymnasium`."""
        try:
            return function(*args, **kwargs)
        except StateError as error:
            self._raise_as_gymnasium(what, error)

    def _cancel_outstanding(self, what: str, ids: Sequence[int], ops: Collection[Op], noun: str) -> None:
        """Cancel outstanding operations of the pool's envs that will be reset now.

        Args:
            what, noun: the calling method, and a word for the pool's envs in the plural, for errors.
            ops: the operations to cancel. A step that is not among them is superseded by the reset in the pool.

        Raises:
            PendingCallError: another env has an outstanding operation; nothing was cancelled.
        """
        owed = {i: self._pool.owes(i) for i in range(self._pool.num_envs)}
        others = [i for i, op in owed.items() if op != Op.NONE and i not in ids]
        if others:
            raise PendingCallError(f"{what}: {noun} {others} still owe an answer; reset them, too", name=what)
        if left := [i for i, op in owed.items() if op in ops]:
            self._pool.cancel(left)

    # ---- steps -------------------------------------------------------------------------------

    def step_async(self, actions: Any) -> None:
        """Begin a step of all envs; `step_wait` returns its results. Raises as `step` does for wrong arguments."""
        self._check_idle("step_async")
        self._send("step_async", actions)
        self._pending = "step"

    def step_wait(self, timeout: float | None = None) -> Step:
        """Wait for the step that `step_async` began; return and raise as `step` does.

        Args:
            timeout: seconds to wait. After that the step is abandoned, and a reset of all envs must come next. None
                (default): no limit.

        Raises:
            NoAsyncCallError: `step_async` was not called before.
        """
        self._check_pending("step")
        return self._deliver_step(self._recv("step_wait", timeout))

    @abc.abstractmethod
    def _send(self, what: str, actions: Any) -> None:
        """Begin a step of all envs; `what` is the name of the calling method, for errors."""

    def _recv(self, what: str, timeout: float | None, env_ids: Any = None) -> Batch:
        check_timeout("timeout", timeout)
        self._pending = None
        return self._ask(what, self._pool.recv, timeout=timeout, env_ids=env_ids)

    # ---- end ---------------------------------------------------------------------------------

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the envs and end the workers; `close` passes its arguments to this method.

        A UserWarning shows that the `..._wait` of an asynchronous call is missing. Results of `send` are dropped.

        Args:
            timeout: seconds to wait for the workers to finish and to close their envs. Workers that take longer are
                killed. None (default): the `close` of the constructor's `timeouts`.
            terminate: kill the workers at once, without closing their envs.
        """
        check_timeout("timeout", timeout)
        pending, self._pending = self._pending, _CLOSED
        try:
            if pending not in (None, _CLOSED):
                warn_caller(
                    f"Calling `close` while waiting for a pending call to `{pending}` to complete. Its results are "
                    f"lost without {pending}_wait"
                )
        finally:  # warnings may be errors
            try:
                self._pool.close(0.0 if terminate else timeout)
            finally:  # the `close` of an env may raise
                self.closed = True
                self._release_views()

    def _release_views(self) -> None:
        """Drop all views of the ring, so that its memory can be freed while this object still exists."""

    def __len__(self) -> int:
        return self.num_envs

    def __repr__(self) -> str:
        name = type(self).__name__
        if "num_envs" not in vars(self):
            return f"{name}(not built)"
        return f"{name}({self._pool.describe(None if self.spec is None else self.spec.id, self.num_envs)})"

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            with contextlib.suppress(Exception):  # the interpreter may be shutting down
                self.close()
