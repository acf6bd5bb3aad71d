"""ShardJournals: the log of the driver's pool: one journal per shard, in the numbers of the shard.

From its journal, and the newest records of its envs, a lost shard is resumed in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..layout.arena import RECORD
from ..layout.commands import CallEffect, Commands, RestorePoint
from ..layout.messages import Outcome
from ..layout.spec import Array
from ..recovery.policy import Recovery
from ..system.signals import signals_deferred
from .requests import Steps
from .shard_hub import ShardHub

__all__ = ["ShardJournals"]


class ShardJournals:
    """The journals of all shards, as `Requests` uses one; see `engine.CommandLog` and `inbox.Listener`.

    Args:
        hub: numbers the commands.
        shares: the env ids of each shard, which are consecutive.
        make_recovery: makes the journal of a shard and the `Recovery` over it; None: nothing is recorded.

    Attributes:
        recoveries: by shard; empty if nothing is recorded.
    """

    def __init__(
        self, hub: ShardHub, shares: Sequence[Sequence[int]], make_recovery: Callable[[int], Recovery] | None
    ) -> None:
        self._hub = hub
        self._make_recovery = make_recovery
        self._shares = shares
        self._places = [(shard, env_id - share[0]) for shard, share in enumerate(shares) for env_id in share]
        self.recoveries = [] if make_recovery is None else [make_recovery(shard) for shard in range(len(shares))]
        self._records = [np.zeros((len(share), 2), RECORD) for share in shares]

    # ---- requests --------------------------------------------------------------------------

    def note_steps(self, leaves: tuple[Array, ...], env_ids: Array | None, form: int) -> None:
        """Record a request of steps in the journals of its shards."""
        self._note_parts()

    def note_interrupted(self, step_id: int, leaves: tuple[Array, ...], env_ids: Array | None, form: int) -> None:
        """Record a request of steps if it was sent, and not recorded yet."""
        self._note_parts()

    def note_commands(self, commands: Commands) -> None:
        """Record a request in the journals of its shards."""
        self._note_parts()

    def _note_parts(self) -> None:
        with signals_deferred():
            for shard, op in self._hub.take_parts():
                self.note_executed(shard, op)

    def note_cancelled(self, env_id: int, step_id: int) -> None:
        """Record that a command was cancelled."""
        if self.recoveries:
            shard, local = self._places[env_id]
            self.recoveries[shard].journal.note_cancelled(local, self._hub.local_id(env_id, step_id))

    def has_cancelled(self, env_id: int) -> bool:
        """Return whether a command was cancelled since the env's restore point; False if there is no such env."""
        if not self.recoveries or not 0 <= env_id < len(self._places):
            return False
        shard, local = self._places[env_id]
        return self.recoveries[shard].journal.has_cancelled(local)

    def forget(self, env_id: int, *, keeps_calls: bool) -> None:
        """Do nothing: `renew` makes a new journal for a shard that was built again."""

    def payload(self, env_id: int, step_id: int) -> bytes | None:
        """Return the payload of a reset or step; None if it was dropped."""
        shard, local = self._places[env_id]
        return self.recoveries[shard].journal.payload(local, step_id) if self.recoveries else None

    def is_half_full(self) -> bool:
        """Return whether a journal is more than half full."""
        return any(recovery.journal.is_half_full() for recovery in self.recoveries)

    # ---- news of shards --------------------------------------------------------------------

    def note_restore_point(self, env_id: int, restore_point: RestorePoint, is_answered: bool) -> None:
        """Record a point from which an env can be restored; its step_id is in the numbers of the shard."""
        if self.recoveries:
            shard, local = self._places[env_id]
            self.recoveries[shard].note_restore_point(local, restore_point, is_answered)

    def note_effect(self, env_id: int, step_id: int, effect: CallEffect) -> None:
        """Record the changes that a call made in its env."""
        if self.recoveries:
            shard, local = self._places[env_id]
            self.recoveries[shard].note_effect(local, self._hub.local_id(env_id, step_id), effect)

    def note_outcome(self, env_id: int, outcome: Outcome) -> None:
        """Record how restoring an env has ended."""
        if self.recoveries:
            shard, local = self._places[env_id]
            self.recoveries[shard].note_outcome(local, outcome)

    def note_executed(self, shard: int, op: Steps | Commands) -> None:
        """Record commands of a shard, in its numbers: a part of a request, or those that a task has given by itself."""
        if not self.recoveries:
            return
        journal = self.recoveries[shard].journal
        if isinstance(op, Steps):
            journal.note_steps(op.leaves, op.env_ids, op.form)
        else:
            journal.note_commands(op)

    def note_records(self, shard: int, records: Array, env_ids: Array) -> None:
        """Keep the newest records of some envs of a shard, whose ids are in its numbers."""
        found = records["step_id"] != 0
        self._records[shard][env_ids[found], 0] = records[found]

    def records(self, shard: int) -> Array:
        """Return the newest records of the envs of a shard, (n, 2)."""
        return self._records[shard].copy()

    def renew(self, shard: int) -> None:
        """Begin the journal of a shard whose envs are new."""
        self._records[shard][:] = 0
        if self._make_recovery is not None:
            self.recoveries[shard] = self._make_recovery(shard)
