"""Outstanding replies of the parent's end without C, and the rows that may be delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..layout.flags import Op
from ..parent.hub import Refusal

__all__ = ["Outstanding"]


class Outstanding:
    """The outstanding reply of each env, and the rows that have arrived; the same rules as native/shm/ring.h.

        owed -> arrived -> ready -> delivered      rows of unordered requests
        owed -> missing  -> ready -> delivered     an ordered request, all its rows at once

    Attributes:
        owed: per env, the step_id of its outstanding command; 0 if there is none.
        ops: per env, the operation of its newest command.
        num_owed: number of envs with an outstanding reply.
        ready: env ids of rows that may be delivered, in the order of delivery.
    """

    def __init__(self, num_envs: int) -> None:
        self.owed = [0] * num_envs
        self.ops = [int(Op.NONE)] * num_envs
        self.num_owed = 0
        self.ready: deque[int] = deque()
        self._arrived: dict[int, int] = {}  # step_id -> env_id, in order of arrival
        self._ordered: dict[int, int] = {}  # step_id -> env_id of the ordered request, in its order
        self._missing: set[int] = set()  # step_ids of the ordered request that have not arrived

    def refusal(self, op: int, env_ids: list[int], ordered: bool) -> Refusal | None:
        """Return the reason why a request cannot be sent now; None if it can. Changes no state."""
        superseded = 0
        for env_id in env_ids:
            if not 0 <= env_id < len(self.owed):
                return Refusal("bad_env", env_id)
            if op == Op.CALL or not self.owed[env_id]:
                continue
            if op != Op.RESET or self.ops[env_id] != Op.STEP:
                return Refusal("busy", env_id)
            superseded += 1
        if op != Op.CALL and len(set(env_ids)) != len(env_ids):
            seen: set[int] = set()
            return Refusal("busy", next(i for i in env_ids if i in seen or seen.add(i)))  # type: ignore[func-returns-value]
        return Refusal("mixed", env_ids[-1]) if ordered and self.num_owed > superseded else None

    def add(self, op: int, env_ids: list[int], first: int, ordered: bool) -> None:
        """Register a command per env as outstanding, with the step_ids first, first + 1, ... in request order."""
        for env_id in env_ids:
            self.forget(env_id)
        step_ids = range(first, first + len(env_ids))
        for env_id, step_id in zip(env_ids, step_ids):
            self.owed[env_id] = step_id
            self.ops[env_id] = op
        self.num_owed += len(env_ids)
        if ordered:
            self._ordered = dict(zip(step_ids, env_ids))
            self._missing = set(step_ids)

    def forget(self, env_id: int) -> None:
        """Remove the outstanding command of an env, and its row if that has not been delivered."""
        step_id = self.owed[env_id]
        if not step_id:
            return
        self.owed[env_id] = 0
        self.num_owed -= 1
        self._arrived.pop(step_id, None)
        self._ordered.pop(step_id, None)
        self._missing.discard(step_id)
        if env_id in self.ready:
            self.ready.remove(env_id)

    def arrive(self, env_id: int, step_id: int) -> None:
        """Record that a row has been written; ignore the row of a command that is not outstanding."""
        if self.owed[env_id] != step_id:
            return
        if step_id in self._missing:
            self._missing.discard(step_id)
        else:
            self._arrived[step_id] = env_id

    def stop_waiting_for(self, env_ids: set[int]) -> None:
        """Take these envs out of the ordered request, so that it does not wait for them; they stay outstanding."""
        for step_id in [step_id for step_id in self._missing if self._ordered[step_id] in env_ids]:
            self._missing.discard(step_id)
            del self._ordered[step_id]

    def gather(self, count: int) -> bool:
        """Make arrived rows ready for delivery; return whether at least `count` rows are ready."""
        while len(self.ready) < count:
            if self._ordered:
                if self._missing:
                    return False
                self.ready.extend(self._ordered.values())
                self._ordered = {}
            elif self._arrived and len(self.ready) + len(self._arrived) >= count:
                self.ready.extend(self._arrived.values())
                self._arrived = {}
            else:
                return False
        return True

    def gather_envs(self, env_ids: Iterable[int]) -> bool:
        """Make all arrived rows ready for delivery; return whether those of `env_ids` are among the ready rows."""
        self.ready.extend(self._arrived.values())
        self._arrived = {}
        if self._ordered and not self._missing:
            self.ready.extend(self._ordered.values())
            self._ordered = {}
        found = {*self.ready, *(env_id for step_id, env_id in self._ordered.items() if step_id not in self._missing)}
        return found.issuperset(env_ids)

    def take_envs(self, env_ids: Iterable[int]) -> dict[int, int]:
        """Remove the rows of these envs, which are ready, and return their step_ids by env id, in the given order."""
        taken = {env_id: self.owed[env_id] for env_id in env_ids}
        for env_id in taken:
            self.forget(env_id)
        return taken

    def take(self, max_count: int) -> dict[int, int]:
        """Remove up to `max_count` ready rows and return their step_ids by env id, in the order of delivery."""
        env_ids = [self.ready.popleft() for _ in range(min(max_count, len(self.ready)))]
        taken = {env_id: self.owed[env_id] for env_id in env_ids}
        for env_id in env_ids:
            self.owed[env_id] = 0
        self.num_owed -= len(taken)
        return taken
