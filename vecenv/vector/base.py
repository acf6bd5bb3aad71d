"""BaseVectorEnv: what every vector env over a pool shares, its asynchronous calls' state before all.

    idle  --step_async, reset_async, call_async-->  pending  --the same `..._wait`-->  idle
    idle or pending  --close-->  closed

Stands between the pool and the vector envs' own steps, resets and calls.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import gymnasium
import numpy as np

from ..checks import check_choice
from ..core.layout.rows import Op
from ..core.options import PoolOptions
from ..core.pool.pool import Pool
from ..core.pool.process import ProcessPool
from ..core.pool.serial import SerialPool
from ..core.system.clock import check_timeout
from ..errors import ClosedError, ConfigError, SpaceError, StateError
from .errors import ClosedVectorEnvError, DifferentSpacesError, NoCallError, PendingCallError

__all__ = ["BaseVectorEnv", "check_method", "check_name"]

_Self = TypeVar("_Self", bound="BaseVectorEnv")

_BACKENDS: dict[str, Callable[..., Pool]] = {"process": ProcessPool, "serial": SerialPool}
#: What is pending after `close`, for ever.
_CLOSED = "close"
#: Methods that `call` refuses: the engine has to know about them.
_RESERVED_METHODS = ("reset", "step", "close")


def check_method(name: str) -> None:
    """Raise ConfigError if a method must not be called by `call`, TypeError if that is no name."""
    check_name("call", name)
    if name in _RESERVED_METHODS:
        raise ConfigError(f"call: {name!r} is a method of the vector env itself, use envs.{name}()", key=name)


def check_name(what: str, name: Any) -> None:
    """Raise TypeError for what is no name of an attribute."""
    if not isinstance(name, str):
        raise TypeError(f"{what}: expected the name of an attribute, got {name!r}")


class BaseVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector env over a pool: which call may follow which, and its end."""

    _pool: Pool
    #: The call that its `..._wait` has to end; _CLOSED in the end.
    _pending: str | None = None
    closed = True  # until there is something to close

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process id of each worker, by worker_id; another one once a worker has been replaced."""
        return self._pool.worker_pids

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Copies of the envs' generators."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the envs' generators."""
        return self.get_attr("np_random_seed")

    @abc.abstractmethod
    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every env, as the subclass has it."""

    # ---- start -------------------------------------------------------------------------------

    def _make_pool(
        self, backend: str, env_fns: Sequence[Callable[[], Any]], options: PoolOptions, **parts: Any
    ) -> Pool:
        check_choice("backend", backend, tuple(_BACKENDS))
        pool = self._pool = _BACKENDS[backend](env_fns, options, **parts)
        self.env_fns = pool.env_fns
        return pool

    def _start_pool(self) -> None:
        try:
            self._pool.start()
        except SpaceError as error:
            raise DifferentSpacesError(str(error), path=error.path) from error

    # ---- states ------------------------------------------------------------------------------

    def _check_idle(self, what: str) -> None:
        """Raise if the vector env is closed, or waits for a `..._wait`."""
        if self._pending == _CLOSED:
            raise ClosedVectorEnvError(f"{what}: the vector env is closed")
        if self._pending is not None:
            name = self._pending
            raise PendingCallError(f"{what}: {name}_async was called before; call {name}_wait first", name=name)

    @contextlib.contextmanager
    def _sync_call(self, what: str) -> Iterator[None]:
        """Context of a call and its wait in one: a Ctrl-C between the two leaves nothing that waits for the second."""
        self._check_idle(what)
        try:
            yield
        except BaseException:
            if self._pending != _CLOSED:
                self._pending = None
            raise

    def _check_pending(self, name: str) -> None:
        """Raise unless this is the call that waits for its `..._wait`."""
        if self._pending == _CLOSED:
            raise ClosedVectorEnvError(f"{name}_wait: the vector env is closed")
        if self._pending != name:
            raise NoCallError(f"{name}_wait: call {name}_async first", name=name)

    def _raise_as_gymnasium(self, what: str, error: StateError) -> NoReturn:
        """Raise the pool's complaint in Gymnasium's words."""
        if isinstance(error, ClosedError):
            raise ClosedVectorEnvError(str(error)) from error
        if what != "recv" and self._pool.outstanding():
            raise PendingCallError(str(error), name=what) from error
        raise error

    def _cancel_outstanding(self, what: str, ids: Sequence[int], ops: Collection[Op], noun: str) -> None:
        """Forget what is owed by the pool's envs that are to be reset, and has not been waited for.

        Args:
            what: the call that resets.
            ids: of the pool's envs.
            ops: the operations to forget; the pool itself lets steps be overtaken.
            noun: what the pool's envs are, in the plural.

        Raises:
            PendingCallError: others owe an answer, too; nothing was forgotten.
        """
        owed = {i: self._pool.owes(i) for i in range(self._pool.num_envs)}
        others = [i for i, op in owed.items() if op != Op.NONE and i not in ids]
        if others:
            raise PendingCallError(f"{what}: {noun} {others} still owe an answer; reset them, too", name=what)
        if left := [i for i, op in owed.items() if op in ops]:
            self._pool.cancel(left)

    # ---- end ---------------------------------------------------------------------------------

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End envs and workers, by force if need be; `close` passes its arguments on to this.

        Args:
            timeout: seconds that workers have to end what they are doing and to close their envs,
                then they are killed; None: the constructor's `close_timeout`.
            terminate: kill the workers at once; their envs are not closed.
        """
        check_timeout("timeout", timeout)
        self._pending = _CLOSED
        self._pool.close(0.0 if terminate else timeout)
        self._release_views()

    def _release_views(self) -> None:
        """Let go of the ring, so that its memory is free although this object is still there."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            with contextlib.suppress(Exception):  # the interpreter may be half gone
                self.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied; build one from its env_fns")
