"""Spreading: moves the envs of a pool that wait to more workers, once, while the pool is used.

    WaitingCheck: the envs wait   ->  one env moves   ->  its answers were equal  ->  the others move
                                                      ->  else                    ->  they stay

A worker steps its envs one after the other, so envs that wait are faster in workers of their own. An env moves only if
it can be restored exactly, by repeating its commands since its restore point. No program can know in advance whether
an env gives equal answers again, so the first one that moves is the proof for the others.
"""

from __future__ import annotations

from ..operations.engine import OpenedEnvs
from ..parent.inbox import Inbox
from ..recovery.policy import RestoreProgress
from ..system.clock import Deadline, now_ns
from .death import Supervisor

__all__ = ["Spreading"]

#: Envs that owe an answer at every look for this long, in seconds, or cannot be restored exactly, stay.
_SECONDS = 30.0
#: Nanoseconds between two looks for envs that may move.
_PAUSE_NS = 20_000_000


class Spreading:
    """Moves the envs of one pool.

    Args:
        envs_per_worker: most envs of a worker, if all that are asked may move.
        reason: why they move, for the log.
        supervisor: moves them.
        envs: of the pool.
        inbox: receives the results of restoring.
    """

    def __init__(
        self, envs_per_worker: int, reason: str, supervisor: Supervisor, envs: OpenedEnvs, inbox: Inbox
    ) -> None:
        assert envs.slots is not None and envs.journal is not None
        self._envs_per_worker = envs_per_worker
        self._reason = reason
        self._supervisor = supervisor
        self._hub, self._slots, self._journal, self._inbox = envs.hub, envs.slots, envs.journal, inbox
        self._proof: RestoreProgress | None = None
        self._until = Deadline(_SECONDS)
        self._next_look_ns = 0

    def advance(self) -> bool:
        """Move envs that owe nothing, if some may move now; return whether to call this again before later requests.

        Raises:
            Exception: as `Supervisor.add_workers`.
        """
        if now_ns() < self._next_look_ns or self._supervisor.has_failed:
            return True
        asked = self._asked_to_move()
        room = self._slots.num_reserved
        if not asked or not room or self._until.is_over():
            return False
        if self._proof is not None and self._proof.waiting:  # it is restored before its next command
            self._inbox.poll()
            return True
        if self._proof is not None and not self._proof.outcomes:  # its worker has failed before
            self._proof = None
        if self._proof is not None and not self._proof.is_exact:
            return False
        self._next_look_ns = now_ns() + _PAUSE_NS
        idle = [env_id for env_id in asked if not self._hub.owed(env_id)[1]]
        ready = {env_id: count for env_id in idle if (count := self._num_commands(env_id)) is not None}
        if not ready:
            return True
        if self._proof is None:
            groups = [[min(ready, key=ready.__getitem__)]]
        else:
            size = max(self._envs_per_worker, -(-len(ready) // room))
            shares: dict[int, list[int]] = {}  # a worker has the constructors of its own envs only
            for env_id in ready:
                shares.setdefault(self._slots.worker_of_env(env_id), []).append(env_id)
            groups = [mine[i : i + size] for mine in shares.values() for i in range(0, len(mine), size)][:room]
        progress = self._supervisor.add_workers(groups, self._reason)
        self._proof = self._proof or progress
        return progress is not None

    def _asked_to_move(self) -> list[int]:
        """Return the envs of slots with too many envs, without those that stay there."""
        by_slot: dict[int, list[int]] = {}
        for env_id, slot in enumerate(self._slots.by_env):
            by_slot.setdefault(slot, []).append(env_id)
        return sorted(env_id for env_ids in by_slot.values() for env_id in env_ids[self._envs_per_worker :])

    def _num_commands(self, env_id: int) -> int | None:
        """Return how many commands restore an env exactly; None if they cannot."""
        history = self._journal.history(env_id, ())
        plan = history.attempts[0] if history.attempts else None
        if plan is None or not plan.restore_point.is_complete or plan.unproven or history.lost_calls:
            return None
        return len(plan.entries)
