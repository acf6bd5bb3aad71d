"""Slots of a pool of workers: which slot serves an env, and which worker a slot belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["SlotTable", "split_evenly"]


class SlotTable:
    """The slots of one `ProcessEngine`. A slot is one thread of a worker and serves some of its envs.

    Args:
        num_envs: how many envs.
    """

    def __init__(self, num_envs: int) -> None:
        self._slots = [0] * num_envs  # index: env_id
        self._workers: list[int] = []  # index: slot
        self._num_reserved = 0

    @property
    def num_used(self) -> int:
        """How many slots, from 0 on, serve envs."""
        return len(self._workers)

    @property
    def num_reserved(self) -> int:
        """How many slots of the arena, behind those that are used, are in reserve."""
        return self._num_reserved

    @property
    def by_env(self) -> tuple[int, ...]:
        """The slot of each env."""
        return tuple(self._slots)

    def assign(self, shares: Sequence[Sequence[int]], threads_per_worker: int) -> list[list[tuple[int, list[int]]]]:
        """Give each worker its slots, in place of those that were given before.

        Args:
            shares: the env ids of each worker.
            threads_per_worker: most slots of a worker.

        Returns:
            By worker: its slots, each with a run of the worker's env ids.
        """
        self._workers.clear()
        assigned = []
        for worker_id, env_ids in enumerate(shares):
            mine = []
            for run in split_evenly(len(env_ids), min(threads_per_worker, len(env_ids))):
                slot = len(self._workers)
                self._workers.append(worker_id)
                mine.append((slot, [env_ids[i] for i in run]))
                for i in run:
                    self._slots[env_ids[i]] = slot
            assigned.append(mine)
        return assigned

    def reserve(self, count: int) -> None:
        """Keep `count` slots of the arena, behind those that are used, for workers that are added."""
        self._num_reserved = count

    def worker_of(self, slot: int) -> int:
        """Return the worker_id that a slot belongs to."""
        return self._workers[slot]

    def worker_of_env(self, env_id: int) -> int:
        """Return the id of the worker that hosts an env."""
        return self._workers[self._slots[env_id]]

    def slot_of(self, env_id: int) -> int:
        """Return the slot that serves an env."""
        return self._slots[env_id]

    def served_by(self, slot: int, env_ids: Iterable[int]) -> list[int]:
        """Return those of these envs that a slot serves."""
        return [env_id for env_id in env_ids if self._slots[env_id] == slot]

    def can_isolate(self, env_id: int, env_ids: Sequence[int]) -> bool:
        """Return whether an env can get a worker alone.

        Args:
            env_ids: all envs of its worker.
        """
        return len(env_ids) > 1 and (self._num_reserved > 0 or not self.shares_slot(env_id, env_ids))

    def shares_slot(self, env_id: int, env_ids: Sequence[int]) -> bool:
        """Return whether the slot of an env serves others, too.

        Args:
            env_ids: all envs of its worker.
        """
        return self.served_by(self._slots[env_id], env_ids) != [env_id]

    def take_reserve(self, env_ids: Sequence[int], worker_id: int) -> int:
        """Give the first slot in reserve to a worker, and these envs to that slot; return it."""
        assert self._num_reserved > 0
        slot = len(self._workers)
        self._num_reserved -= 1
        self._workers.append(worker_id)
        for env_id in env_ids:
            self._slots[env_id] = slot
        return slot

    def give_to(self, slot: int, worker_id: int) -> None:
        """Give a slot to another worker."""
        self._workers[slot] = worker_id


def split_evenly(count: int, parts: int) -> list[list[int]]:
    """Cut 0 .. count - 1 into `parts` runs whose lengths differ by at most one."""
    base, extra = divmod(count, parts)
    runs = []
    start = 0
    for part in range(parts):
        stop = start + base + (part < extra)
        runs.append(list(range(start, stop)))
        start = stop
    return runs
