"""Envs that a worker of an env server has built before a pool uses them, and the env factory that takes them.

server            starts the worker -> EnvStock.build
pool of a client  sends `LeasedEnv` in place of an env factory -> in the worker: EnvStock.take
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any, Protocol

from ...errors import ConfigError
from ...own_log import own_logger
from ..host.host import close_all
from ..system.stack_dump import note_phase

__all__ = ["EnvStock", "LeasedEnv", "Renewer", "use_stock"]

_LOG = own_logger()
#: In a worker of an env server: its envs.
_stock: EnvStock | None = None


@dataclass(frozen=True)
class LeasedEnv:
    """An env factory that takes an env which an env server has built; `vecenv.lease` makes it.

    Attributes:
        name: of the env at the server.
        client: whose quota counts.
        timeout: how long a pool waits for its envs, in seconds; None: without a limit.
        max_seconds: after this time the server takes the envs back; None: the limit of the server.
        socket: path of the server's socket.
    """

    name: str
    client: str
    timeout: float | None
    max_seconds: float | None
    socket: str

    def __call__(self) -> Any:
        """Return the next env of this worker.

        Raises:
            ConfigError: this process is no worker of an env server.
        """
        if _stock is None:
            raise ConfigError(
                f"env {self.name!r} is leased: it exists in the workers of its server, which only pools with "
                "backend='process' use"
            )
        return _stock.take()

    def as_text(self) -> str:
        """Return the values that differ from their defaults, for messages."""
        return ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.name != "socket")


class Renewer(Protocol):
    """Makes used envs like new ones; `envs.state.SNAPSHOTTER` implements it."""

    def capture_new(self, env: Any) -> bytes | None:
        """Return the state of an env that has just been built; None if it is not known exactly."""

    def renew(self, env: Any, state: bytes) -> bool:
        """Put that state into the env again; return whether it is as new."""

    def registrations_kept(self) -> AbstractContextManager[None]:
        """Return a context that forgets, at its end, the classes that were registered in it."""


class EnvStock:
    """The envs of one worker of an env server.

    Args:
        factory: builds one env.
        num_envs: the envs that are built ahead.
        rebuild: 'always', 'never', or 'if-needed': whether used envs are replaced by new ones.
        renewer: makes used envs like new ones, if that is possible.

    Attributes:
        is_fresh: whether all envs behave as new ones.
    """

    def __init__(self, factory: Callable[[], Any], num_envs: int, rebuild: str, renewer: Renewer) -> None:
        self._factory = factory
        self._num_envs = num_envs
        self._rebuild = rebuild
        self._renewer = renewer
        self._envs: list[Any] = []
        self._num_taken = 0
        self._new_states: list[bytes | None] = []
        self.is_fresh = True

    def build(self) -> None:
        """Build the envs; raises what their constructor raises."""
        for number in range(self._num_envs):
            self._build_one(number)

    def _build_one(self, number: int) -> None:
        note_phase("construct", number, num_done=number)
        env = self._factory()
        self._envs.append(env)
        self._new_states.append(self._renewer.capture_new(env) if self._rebuild == "if-needed" else None)

    def take(self) -> Any:
        """Return an env that the present pool has not taken; another one is built if there is none.

        A pool takes more envs than there are if it builds an env again, after an exception for example.
        """
        if self._num_taken == len(self._envs):
            self._build_one(self._num_taken)
        self._num_taken += 1
        return self._envs[self._num_taken - 1]

    def registrations_kept(self) -> AbstractContextManager[None]:
        """Return a context for the use of the envs by a pool, whose classes are not known afterwards."""
        return self._renewer.registrations_kept()

    def take_back(self, called: Collection[int], num_envs: int, has_more_running: bool) -> None:
        """End the use of the envs by a pool.

        Args:
            called: envs of the pool that its calls may have changed.
            num_envs: number of envs of the pool; if it has taken more, some are closed.
            has_more_running: whether threads or processes are left that the pool's use of the envs has started.
        """
        used, self._num_taken = self._num_taken, 0
        if used > num_envs:
            self.is_fresh = False
        elif used and self._rebuild != "never":
            self.is_fresh = not called and not has_more_running and all(map(self._renew, range(used)))

    def _renew(self, number: int) -> bool:
        state = self._new_states[number]
        try:
            return state is not None and self._renewer.renew(self._envs[number], state)
        except Exception as error:  # a hook of the user's has failed; the worker is replaced
            _LOG.warning("env %d cannot be made as new, and is rebuilt: %r", number, error)
            return False

    def close(self) -> None:
        """Close all envs, also if some of them raise; then raise the first such error."""
        envs, self._envs = self._envs, []
        close_all(functools.partial(self._close_one, *pair) for pair in enumerate(envs))

    def _close_one(self, number: int, env: Any) -> None:
        note_phase("close", number, num_done=number)
        env.close()


def use_stock(stock: EnvStock) -> None:
    """Set the envs of this worker, from which `LeasedEnv` takes."""
    global _stock
    _stock = stock
