"""What a VectorEnv is asked beside steps and resets: calls, attributes and rendering.

Stands between `BaseVectorEnv` and `VectorEnv`, which adds steps and resets.
"""

from __future__ import annotations

from typing import Any

from ..envs.remote import GetOrCall, SetAttribute
from ..errors import ConfigError, StateError
from .base import BaseVectorEnv, check_method, check_name
from .results import Results

__all__ = ["CallableVectorEnv"]


class CallableVectorEnv(BaseVectorEnv):
    """Envs of a pool that can be called."""

    _results: Results

    # ---- calling -----------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute; return the results by env_id."""
        with self._sync_call("call_async"):
            self.call_async(name, *args, **kwargs)
            return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begin a call of a method, or the reading of an attribute; `call_wait` gives the results."""
        self._check_idle("call_async")
        check_method(name)
        self._pool.abandon_calls()  # of an interrupted `call_wait`
        try:
            self._pool.submit_calls([GetOrCall(name, args, kwargs)] * self.num_envs)
        except StateError as error:
            self._raise_as_gymnasium("call", error)
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
            return tuple(self._pool.collect_calls(timeout))
        except StateError as error:
            self._raise_as_gymnasium("call", error)

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
        check_name("set_attr", name)
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ConfigError(f"set_attr: expected {self.num_envs} values, one per env, got {len(each)}", key=name)
        try:
            self._pool.call_each([SetAttribute(name, value) for value in each], name=f"set_attr {name}")
        except StateError as error:
            self._raise_as_gymnasium("set_attr", error)

    def render(self) -> tuple[Any, ...]:
        """Return what each env's `render` returns."""
        return self.call("render")

    @property
    def observations(self) -> Any:
        """A copy of the last observations of all envs, with the ones before of envs that raised.

        None after a batch of some envs, or if an env raised before it showed any.
        """
        return self._results.copy_last_obs() if self._results.has_last_obs() else None
