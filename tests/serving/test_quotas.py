"""Requests for workers are granted in their order within quotas, or refused."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


_CLIENTS = st.sampled_from(["a", "b", "eval", "few"])
#: A request of so many workers, or the end of the oldest lease of a client.
_EVENTS = st.tuples(_CLIENTS, st.integers(1, 6) | st.none())


@given(st.lists(_EVENTS, max_size=30))
def test_quotas_hold_and_every_request_is_granted_at_last(events: list[tuple[str, int | None]]) -> None:
    leases: list[WorkerRequest] = []
    waiting: list[WorkerRequest] = []
    for client, count in [*events, *[(client, None) for client in ("a", "b", "eval", "few") * 31]]:
        if count is None:
            ended = next((one for one in leases if one.client == client), None)
            leases = [one for one in leases if one is not ended]
        elif not refusal_of(ENTRY, WorkerRequest(client, count)):
            waiting.append(WorkerRequest(client, count))
        while True:
            leased = _leased(leases)
            found = find_grantable(ENTRY, ENTRY.workers - leased.total(), leased, waiting)
            if found is None:
                break
            is_reserved = waiting[found].num_workers + leased["eval"] <= 2 and waiting[found].client == "eval"
            assert is_reserved or not any(_is_allowed(one, leased) for one in waiting[:found]), "not in their order"
            leases.append(waiting.pop(found))
        leased = _leased(leases)
        assert leased["few"] <= 2 and ENTRY.workers - leased.total() >= max(0, 2 - leased["eval"])
        assert not any(one.client == "eval" and one.num_workers + leased["eval"] <= 2 for one in waiting)
    assert not leases and not waiting


def _leased(leases: list[WorkerRequest]) -> Counter[str]:
    found = Counter[str]()
    for client, count in leases:
        found[client] += count
    return found


def _is_allowed(request: WorkerRequest, leased: Counter[str]) -> bool:
    return request.client != "few" or request.num_workers + leased["few"] <= 2
