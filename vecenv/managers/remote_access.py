"""Remote access: reads and calls the envs of a manager where they live, beside steps and resets.

manager.x -> RemoteAccess -> Pool.call(FindAttribute) -> EnvDriver -> the env, or an env inside its wrappers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..envs.adapt import find_attr
from ..envs.remote import CallEnvMethod, FindAttribute, Render
from ..errors import WorkerDiedError, WorkerTimeoutError
from .env_driver import EnvDriver
from .env_spaces import ReferenceSpaces
from .launch import Launch

__all__ = ["RemoteAccess", "disable_autoreset", "rebuild_env"]


# ---- functions that run where the env lives ------------------------------------------------


def disable_autoreset(driver: EnvDriver) -> None:
    """Leave all later resets to the manager."""
    driver.disable_autoreset()


def rebuild_env(driver: EnvDriver) -> None:
    """Replace the env by a new one."""
    driver.rebuild()


#: Functions whose last call of an env stands for all earlier ones.
_LAST_COUNTS = (disable_autoreset, rebuild_env)


# ---- the part of the manager ---------------------------------------------------------------


class RemoteAccess:
    """Reads and calls the envs of a pool; results are in the order of the env ids asked for.

    Args:
        owner: name of the manager's class, for messages.
        launch: owns the pool.
        spaces: owns the reference env, which has the same attributes as the envs.
        goes_on: called with the error of a worker that died or did not answer; returns whether the call was only
            disturbed by the reset of an env, which is being repeated.
        give_up: called with such an error otherwise; closes the manager.
    """

    def __init__(
        self,
        owner: str,
        launch: Launch,
        spaces: ReferenceSpaces,
        *,
        goes_on: Callable[[WorkerTimeoutError | WorkerDiedError], bool],
        give_up: Callable[[Exception], None],
    ) -> None:
        self._owner = owner
        self._launch = launch
        self._spaces = spaces
        self._goes_on = goes_on
        self._give_up = give_up

    def call(self, function: Callable[[Any], Any], what: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        """Run a function of the env driver of each env.

        Args:
            function: called with the `EnvDriver`.
            what: name of the call, for messages.
            env_ids: distinct ids; None for all envs.

        Raises:
            ClosedError: there is no pool.
            WorkerTimeoutError, WorkerDiedError: a worker failed; a manager with workers is closed then.
            Exception: raised by the function, for the env with the lowest id.
        """
        is_pure = isinstance(function, FindAttribute | Render)
        while True:
            pool = self._launch.require_pool(what)
            if env_ids is not None and not len(env_ids):
                return []
            name = function.__name__ if function in _LAST_COUNTS else None
            try:
                return pool.call(function, env_ids, pure=is_pure, name=name)
            except (WorkerTimeoutError, WorkerDiedError) as error:
                if not self._launch.has_workers:
                    raise
                # A call that has an effect may have been made already, so it is not made twice.
                is_repeatable = is_pure or function is disable_autoreset or function is rebuild_env
                if not is_repeatable or not self._goes_on(error):
                    self._give_up(error)
                    raise
                if function is rebuild_env:  # the worker makes this call before the env's next reset
                    return []

    def read(self, name: str, method_names: Sequence[str]) -> Any:
        """Return the list of an attribute of all envs, or a function that calls a method of all envs.

        Raises:
            AttributeError: the envs have no such attribute.
            RuntimeError: it is a method that is not in `method_names`.
            ClosedError: there is no pool.
        """
        if self._launch.pool is None and not self._launch.has_workers:
            missing = object()
            if find_attr(self._spaces.reference(), name, missing) is missing:
                raise self._no_attribute(name)
        found = self.call(FindAttribute(name), f"attribute {name!r}")
        kind, _ = found[0]
        if kind == "missing":
            raise self._no_attribute(name)
        if kind == "method":
            if name not in method_names:
                raise RuntimeError(f"{name!r} is a method of the envs and is not in method_name_list: {method_names}")
            return lambda *args, **kwargs: self.call(CallEnvMethod(name, args, kwargs), name)
        return [value for _, value in found]

    def render(self, mode: str, env_ids: Sequence[int]) -> list[Any]:
        """Return a frame of each of these envs.

        Raises:
            StateError: an env renders in another mode.
            ClosedError: there is no pool.
        """
        return self.call(Render(mode), "render", env_ids)

    def _no_attribute(self, name: str) -> AttributeError:
        return AttributeError(f"neither {self._owner} nor its envs have an attribute {name!r}")
