"""Caught: exceptions of envs that end an episode instead of reaching the caller, and envs that are built again.

    env.step raises    -> the episode ends truncated, and the env is reset
    env.reset raises   -> the env is built again, has the calls again that may have changed it, and is reset

The host and the replay after a crash use this module in the same way, so a replay repeats the exceptions, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...errors import StateError, add_notes
from ...own_log import own_logger
from ..layout import messages
from ..layout.commands import LastingCall
from ..layout.lasting_calls import LastingCalls
from ..layout.spec import Array
from ..system.clock import now_ns
from .failure_budget import FailureBudget
from .global_rngs import GlobalRngs

if TYPE_CHECKING:
    from .replay import Snapshotter

__all__ = ["CaughtExceptions", "UnbuiltEnv", "describe", "repeat_call"]

#: Log lines about the exceptions of an env within the window; further ones are counted only.
_MOST_LINES = 3


class UnbuiltEnv:
    """Stands in for an env whose constructor has raised when it was built again.

    Args:
        error: the exception of the constructor.
    """

    def __init__(self, error: BaseException) -> None:
        self._text = f"the env could not be built again after an exception ({describe(error)}); reset it"

    def step(self, action: Any) -> Any:
        """Raise StateError: there is no env."""
        raise StateError(self._text)

    def reset(self, **kwargs: Any) -> Any:
        """Raise StateError: there is no env."""
        raise StateError(self._text)

    def close(self) -> None:
        """Do nothing: there is no env."""


class CaughtExceptions:
    """Decides which exceptions of the envs of one slot are caught, and builds envs again.

    Args:
        limit: how many exceptions of one env are caught within how many seconds.
        build: builds a new env for an env_id.
        rngs: the RNG states of the envs.
        timings: of all envs, where caught exceptions are counted, see `CountersPlan.timings`; None: nowhere.
        snapshotter: sets the attributes that a call has changed; None: calls are only repeated.
    """

    def __init__(
        self,
        limit: tuple[int, float],
        build: Callable[[int], Any],
        rngs: GlobalRngs,
        timings: Array | None,
        snapshotter: Snapshotter | None = None,
    ) -> None:
        self._budget = FailureBudget(*limit)
        self._build = build
        self._rngs = rngs
        self._timings = timings
        self._snapshotter = snapshotter
        self._attempts: dict[int, tuple[int, int]] = {}  # last command with a construction, and how many it had
        self._calls = LastingCalls(0)  # the least number of bytes

    @property
    def most(self) -> int:
        """How many exceptions of one env are accepted within the window."""
        return self._budget.most

    def note_earlier_failures(self, env_id: int, count: int) -> None:
        """Count failures of an env that happened within the window in earlier workers."""
        self._budget.note(env_id, now_ns(), count)

    def accept(self, env_id: int, error: Exception, doing: str, details: str) -> bool:
        """Count and log an exception of an env; return whether the policy accepts it. Else the exception gets a note.

        `doing` is the operation that has raised it, and `details` its action or seed as text.
        """
        count, name = self._budget.note(env_id, now_ns()), f"env {self._rngs.first_env_id + env_id}"
        if count > self.most:
            limit = f"more than max_restarts={self.most} allows"
            add_notes(error, [f"{count} failures of {name} within {self._budget.window:g} s, which is {limit}"])
            return False
        if self._timings is not None:
            self._timings["num_exceptions"][env_id] += 1
        if count <= _MOST_LINES:
            outcome = "its episode ends truncated" if doing == "step" else "it is built again"
            where = f"{doing}, {details}" if details else doing
            more = "; further ones are counted only" if count == _MOST_LINES else ""
            own_logger().warning("%s raised %s (%s); %s%s", name, describe(error), where, outcome, more)
        return True

    def note_call(self, env_id: int, call: LastingCall) -> None:
        """Note a call that an env has had, and that may have changed the env."""
        self._calls.note(env_id, call)
        if self._calls.is_over():
            self._calls.settle(env_id, call.step_id + 1)
            self._calls.limit()

    def forget_calls(self, env_id: int) -> None:
        """Forget the calls of an env: it is new, and gets its calls again."""
        self._calls.forget(env_id)

    def rebuild(self, env_id: int, env: Any, step_id: int) -> tuple[Any, int]:
        """Close an env whose reset has raised, and build it again, with the calls that may have changed the old one.

        Returns:
            The new env, and a seed for its generator, which differs between two attempts in one command.

        Raises:
            Exception: raised by the constructor.
        """
        last, attempt = self._attempts.get(env_id, (0, 0))
        attempt = attempt + 1 if last == step_id else 1
        self._attempts[env_id] = step_id, attempt
        with suppress(Exception, SystemExit), self._rngs.fork_guard:  # a broken env may raise anything
            env.close()
        env = self._build(env_id)
        self._calls.settle(env_id, step_id)
        for call in self._calls.all_of(env_id, ()):
            repeat_call(env_id, env, call, self._rngs, self._snapshotter)
        text = b"%d %d %d" % (self._rngs.first_env_id + env_id, step_id, attempt)
        digest = hashlib.blake2b(text, digest_size=4).digest()
        return env, int.from_bytes(digest, "little") >> 1


def repeat_call(env_id: int, env: Any, call: LastingCall, rngs: GlobalRngs, snapshotter: Snapshotter | None) -> None:
    """Repeat a call in a new env, and set the attributes that it changed; its exceptions were already its reply."""
    with suppress(Exception, SystemExit):
        if call.payload is not None:
            rngs.call_swapped(env_id, messages.load(call.payload).called, env)
    if call.changes is not None and snapshotter is not None:
        snapshotter.set_attributes(env, call.changes)


def describe(error: BaseException) -> str:
    """Return the class and the text of an exception, for `infos["error"]`."""
    try:
        text = str(error)
    except Exception:  # printing it fails
        text = ""
    name = type(error).__qualname__
    return f"{name}: {text}" if text else name
