"""SavedAdapter: saves an adapter of a framework together with the vector env below it, and continues it.

adapter.save(path) -> its own state into `extra_state` -> VectorEnv.save -> one file
Adapter(..., resume=path) -> VectorEnv(..., resume=path) -> `extra_state` -> its own state
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ..envs.state.generators import restore_generators, save_generators
from ..errors import ConfigError, StateError

__all__ = ["SavedAdapter"]


class SavedAdapter:
    """Base of adapters over a vector env, which is their `vector_env`, or over another adapter.

    A subclass lists the attributes in `_saved` that its next results depend on, and calls `_continue_own` at the end of
    its constructor. Random generators in its attributes and spaces are saved without a list.
    """

    #: The object below, which has `state_dict`, `load_state_dict`, `save`, `extra_state` and `pool`.
    vector_env: Any
    #: Names of attributes whose values can be pickled.
    _saved: ClassVar[tuple[str, ...]] = ()
    #: Whether results are in the order of the request. Those of requests that a load makes again are not.
    _is_ordered = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all envs and of this object, from which another one continues.

        See `vecenv.VectorEnv.state_dict`.
        """
        with self._own_state("state_dict"):
            state: dict[str, Any] = self.vector_env.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called; see `vecenv.VectorEnv.load_state_dict`."""
        self._check_received("load_state_dict")
        self.vector_env.load_state_dict(state)
        self._pool = self.vector_env.pool
        self._continue_own(True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state of all envs and of this object into a file for `resume=`; see `vecenv.VectorEnv.save`."""
        with self._own_state("save"):
            self.vector_env.save(path)

    @property
    def extra_state(self) -> dict[str, Any]:
        """That of the vector env."""
        found: dict[str, Any] = self.vector_env.extra_state
        return found

    @contextlib.contextmanager
    def _own_state(self, what: str) -> Iterator[None]:
        """Put the state of this object where the vector env saves it; `what` is the calling method, for errors."""
        self._check_received(what)
        own = {name: getattr(self, name) for name in self._saved}
        self.extra_state[self._own_name] = own, save_generators(self)
        try:
            yield
        finally:
            del self.extra_state[self._own_name]

    def _check_received(self, what: str) -> None:
        if self._is_ordered and self.vector_env.pool.outstanding():
            raise StateError(f"{what}: a step is under way; receive its results first, by step_wait or recv")

    def _continue_own(self, is_needed: Any) -> None:
        """Take the state of this object from a saved state that the vector env has loaded.

        Raises:
            ConfigError: there is none, and `is_needed` is true; the envs are closed.
        """
        found = self.extra_state.pop(self._own_name, None)
        if found is None and not is_needed:
            return
        try:
            if found is None:
                raise ConfigError(f"resume: the state was not saved by a {self._own_name}", key="resume")
            own, generators = found
            for name, value in own.items():
                setattr(self, name, value)
            restore_generators([self], *generators)
        except BaseException:
            self.vector_env.close()
            raise

    @property
    def _own_name(self) -> str:
        return f"{type(self).__module__}.{type(self).__qualname__}"
