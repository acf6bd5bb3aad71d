"""Calls, attributes and rendering of a VectorEnv.

It stands between `BaseVectorEnv` and `VectorEnv`, which adds steps and resets.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..core.system.clock import check_timeout
from ..envs.remote import GetOrCall, SetAttribute
from ..errors import ConfigError, StateError
from .arguments import read_env_ids
from .base import BaseVectorEnv, check_method, check_name
from .results import Results

__all__ = ["CallableVectorEnv"]

_NONE: Mapping[str, Any] = MappingProxyType({})
#: Methods that read the envs of the rows only.
_READS = ("get_attr", "render")


class CallableVectorEnv(BaseVectorEnv):
    """The calls, attributes and rendering of VectorEnv."""

    results: Results

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
        return self._call("call", name, args, kwargs, env_id)

    def _call(
        self, what: str, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = _NONE, env_id: Any = None
    ) -> tuple[Any, ...]:
        """Call as `call` does for a method of the name `what`, which error messages begin with."""
        with self._sync_call(what):
            self._begin_call(what, name, args, kwargs, env_id)
            return self.call_wait()

    def call_async(self, name: str, /, *args: Any, env_id: Any = None, **kwargs: Any) -> None:
        """Begin to call a method, or to read an attribute, as `call` does; `call_wait` returns the results."""
        self._begin_call("call_async", name, args, kwargs, env_id)

    def _begin_call(self, what: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], env_id: Any) -> None:
        self._check_idle(what)
        check_method(what, name)
        env_ids = read_env_ids(what, env_id, self.num_envs)
        self._pool.abandon_calls()  # those of an interrupted `call_wait`
        count = self.num_envs if env_ids is None else len(env_ids)
        try:
            is_pure = what in _READS  # other calls may change the env, and reach spare envs, too
            self._pool.submit_calls([GetOrCall(name, args, dict(kwargs))] * count, env_ids, pure=is_pure)
        except StateError as error:
            self._raise_as_gymnasium(what, error)
        self._pending = "call"

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the call that `call_async` began; return one result per env that was called, as `call` does.

        Args:
            timeout: seconds to wait for all results; after that they are abandoned. None (default): no limit.

        Raises:
            NoAsyncCallError: `call_async` was not called before.
            WorkerTimeoutError: the results did not arrive within the timeout.
            Exception: raised by the method; of several, that of the lowest env, with its remote traceback.
        """
        self._check_pending("call")
        check_timeout("timeout", timeout)
        self._pending = None
        try:
            return tuple(self._pool.collect_calls(timeout))
        except StateError as error:
            self._raise_as_gymnasium("call", error)

    def get_attr(self, name: str, env_id: Any = None) -> tuple[Any, ...]:
        """Return an attribute of every env, or of the envs `env_id` in their order; see `call`."""
        return self._call("get_attr", name, env_id=env_id)

    def set_attr(self, name: str, values: Any, env_id: Any = None) -> None:
        """Set an attribute of every env, or of some.

        Args:
            name: name of the attribute. It is set on the wrapper or env that has it, else on the outermost wrapper.
            values: a list or tuple with one value per env, ordered as `env_id`, or one value for all.
            env_id: distinct ids of the envs, or a single id. None (default): all envs.

        Raises:
            ConfigError: the list does not have one value per env, or there is no such env.
            TypeError: the name is not a string.
            AlreadyPendingCallError: an earlier call has not been waited for.
        """
        self._check_idle("set_attr")
        check_name("set_attr", name)
        env_ids = read_env_ids("set_attr", env_id, self.num_envs)
        self._pool.abandon_calls()  # those of an interrupted `call_wait`
        count = self.num_envs if env_ids is None else len(env_ids)
        each = values if isinstance(values, list | tuple) else [values] * count
        if len(each) != count:
            raise ConfigError(f"set_attr: expected {count} values, one per env, got {len(each)}", key=name)
        try:
            self._pool.call_each([SetAttribute(name, value) for value in each], env_ids, name=f"set_attr {name}")
        except StateError as error:
            self._raise_as_gymnasium("set_attr", error)

    def render(self, env_id: Any = None) -> tuple[Any, ...]:
        """Return the result of the `render` of each env, ordered by env_id, or of those of `env_id` in this order."""
        return self._call("render", "render", env_id=env_id)

    @property
    def observations(self) -> Any:
        """A copy of the last observations of all envs. An env that raised has its observation from before that.

        None after a `recv` or `step` of some envs, and if an env raised before its first observation.
        """
        return self.results.observations
