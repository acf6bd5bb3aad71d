"""PoolFace: the members that all front ends of a pool have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from ...report import Report
from ...statistics import Shards, Statistics
from ..advice.facts import SettingNames
from .pool import Pool

__all__ = ["PoolFace"]

_Self = TypeVar("_Self", bound="PoolFace")


class PoolFace:
    """Base of front ends; a front end has its pool as `_pool`, and a method `close`."""

    _pool: Pool
    #: The settings that verdicts recommend, as the users of this front end write them.
    _setting_names: ClassVar[SettingNames] = SettingNames()
    #: How to make another one, for the error of a pickle.
    _recipe: ClassVar[str] = "build one from its env_fns"

    if TYPE_CHECKING:  # front ends and their other bases have it
        close: Any

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return bool(self._pool.closed)

    def statistics(self) -> Statistics:
        """Return counts and times since the start: steps, failures, the load of envs, workers and the caller.

        The result is a read-only mapping of the counts. `print` shows a table; `as_dict()` is for loggers. After
        `close` there are no steps and no times, so it has to be read before.
        """
        return self._pool.statistics()

    def shards(self) -> Shards:
        """Return the state and the node of every shard of `backend="ray"`; [] with other backends."""
        return self._pool.shards()

    def report(self) -> Report:
        """Return verdicts about the speed since the start; `print` shows one per line.

        Each verdict names a cause of lost time, the measured number, the setting to change and the gain to expect. A
        pool that has no such cause, or was measured too little, has none; `note` contains the reason.
        """
        return self._pool.report(self._setting_names)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self._pool.describe()})" if "_pool" in vars(self) else f"{name}(not built)"

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __getstate__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied; {self._recipe}")
