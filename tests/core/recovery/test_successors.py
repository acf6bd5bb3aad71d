"""Successors of slots: the pending commands, the slot that writes their rows, and the records of their envs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from tests.core.layout.test_native import Ends, obs_of
from vecenv.core.host import slot as events
from vecenv.core.layout import arena
from vecenv.core.layout.flags import Op, RowFlag
from vecenv.core.layout.native import load
from vecenv.core.layout.rows import BlockRows

pytestmark = [pytest.mark.native, pytest.mark.skipif(load() is None, reason="the extension was not built")]

HEAD, BLOCKED = arena.LINE // 4, arena.LINE // 4 + 3  # words of a slot that its worker writes, see native/shm/layout.h
ONE, NO_FLAG = np.zeros(1, np.int64), np.zeros(1, np.uint8)
NEXT_STEP, SAME_STEP = 1, 2


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends(num_slots=2)
    yield made
    made.close()


def words_of(ends: Ends, slot: int = 0) -> Any:
    at = ends.plan.counters.words["slots"] + slot * 3 * arena.LINE
    return np.frombuffer(ends.counters, np.uint32, 3 * arena.LINE // 4, at)


def slot_of(ends: Ends, *env_ids: int, is_done: bool = False, **changes: Any) -> Any:
    """Return a new slot that hosts these envs and keeps records."""
    slot = ends.slot(**changes)
    slot.keep_records(min(ends.plan.final_offsets), lambda env_id, step_id: None)
    for env_id in env_ids:
        slot.host(env_id, lambda action: (obs_of(1), 1.0, is_done, False, {}))
    return slot


def step(hub: Any, env_id: int) -> None:
    assert hub.send((ONE,), np.array([env_id]), False, 0) is None


@pytest.mark.parametrize("end", ["reap", "requeue"])
def test_successor_finds_no_operation_under_way(ends: Ends, end: str) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0)
    assert hub.command(Op.RESET, ONE, ONE, NO_FLAG, False) == 1
    assert slot.serve()[0] == events.COMMAND
    slot.send_message(b"to nobody")
    hub.write_payload(0, b"to the dead")
    words_of(ends)[BLOCKED] = 1
    assert hub.state(0)[0] == Op.RESET and hub.state(0)[4]
    if end == "reap":
        hub.reap(0)
    else:
        assert hub.requeue(0, ()) == [(Op.RESET, 0, 1, 0)]
    assert hub.state(0)[0] == Op.NONE and not hub.state(0)[4]
    assert hub.pending(0) == ((Op.NONE, 0, 0) if end == "reap" else (Op.RESET, 0, 1))
    assert hub.take_fragment(0) is None and hub.owed(0) == (Op.RESET, 1)
    hub.write_payload(0, b"to the living")
    assert ends.slot().take_payload() == b"to the living"


def test_limits_count_from_the_current_operation_of_a_command(ends: Ends) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0)
    assert hub.command(Op.CALL, ONE, ONE, NO_FLAG, False) == 1
    slot.serve()
    op, _, step_id, started_ns, *_ = hub.state(0)
    slot.touch(Op.RESET)
    assert (op, hub.state(0)[0], hub.state(0)[2]) == (Op.CALL, Op.RESET, step_id)
    assert hub.state(0)[3] > started_ns


@pytest.mark.parametrize("num_steps", [1, 2])
@pytest.mark.parametrize("is_delivered", [True, False])
def test_command_answered_just_before_a_death_is_not_repeated(ends: Ends, is_delivered: bool, num_steps: int) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0)
    for number in range(num_steps):
        step(hub, 0)
        assert slot.serve()[0] == events.IDLE
        if is_delivered or number + 1 < num_steps:
            assert hub.recv(1, 1, 0)[0][1:] in [(0, 1), (1, 2)]
    words_of(ends)[HEAD] -= 1
    assert hub.requeue(0, ()) == []
    assert hub.outstanding() == (not is_delivered)


def test_cancelled_command_without_an_answer_is_pending(ends: Ends) -> None:
    hub = ends.hub()
    step(hub, 0)
    hub.cancel(0)
    assert hub.requeue(0, ()) == [(Op.STEP, 0, 1, 0)]


@pytest.mark.parametrize("is_answered", [True, False])
def test_call_is_pending_until_its_answer_arrives(ends: Ends, is_answered: bool) -> None:
    hub = ends.hub()
    assert hub.command(Op.CALL, ONE, ONE, NO_FLAG, False) == 1
    step(hub, 0)
    assert [command[0] for command in hub.requeue(0, () if is_answered else (1,))] == [Op.CALL, Op.STEP][is_answered:]


def test_idle_slot_has_no_pending_commands_after_queue_wraps(ends: Ends) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0)
    for _ in range(2 * ends.plan.words["queue_size"]):
        step(hub, 0)
        assert slot.serve()[0] == events.IDLE and hub.pending(0) == (Op.NONE, 0, 0)
        hub.recv(1, 1, 0)


@pytest.mark.parametrize("ordered", [True, False])
def test_moved_env_keeps_its_commands(ends: Ends, ordered: bool) -> None:
    hub = ends.hub()
    assert hub.send((np.zeros(2, np.int64),), None, ordered, 0) is None
    assert len(hub.requeue(0, ())) == 2
    assert hub.recv(1, 1, 0)[0] == "timeout", "their rows are theirs to write"
    hub.move(0, 0)  # the target is its own slot
    hub.move(0, 1)
    assert (hub.pending(0), hub.pending(1)) == ((Op.STEP, 1, 2), (Op.STEP, 0, 1))
    for number, env_id in ((1, 0), (0, 1)):
        assert slot_of(ends, env_id, slot=number).serve()[0] == events.IDLE
    assert hub.recv(2, 2, 0)[0][1:] == (0, 2)
    step(hub, 0)
    assert hub.pending(1) == (Op.STEP, 0, 3)


def test_row_follows_its_env_to_the_new_slot(ends: Ends) -> None:
    hub = ends.hub()
    assert hub.send((np.zeros(2, np.int64),), None, True, 0) is None
    hub.requeue(0, ())
    hub.move(0, 1)
    hub.reap(1)
    assert slot_of(ends, 1).serve()[0] == events.IDLE
    (_, start, stop), _ = hub.recv(1, 1, 0)
    assert stop - start == 1 and (hub.owed(0), hub.owed(1)) == ((Op.STEP, 1), (0, 0))


def test_moved_queue_full_of_cancelled_commands_takes_no_more(ends: Ends) -> None:
    hub = ends.hub()
    while hub.send((ONE,), ONE, False, 0) is None:
        hub.cancel(0)
    left = hub.requeue(0, ())
    hub.move(0, 1)
    assert hub.send((ONE,), ONE, False, 0) == ("no_room", 0)
    assert hub.requeue(1, ()) == left and len(left) == ends.plan.words["queue_size"]


# ---- records ---------------------------------------------------------------------------------


def digest_of(ends: Ends, *, before: float = 5.0, starts_digest: bool = False, **changes: Any) -> int:
    """Return the digest of one answer of env 0 that follows another one with this reward."""
    slot = slot_of(ends)
    assert slot.add_to_digest(0, 1, None, before, False, False, 0, None, False)
    answer = {"step_id": 2, "obs": obs_of(1), "reward": 1.0, "terminated": False, "truncated": False, "flags": 0}
    assert slot.add_to_digest(0, *{**answer, "final_obs": None, **changes}.values(), starts_digest)
    return int(slot.records(0)[0])


@pytest.mark.parametrize(
    "change",
    [
        {"before": 6.0},
        {"obs": obs_of(2)},
        {"reward": 2.0},
        {"terminated": True},
        {"truncated": True},
        {"flags": RowFlag.AUTORESET},
        {"final_obs": obs_of(1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_different_answer_has_another_digest(ends: Ends, change: dict[str, Any]) -> None:
    assert digest_of(ends) == digest_of(ends, flags=RowFlag.MESSAGE), "how it travels is no matter"
    assert digest_of(ends) != digest_of(ends, **change)


def test_first_digest_covers_the_observation_alone(ends: Ends) -> None:
    one = digest_of(ends, starts_digest=True)
    assert one == digest_of(ends, starts_digest=True, before=6.0, reward=2.0, terminated=True)
    assert one != digest_of(ends, starts_digest=True, obs=obs_of(2))
    final = {"starts_digest": True, "flags": RowFlag.FINAL}
    assert digest_of(ends, final_obs=obs_of(3), **final) == digest_of(ends, final_obs=obs_of(4), **final)


def test_digest_covers_each_part_of_a_large_observation_in_turn() -> None:
    """Where an episode begins, the digest covers the whole observation."""
    ends = Ends(obs=Box(-1.0, 1.0, (1_000,), np.float32))
    same = np.zeros(1_000, np.float32)
    for place in range(0, 1_000, 50):
        other = same.copy()
        other[place] = 0.5
        assert any(digest_of(ends, obs=same, step_id=i) != digest_of(ends, obs=other, step_id=i) for i in range(200))
        whole = {"flags": RowFlag.RESET, "step_id": 2}
        assert digest_of(ends, obs=same, **whole) != digest_of(ends, obs=other, **whole)
    ends.close()


def test_successor_continues_from_the_record(ends: Ends) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0)
    slot.set_seed(0, 7)
    assert hub.command(Op.RESET, ONE, ONE, NO_FLAG, False) == 1
    slot.serve()
    slot.start_digest(0)
    assert slot.publish(obs_of(1), 0.0, False, False, {}, RowFlag.RESET, None)
    hub.recv(1, 1, 0)
    digests = [slot.records(0)[0]]
    for _ in range(2):
        step(hub, 0)
        slot.serve()
        hub.recv(1, 1, 0)
        digests.append(slot.records(0)[0])
    assert len(set(digests)) == 3, "each one is of all answers since the start"
    hub.requeue(0, ())
    slot = slot_of(ends, 0, is_done=True)
    assert not slot.resume(0, 3, False) and slot.records(0)[0] == digests[-1]
    step(hub, 0)
    slot.serve()
    (block, row, _), _ = hub.recv(1, 1, 0)
    columns = BlockRows(ends.plan, ends.memory, block).columns
    values = [columns[name][row].item() for name in ("episode", "length", "return", "seed")]
    assert values == [0, 3, 3.0, 7] and 0.0 <= columns["seconds"][row] < 3600.0
    assert sorted(step_id for step_id, _ in slot.records(0)[1:]) == [3, 4], "the one before is still there"
    assert slot.records(0)[0] in [other for step_id, other in slot.records(0)[1:] if step_id == 4]
    assert slot_of(ends, 0).resume(0, 4, True), "its episode is over"


def test_env_without_a_record_has_no_known_state(ends: Ends) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0)
    assert not slot.resume(0, 0, True)
    assert hub.command(Op.RESET, ONE, ONE, NO_FLAG, False) == 1
    slot.serve()
    assert slot.publish(obs_of(1), 0.0, False, False, {}, RowFlag.RESET, None)
    (block, row, _), _ = hub.recv(1, 1, 0)
    columns = BlockRows(ends.plan, ends.memory, block).columns
    assert [columns[name][row].item() for name in ("episode", "seed")] == [0, -1]


def test_episode_followed_at_once_by_another_is_not_over(ends: Ends) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0, autoreset=SAME_STEP)
    step(hub, 0)
    slot.host(0, lambda action: [])
    assert slot.serve()[0] == events.RESULT
    assert slot.publish(obs_of(0), 1.0, True, False, {}, RowFlag.FINAL, obs_of(1))
    assert not slot_of(ends, 0).resume(0, 1, False)


def test_snapshot_due_time_follows_the_envs_own_time(ends: Ends) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0)
    step(hub, 0)
    slot.serve()
    assert not slot.is_snapshot_due(0), "nobody has asked"
    slot.schedule_snapshot(0, 1, 0)
    assert not slot.is_snapshot_due(0), "time before that does not count"
    hub.recv(1, 1, 0)
    step(hub, 0)
    slot.serve()
    assert slot.is_snapshot_due(0)
    slot.schedule_snapshot(0, 0, 0)
    assert not slot.is_snapshot_due(0)


def test_step_before_which_a_snapshot_is_due_is_an_event(ends: Ends) -> None:
    hub, slot = ends.hub(), slot_of(ends, 0)
    slot.schedule_snapshot(0, 0, 1)
    for number, argument in ((0, None), (1, events.STEP_WITH_SNAPSHOT), (2, None)):
        step(hub, 0)
        kind, *_, given, _, _ = slot.serve()
        assert (kind, given) == (events.COMMAND, argument) if argument else kind == events.IDLE
        if argument:
            slot.schedule_snapshot(0, 0, 0)
            assert slot.publish(obs_of(number), 0.0, False, False, {}, 0, None)
        hub.recv(1, 1, 0)


def test_error_after_an_episode_end_has_the_digest_of_its_replay(ends: Ends) -> None:
    """The observation that had ended the episode was once counted as well, so the next crash lost an episode."""

    class Env:
        def step(self, action: Any) -> Any:
            return obs_of(1), 1.0, True, False, {}

        def reset(self) -> Any:
            return [7], {}

    env, hub = Env(), ends.hub()
    slot, successor = slot_of(ends, 0, autoreset=SAME_STEP), slot_of(ends, 0, autoreset=SAME_STEP)
    slot.host(0, env.step, env)
    hub.send((ONE,), np.array([0]), False, 0)
    assert slot.serve()[:2] == (events.RESULT, 0)
    assert slot.publish(None, 0.0, False, False, None, int(RowFlag.ERROR), None)
    assert successor.add_to_digest(0, 1, None, 0.0, False, False, int(RowFlag.ERROR), None, False)
    digest, *records = slot.records(0)
    assert digest == successor.records(0)[0] and (1, digest) in records
