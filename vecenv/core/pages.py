"""Pages: the actions of many steps, as the journal keeps them.

    one page    step_id    first .. first + num_rows - 1, without a gap
                env        row modulo num_envs, or env_ids[row]
                columns    one array (capacity, *S) per action leaf, in the order of the rows

Requests for all envs that follow each other share a page, so that noting one is a copy into memory
that is there already: no objects are made, and the collector of cycles has nothing to look at.
"""

from __future__ import annotations

import numpy as np

from .spec import Array

__all__ = ["Page"]

#: Bytes of actions in a page, more or less.
_PAGE_NBYTES = 1 << 16
#: What a page costs beside its arrays.
_OVERHEAD_NBYTES = 600


class Page:
    """Steps with consecutive ids.

    Attributes:
        first: step_id of row 0.
        num_rows: rows written.
        form: the object that an action of shape () arrives as.
        nbytes: memory, rows not written yet included.
    """

    __slots__ = ("_num_envs", "capacity", "columns", "env_ids", "first", "form", "nbytes", "num_rows")

    def __init__(self, first: int, num_envs: int, columns: tuple[Array, ...], env_ids: Array | None, form: int) -> None:
        self.first = first
        self.columns = columns
        self.env_ids = env_ids
        self.form = form
        self.capacity = len(columns[0]) if columns else 0
        self.num_rows = 0
        self._num_envs = num_envs
        self.nbytes = _OVERHEAD_NBYTES + sum(column.nbytes for column in columns)
        self.nbytes += 0 if env_ids is None else env_ids.nbytes

    @classmethod
    def blank(cls, first: int, num_envs: int, like: tuple[Array, ...], form: int) -> Page:
        """Return an empty page for requests of all envs, whose actions look like these (num_envs, *S)."""
        row_nbytes = max(1, sum(leaf.nbytes for leaf in like))
        capacity = num_envs * max(1, min(1024, _PAGE_NBYTES // row_nbytes))
        columns = tuple(np.empty((capacity, *leaf.shape[1:]), leaf.dtype) for leaf in like)
        return cls(first, num_envs, columns, None, form)

    @classmethod
    def of(cls, first: int, num_envs: int, leaves: tuple[Array, ...], env_ids: Array, form: int) -> Page:
        """Return a full page: these actions of these envs, copied."""
        page = cls(first, num_envs, tuple(leaf.copy() for leaf in leaves), env_ids.copy(), form)
        page.num_rows = len(env_ids)
        return page

    @property
    def stop(self) -> int:
        """The step_id behind the last one."""
        return self.first + self.num_rows

    def envs(self) -> Array:
        """Return the env of each row written."""
        return np.arange(self.num_rows) % self._num_envs if self.env_ids is None else self.env_ids

    def rows_of(self, env_id: int) -> list[int]:
        """Return the rows of one env."""
        if self.env_ids is None:
            return list(range(env_id, self.num_rows, self._num_envs))
        found: list[int] = np.flatnonzero(self.env_ids == env_id).tolist()
        return found

    def action(self, row: int) -> tuple[bytes, ...]:
        """Return the bytes of each leaf of a row's action."""
        return tuple(column[row].tobytes() for column in self.columns)

    def keep(self, wanted: Array) -> list[Page]:
        """Return pages of the rows that are wanted, one per run, since step_ids have no gap in a page."""
        rows, envs = np.flatnonzero(wanted), self.envs()
        kept = []
        for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
            part = slice(int(run[0]), int(run[-1]) + 1)
            leaves = tuple(column[part] for column in self.columns)
            kept.append(Page.of(self.first + part.start, self._num_envs, leaves, envs[part], self.form))
        return kept
