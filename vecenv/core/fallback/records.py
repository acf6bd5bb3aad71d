"""Records of the newest replies of each env, in shared memory, without C; see native/worker/slot_records.c.

    records     two per env, 64 bytes each: step_id | digest | episode | length | seed | return | began_ns | is_over

Unlike those in C, these digests are checksums of whole leaves: in Python, samples would not be faster.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from ..layout.arena import RECORD
from ..layout.flags import RowFlag
from ..layout.spec import Array
from .words import CheckedLeaves, SharedWords

__all__ = ["RecordedState", "Records"]

_ESSENTIAL = RowFlag.RESET | RowFlag.AUTORESET | RowFlag.FINAL | RowFlag.ERROR
_EPISODE_COUNTERS = ("episode", "length", "seed", "return")
_RECORD = struct.Struct("<2Q3qdqI4x")
assert _RECORD.size == RECORD.itemsize


@dataclass
class RecordedState:
    """The episode counters and digest of one env, and the time of its next snapshot.

    Attributes:
        episode, length, seed, episode_return: the episode counters; seed -1 means without a seed.
        began_ns: when the episode began, on the monotonic clock.
        digest: of the replies so far.
        starts_digest: whether the digest starts again with the next reply.
        turn: its lowest bit selects the record that is written next.
        busy_ns: busy time since the last `schedule_snapshot`.
        snapshot_after_ns: busy time after which a snapshot is due; 0: never.
        step_snapshot_after_ns: the same for a snapshot before a step.
    """

    episode: int = -1
    length: int = 0
    seed: int = -1
    episode_return: float = 0.0
    began_ns: int = 0
    digest: int = 0
    starts_digest: bool = False
    turn: int = 0
    busy_ns: int = 0
    snapshot_after_ns: int = 0
    step_snapshot_after_ns: int = 0


class Records:
    """The two records of each env of one slot."""

    def __init__(self, words: SharedWords, num_obs_leaves: int) -> None:
        self._records = words.records
        self._bytes = words.records.data.cast("B")
        self._words = self._bytes.cast("q")
        self._num_obs_leaves = num_obs_leaves
        self.is_kept = False

    def digest_of(
        self,
        digest: int,
        starts_digest: bool,
        checked: CheckedLeaves,
        reward: Array,
        terminated: bool,
        truncated: bool,
        flags: int,
    ) -> int:
        """Return the digest after one more reply.

        Args:
            digest: the digest before it.
            starts_digest: whether to start again: then only the observation is added.
            checked: leaves of the observation, then those of the final observation.
            reward, terminated, truncated, flags: the other values of the reply.
        """
        kept = checked[: self._num_obs_leaves] if starts_digest else checked
        if flags & RowFlag.ERROR:
            kept = []
        value = zlib.crc32(b"", 0 if starts_digest else digest)
        for column, part in kept:
            value = zlib.crc32(np.ascontiguousarray(part, column.dtype).data, value)
        if not starts_digest:
            value = zlib.crc32(reward.tobytes() + bytes((flags & _ESSENTIAL, terminated, truncated)), value)
        return value

    def write(self, env_id: int, step_id: int, env: RecordedState, is_over: bool) -> None:
        """Write a record of the reply to a command, over the older of the two. Its row is announced afterwards."""
        at = RECORD.itemsize * (2 * env_id + (env.turn & 1))
        env.turn += 1
        self._bytes[at : at + RECORD.itemsize] = self.pack(env, is_over)
        self._words[at // 8] = step_id

    def pack(self, env: RecordedState, is_over: bool) -> bytes:
        """Return the bytes of a record with step_id 0, an empty one."""
        counters = (env.episode, env.length, env.seed, env.episode_return)
        return _RECORD.pack(0, env.digest, *counters, env.began_ns, is_over)

    def pairs(self, env_id: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return both records of an env, each as (step_id, digest)."""
        one, other = ((int(record["step_id"]), int(record["digest"])) for record in self._records[env_id])
        return one, other

    def read(self, env_id: int, step_id: int, env: RecordedState) -> bool:
        """Set `env` from the record of `step_id`, if there is one; return whether the episode was over then."""
        is_over = False
        for turn, record in enumerate(self._records[env_id]):
            if step_id and int(record["step_id"]) == step_id:
                env.episode, env.length, env.seed = (int(record[name]) for name in _EPISODE_COUNTERS[:3])
                env.episode_return, env.digest = float(record["return"]), int(record["digest"])
                env.began_ns = int(record["began_ns"])
                env.turn = turn + 1
                is_over = bool(record["is_over"])
        return is_over
