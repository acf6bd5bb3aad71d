"""Calls and attributes of BatchedVectorEnv: one value per env if the vector envs support that, else one per batch.

It stands between `BaseVectorEnv` and `BatchedVectorEnv`, as `calls` does for `VectorEnv`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..envs.remote import CallBatch, SetBatchAttribute, render
from ..errors import ConfigError, StateError
from .base import BaseVectorEnv, check_method, check_name

__all__ = ["CallableBatchedVectorEnv"]


class CallableBatchedVectorEnv(BaseVectorEnv):
    """The calls, attributes and rendering of BatchedVectorEnv."""

    batch_size: int

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method, or read an attribute, of every env; blocks until all batches have answered.

        Args:
            name: name of the method or attribute. 'reset', 'step' and 'close' are refused.
            *args, **kwargs: passed to the method.

        Returns:
            One result per env if the vector envs have a `call` method, as Gymnasium's have. Otherwise one result per
            batch: the value of the vector env's own method or attribute.

        Raises:
            ConfigError: the method is refused.
            TypeError: the name is not a string.
            AlreadyPendingCallError: an earlier call has not been waited for.
            Exception: raised by the method; of several, that of the lowest batch, with its remote traceback.
        """
        return self._call("call", name, *args, **kwargs)

    def _call(self, what: str, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call as `call` does for a method of the name `what`, which error messages begin with."""
        self._check_idle(what)
        check_method(what, name)
        functions = [CallBatch(name, args, kwargs)] * self._pool.num_envs
        results = self._call_batches(what, functions, pure=what == "get_attr")
        if all(is_each for is_each, _ in results):
            return tuple(value for _, values in results for value in values)
        return tuple(values for _, values in results)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every env, or of every batch; see `call`."""
        return self._call("get_attr", name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env, or of every batch if the vector envs have no `set_attr` of their own.

        Args:
            name: name of the attribute.
            values: a list or tuple with one value per env, or one value for all.

        Raises:
            ConfigError: the list does not have one value per env; or it is a list and the vector envs have no
                `set_attr`, so that they accept only one value for all.
            AlreadyPendingCallError: an earlier call has not been waited for.
        """
        self._check_idle("set_attr")
        check_name("set_attr", name)
        each = [values] * self._pool.num_envs
        is_each = isinstance(values, list | tuple)
        if is_each:
            if len(values) != self.num_envs:
                raise ConfigError(
                    f"set_attr: expected {self.num_envs} values, one per env, got {len(values)}", key=name
                )
            size = self.batch_size
            each = [values[i : i + size] for i in range(0, self.num_envs, size)]
        assignments = [SetBatchAttribute(name, value, is_each) for value in each]
        self._call_batches("set_attr", assignments, name=f"set_attr {name}")  # kept beyond the next reset

    def render(self) -> tuple[Any, ...]:
        """Return one frame per env; None for each env of a batch that renders nothing."""
        self._check_idle("render")
        found = self._call_batches("render", [render] * self._pool.num_envs, pure=True)
        return tuple(frame for frames in found for frame in ([None] * self.batch_size if frames is None else frames))

    def _call_batches(
        self, what: str, functions: Sequence[Callable[[Any], Any]], *, pure: bool = False, name: str | None = None
    ) -> list[Any]:
        try:
            return self._pool.call_each(functions, pure=pure, name=name)
        except StateError as error:
            self._raise_as_gymnasium(what, error)
