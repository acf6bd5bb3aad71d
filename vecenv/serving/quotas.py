"""Quotas: decides which request for workers of one env is granted next.

Requests are granted in the order of their arrival, each as a whole. A request that must wait delays later ones, except
those that fit into the reserve of their own client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .catalog import CatalogEntry

__all__ = ["WorkerRequest", "find_grantable", "refusal_of"]


class WorkerRequest(NamedTuple):
    """A request for workers.

    Attributes:
        client: name of the client.
        num_workers: that it needs.
    """

    client: str
    num_workers: int


def refusal_of(entry: CatalogEntry, request: WorkerRequest) -> str:
    """Return why a request can never be granted; '' if it can."""
    others = sum(count for client, count in entry.reserve.items() if client != request.client)
    limits = {
        f"there are {entry.workers}": entry.workers,
        f"{others} of {entry.workers} are reserved for others": entry.workers - others,
    }
    if request.client in entry.max:
        limits[f"client {request.client!r} may have {entry.max[request.client]}"] = entry.max[request.client]
    for reason, limit in limits.items():
        if request.num_workers > limit:
            return f"{request.num_workers} workers of {entry.envs_per_worker} envs are needed, and {reason}"
    return ""


def find_grantable(
    entry: CatalogEntry, num_idle: int, leased: Mapping[str, int], waiting: Sequence[WorkerRequest]
) -> int | None:
    """Return the position of the request to grant now; None if all must wait.

    Args:
        entry: of the env.
        num_idle: number of idle workers.
        leased: number of workers that each client has.
        waiting: the requests in the order of their arrival.
    """
    is_blocked = False
    has = Counter(leased)
    for position, (client, count) in enumerate(waiting):
        is_allowed = client not in entry.max or count + has[client] <= entry.max[client]
        kept = sum(max(0, most - has[other]) for other, most in entry.reserve.items() if other != client)
        own_reserve = entry.reserve.get(client, 0) - has[client]
        if is_allowed and count <= num_idle - kept and (not is_blocked or count <= own_reserve):
            return position
        is_blocked = is_blocked or is_allowed  # a client over its limit waits for itself only
    return None
