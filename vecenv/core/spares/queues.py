"""SpareQueues: which env serves which row, and which spare env is next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ..layout.spec import Array

__all__ = ["SpareQueues"]


class SpareQueues:
    """At first, env i serves row i, and all other envs are spare: env N + j is a spare of row j % N.

    Args:
        num_rows: N, number of rows.
        num_spares: number of spare envs.

    Attributes:
        env_of: int64 (N,), the env that serves each row.
        row_of: int64 (N + num_spares,), the row that each env serves; -1 for spare envs.
        are_own: whether each row has a queue of its own; else all rows share one.
    """

    #: Attributes that a saved pool contains.
    SAVED = ("env_of", "row_of", "_queues")

    env_of: Array
    row_of: Array

    def __init__(self, num_rows: int, num_spares: int) -> None:
        self._num_rows, self._num_spares = num_rows, num_spares
        self.are_own = num_spares % num_rows == 0
        self.begin()

    def begin(self) -> None:
        """Let env i serve row i, and all others be spare, as at first."""
        num_rows = self._num_rows
        self.env_of = np.arange(num_rows)
        self.row_of = np.concatenate([self.env_of, np.full(self._num_spares, -1)])
        spares = range(num_rows, num_rows + self._num_spares)
        shared = deque(spares)
        own = [deque(spares[row::num_rows]) for row in range(num_rows)]
        self._queues = own if self.are_own else [shared] * num_rows

    def distinct(self) -> Sequence[Sequence[int]]:
        """Return the queues of all rows, or the one that they share; each has env ids, the next one first."""
        return self._queues if self.are_own else self._queues[:1]

    def swap_back(self, rows: Array) -> None:
        """Give rows the last envs of their queues, and put their own envs to the front: `swap` the other way round."""
        for row, env_id in zip(rows.tolist()[::-1], self.env_of[rows].tolist()[::-1]):
            self.row_of[env_id] = -1
            self._queues[row].appendleft(env_id)
            env_id = self._queues[row].pop()
            self.env_of[row], self.row_of[env_id] = env_id, row

    def swap(self, rows: Array) -> None:
        """Append the envs of these rows to the queues, and give each row the first env of its queue."""
        for row, env_id in zip(rows.tolist(), self.env_of[rows].tolist()):
            self.row_of[env_id] = -1
            self._queues[row].append(env_id)
        for row in rows.tolist():
            env_id = self._queues[row].popleft()
            self.env_of[row], self.row_of[env_id] = env_id, row
