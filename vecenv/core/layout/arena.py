"""Compute the layout of the arena, the shared segment of a pool that its rows and actions lie in.

    byte 0     header        int64 words, the table of all offsets below
               control       open row | parent's wait | stop | number of info keys
               info keys     the names of info columns
               queues        per slot, commands of 32 bytes
               newest        per env, the newest step_id sent to it
               mail          per slot, one byte ring up and one down
               records       per env, two 64-byte records of its latest replies
               actions       one column per action leaf, one row per env
               blocks        num_blocks times one column per quantity, `rows` rows each

native/shm/layout.h has the same drawing, with the rules that say which side writes each part. Every group starts on
a cache line, every block on a page.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import ConfigError
from .columns import COLUMNS, INFO_KEYS, Group, RowColumn
from .counters import LINE, CountersPlan
from .spec import Array, Spec

__all__ = [
    "ABI",
    "CHAIN",
    "HEADER_WORDS",
    "INFO_KEY_NBYTES",
    "LINE",
    "PRIVATE_BLOCK",
    "RECORD",
    "read_record",
    "ArenaPlan",
]

MAGIC = 0x766E6365766E6501
ABI = 14
PAGE = 4096
INFO_KEY_NBYTES = 64
CONTROL_NBYTES = 4 * LINE
NOTICE_OFFSET = 3 * LINE + 4
COMMAND_NBYTES = 32
BYTE_RING_NBYTES = 1 << 16
#: Number of a block outside the arena, of saved or of deferred rows (native/shm/ring.h).
PRIVATE_BLOCK = -1
#: Number of open blocks that are linked ahead of the parent (native/shm/ring.h).
CHAIN = 3
#: Blocks beyond those that the caller holds: the chain and its next link, one ordered request,
#: one assembled from row ranges, one partly delivered, and two for stragglers.
SPARE_BLOCKS = CHAIN + 1 + 1 + 1 + 1 + 2

#: Limits set by the bits of a row_ref (native/shm/layout.h).
MAX_ROWS, MAX_BLOCKS, MAX_SLOTS = 65535, 255, 65533

#: Names of the words of the header, in the order of the enum in native/shm/layout.h.
HEADER_WORDS = (
    "magic", "abi", "total_nbytes", "num_envs", "num_slots", "num_blocks", "rows", "queue_size", "byte_ring_nbytes",
    "reward_size", "has_final", "control", "info_keys", "queues", "newest", "byte_rings_up", "byte_rings_down",
    "records",
    "blocks", "block_stride", "link", *(column.name for column in COLUMNS),
)  # fmt: skip

#: One of the two records of an env, as in native/shm/layout.h.
RECORD = np.dtype(
    {
        "names": ["step_id", "digest", "episode", "length", "seed", "return", "began_ns", "is_over"],
        "formats": ["<u8", "<u8", "<i8", "<i8", "<i8", "<f8", "<i8", "<u4"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": LINE,
    }
)


def read_record(data: bytes) -> Array:
    """Return a copy of one record, (), with the fields of `RECORD`."""
    record: Array = np.frombuffer(data, RECORD)[0].copy()
    return record


def _align(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass
class ArenaPlan:
    """Sizes and offsets of an arena; equal in the parent and in every worker.

    Attributes:
        depth: number of batches that a caller may hold at once; a view of a batch is valid until
            `depth - 1` later ones have been received.
        leases: number of additional blocks, which may be lent to the caller (`leases.Leases`).
        is_timed: whether workers write how long operations take.
        words: the words of the header: sizes and byte offsets by name.
        obs_offsets, final_offsets: byte offset of each observation leaf within a block.
        action_offsets: byte offset of each action leaf in the arena.
    """

    num_envs: int
    num_slots: int
    obs: Spec
    action: Spec
    reward_shape: tuple[int, ...]
    depth: int
    has_final: bool
    envs_per_slot: int
    leases: int = 0
    is_timed: bool = True
    words: dict[str, int] = field(init=False)
    obs_offsets: list[int] = field(init=False)
    final_offsets: list[int] = field(init=False)
    action_offsets: list[int] = field(init=False)

    def __post_init__(self) -> None:
        words = dict.fromkeys(HEADER_WORDS, 0)
        words.update(magic=MAGIC, abi=ABI, num_envs=self.num_envs, num_slots=self.num_slots)
        num_blocks = self.depth + SPARE_BLOCKS + self.leases
        words.update(rows=self.num_envs, num_blocks=num_blocks, byte_ring_nbytes=BYTE_RING_NBYTES)
        words.update(reward_size=self.reward_size, has_final=int(self.has_final))
        # A queue may contain, for each env of its slot, a step, the reset that supersedes it, and calls.
        words["queue_size"] = 1 << (8 * self.envs_per_slot + 8).bit_length()
        for name, most in (("num_envs", MAX_ROWS), ("num_slots", MAX_SLOTS), ("num_blocks", MAX_BLOCKS)):
            if words[name] > most:
                raise ConfigError(f"{name}: a pool can have at most {most}, not {words[name]}")
        self.words = words
        self._place_groups()
        self._place_columns()
        words["total_nbytes"] = words["blocks"] + words["num_blocks"] * words["block_stride"]

    @property
    def reward_size(self) -> int:
        """Number of float64 values of one reward."""
        return int(np.prod(self.reward_shape, dtype=np.int64))

    @property
    def counters(self) -> CountersPlan:
        """The layout of the segment beside the arena that the counters lie in."""
        return CountersPlan(self.num_envs, self.num_slots, self.is_timed)

    @property
    def columns(self) -> tuple[RowColumn, ...]:
        """The columns of a row beside observations; the size of `reward` is that of one reward."""
        placed = (column for column in COLUMNS if self.has_final or column.group != Group.FINAL_INFO)
        return tuple(column._replace(size=self.reward_size) if column.name == "reward" else column for column in placed)

    @property
    def nbytes(self) -> int:
        """Size of the whole arena in bytes."""
        return self.words["total_nbytes"]

    def _place_groups(self) -> None:
        words = self.words
        at = _align(8 * len(HEADER_WORDS), PAGE)

        def group(nbytes: int, step: int = LINE) -> int:
            nonlocal at
            start = _align(at, step)
            at = start + nbytes
            return start

        words["control"] = group(CONTROL_NBYTES)
        words["info_keys"] = group(INFO_KEYS * INFO_KEY_NBYTES)
        words["queues"] = group(self.num_slots * words["queue_size"] * COMMAND_NBYTES)
        words["newest"] = group(self.num_envs * 8)
        words["byte_rings_up"] = group(self.num_slots * BYTE_RING_NBYTES)
        words["byte_rings_down"] = group(self.num_slots * BYTE_RING_NBYTES)
        words["records"] = group(self.num_envs * 2 * LINE)
        self.action_offsets = [group(self.num_envs * leaf.nbytes) for leaf in self.action.leaves]
        words["blocks"] = group(0, PAGE)

    def _place_columns(self) -> None:
        words = self.words
        at = 0

        def col(nbytes_per_row: int) -> int:
            nonlocal at
            start = at
            at = _align(start + nbytes_per_row * self.num_envs, LINE)
            return start

        words["link"] = 0
        at = LINE
        for column in self.columns:
            words[column.name] = col(column.nbytes)
        self.obs_offsets = [col(leaf.nbytes) for leaf in self.obs.leaves]
        self.final_offsets = [col(leaf.nbytes) for leaf in self.obs.leaves] if self.has_final else []
        words["block_stride"] = _align(at, PAGE)

    def write_header(self, memory: Any) -> None:
        """Write the table of offsets to the start of a zeroed arena."""
        header = np.frombuffer(memory, np.int64, len(HEADER_WORDS))
        header[:] = [self.words[name] for name in HEADER_WORDS]

    def row_columns(self) -> tuple[tuple[int, int], ...]:
        """Return (offset, bytes per row) of every column that is copied with a row: all but owner and cell."""
        names = [column.name for column in self.columns if column.group != Group.PRIVATE]
        return self._places(names, self.obs_offsets + self.final_offsets)

    def saved_columns(self) -> tuple[tuple[int, int], ...]:
        """Return (offset, bytes per row) of each column of a saved row: step_id, env_id, episode counters, obs."""
        return self._places(("step_id", "env_id", "episode_counters"), self.obs_offsets)

    def _places(self, names: Collection[str], offsets: list[int]) -> tuple[tuple[int, int], ...]:
        """Return (offset, bytes per row) of these columns, and of the leaves of observations at these offsets."""
        found = [(self.words[column.name], column.nbytes) for column in self.columns if column.name in names]
        found += [(offset, leaf.nbytes) for offset, leaf in zip(offsets, itertools.cycle(self.obs.leaves))]
        return tuple(pair for pair in found if pair[1] > 0)

    def action_columns(self) -> tuple[tuple[int, int], ...]:
        """Return (offset, bytes per env) of each action leaf."""
        return tuple((offset, leaf.nbytes) for offset, leaf in zip(self.action_offsets, self.action.leaves))

    def view(self, memory: Any, offset: int, dtype: Any, shape: tuple[int, ...]) -> Array:
        """Return an array over `memory` at a byte offset; the array keeps the mapping alive."""
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(memory, dtype, count, offset).reshape(shape)

    def actions(self, memory: Any) -> list[Array]:
        """Return the column of each action leaf, (num_envs, *S)."""
        return [
            self.view(memory, offset, leaf.dtype, (self.num_envs, *leaf.shape))
            for offset, leaf in zip(self.action_offsets, self.action.leaves)
        ]

    def notice(self, memory: Any) -> Array:
        """Return the word that a worker sets when it has sent a message over its socket, uint32 (1,)."""
        return self.view(memory, self.words["control"] + NOTICE_OFFSET, np.uint32, (1,))

    def records(self, memory: Any) -> Array:
        """Return the two records of each env, (num_envs, 2), with the fields of `RECORD`."""
        return self.view(memory, self.words["records"], RECORD, (self.num_envs, 2))
