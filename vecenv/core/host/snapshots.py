"""Snapshots: when a worker looks at what an env carries from one episode into the next.

    reset of the worker or the caller, `snapshot_if_due` -> Snapshots -> Snapshotter.capture
        -> mail to the parent's journal

A state is a point from which a crash can be made good without repeating all that came before.
Looking costs as much as some dozen steps of a quick env, so it is done only when the env has
been busy for five hundred times as long; what lies between is repeated from the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..layout.messages import Reply
from ..system.clock import now_ns
from .global_rngs import GlobalRngs
from .replay import Snapshotter
from .slot import Slot

__all__ = ["Snapshots", "snapshot_if_due", "snapshot_now"]

#: An env's own time before the first look at it, and the least between two.
_MIN_INTERVAL_NS = 1_000_000
#: Time between two looks over the time of one. Where all wait for all, a look costs every worker its time.
_MIN_INTERVAL_FACTOR = 500


def snapshot_if_due(env: Any) -> None:
    """As the function of a call: have the env looked at amid its episode, if that is due; see `Pool.take_snapshots`."""


def snapshot_now(env: Any) -> None:
    """The same, due or not."""


class Snapshots:
    """Looks at the envs of one slot.

    Args:
        slot: counts the envs' time.
        snapshotter: looks into envs; None: only seeded resets are starts.
        rngs: the envs' global random generators, which span episodes once they have been drawn from.
        send: sends an answer to the parent.
        warn: shows a text to the user, once per key.
    """

    def __init__(
        self,
        slot: Slot,
        snapshotter: Snapshotter | None,
        rngs: GlobalRngs,
        send: Callable[[Reply], None],
        warn: Callable[[str, str], None],
    ) -> None:
        self._slot = slot
        self._snapshotter = snapshotter
        self._rngs = rngs
        self._send = send
        self._warn = warn
        self._spans_episodes: dict[int, bool] = {}  # of the envs that have been reset
        self._opaque: set[int] = set()  # envs that cannot be looked into
        self._costs_ns: dict[int, int] = {}  # of the envs that have been looked at: the time of a look in ns
        self._newly_built: set[int] = set()  # envs that were built anew and have not been reset since

    def before_reset(self, env_id: int, step_id: int, env: Any, *, seeded: bool, forced: bool = False) -> None:
        """Look at an env that is about to be reset, if that is due or cannot be left out.

        Args:
            seeded: the reset has a seed, which is all that most envs depend on.
            forced: what the env has done since its last answer is not certain.
        """
        is_new = env_id not in self._spans_episodes
        is_newly_built = env_id in self._newly_built
        self._newly_built.discard(env_id)
        if is_new:
            self._register(env_id, env)
        if seeded:
            self._slot.start_digest(env_id)
        spans = self._spans_episodes[env_id] or self._rngs.has_drawn(env_id)
        is_restore_point = seeded and not spans
        if is_new or is_restore_point or not (seeded or forced or self._slot.is_snapshot_due(env_id)):
            return
        self._take_snapshot(env_id, step_id, env, is_newly_built)

    def within_episode(self, env_id: int, step_id: int, env: Any, *, forced: bool) -> None:
        """Look at an env between two of its steps, if that is due or `forced`."""
        if (
            env_id in self._spans_episodes
            and env_id not in self._opaque
            and (forced or self._slot.is_snapshot_due(env_id))
        ):
            self._take_snapshot(env_id, step_id, env, is_newly_built=False, is_mid_episode=True)

    def resume(self, env_id: int, env: Any, *, is_newly_built: bool) -> None:
        """Take over an env that stands in for another one.

        Args:
            is_newly_built: it has only been built, as the other's episode is lost; else it is where that one was.
        """
        self._register(env_id, env)
        if is_newly_built:
            self._newly_built.add(env_id)

    def _register(self, env_id: int, env: Any) -> None:
        self._spans_episodes[env_id] = self._snapshotter is not None and self._snapshotter.spans_episodes(env)
        self._slot.schedule_snapshot(env_id, _MIN_INTERVAL_NS if self._snapshotter else 0)

    def _take_snapshot(
        self, env_id: int, step_id: int, env: Any, is_newly_built: bool, is_mid_episode: bool = False
    ) -> None:
        is_first = env_id not in self._costs_ns  # which also works out what there is to look at
        began_ns = now_ns()
        snapshot = None
        if self._snapshotter is not None and env_id not in self._opaque:
            try:
                snapshot = self._snapshotter.capture(env)
            except Exception as error:  # of a hook that users wrote: the env itself goes on
                self._warn(
                    f"state {env_id}",
                    f"the state of env {env_id} cannot be kept, so its episodes cannot be brought back after a crash: "
                    f"{type(error).__name__}: {error}",
                )
        if snapshot is None:
            self._opaque.add(env_id)
            self._slot.schedule_snapshot(env_id, 0)
            return
        state = self._rngs.pack_state(env_id, snapshot.state)
        # What has only been built holds nothing yet that could be missed.
        self._send(Reply(step_id, env_id, snapshot=(state, snapshot.is_complete or is_newly_built, is_mid_episode)))
        self._slot.start_digest(env_id)
        # One during which the system ran something else would put off the next for seconds, and all those commands
        # would have to be kept and repeated: what a look takes grows by a quarter at most from one to the next.
        took_ns = now_ns() - began_ns
        cost_ns = self._costs_ns[env_id] = min(took_ns, 5 * self._costs_ns.get(env_id, took_ns) // 4)
        self._slot.schedule_snapshot(
            env_id, _MIN_INTERVAL_NS if is_first else max(_MIN_INTERVAL_NS, _MIN_INTERVAL_FACTOR * cost_ns)
        )
