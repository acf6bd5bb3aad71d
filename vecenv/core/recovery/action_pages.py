"""Store the actions of many steps for the journal.

    columns     one array (capacity, *S) per action leaf
    words       in a page of requests to all envs: how many, the form for which the page is open (-1: for none), the
                step_id after the last row, the first step_id of each request
    starts      the first row of each request, if requests are for some envs only
    firsts      the step_id of that row; those of the next rows count up from it
    env_ids     the env of each row of such a request
    step_ids    the step_id of each row, in a page of selected rows; such a page has no requests

While a page is open, `Hub.send` may record requests in it, at the same instant as it sends them. Requests share a page,
so recording one is a copy into existing memory. It creates no objects that the garbage collector would have to visit.
"""

from __future__ import annotations

import bisect
from array import array

import numpy as np

from ..layout.spec import Array

__all__ = ["Page"]

#: Size of a page beside its arrays.
_OVERHEAD_NBYTES = 600
#: Size of a request beside its rows.
_REQUEST_NBYTES = 16
#: The words of a page, as `Hub.record_in` has them.
_NUM_REQUESTS, _OPEN_FORM, _STOP, _FIRST_STEP_IDS = 0, 1, 2, 3
_CLOSED = -1


class Page:
    """The actions of the steps of some requests.

    Attributes:
        columns: one array (capacity, *S) per action leaf.
        words: int64 (3 + R,), see above; R is the number of requests to all envs for which there is room.
        form: the type in which envs receive actions of shape ().
        nbytes: memory of the page, including rows that are not written yet.
        is_whole: whether each request has a row of every env.
    """

    __slots__ = (
        "_env_ids", "_first_rows", "_first_step_ids", "_num_envs", "_num_rows", "_requests", "_step_ids",
        "columns", "form", "is_whole", "nbytes", "words",
    )  # fmt: skip

    def __init__(
        self, num_envs: int, columns: tuple[Array, ...], form: int, env_ids: Array | None, step_ids: Array | None
    ) -> None:
        self._num_envs = num_envs
        self._first_rows = array("q")  # the first row of each request for some envs
        self._first_step_ids = array("q")  # the step_id of the first row of each such request
        self._env_ids, self._step_ids = env_ids, step_ids
        self.columns = columns
        self.form = form
        self._num_rows = 0 if step_ids is None else len(step_ids)  # rows of requests for some envs
        # One view per request if every request is for all envs: one index is faster than a slice.
        self.is_whole = env_ids is None
        self._requests: list[Array] = []
        if self.is_whole:
            self._requests = [
                column.reshape(len(column) // num_envs, num_envs, *column.shape[1:]) for column in columns
            ]
        most_requests = len(self._requests[0]) if self._requests else 0
        self.words: Array = np.zeros(_FIRST_STEP_IDS + most_requests, np.int64)
        self.words[_OPEN_FORM] = _CLOSED
        rows = [part for part in (*columns, env_ids, step_ids) if part is not None]
        self.nbytes = _OVERHEAD_NBYTES + sum(part.nbytes for part in rows)
        if step_ids is None and rows:
            self.nbytes += _REQUEST_NBYTES * len(rows[0]) // (num_envs if env_ids is None else 1)

    @classmethod
    def blank(cls, num_envs: int, like: tuple[Array, ...], form: int, nbytes: int) -> Page:
        """Return an empty page of about `nbytes` for requests to all envs.

        `like`: an example of the actions, one array (num_envs, *S) per leaf. A page holds 1 to 1024 requests.
        """
        row_nbytes = max(1, sum(leaf.nbytes for leaf in like))
        capacity = num_envs * max(1, min(1024, nbytes // row_nbytes))
        columns = tuple(np.empty((capacity, *leaf.shape[1:]), leaf.dtype) for leaf in like)
        return cls(num_envs, columns, form, None, None)

    @classmethod
    def blank_rows(cls, num_envs: int, like: tuple[Array, ...], form: int, nbytes: int) -> Page:
        """Return an empty page of about `nbytes` for requests to some envs.

        It holds at least one row per env, and at least the rows of `like`.
        """
        row_nbytes = 8 + _REQUEST_NBYTES + sum(leaf.nbytes // len(leaf) for leaf in like)
        capacity = max(num_envs, *map(len, like), min(1 << 14, nbytes // row_nbytes))
        columns = tuple(np.empty((capacity, *leaf.shape[1:]), leaf.dtype) for leaf in like)
        return cls(num_envs, columns, form, np.empty(capacity, np.int64), None)

    @classmethod
    def of(cls, num_envs: int, leaves: tuple[Array, ...], form: int, env_ids: Array, step_ids: Array) -> Page:
        """Return a full page with a copy of these rows."""
        return cls(num_envs, tuple(leaf.copy() for leaf in leaves), form, env_ids.copy(), step_ids.copy())

    @property
    def num_requests(self) -> int:
        """Number of requests in a page of requests to all envs."""
        return int(self.words[_NUM_REQUESTS])

    def has_room(self) -> bool:
        """Return whether there is room for another request to all envs."""
        return self.num_requests < len(self.words) - _FIRST_STEP_IDS

    def open(self, is_open: bool) -> None:
        """Allow `Hub.send` to record requests here, or forbid it."""
        self.words[_OPEN_FORM] = self.form if is_open else _CLOSED

    def add(self, first: int, leaves: tuple[Array, ...]) -> None:
        """Record a request to all envs, copied; there is room for it."""
        number = self.num_requests
        for requests, leaf in zip(self._requests, leaves):
            requests[number] = leaf
        self.words[_FIRST_STEP_IDS + number] = first
        self.words[_STOP] = first + self._num_envs
        self.words[_NUM_REQUESTS] = number + 1

    def clear(self, like: tuple[Array, ...], form: int) -> bool:
        """Empty a page of requests to all envs for reuse; return False if its columns do not fit such leaves."""
        fits = len(like) == len(self.columns) and all(
            column.dtype == leaf.dtype and column.shape[1:] == leaf.shape[1:]
            for column, leaf in zip(self.columns, like)
        )
        if fits:
            self.words[_NUM_REQUESTS] = 0
            self.form = form
        return fits

    def add_rows(self, first: int, leaves: tuple[Array, ...], env_ids: Array) -> bool:
        """Record a request to some envs, copied; return False, and record nothing, if there is no room."""
        assert self._env_ids is not None
        start = self._num_rows
        stop = start + len(env_ids)
        if stop > len(self._env_ids):
            return False
        self._env_ids[start:stop] = env_ids
        for column, leaf in zip(self.columns, leaves):
            column[start:stop] = leaf
        self._first_rows.append(start)
        self._first_step_ids.append(first)
        self._num_rows = stop
        return True

    @property
    def num_rows(self) -> int:
        """Number of rows written."""
        return self.num_requests * self._num_envs if self.is_whole else self._num_rows

    @property
    def stop(self) -> int:
        """The step_id after that of the last row."""
        return int(self.words[_STOP]) if self.is_whole else self.step_id(self.num_rows - 1) + 1

    def step_id(self, row: int) -> int:
        """Return the step_id of a row."""
        if self._step_ids is not None:
            return int(self._step_ids[row])
        if self.is_whole:
            return int(self.words[_FIRST_STEP_IDS + row // self._num_envs]) + row % self._num_envs
        request = bisect.bisect_right(self._first_rows, row) - 1
        return self._first_step_ids[request] + row - self._first_rows[request]

    def step_ids(self) -> Array:
        """Return the step_id of each written row, int64 (num_rows,), in increasing order."""
        if self._step_ids is not None:
            return self._step_ids
        if self.is_whole:
            firsts = self.words[_FIRST_STEP_IDS : _FIRST_STEP_IDS + self.num_requests]
            return (firsts[:, None] + np.arange(self._num_envs)).ravel()
        starts = np.array(self._first_rows, np.int64)
        offsets = np.array(self._first_step_ids, np.int64) - starts
        counts = np.diff(starts, append=self.num_rows)
        return np.arange(self.num_rows) + np.repeat(offsets, counts)

    def envs(self) -> Array:
        """Return the env id of each written row, int64 (num_rows,)."""
        if self._env_ids is None:
            return np.arange(self.num_rows) % self._num_envs
        return self._env_ids[: self.num_rows]

    def num_steps(self) -> Array:
        """Return the number of rows of each env, int64 (num_envs,)."""
        if self.is_whole:
            return np.full(self._num_envs, self.num_requests)
        return np.bincount(self.envs(), minlength=self._num_envs)

    def rows_of(self, env_id: int) -> list[int]:
        """Return the rows of one env."""
        if self._env_ids is None:
            return list(range(env_id, self.num_rows, self._num_envs))
        found: list[int] = np.flatnonzero(self.envs() == env_id).tolist()
        return found

    def action(self, row: int) -> tuple[bytes, ...]:
        """Return the bytes of each leaf of a row's action."""
        return tuple(column[row].tobytes() for column in self.columns)

    def select(self, wanted: Array) -> Page:
        """Return a page of only the wanted rows; this page if the copy would not be smaller.

        `wanted`: bool (num_rows,).
        """
        ids_nbytes = 8 + 8  # each row of the copy has its own env_id and step_id
        row_nbytes = ids_nbytes + sum(column.nbytes // max(1, len(column)) for column in self.columns)
        if _OVERHEAD_NBYTES + np.count_nonzero(wanted) * row_nbytes >= self.nbytes:
            return self
        leaves = tuple(column[: self.num_rows][wanted] for column in self.columns)
        return Page.of(self._num_envs, leaves, self.form, self.envs()[wanted], self.step_ids()[wanted])
