"""RayCarrier alone: requests of every size, lost and stopped actors, and their fences."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.faults.traces import wait_until
from tests.integrations.ray.cluster import title_of
from vecenv import RayOptions
from vecenv.core.shards.carrier import CarrierEvent, Lost, Replied
from vecenv.core.shards.frames import MOST_SPLIT_NBYTES, PIECE_NBYTES, FrameKind, pack_bare, unpack_bare
from vecenv.core.system.clock import now_ns
from vecenv.core.system.process_stat import state_of
from vecenv.integrations.ray import carrier as carrier_module
from vecenv.integrations.ray.carrier import RayCarrier
from vecenv.integrations.ray.placement import Placement

ray = pytest.importorskip("ray", exc_type=ImportError)

pytestmark = [pytest.mark.ray, pytest.mark.extended]

_NS = 1_000_000_000


class EchoShard:
    """Returns a reply of the size that a request names, and the size of the request."""

    is_closed = False

    def __init__(self, boot: bytes) -> None:
        self._boot = boot

    def open(self) -> bytearray:
        return pack_bare(0, FrameKind.OPENED, self._boot)

    def execute(self, request: bytes, shared: Sequence[Any] = ()) -> bytearray:
        seq, nbytes, _ = pickle.loads(request)
        if nbytes < 0:
            threading.Event().wait()
        return pack_bare(seq, FrameKind.EXECUTED, len(request).to_bytes(8, "little") + bytes(nbytes))


@pytest.fixture
def num_shards() -> int:
    """Number of shards of the carrier."""
    return 1


@pytest.fixture
def carrier(cluster: Any, num_shards: int) -> Iterator[RayCarrier]:
    """A carrier whose shards are open."""
    carrier = RayCarrier(Placement(RayOptions(cpus_per_shard=1, num_shards=num_shards), num_shards), EchoShard)
    try:
        for shard in range(num_shards):
            carrier.start(shard, b"boot %d" % shard)
        assert "CPU 1 of bundle 0; there is node" in carrier.waiting_for(0)
        opened = {event.shard: bytes(unpack_bare(event.data).attachment) for event in wait_for(carrier, num_shards)}
        assert opened == {shard: b"boot %d" % shard for shard in range(num_shards)}
        assert carrier.waiting_for(0) == "" and carrier.describe(0).startswith("node ")
        yield carrier
    finally:
        carrier.close()


def wait_for(carrier: RayCarrier, count: int = 1, seconds: float = 60.0) -> list[Any]:
    """Return `count` events."""
    until_ns = now_ns() + int(seconds * _NS)
    events: list[CarrierEvent] = []
    while len(events) < count and now_ns() < until_ns:
        events += carrier.wait(until_ns)
    assert len(events) == count, events
    return events


def ask(carrier: RayCarrier, shard: int, nbytes: int, seq: int = 1, padding: int = 0, most_nbytes: int = 0) -> int:
    """Send a request; return its size."""
    request = pickle.dumps((seq, nbytes, bytes(padding)))
    carrier.ask(shard, seq, request, most_nbytes or nbytes + 1000)
    return len(request)


def pid_of(carrier: RayCarrier, shard: int) -> int:
    place = carrier.place_of(shard)
    assert place is not None
    return place.pid


SIZES = [0, *(edge + off for edge in (PIECE_NBYTES, MOST_SPLIT_NBYTES) for off in (-100, 0, 100))]


def test_requests_and_replies_of_every_size_arrive_whole(carrier: RayCarrier) -> None:
    for nbytes in SIZES:
        for padding in (0, nbytes):
            size = ask(carrier, 0, nbytes, padding=padding)
            (event,) = wait_for(carrier)
            assert isinstance(event, Replied) and event.shard == 0
            attachment = unpack_bare(event.data).attachment
            assert len(attachment) == 8 + nbytes and int.from_bytes(attachment[:8], "little") == size
    ask(carrier, 0, 300_000, most_nbytes=1000)  # its messages are larger than expected
    assert len(unpack_bare(wait_for(carrier)[0].data).attachment) == 8 + 300_000


@pytest.mark.parametrize("num_shards", [2])
def test_two_requests_of_each_shard_are_answered(carrier: RayCarrier) -> None:
    for seq in (1, 2):
        for shard in (0, 1):
            ask(carrier, shard, 100, seq)
    events = wait_for(carrier, 4)
    for shard in (0, 1):
        assert sorted(unpack_bare(event.data).seq for event in events if event.shard == shard) == [1, 2]


def test_wait_ends_at_its_deadline_and_after_an_interrupt(carrier: RayCarrier) -> None:
    assert carrier.wait(now_ns()) == []
    ask(carrier, 0, -1)
    assert carrier.wait(now_ns() + _NS // 100) == []
    thread = threading.Timer(0.1, carrier.interrupt)
    thread.start()
    began = time.monotonic()
    assert carrier.wait(now_ns() + 60 * _NS) == []
    thread.join()
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("num_shards", [2])
def test_killed_actor_is_lost_once_and_its_successor_serves(carrier: RayCarrier) -> None:
    ask(carrier, 0, -1)
    ask(carrier, 0, 0, 2)
    ask(carrier, 1, 0)
    os.kill(pid_of(carrier, 0), signal.SIGKILL)
    events = wait_for(carrier, 2)
    (lost,) = [event for event in events if isinstance(event, Lost)]
    assert lost.shard == 0 and "worker process has died" in lost.text and lost.cause is not None
    assert carrier.wait(now_ns()) == []
    carrier.kill(0)
    carrier.start(0, b"again")
    assert bytes(unpack_bare(wait_for(carrier)[0].data).attachment) == b"again"
    ask(carrier, 0, 5)
    assert len(unpack_bare(wait_for(carrier)[0].data).attachment) == 13


_OUT_OF_MEMORY = """\
1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.2, ID: d2a4) was 27.1GB \
used / 28.8GB limit (0.940972)
OOM kill reason: Memory usage 29098508288B exceeded threshold of 27831838310B (90% of 30923764531B limit)
Object store memory usage: [- objects spillable: 0

Eviction Stats:
(global lru) capacity: 7074521088]
Ray killed 1 worker(s) based on the killing policy
Top 10 memory users: PID	MEM(GB)	COMMAND
15649	21.09	ray::ShardActor.execute
Refer to the documentation on how to address the out of memory issue: https://docs.ray.io.
"""


def test_loss_for_want_of_memory_is_described_by_the_first_line_of_ray() -> None:
    text = carrier_module._describe(ray.exceptions.OutOfMemoryError(_OUT_OF_MEMORY))
    assert text == f"OutOfMemoryError: {_OUT_OF_MEMORY.partition(chr(10))[0]}"


def test_kill_ends_a_stopped_process_and_its_events(carrier: RayCarrier) -> None:
    pid = pid_of(carrier, 0)
    ask(carrier, 0, 0)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T")
    carrier.kill(0)
    wait_until(lambda: not title_of(pid).startswith("ray::ShardActor"))
    assert carrier.wait(now_ns()) == []
    carrier.kill(0)  # without effect


def test_close_ends_a_stopped_process(carrier: RayCarrier) -> None:
    pid = pid_of(carrier, 0)
    ask(carrier, 0, 0)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T")
    carrier.close()  # on a busy machine, it does not wait for the end
    wait_until(lambda: not title_of(pid).startswith("ray::ShardActor"))
    carrier.close()
    carrier.end_if_unclosed()


def test_placement_group_is_removed_only_when_it_has_its_places(cluster: Any) -> None:
    """Ray may keep the CPUs of a group reserved that is removed before."""
    import ray

    placement = Placement(RayOptions(cpus_per_shard=1, num_shards=4), 4)
    group = placement.actor_options(0)["scheduling_strategy"].placement_group
    placement.remove()
    wait_until(lambda: ray.util.placement_group_table(group)["state"] == "REMOVED")
    assert all(ray.util.placement_group_table(group)["bundles_to_node_id"].values())


@pytest.mark.parametrize("num_shards, num_envs, cpus", [(None, 8, 2), (2, 8, 2), (4, 8, 1), (64, 64, 1), (64, 2, 2)])
def test_shards_of_a_node_share_its_cpus(cluster: Any, num_shards: int | None, num_envs: int, cpus: int) -> None:
    """Two shards on one node of two CPUs waited for two CPUs each, until the time was over."""
    placement = Placement(RayOptions(num_shards=num_shards), num_envs)
    assert placement.cpus_per_shard == cpus


def test_node_with_another_vecenv_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {"vecenv": "9.9.9 (ABI 1)", "Python": "3.11", "NumPy": "2.0"}
    monkeypatch.setattr(carrier_module, "versions", lambda: ours)
    carrier = RayCarrier(Placement(RayOptions(cpus_per_shard=1, num_shards=1), 1), EchoShard)
    try:
        carrier.start(0, b"")
        frame = unpack_bare(wait_for(carrier)[0].data)
        assert frame.kind == FrameKind.FAILED
        assert b"there and 9.9.9 (ABI 1) here" in bytes(frame.attachment)
    finally:
        carrier.close()


def test_other_release_of_numpy_is_a_warning(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {**carrier_module.versions(), "NumPy": "1.0"}
    monkeypatch.setattr(carrier_module, "versions", lambda: ours)
    carrier = RayCarrier(Placement(RayOptions(cpus_per_shard=1, num_shards=2), 2), EchoShard)
    try:
        carrier.start(0, b"")
        carrier.start(1, b"")
        with pytest.warns(RuntimeWarning, match=r"NumPy .* there and 1.0 here; results may differ") as found:
            assert all(unpack_bare(event.data).kind == FrameKind.OPENED for event in wait_for(carrier, 2))
        assert len(found) == 1
    finally:
        carrier.close()
