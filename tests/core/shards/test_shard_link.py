"""ShardLink: each numbered request is executed once, although requests and replies are lost; two are in flight."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from vecenv.core.shards import shard_link
from vecenv.core.shards.frames import Frame, FrameKind, unpack_bare
from vecenv.core.shards.requests import AddInfoKey, Request, unpack_request
from vecenv.core.shards.shard import Shard
from vecenv.core.shards.shard_link import ShardLink
from vecenv.core.system.clock import NEVER_NS


class Sent:
    """A carrier that only notes the requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def ask(self, shard: int, seq: int, request: bytes, most_nbytes: int, shared: Sequence[Any]) -> None:
        self.requests.append(unpack_request(request, ()))
        assert self.requests[-1].seq == seq

    def numbers(self) -> list[int]:
        found = [request.seq for request in self.requests]
        self.requests.clear()
        return found


@pytest.fixture
def carrier() -> Sent:
    return Sent()


@pytest.fixture
def link(carrier: Sent) -> ShardLink:
    link = ShardLink(0, carrier)
    link.open()
    return link


def test_at_most_two_requests_are_in_flight(link: ShardLink, carrier: Sent) -> None:
    assert [link.ask(1, 0) for _ in range(3)] == [True, True, False]
    link.add(AddInfoKey("a"))
    assert not link.ask(1, 0) and link.has_ops
    assert [frame.seq for frame in link.receive(Frame(1))] == [1]
    assert link.ask(1, 0) and not link.has_ops
    assert carrier.requests[-1] == Request(3, 1, [AddInfoKey("a")], 1, shard_link.PATIENCE_SECONDS)


def test_closed_link_sends_nothing(link: ShardLink, carrier: Sent) -> None:
    link.begin()
    link.add(AddInfoKey("a"))
    assert not link.ask(1, 0) and carrier.requests == [] and link.has_ops


def test_replies_are_taken_in_the_order_of_their_requests_and_once(link: ShardLink) -> None:
    link.ask(1, 0)
    link.ask(1, 0)
    assert link.receive(Frame(2)) == []
    assert [frame.seq for frame in link.receive(Frame(1))] == [1, 2]
    assert link.receive(Frame(1)) == [] == link.receive(Frame(2)), "second replies"
    assert link.num_in_flight == 0


def test_pause_before_a_repetition_is_doubled_until_a_reply_comes(link: ShardLink, carrier: Sent) -> None:
    link.ask(1, 0)
    link.ask(1, 0)
    carrier.numbers()
    pauses, now = [], 0
    for _ in range(7):
        link.repeat_after_pause(now)
        link.repeat_after_pause(now + 1)  # this is a pause of the other request
        due = link.advance(now)
        assert carrier.numbers() == []
        pauses.append((due - now) / 1e9)
        now = due
        assert link.advance(now) == NEVER_NS and carrier.numbers() == [1, 2]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    link.receive(Frame(1))
    link.repeat_after_pause(now)
    assert link.advance(now) - now == 100_000_000


def test_refused_request_is_sent_again_after_the_one_before_it(link: ShardLink, carrier: Sent) -> None:
    link.ask(1, 0)
    link.ask(1, 0)
    carrier.numbers()
    assert link.receive(Frame(2, FrameKind.REFUSED)) == []
    assert carrier.numbers() == [1, 2]


def test_silence_is_counted_only_while_a_reply_is_awaited(link: ShardLink) -> None:
    link.advance(0, 10)
    assert link.silent_ns == 0
    link.ask(1, 0)
    link.advance(0, 10)  # the request may have been sent at the end of this time
    assert link.silent_ns == 0
    link.ask(1, 0)
    link.advance(0, 10)
    link.advance(0, 20)
    assert link.silent_ns == 30
    link.receive(Frame(1))
    link.advance(0, 10)
    assert link.silent_ns == 0
    link.receive(Frame(2))
    link.advance(0, 10)
    link.advance(0, 10)
    assert link.silent_ns == 0


def test_shard_that_cannot_open_sends_the_exception() -> None:
    frame = unpack_bare(Shard(b"no pickle").open())
    assert (frame.seq, frame.kind) == (0, FrameKind.FAILED)
    assert pickle.loads(frame.attachment)[1] == "_pickle.UnpicklingError"
