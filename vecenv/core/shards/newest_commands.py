"""NewestCommands: which env owes which answer, and which rows may be delivered, in arrays over all envs.

    owed -> arrived -> ready -> delivered      rows of unordered requests
    owed -> missing -> ready -> delivered      an ordered request, all its rows at once

The rules are those of native/shm/ring.h. A request of steps passes without a loop over envs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..layout.commands import Commands
from ..layout.flags import Op
from ..layout.spec import Array
from ..parent.hub import Refusal

__all__ = ["NewestCommands"]


class NewestCommands:
    """The newest command of each env, but calls, and the rows that have arrived.

    Args:
        shard_of: the shard of each env, int64 (num_envs,).
        num_shards: how many shards.
        is_owed, has_arrived: memory for the state of each env, bool (num_envs,), all False.

    Attributes:
        commands: the newest command of each env, but calls, (num_envs,). Keys and payloads count if the command
            is flagged to have a payload.
        num_owed: how many envs owe an answer.
        num_missing: how many of these answers have not arrived.
        num_missing_of: the same by shard.
    """

    def __init__(self, shard_of: Array, num_shards: int, is_owed: Array, has_arrived: Array) -> None:
        num_envs = len(shard_of)
        self._shard_of = shard_of
        self.commands = Commands.of(Op.NONE, np.arange(num_envs))
        self.num_owed = self.num_missing = 0
        self.num_missing_of = [0] * num_shards
        self._is_owed, self._has_arrived = is_owed, has_arrived
        self._ready: Array = np.empty(0, np.int64)  # envs whose rows may be delivered, in that order
        self._arrived: list[Array] = []  # envs whose rows have arrived after those, in that order
        self._order: Array | None = None  # envs of the ordered request, in its order
        self._in_order = np.zeros(num_envs, np.bool_)
        self._num_missing = 0  # rows of the ordered request that have not arrived

    # ---- requests --------------------------------------------------------------------------

    def refusal(self, op: int, env_ids: Array | None, ordered: bool) -> Refusal | None:
        """Return the reason why a request cannot be sent now; None if it can.

        Args:
            op, ordered: see `Hub.command`.
            env_ids: int64 (n,); None for a step of all envs.
        """
        if env_ids is None:
            return Refusal("busy", int(self._is_owed.argmax())) if self.num_owed else None
        wrong = env_ids[(env_ids < 0) | (env_ids >= len(self._is_owed))]
        if len(wrong):
            return Refusal("bad_env", int(wrong[0]))
        superseded = 0
        if op != Op.CALL:
            busy = self._is_owed[env_ids]
            if op == Op.RESET:
                superseded = int(busy.sum())
                busy &= self.commands.table["op"][env_ids] != Op.STEP
            if busy.any():
                return Refusal("busy", int(env_ids[busy.argmax()]))
            distinct, index = np.unique(env_ids, return_index=True)
            if len(distinct) < len(env_ids):
                return Refusal("busy", int(np.delete(env_ids, index)[0]))
        return Refusal("mixed", int(env_ids[-1])) if ordered and self.num_owed > superseded else None

    def add(self, commands: Commands, ordered: bool) -> None:
        """Enter a request of steps or resets, which supersedes the steps that its envs owe."""
        env_ids = commands.env_ids
        for env_id in env_ids[self._is_owed[env_ids]].tolist():
            self.forget(env_id)
        self.commands.table[env_ids] = commands.table
        if any(commands.payloads):
            for env_id, key, payload in zip(env_ids.tolist(), commands.keys, commands.payloads):
                self.commands.keys[env_id], self.commands.payloads[env_id] = key, payload
        self._is_owed[env_ids] = True
        self.num_owed += len(env_ids)
        self.num_missing += len(env_ids)
        for shard, count in enumerate(np.bincount(self._shard_of[env_ids]).tolist()):
            self.num_missing_of[shard] += count
        if ordered:
            self._order = env_ids
            self._in_order[env_ids] = True
            self._num_missing = len(env_ids)

    def forget(self, env_id: int) -> None:
        """Remove the outstanding command of an env, and its row if that has not been delivered."""
        if not self._is_owed[env_id]:
            return
        has_arrived = bool(self._has_arrived[env_id])
        self._is_owed[env_id] = self._has_arrived[env_id] = False
        self.num_owed -= 1
        self.num_missing -= not has_arrived
        self.num_missing_of[int(self._shard_of[env_id])] -= not has_arrived
        if self._in_order[env_id]:
            assert self._order is not None
            self._in_order[env_id] = False
            self._num_missing -= not has_arrived
            self._order = self._order[self._order != env_id]
        if has_arrived:
            self._ready = self._ready[self._ready != env_id]
            self._arrived = [ids[ids != env_id] for ids in self._arrived]

    # ---- questions -------------------------------------------------------------------------

    @property
    def is_ordered(self) -> bool:
        """Whether an ordered request has not been delivered."""
        return self._order is not None

    def count_missing_shards(self) -> int:
        """Return how many shards owe an answer that has not arrived."""
        return len(self.num_missing_of) - self.num_missing_of.count(0)

    def owed(self, env_id: int) -> tuple[int, int]:
        """Return (op, step_id) of the answer that an env owes; op is NONE if it owes none."""
        if not self._is_owed[env_id]:
            return int(Op.NONE), 0
        newest = self.commands.table[env_id]
        return int(newest["op"]), int(newest["step_id"])

    def missing(self, env_ids: Sequence[int] | Array) -> Array:
        """Return those of these envs that owe an answer which has not arrived."""
        ids = np.asarray(env_ids)
        found: Array = ids[self._is_owed[ids] & ~self._has_arrived[ids]]
        return found

    # ---- rows ------------------------------------------------------------------------------

    def select_awaited(self, env_ids: Array, step_ids: Array) -> Array:
        """Return which of these rows are owed and have not arrived yet, bool (n,)."""
        is_newest = self.commands.table["step_id"][env_ids] == step_ids.astype(np.int64)
        found: Array = self._is_owed[env_ids] & ~self._has_arrived[env_ids] & is_newest
        return found

    def arrive(self, env_ids: Array) -> None:
        """Note that the rows of these envs have arrived."""
        self._has_arrived[env_ids] = True
        self.num_missing -= len(env_ids)
        counts = np.bincount(self._shard_of[env_ids])
        shards = np.flatnonzero(counts)
        for shard, count in zip(shards.tolist(), counts[shards].tolist()):
            self.num_missing_of[shard] -= count
        in_order = self._in_order[env_ids]
        self._num_missing -= int(in_order.sum())
        if not in_order.all():
            self._arrived.append(env_ids[~in_order])

    def gather(self, count: int) -> bool:
        """Make arrived rows ready for delivery; return whether at least `count` rows are ready."""
        while len(self._ready) < count:
            num_arrived = self.num_owed - self.num_missing - len(self._ready)
            if self._order is not None:
                if self._num_missing:
                    return False
                self._ready = np.concatenate([self._ready, self._order])
                self._in_order[self._order] = False
                self._order = None
            elif num_arrived and len(self._ready) + num_arrived >= count:
                self._ready = np.concatenate([self._ready, *self._arrived])
                self._arrived = []
            else:
                return False
        return True

    def count_wanted(self, count: int) -> int:
        """Return how many further rows must arrive before `gather(count)` can return True; at most 0 if it can now."""
        num_missing = self.num_missing
        return num_missing if self._order is not None else count - (self.num_owed - num_missing)

    def take(self, max_count: int) -> Array:
        """Remove up to `max_count` ready rows and return their envs; they owe nothing then."""
        env_ids, self._ready = self._ready[:max_count], self._ready[max_count:]
        self._is_owed[env_ids] = self._has_arrived[env_ids] = False
        self.num_owed -= len(env_ids)
        return env_ids

    def have_arrived(self, env_ids: Array) -> bool:
        """Return whether the rows of all these envs have arrived."""
        return bool(self._has_arrived[env_ids].all())
