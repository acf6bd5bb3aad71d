"""Present the rows of one receive as arrays that are nested like the spaces.

The last stage of the data path: rows of a block become observations, rewards and flags, and messages (infos,
exceptions, values without layout) are added.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import Any, NoReturn

import numpy as np

from ...errors import ErrorRows, StateError, add_notes
from ..layout.columns import FINAL_CELLS, INFO_CELLS, CellColumns
from ..layout.flags import RowFlag
from ..layout.info_cells import Column, InfoColumns
from ..layout.messages import Reply, describe_place, unpack_error
from ..layout.rows import AnyRows, Rows, copy_rows, union_of_flags
from ..layout.spec import Array, Leaf, NoneNode, ObjectNode, Spec

__all__ = ["Batch", "TrackedRows", "raise_first"]


#: Value of the bytes of expired integers.
_GARBAGE = 0xA5


class Batch:
    """B rows of results.

    Arrays are views of the ring while `is_valid()`; `copy()` returns a batch that stays valid.
    Rows are in request order if the request was ordered, else in the order in which they finished.

    Attributes:
        rows: the columns.
        flags: union of the flags of all rows; 0 means that all rows are plain steps.
    """

    __slots__ = ("_expired", "_infos", "_replies", "_spec", "flags", "rows")

    def __init__(self, rows: AnyRows, flags: int, spec: Spec, infos: InfoColumns, replies: dict[int, Reply]) -> None:
        self.rows = rows
        self.flags = flags
        self._spec = spec
        self._infos = infos
        self._replies = replies
        self._expired = False

    def __len__(self) -> int:
        return self.rows.count

    # ---- arrays -----------------------------------------------------------------------

    @property
    def obs(self) -> Any:
        """Observations, nested like the space: leaves (B, *S)."""
        root = self._spec.root
        if isinstance(root, Leaf):
            return self.rows.obs(0)
        return self._spec.batch(lambda leaf: self.rows.obs(leaf.index), self._objects("objects"))

    @property
    def final_obs(self) -> Any:
        """Observations that ended episodes; meaningful only in rows flagged FINAL.

        Raises:
            IndexError: the rows of this pool have no final observations; see `options.final_obs`.
        """
        return self._spec.batch(lambda leaf: self.rows.final(leaf.index), self._objects("final_objects"))

    @property
    def rewards(self) -> Array:
        """Rewards, float64 (B, *reward shape)."""
        return self.rows.column("reward")

    @property
    def terminated(self) -> Array:
        """Bool (B,): Gymnasium's terminated."""
        return self.rows.column("terminated")

    @property
    def truncated(self) -> Array:
        """Bool (B,): Gymnasium's truncated."""
        return self.rows.column("truncated")

    @property
    def env_ids(self) -> Array:
        """Int64 (B,): env id of each row."""
        return self.rows.column("env_id")

    @property
    def step_ids(self) -> Array:
        """Uint64 (B,): the answered commands."""
        return self.rows.column("step_id")

    @property
    def row_flags(self) -> Array:
        """Uint32 (B,): `RowFlag` bits of each row."""
        return self.rows.column("flags")

    @property
    def is_autoreset(self) -> Array:
        """Bool (B,), not a view: the rows of NEXT_STEP autoresets, which ignored their action."""
        if not self.flags & RowFlag.AUTORESET:
            return np.zeros(len(self), np.bool_)
        found: Array = (self.rows.column("flags") & RowFlag.AUTORESET) != 0
        return found

    @property
    def episodes(self) -> Array:
        """Int64 (B,): index of each row's episode, from 0."""
        return self.rows.column("episode")

    @property
    def lengths(self) -> Array:
        """Int64 (B,): steps of the episode so far, this one included."""
        return self.rows.column("length")

    @property
    def returns(self) -> Array:
        """Float64 (B,): sum of the episode's rewards so far; NaN where a reward has several numbers."""
        return self.rows.column("return")

    @property
    def seeds(self) -> Array:
        """Int64 (B,): the seed of the reset, or else of the generator that was made in it; -1 without both."""
        return self.rows.column("seed")

    @property
    def seconds(self) -> Array:
        """Float64 (B,): duration of the episode in seconds; only in rows that end one."""
        return self.rows.column("seconds")

    def _objects(self, name: str) -> Callable[[ObjectNode], tuple[Any, ...]]:
        def values_of(node: ObjectNode) -> tuple[Any, ...]:
            if isinstance(node, NoneNode):
                return (None,) * len(self)
            found = []
            for step_id in self.step_ids.tolist():
                reply = self._replies.get(step_id)
                values = None if reply is None else getattr(reply, name)
                found.append(None if values is None else values[node.index])
            return tuple(found)

        return values_of

    # ---- infos and errors ---------------------------------------------------------------

    @property
    def info_table(self) -> list[Column]:
        """The table of info cells."""
        return self._infos.columns

    def infos(self) -> list[dict[str, Any]]:
        """Return each row's info as the dict that its env returned."""
        return self._read_infos(INFO_CELLS, "info")

    def final_infos(self) -> list[dict[str, Any]]:
        """Return, for each row flagged FINAL, the info of the step that ended the episode; {} for other rows."""
        return self._read_infos(FINAL_CELLS, "final_info")

    def _read_infos(self, cells: CellColumns, name: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = [{} for _ in range(len(self))]
        if self.flags & cells.flag:
            tags, values = self.rows.column(cells.tags), self.rows.column(cells.values)
            tags = np.where(((self.row_flags & cells.flag) != 0)[:, None], tags, 0)
            for column in self._infos.columns:
                kinds = tags[:, column.first].tolist()
                for tag in set(kinds) - {0}:
                    objects = column.objects(values, tag)
                    for info, kind, value in zip(result, kinds, objects):
                        if kind == tag:
                            _put(info, column.path, value)
        for row, reply in self.replies().items():
            result[row].update(getattr(reply, name) or {})
        return result

    def replies(self) -> dict[int, Reply]:
        """Return {row: message} of the rows that have a message."""
        if not self.flags & RowFlag.MESSAGE:
            return {}
        with_message = np.flatnonzero(self.row_flags & RowFlag.MESSAGE).tolist()
        step_ids = self.step_ids
        return {row: self._replies[int(step_ids[row])] for row in with_message}

    def errors(self, first_env_id: int = 0) -> dict[int, Exception]:
        """Return {env_id: exception} of the envs that raised; the other columns of their rows are meaningless.

        Args:
            first_env_id: number of env 0 in the result and in the exceptions.
        """
        if not self.flags & RowFlag.ERROR:
            return {}
        found = {}
        for row, reply in self.replies().items():
            if reply.error is not None:
                op = "reset" if int(self.row_flags[row]) & RowFlag.RESET else "step"
                env_id = first_env_id + reply.env_id
                where: dict[str, Any] = {"env_ids": (env_id,), "op": op, "step_id": reply.step_id}
                where["worker_id"] = reply.worker_id
                found[env_id] = unpack_error(reply.error, **where)
                if reply.request is not None:
                    add_notes(found[env_id], [self._describe_request(row, where, *reply.request)])
        return found

    def _describe_request(self, row: int, where: dict[str, Any], op: str, details: str) -> str:
        if op == "step":
            seed = int(self.seeds[row])
            seed_text = f", seed {seed}" if seed >= 0 else ""
            details = f"step {int(self.lengths[row]) + 1} of its episode{seed_text}, {details}"
        return describe_place({**where, "op": op}, details)

    def raise_errors(
        self, deliver: Callable[[Batch], Any] | None = None, *, num_rows: int = 0, rows_per_env: int = 1
    ) -> None:
        """Raise the exception of the env with the lowest id, if any, with the answers of the other envs.

        Its notes list the other envs that raised.

        Args:
            deliver: makes the result of the front end from a batch without exceptions; None: the batch.
            num_rows: how many rows that has, if it has one for each env of the pool; 0: the rows of this batch.
            rows_per_env: for a front end with several rows per env.
        """
        errors = self.errors()
        if errors:
            env_ids = np.arange(num_rows) if num_rows else self.env_ids
            mask = np.repeat(~np.isin(env_ids, list(errors)), rows_per_env)
            others = self.without_errors()
            raise_first(errors, ErrorRows(others if deliver is None else deliver(others), mask))

    def without_errors(self) -> Batch:
        """Return the same rows without exceptions; those of envs that raised repeat the last observations."""
        return Batch(self.rows, self.flags & ~RowFlag.ERROR, self._spec, self._infos, self._replies)

    def take(self, index: Array) -> Batch:
        """Return a batch of the rows with these indices, with arrays of its own."""
        rows = copy_rows(self.rows, index)
        return Batch(rows, union_of_flags(rows.column("flags")), self._spec, self._infos, self._replies)

    # ---- validity -----------------------------------------------------------------------

    def is_valid(self) -> bool:
        """Return whether the views still contain this batch; always True outside debug mode."""
        return not self._expired

    def expire(self) -> None:
        """Debug mode: overwrite the rows, so that a later use is noticed.

        Floats become NaN, the bytes of integers 0xA5, and bools alternate between True and False.
        """
        self._expired = True
        for leaf in self._spec.leaves:
            _overwrite(self.rows.obs(leaf.index))
        for name in ("reward", "terminated", "truncated", "env_id"):
            _overwrite(self.rows.column(name))

    def copy(self) -> Batch:
        """Return a batch with arrays of its own.

        Raises:
            StateError: debug mode, and the batch has expired.
        """
        if not self.is_valid():
            raise StateError("the batch has expired: copy it before `depth - 1` more batches are received")
        return Batch(copy_rows(self.rows), self.flags, self._spec, self._infos, self._replies)


def _overwrite(array: Array) -> None:
    if array.dtype.kind in "fc":
        array[...] = np.nan
    elif array.dtype.kind == "b":
        array[...] = (np.arange(array.size) % 2 == 0).reshape(array.shape)
    else:
        array[...] = np.frombuffer(bytes([_GARBAGE]) * array.dtype.itemsize, array.dtype)[0]


def _put(info: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        info = info.setdefault(key, {})
    info[path[-1]] = value


class TrackedRows(Rows):
    """Rows in debug mode, which know whether the caller still refers to their observations.

    Args:
        rows: a batch, as the hub delivered it.
        spec: of the observations.
    """

    __slots__ = ("_paths", "_rows")

    def __init__(self, rows: AnyRows, spec: Spec) -> None:
        # Arrays made from a buffer: each view of such an array refers to that array, and to no other.
        super().__init__(rows.count, {}, [np.asarray(leaf.data) for leaf in rows.leaves], [])
        self._rows = rows
        self._paths = [leaf.path for leaf in spec.leaves]

    def column(self, name: str) -> Array:
        return self._rows.column(name)

    def final(self, leaf: int) -> Array:
        return self._rows.final(leaf)

    def leaves_in_use(self) -> list[str]:
        """Return the paths of the leaves to whose arrays the caller refers."""
        unused = [np.empty(0)]  # an array with the references of an array to which the caller does not refer
        least, *counts = [getrefcount(array) for array in [*unused, *self.leaves]]
        return [path for path, count in zip(self._paths, counts) if count > least]


def raise_first(errors: dict[int, Exception], rows: ErrorRows | None = None) -> NoReturn:
    """Raise the exception of the lowest env id, with one note per further env, and with the answers of other envs."""
    first, *rest = sorted(errors)
    error = errors[first]
    if rows is not None:
        vars(error)["rows"] = rows
    add_notes(error, [f"env {env_id} raised {type(errors[env_id]).__name__}: {errors[env_id]}" for env_id in rest])
    raise error
