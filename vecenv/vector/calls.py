"""Calls, attributes and rendering of a VectorEnv.

It stands between `BaseVectorEnv` and `VectorEnv`, which adds steps and resets.
"""

from __future__ import annotations

from typing import Any

from ..envs.remote import GetOrCall, SetAttribute
from ..errors import ConfigError, StateError
from .base import BaseVectorEnv, check_method, check_name
from .results import Results

__all__ = ["CallableVectorEnv"]


class CallableVectorEnv(BaseVectorEnv):
    """The calls, attributes and rendering of VectorEnv."""

    _results: Results

    # ---- calling -----------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute; blocks until all envs have answered.

        Args:
            name: name of the method or attribute, looked up from the outermost wrapper inwards. 'reset', 'step' and
                'close' are refused.
            *args, **kwargs: passed to the method.

        Returns:
            One result per env, ordered by env_id.

        Raises:
            ConfigError: the method is refused.
            TypeError: the name is not a string.
            AlreadyPendingCallError: an earlier call has not been waited for.
            Exception: raised by the method; of several, that of the lowest env, with its remote traceback.
        """
        return self._call("call", name, *args, **kwargs)

    def _call(self, what: str, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Do the same as `call` for a method of this name, `what`, which error messages begin with."""
        with self._sync_call(what):
            self._begin_call(what, name, *args, **kwargs)
            return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begin to call a method of every env, or to read an attribute; `call_wait` returns the results."""
        self._begin_call("call_async", name, *args, **kwargs)

    def _begin_call(self, what: str, name: str, /, *args: Any, **kwargs: Any) -> None:
        self._check_idle(what)
        check_method(what, name)
        self._pool.abandon_calls()  # those of an interrupted `call_wait`
        try:
            self._pool.submit_calls([GetOrCall(name, args, kwargs)] * self.num_envs)
        except StateError as error:
            self._raise_as_gymnasium(what, error)
        self._pending = "call"

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the call that `call_async` began; return one result per env, ordered by env_id.

        Args:
            timeout: seconds to wait for all results; after that they are abandoned. None (default): no limit.

        Raises:
            NoAsyncCallError: `call_async` was not called before.
            WorkerTimeoutError: the results did not arrive within the timeout.
            Exception: raised by the method; of several, that of the lowest env, with its remote traceback.
        """
        self._check_pending("call")
        self._pending = None
        try:
            return tuple(self._pool.collect_calls(timeout))
        except StateError as error:
            self._raise_as_gymnasium("call", error)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every env, looked up from the outermost wrapper inwards; see `call`."""
        return self._call("get_attr", name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env.

        Args:
            name: name of the attribute. It is set on the wrapper or env that has it, else on the outermost wrapper.
            values: a list or tuple with one value per env, or one value for all.

        Raises:
            ConfigError: the list does not have one value per env.
            TypeError: the name is not a string.
            AlreadyPendingCallError: an earlier call has not been waited for.
        """
        self._check_idle("set_attr")
        check_name("set_attr", name)
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ConfigError(f"set_attr: expected {self.num_envs} values, one per env, got {len(each)}", key=name)
        try:
            self._pool.call_each([SetAttribute(name, value) for value in each], name=f"set_attr {name}")
        except StateError as error:
            self._raise_as_gymnasium("set_attr", error)

    def render(self) -> tuple[Any, ...]:
        """Return the result of each env's `render`, ordered by env_id."""
        return self._call("render", "render")

    @property
    def observations(self) -> Any:
        """A copy of the last observations of all envs. An env that raised has its observation from before that.

        None after a `recv` or `step` of some envs, and if an env raised before its first observation.
        """
        return self._results.observations
