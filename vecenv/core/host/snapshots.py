"""Snapshots: decides when a worker captures the state of an env, and sends the state to the parent.

    reset of the worker or the caller, `snapshot_if_due`, step of a long episode -> Snapshots -> Snapshotter.capture
        -> message to the parent's journal

A state is a restore point: after a crash, the commands before it need not be repeated. A snapshot takes
as long as some dozen steps of a quick env. It is therefore taken only after the env has been busy for 500
times as long. Commands since the last snapshot are repeated from the journal.

If no episode ends for long, a snapshot is taken before a step. The env must be of a kind whose state within an
episode can be captured exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..layout.arena import read_record
from ..layout.messages import Reply, dump_reply
from ..system.clock import now_ns
from .global_rngs import GlobalRngs
from .replay import Snapshotter
from .slot import Slot

__all__ = ["Snapshots", "snapshot_if_due", "snapshot_now"]

#: Busy time of an env before its first snapshot, and the minimum between two.
_MIN_INTERVAL_NS = 1_000_000
#: Ratio of the busy time between two snapshots to the time of one. If each batch waits for all envs, the snapshot of
#: one env delays every worker.
_MIN_INTERVAL_FACTOR = 500
#: Least busy time since the last snapshot after which one is taken within an episode. The commands of this time can be
#: repeated within a second: repeating the step of a quick env takes several times as long as the step.
_LONG_HISTORY_NS = 100_000_000


def snapshot_if_due(env: Any) -> None:
    """Request a snapshot within an episode, if one is due. `Pool.take_snapshots` calls this; the host handles it."""


def snapshot_now(env: Any) -> None:
    """Request a snapshot within an episode even if none is due; see `snapshot_if_due`."""


class Snapshots:
    """Takes snapshots of the envs of one slot.

    Args:
        slot: measures the envs' busy time, and sends states to the parent.
        snapshotter: captures states; None: only seeded resets are restore points.
        rngs: the RNG states of the envs. After a first draw, an RNG state spans episodes.
        warn: called with (key, text) to show a warning to the user, once per key.
    """

    def __init__(
        self,
        slot: Slot,
        snapshotter: Snapshotter | None,
        rngs: GlobalRngs,
        warn: Callable[[str, str], None],
    ) -> None:
        self._slot = slot
        self._snapshotter = snapshotter
        self._rngs = rngs
        self._warn = warn
        self._spans_episodes: dict[int, bool] = {}  # keys: the envs that have been reset
        self._opaque: set[int] = set()  # envs whose state cannot be captured
        self._only_between: set[int] = set()  # envs whose state within an episode cannot be captured exactly
        self._costs_ns: dict[int, int] = {}  # env_id -> time of its last snapshot in ns, with limited growth
        self._newly_built: set[int] = set()  # envs that were rebuilt and have not been reset since

    def before_reset(
        self,
        env_id: int,
        step_id: int,
        env: Any,
        *,
        seeded: bool,
        has_new_generator: bool = False,
        forced: bool = False,
    ) -> None:
        """Take a snapshot of an env that is about to be reset, if it is due or necessary.

        Args:
            env_id, env: the env.
            step_id: the command that resets it.
            seeded: whether the reset has a seed; for most envs the seed alone is a restore point.
            has_new_generator: whether the env's generator was just made from a drawn seed. Most new envs can then be
                restored by another construction.
            forced: take it even if it is not due, because the env's state since its last reply is uncertain.
        """
        is_new = env_id not in self._spans_episodes
        is_newly_built = env_id in self._newly_built
        self._newly_built.discard(env_id)
        if is_new:
            self._register(env_id, env)
            if not seeded and not (has_new_generator and self._is_built_alike(env)):
                self._take_snapshot(env_id, step_id, env, is_newly_built=True)
        if seeded:
            self._slot.start_digest(env_id)
        spans = self._spans_episodes[env_id] or self._rngs.has_drawn(env_id)
        is_restore_point = seeded and not spans
        if is_new or is_restore_point or not (seeded or forced or self._slot.is_snapshot_due(env_id)):
            return
        self._take_snapshot(env_id, step_id, env, is_newly_built)

    def between_steps(self, env_id: int, step_id: int, env: Any, *, forced: bool) -> None:
        """Take a snapshot of an env between two of its steps, if it is due or `forced`.

        The state is one between two episodes if the next step resets the env; then it is sent only if it is complete.
        """
        if (
            env_id in self._spans_episodes
            and env_id not in self._opaque
            and env_id not in self._only_between
            and (forced or self._slot.is_snapshot_due(env_id))
        ):
            is_mid_episode = not read_record(self._slot.present_record(env_id))["is_over"]
            self._take_snapshot(env_id, step_id, env, False, is_mid_episode=is_mid_episode, must_be_complete=True)

    def resume(self, env_id: int, env: Any, *, is_newly_built: bool) -> None:
        """Register an env that replaces another one after a failure; `is_newly_built`: it was not restored."""
        self._register(env_id, env)
        if is_newly_built:
            self._newly_built.add(env_id)

    def continue_from_state(self, env_id: int, env: Any) -> None:
        """Register an env into which the caller has put a state, a restore point that the journal has already."""
        if env_id not in self._spans_episodes:
            self._register(env_id, env)
        self._spans_episodes[env_id] = True  # the state may have been that of another env, where this is so
        self._newly_built.discard(env_id)
        self._slot.start_digest(env_id)

    def _is_built_alike(self, env: Any) -> bool:
        return self._snapshotter is None or self._snapshotter.is_built_alike(env)

    def _register(self, env_id: int, env: Any) -> None:
        self._spans_episodes[env_id] = self._snapshotter is not None and self._snapshotter.spans_episodes(env)
        self._only_between.discard(env_id)
        self._schedule(env_id, _MIN_INTERVAL_NS if self._snapshotter else 0)

    def _schedule(self, env_id: int, busy_ns: int) -> None:
        """Set the busy time after which a snapshot of an env is due; 0: never."""
        has_none = busy_ns == 0 or env_id in self._only_between
        self._slot.schedule_snapshot(env_id, busy_ns, 0 if has_none else max(busy_ns, _LONG_HISTORY_NS))

    def _take_snapshot(
        self,
        env_id: int,
        step_id: int,
        env: Any,
        is_newly_built: bool,
        *,
        is_mid_episode: bool = False,
        must_be_complete: bool = False,
    ) -> None:
        is_first = env_id not in self._costs_ns  # takes longer: it also finds the parts of the state
        began_ns = now_ns()
        snapshot = None
        if self._snapshotter is not None and env_id not in self._opaque:
            try:
                with self._rngs.fork_guard:
                    snapshot = self._snapshotter.capture(env, within_episode=is_mid_episode)
            except Exception as error:  # raised by a hook of the user's; the env itself still works
                name = f"env {self._rngs.first_env_id + env_id}"
                self._warn(
                    f"state {env_id}",
                    f"the state of {name} cannot be kept, so its episodes cannot be restored after a crash: "
                    f"{type(error).__name__}: {error}",
                )
        if must_be_complete and (snapshot is None or not snapshot.is_complete):
            if is_mid_episode:
                self._only_between.add(env_id)
                self._schedule(env_id, _MIN_INTERVAL_NS)
            return
        if snapshot is None:
            if not is_newly_built:  # else its first reset may build the env inside
                self._opaque.add(env_id)
                self._schedule(env_id, 0)
            return
        state = self._rngs.pack_state(env_id, snapshot.state)
        # The state of a newly built env is complete: a new env does not depend on earlier calls.
        is_complete = snapshot.is_complete or is_newly_built
        reply = Reply(step_id, env_id, snapshot=(state, is_complete, is_mid_episode, snapshot.holds_calls))
        self._slot.send_message(dump_reply(reply))
        self._slot.start_digest(env_id)
        # If the system ran another process during a snapshot, its time is too long. The next snapshot would be seconds
        # later, with all commands until then kept and repeated. The time may therefore grow by at most a quarter.
        took_ns = now_ns() - began_ns
        cost_ns = self._costs_ns[env_id] = min(took_ns, 5 * self._costs_ns.get(env_id, took_ns) // 4)
        self._schedule(env_id, _MIN_INTERVAL_NS if is_first else max(_MIN_INTERVAL_NS, _MIN_INTERVAL_FACTOR * cost_ns))
