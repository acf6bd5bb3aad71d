"""What a VectorEnv is asked beside steps and resets: calls, attributes, states and the end.

    idle  --step_async, reset_async, call_async-->  pending  --the same `..._wait`-->  idle
    idle or pending  --close-->  closed

Stands between the pool and `VectorEnv`, which adds steps and resets.
"""

from __future__ import annotations

import contextlib
from typing import Any, NoReturn

import gymnasium
import numpy as np

from ..core.pool import Pool
from ..errors import ClosedError, ConfigError, StateError
from .errors import ClosedVectorEnvError, NoCallError, PendingCallError
from .inside import Assignment, Call
from .results import Results

__all__ = ["CallableEnvs"]

#: What is pending after `close`, for ever.
_CLOSED = "close"
#: Methods that `call` refuses: the engine has to know about them.
_NOT_BY_CALL = ("reset", "step", "close")


class CallableEnvs(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Envs of a pool that can be called and closed, and the state of asynchronous calls."""

    _pool: Pool
    _results: Results
    #: The call that its `..._wait` has to end; _CLOSED in the end.
    _pending: str | None = None

    # ---- calling -----------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute; return the results by env_id."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
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
            self._pool.call_each([Assignment(name, value) for value in each], name=f"set_attr {name}")
        except StateError as error:
            self._explain("set_attr", error)

    def render(self) -> tuple[Any, ...]:
        """Return what each env's `render` returns."""
        return self.call("render")

    @property
    def observations(self) -> Any:
        """A copy of the last observations of all envs; None if the last batch was not of all."""
        return self._results.copy_last() if self._results.has_last() else None

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
