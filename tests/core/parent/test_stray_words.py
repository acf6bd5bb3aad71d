"""The hub notes words of shared memory that no worker writes, and a successor writes the lost rows again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.core.layout.test_native import Ends
from tests.core.recovery.test_successors import HEAD, NO_FLAG, ONE, slot_of, words_of
from vecenv.core.host import slot as events
from vecenv.core.layout import arena
from vecenv.core.layout.flags import Op, RowFlag
from vecenv.core.layout.native import load
from vecenv.core.layout.rows import BlockRows

pytestmark = [pytest.mark.native, pytest.mark.skipif(load() is None, reason="the extension was not built")]

STRAY = ("stray", -1, 0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends(num_slots=2)
    yield made
    made.close()


def row_of(ends: Ends, env_id: int) -> tuple[dict[str, Any], int]:
    """Return the columns of the block with the newest row of an env, and the row."""
    for block in range(ends.plan.words["num_blocks"]):
        columns = BlockRows(ends.plan, ends.memory, block).columns
        for row in np.flatnonzero((columns["env_id"] == env_id) & (columns["step_id"] > 0)).tolist():
            return columns, row
    raise LookupError


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("column", "value"),
    [("env_id", 1 << 40), ("step_id", 0), ("step_id", 77), ("flags", 1 << 20), ("cell", 0), ("flags", RowFlag.INFO)],
)
def test_lost_row_is_written_by_the_successor(ends: Ends, column: str, value: int, ordered: bool) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0, 1)
    hub.add_info_key("lives")
    assert hub.send((np.zeros(2, np.int64),), None, ordered, 0) is None
    assert slot.serve()[0] == events.IDLE
    columns, row = row_of(ends, 0)
    columns[column][row] = value
    columns["info_tags"][row] = 0xFF
    got = hub.recv(2, 2, 0)
    assert got[0] in ("stray", "timeout")
    (found,) = hub.take_stray_words()
    assert (found[0] == 0 and "row" in found[1]) or "tag" in found[1]
    assert hub.requeue(0, ()) == [(Op.STEP, 0, 1, 0)]
    assert hub.take_stray_words() == []
    assert slot_of(ends, 0, 1).serve()[0] == events.IDLE
    (block, start, stop), _ = hub.recv(2, 2, 0)
    columns = BlockRows(ends.plan, ends.memory, block).columns
    step_ids = columns["step_id"][start:stop].tolist()
    assert step_ids == [1, 2] if ordered else sorted(step_ids) == [1, 2]


def test_head_beyond_the_queue_is_stray(ends: Ends) -> None:
    hub = ends.hub()
    assert hub.send((np.zeros(2, np.int64),), None, False, 0) is None
    words_of(ends)[HEAD : HEAD + 1] += np.uint32(1000)
    assert hub.pending(0) == (Op.STEP, 0, 1)
    assert hub.state(0)[:3] == (Op.STEP, 0, 1)  # the next one, or the one under way
    assert hub.recv(1, 1, 0) == STRAY
    assert [word for _, word, _ in hub.take_stray_words()] == ["the head of its queue"]
    assert [command[2] for command in hub.requeue(0, ())] == [1, 2]
    assert hub.pending(0) == (Op.STEP, 0, 1)


@pytest.mark.parametrize("at", [0, 8, 16, 20])
def test_overwritten_message_is_not_read(ends: Ends, at: int) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0)
    slot.send_message(b"message of some bytes")
    np.frombuffer(ends.memory, np.uint8)[ends.plan.words["byte_rings_up"] + at] ^= 0x55
    assert hub.take_fragment(0) is None
    assert [word for _, word, _ in hub.take_stray_words()] == ["its messages, which end at byte"]
    hub.requeue(0, ())
    slot_of(ends, 0).send_message(b"another one")
    assert hub.take_fragment(0) == (b"another one", True)


def test_stray_operation_is_none(ends: Ends) -> None:
    hub = ends.hub()
    words_of(ends)[HEAD + 1] = 9
    assert hub.state(0)[0] == Op.NONE
    assert hub.recv(1, 1, 0) == STRAY and hub.wait(0) == STRAY
    assert hub.take_stray_words() == [(0, "its operation under way", 9)]


@pytest.mark.parametrize("words", ["open", "link", "owner"])
def test_claims_go_on_in_new_blocks(ends: Ends, words: str) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0, 1)
    assert hub.send((ONE,), np.array([0]), False, 0) is None
    assert slot.serve()[0] == events.IDLE
    if words == "open":
        np.frombuffer(ends.memory, np.uint64, 1, ends.plan.words["control"])[0] = 1 << 60
    for block in range(ends.plan.words["num_blocks"]):
        columns = BlockRows(ends.plan, ends.memory, block)
        if words == "owner":
            columns.columns["owner"][:] = 1 << 60
        if words == "link":
            columns.data[: arena.LINE] = 0x7F
    assert -1 in [slot for slot, _, _ in hub.take_stray_words()]
    hub.reset_claims()
    assert hub.requeue(0, ()) == [] and hub.requeue(1, ()) == []
    assert hub.take_stray_words() == []
    assert hub.send((ONE,), np.array([1]), False, 0) is None
    assert slot_of(ends, 0, 1).serve()[0] == events.IDLE
    (block, start, stop), _ = hub.recv(2, 2, 0)
    assert BlockRows(ends.plan, ends.memory, block).columns["step_id"][start:stop].tolist() == [1, 2]


def test_call_is_kept_if_the_head_is_stray(ends: Ends) -> None:
    hub = ends.hub()
    assert hub.command(Op.CALL, ONE, ONE, NO_FLAG, False) == 1
    words_of(ends)[HEAD : HEAD + 1] -= np.uint32(500)
    assert hub.requeue(0, {1: b"payload"}) == [(Op.CALL, 0, 1, 0)]
    words_of(ends)[HEAD : HEAD + 1] -= np.uint32(500)
    assert hub.requeue(0, {}) == []


def test_headers_are_written_again_for_a_successor(ends: Ends) -> None:
    hub = ends.hub()
    for memory, plan in ((ends.memory, ends.plan), (ends.counters, ends.plan.counters)):
        header = np.frombuffer(memory, np.int64, len(plan.words))
        before = header.copy()
        header[:] = -1
        hub.requeue(0, ())
        header[before == 0] = 0  # the number of replaced workers is not kept here
        assert header.tolist() == before.tolist()
