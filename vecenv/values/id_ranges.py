"""Ids as text: ranges of numbers, and nodes of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ids_text", "node_text"]


def ids_text(env_ids: Sequence[int]) -> str:
    """Return ids in increasing order as ranges, such as '0-31, 33'."""
    ends = [i for i in range(1, len(env_ids)) if env_ids[i] != env_ids[i - 1] + 1]
    runs = [env_ids[start:stop] for start, stop in zip([0, *ends], [*ends, len(env_ids)])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs if run)


def node_text(node_ip: str, node_id: str) -> str:
    """Return a node for messages, such as '10.0.0.3 (0f3a51c2)'; '' without nodes."""
    return f"{node_ip} ({node_id[:8]})" if node_id else ""
