"""Keeping: when a worker looks at what an env carries from one episode into the next.

    reset of the worker or the caller, `look_if_due` -> Keeping -> Keeper.capture -> mail to the parent's journal

A state is a point from which a crash can be made good without repeating all that came before.
Looking costs as much as some dozen steps of a quick env, so it is done only when the env has
been busy for five hundred times as long; what lies between is repeated from the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..layout.messages import Reply
from ..system.clock import now_ns
from .global_rngs import Streams
from .replay import Keeper

__all__ = ["Keeping", "look_if_due", "look_now"]

#: An env's own time before the first look at it, and the least between two.
_LEAST_NS = 1_000_000
#: Time between two looks over the time of one. Where all wait for all, a look costs every worker its time.
_SHARE = 500


def look_if_due(env: Any) -> None:
    """As the function of a call: have the env looked at amid its episode, if that is due; see `Pool.keep_states`."""


def look_now(env: Any) -> None:
    """The same, due or not."""


class _Slot(Protocol):
    def start_digest(self, env_id: int) -> None: ...

    def schedule_snapshot(self, env_id: int, busy_ns: int) -> None: ...

    def is_snapshot_due(self, env_id: int) -> bool: ...


class Keeping:
    """Looks at the envs of one slot.

    Args:
        slot: counts the envs' time.
        keeper: looks into envs; None: only seeded resets are starts.
        streams: the envs' global random generators, which span episodes once they have been drawn from.
        post: sends an answer to the parent.
        warn: shows a text to the user, once per key.
    """

    def __init__(
        self,
        slot: _Slot,
        keeper: Keeper | None,
        streams: Streams,
        post: Callable[[Reply], None],
        warn: Callable[[str, str], None],
    ) -> None:
        self._slot = slot
        self._keeper = keeper
        self._streams = streams
        self._post = post
        self._warn = warn
        self._spans: dict[int, bool] = {}  # of the envs that have been reset
        self._blind: set[int] = set()  # envs that cannot be looked into
        self._costs: dict[int, int] = {}  # of the envs that have been looked at: the time of a look in ns
        self._fresh: set[int] = set()  # envs that were built anew and have not been reset since

    def before_reset(self, env_id: int, step_id: int, env: Any, *, seeded: bool, forced: bool = False) -> None:
        """Look at an env that is about to be reset, if that is due or cannot be left out.

        Args:
            seeded: the reset has a seed, which is all that most envs depend on.
            forced: what the env has done since its last answer is not certain.
        """
        is_new = env_id not in self._spans
        is_fresh = env_id in self._fresh
        self._fresh.discard(env_id)
        if is_new:
            self._begin(env_id, env)
        if seeded:
            self._slot.start_digest(env_id)
        spans = self._spans[env_id] or self._streams.has_drawn(env_id)
        is_start = seeded and not spans
        if is_new or is_start or not (seeded or forced or self._slot.is_snapshot_due(env_id)):
            return
        self._look(env_id, step_id, env, is_fresh)

    def amid_episode(self, env_id: int, step_id: int, env: Any, *, forced: bool) -> None:
        """Look at an env between two of its steps, if that is due or `forced`."""
        if env_id in self._spans and env_id not in self._blind and (forced or self._slot.is_snapshot_due(env_id)):
            self._look(env_id, step_id, env, is_fresh=False, is_amid=True)

    def resume(self, env_id: int, env: Any, *, is_fresh: bool) -> None:
        """Take over an env that stands in for another one.

        Args:
            is_fresh: it has only been built, as the other's episode is lost; else it is where that one was.
        """
        self._begin(env_id, env)
        if is_fresh:
            self._fresh.add(env_id)

    def _begin(self, env_id: int, env: Any) -> None:
        self._spans[env_id] = self._keeper is not None and self._keeper.spans_episodes(env)
        self._slot.schedule_snapshot(env_id, _LEAST_NS if self._keeper else 0)

    def _look(self, env_id: int, step_id: int, env: Any, is_fresh: bool, is_amid: bool = False) -> None:
        is_first = env_id not in self._costs  # which also works out what there is to look at
        began = now_ns()
        snapshot = None
        if self._keeper is not None and env_id not in self._blind:
            try:
                snapshot = self._keeper.capture(env)
            except Exception as error:  # of a hook that users wrote: the env itself goes on
                self._warn(
                    f"state {env_id}",
                    f"the state of env {env_id} cannot be kept, so its episodes cannot be brought back after a crash: "
                    f"{type(error).__name__}: {error}",
                )
        if snapshot is None:
            self._blind.add(env_id)
            self._slot.schedule_snapshot(env_id, 0)
            return
        state = self._streams.keep_with(env_id, snapshot.state)
        # What has only been built holds nothing yet that could be missed.
        self._post(Reply(step_id, env_id, snapshot=(state, snapshot.is_complete or is_fresh, is_amid)))
        self._slot.start_digest(env_id)
        # One during which the system ran something else would put off the next for seconds, and all those commands
        # would have to be kept and repeated: what a look takes grows by a quarter at most from one to the next.
        took = now_ns() - began
        cost = self._costs[env_id] = min(took, 5 * self._costs.get(env_id, took) // 4)
        self._slot.schedule_snapshot(env_id, _LEAST_NS if is_first else max(_LEAST_NS, _SHARE * cost))
