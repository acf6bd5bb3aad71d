"""Requests for workers are granted in their order within quotas, or refused."""

from __future__ import annotations

import pytest

from vecenv.serving.catalog import CatalogEntry
from vecenv.serving.quotas import WorkerRequest, find_grantable, refusal_of

ENTRY = CatalogEntry("env", "CartPole-v1", 6, max={"few": 2}, reserve={"eval": 2})


@pytest.mark.parametrize(
    "num_idle, leased, waiting, granted",
    [
        (6, {}, [("a", 4)], 0),
        (6, {}, [("a", 5)], None),  # two are kept for 'eval'
        (4, {"a": 2}, [("a", 3), ("b", 1)], None),  # in their order
        (2, {"a": 4}, [("a", 1), ("eval", 2)], 1),  # the reserve is for it alone
        (2, {"a": 4}, [("a", 1), ("eval", 3)], None),
        (4, {"eval": 2}, [("a", 4)], 0),  # the reserve is in use
        (5, {"few": 1}, [("few", 2), ("a", 1)], 1),  # a client over its own limit delays no other one
        (6, {}, [], None),
    ],
)
def test_requests_are_granted_in_their_order_within_quotas(
    num_idle: int, leased: dict[str, int], waiting: list[tuple[str, int]], granted: int | None
) -> None:
    assert find_grantable(ENTRY, num_idle, leased, [WorkerRequest(*one) for one in waiting]) == granted


@pytest.mark.parametrize(
    "client, num_workers, text",
    [
        ("a", 4, ""),
        ("a", 5, "5 workers of 1 envs are needed, and 2 of 6 are reserved for others"),
        ("a", 7, "7 workers of 1 envs are needed, and there are 6"),
        ("eval", 6, ""),
        ("few", 3, "3 workers of 1 envs are needed, and client 'few' may have 2"),
    ],
)
def test_requests_that_can_never_be_granted_are_refused(client: str, num_workers: int, text: str) -> None:
    assert refusal_of(ENTRY, WorkerRequest(client, num_workers)) == text
