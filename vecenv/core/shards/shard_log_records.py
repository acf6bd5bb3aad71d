"""ShardLogRecords: log records of shards, until the loggers of this process get them."""

from __future__ import annotations

from collections.abc import Sequence

from ..system.log_records import emit_frame
from .carrier import Carrier

__all__ = ["ShardLogRecords"]


class ShardLogRecords:
    """The log records that shards have sent.

    Args:
        carrier: knows where shards run.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._frames: list[tuple[str, bytes]] = []  # name of the shard, and a record

    def keep(self, shard: int, frames: Sequence[bytes]) -> None:
        """Keep log records until `emit`, and where the shard runs, which may change."""
        if frames:
            name = f"shard {shard}, {self._carrier.describe(shard)}"
            self._frames += [(name, frame) for frame in frames]

    def has_any(self) -> bool:
        """Return whether log records of shards wait for `emit`."""
        return bool(self._frames)

    def emit(self) -> None:
        """Pass the log records of shards to the loggers of this process; each names its shard."""
        while self._frames:
            name, frame = self._frames.pop(0)
            emit_frame(frame, name, names_worker=True)
