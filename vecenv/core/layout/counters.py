"""Compute the layout of the counters, the shared segment of a pool that other programs may read.

    byte 0     header        int64 words, the table of all offsets below
               workers       per slot, its worker
               slot_of_env   per env, its slot: one int64 word
               slots         three 64-byte lines each: doorbell, progress, sleeping flag
               timings       per env, how long its operations take; absent if nothing is timed
               shards        per env, a row; the first rows have the shards. Absent without shards, as is the next group
               owed          per env, whether it owes an answer: two arrays of bytes

With shards, the parent writes everything. Workers, slots and timings are copies, which each shard sends about once a
second. A slot has the number of the first env that it serves, so `num_slots` is `num_envs`.

It contains neither observations nor actions. native/shm/layout.h has the same drawing.

Rules for readers. The parent writes the header, `workers` and `slot_of_env`; a worker writes the progress of its slots
and the timings of its envs. Each value is one aligned word with one writer, so it is never half written. Two values may
be those of two instants. Where they belong together, the writer stores them in one order, and a reader loads them in
the reverse order:

    timings    bucket, maximum, sum, number (of steps or resets); sum of returns, number (of episodes)
    slots      start, env, step_id, operation; the operation is 0 between two commands
    workers    pid = 0, then all but the pid, then the pid; the same for shards

So a reader that loads the number of steps first finds at least that number in the histogram. It loads an operation
with its step_id twice, and so finds whether the values between the two loads belong to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .spec import Array

__all__ = [
    "COUNTERS_MAGIC",
    "COUNTERS_VERSION",
    "COUNTERS_WORDS",
    "FIRST_OCTAVE",
    "LINE",
    "NUM_BUCKETS",
    "SLOT_NBYTES",
    "TIMINGS_NBYTES",
    "CountersPlan",
]

COUNTERS_MAGIC = 0x766E6365766E6302
#: Version of this layout; it changes with every change that a reader must know.
COUNTERS_VERSION = 2
LINE = 64
SLOT_NBYTES = 3 * LINE
#: Histograms of durations: buckets, and the exponent of the first octave in nanoseconds (native/shm/layout.h).
NUM_BUCKETS, FIRST_OCTAVE = 128, 8
TIMINGS_NBYTES = 3 * LINE + 2 * 8 * NUM_BUCKETS

#: Names of the words of the header, in the order of the enum in native/shm/layout.h.
COUNTERS_WORDS = (
    "magic", "version", "total_nbytes", "num_envs", "num_slots", "is_native", "opened_ns", "num_replaced",
    "workers", "slot_of_env", "slots", "timings", "shards", "owed",
)  # fmt: skip

#: The worker of a slot: `pid` is 0 if the slot has none. `started` is its start time in clock ticks since boot,
#: `stack_fd` the parent's descriptor of the file for its Python stacks, -1 if there is none. The others are known of
#: workers in shards alone: `busy_share` of the slot, the part of the last second or so in which it stepped or reset
#: envs, NaN if nothing is timed; `rss_nbytes`, the memory in RAM; `state`, the letter of /proc, '' if it is dead.
_WORKER = np.dtype(
    [
        ("pid", "<i8"), ("started", "<i8"), ("worker_id", "<i8"), ("stack_fd", "<i8"), ("busy_share", "<f8"),
        ("rss_nbytes", "<f8"), ("state", "S8"),
    ]
)  # fmt: skip

#: A shard, written by the driver. `num_envs` is 0 if the row has none, `pid` while it has no process. `restarts` counts
#: its predecessors, `worker_restarts` the workers that they and it have replaced, `num_steps` all their steps.
#: `answered_ns` is the time of its last reply on the monotonic clock, `counted_ns` that of the one with its counters; 0
#: before the first one. `in_task` is whether it ran a task then. `node` is '' without nodes. `state` is that of
#: `ShardInfo`.
_SHARD = np.dtype(
    [
        ("first_env_id", "<i8"), ("num_envs", "<i8"), ("pid", "<i8"), ("restarts", "<i8"), ("worker_restarts", "<i8"),
        ("num_steps", "<i8"), ("answered_ns", "<i8"), ("counted_ns", "<i8"), ("in_task", "<i8"), ("state", "S8"),
        ("node", "S112"),
    ]
)  # fmt: skip

_SLOT_NAMES = ["op", "env_id", "step_id", "started_ns", "blocked", "num_steps"]
#: The progress of a slot, as C writes it (native/shm/layout.h) and as core/fallback writes it.
_NATIVE_SLOT = np.dtype(
    {
        "names": _SLOT_NAMES,
        "formats": ["<u4", "<u4", "<i8", "<i8", "<u4", "<i8"],
        "offsets": [LINE + at for at in (4, 8, 16, 24, 12, 48)],
        "itemsize": SLOT_NBYTES,
    }
)
_FALLBACK_SLOT = np.dtype(
    {
        "names": _SLOT_NAMES,
        "formats": ["<i8"] * 6,
        "offsets": [*range(LINE, LINE + 48, 8)],
        "itemsize": SLOT_NBYTES,
    }
)

#: The times of one env, as in native/shm/layout.h; `long_` operations take 1 ms or more. Nanoseconds, except `num_*`,
#: the sum of returns and the histograms.
_TIMINGS = np.dtype(
    {
        "names": [
            "num_steps", "num_resets", "step_ns", "reset_ns", "long_ns", "max_step_ns", "max_reset_ns", "ended_ns",
            "short_num", "short_wall_ns", "short_cpu_ns", "short_delay_ns",
            "long_num", "long_wall_ns", "long_cpu_ns", "long_delay_ns",
            "construct_ns", "construct_cpu_ns", "num_episodes", "return_sum", "num_exceptions",
            "step_buckets", "reset_buckets",
        ],
        "formats": ["<i8"] * 19 + ["<f8", "<i8"] + [("<i8", NUM_BUCKETS)] * 2,
        "offsets": [*range(0, 8 * 21, 8), 3 * LINE, 3 * LINE + 8 * NUM_BUCKETS],
        "itemsize": TIMINGS_NBYTES,
    }
)  # fmt: skip


@dataclass(frozen=True)
class CountersPlan:
    """Sizes and offsets of the counters of a pool; equal in the parent, in every worker and in readers.

    Attributes:
        is_timed: whether workers write how long operations take.
        has_shards: whether the envs are in shards; `num_slots` is `num_envs` then.
        words: the words of the header: sizes and byte offsets by name.
    """

    num_envs: int
    num_slots: int
    is_timed: bool = True
    has_shards: bool = False
    words: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        words = dict.fromkeys(COUNTERS_WORDS, 0)
        words.update(magic=COUNTERS_MAGIC, version=COUNTERS_VERSION, num_envs=self.num_envs, num_slots=self.num_slots)
        groups = {
            "workers": self.num_slots * _WORKER.itemsize,
            "slot_of_env": self.num_envs * 8,
            "slots": self.num_slots * SLOT_NBYTES,
            "timings": self.num_envs * TIMINGS_NBYTES if self.is_timed else 0,
            "shards": self.num_slots * _SHARD.itemsize if self.has_shards else 0,
            "owed": 2 * self.num_envs if self.has_shards else 0,
        }
        at = 8 * len(COUNTERS_WORDS)
        for name, nbytes in groups.items():
            at = -(-at // LINE) * LINE
            words[name] = at if nbytes else 0
            at += nbytes
        words["total_nbytes"] = at
        object.__setattr__(self, "words", words)

    @property
    def nbytes(self) -> int:
        """Size of the segment in bytes."""
        return self.words["total_nbytes"]

    def write_header(self, memory: Any, *, is_native: bool = True, opened_ns: int = 0) -> None:
        """Write the header to the start of zeroed memory."""
        words = {**self.words, "is_native": int(is_native), "opened_ns": opened_ns}
        self.header(memory)[:] = [words[name] for name in COUNTERS_WORDS]

    def header(self, memory: Any) -> Array:
        """Return the words of the header, int64 in the order of `COUNTERS_WORDS`."""
        return np.frombuffer(memory, np.int64, len(COUNTERS_WORDS))

    def workers(self, memory: Any) -> Array:
        """Return the worker of each slot, (num_slots,), with the fields of `_WORKER`."""
        return np.frombuffer(memory, _WORKER, self.num_slots, self.words["workers"])

    def slot_of_env(self, memory: Any) -> Array:
        """Return the slot of each env, int64 (num_envs,)."""
        return np.frombuffer(memory, np.int64, self.num_envs, self.words["slot_of_env"])

    def slots(self, memory: Any, *, is_native: bool) -> Array:
        """Return the progress of each slot, (num_slots,): op, env_id, step_id, started_ns, blocked, num_steps."""
        dtype = _NATIVE_SLOT if is_native else _FALLBACK_SLOT
        return np.frombuffer(memory, dtype, self.num_slots, self.words["slots"])

    def timings(self, memory: Any) -> Array | None:
        """Return the times of each env, (num_envs,), with the fields of `_TIMINGS`; None if nothing is timed.

        The worker of an env writes its words, see native/shm/timing.h.
        """
        if not self.is_timed:
            return None
        return np.frombuffer(memory, _TIMINGS, self.num_envs, self.words["timings"])

    def shards(self, memory: Any) -> Array:
        """Return the rows of shards, (num_envs,), with the fields of `_SHARD`; (0,) if there are none."""
        return np.frombuffer(memory, _SHARD, self.num_slots if self.has_shards else 0, self.words["shards"])

    def owed(self, memory: Any) -> Array:
        """Return which envs of shards owe an answer, and of which it has arrived, bool (2, num_envs)."""
        return np.frombuffer(memory, np.bool_, 2 * self.num_envs, self.words["owed"]).reshape(2, -1)
