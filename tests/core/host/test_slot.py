"""The native slot at the end of a command: the state that it publishes, and when it wakes a sleeping parent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.core.layout.test_native import Ends, obs_of
from vecenv.core.host import slot as events
from vecenv.core.layout.arena import LINE
from vecenv.core.layout.flags import Autoreset, Op
from vecenv.core.layout.native import load
from vecenv.core.layout.rows import BlockRows

pytestmark = [pytest.mark.native, pytest.mark.skipif(load() is None, reason="the extension was not built")]

_WAIT_ANY = 4  # see native/shm/layout.h
#: Minimum time between two wakeups of the parent in a burst of quick steps.
_WAKE_NS = 10_000


class Sleeper:
    """The state that a parent writes into shared memory before it sleeps, until a worker has woken it."""

    def __init__(self, ends: Ends) -> None:
        self._waiting = np.frombuffer(ends.memory, np.uint32, 1, ends.plan.words["control"] + LINE)

    def sleep(self) -> None:
        self._waiting[0] = _WAIT_ANY

    def is_awake(self) -> bool:
        return bool(self._waiting[0] == 0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends(3)
    yield made
    made.close()


def spend(nanoseconds: int) -> None:
    until = time.perf_counter_ns() + nanoseconds
    while time.perf_counter_ns() < until:
        pass


def host(slot: Any, *works: Callable[[], object], is_over: bool = False) -> None:
    """Make the step of env i call works[i]; `is_over`: the last env's step ends its episode."""
    for env_id, work in enumerate(works):
        result = obs_of(0), 1.0, is_over and env_id == len(works) - 1, False, {}

        def step(action: Any, work: Callable[[], object] = work, result: Any = result) -> Any:
            work()
            return result

        slot.host(env_id, step)


def send(hub: Any, *env_ids: int) -> None:
    ids = np.array(env_ids)
    assert hub.send((np.zeros(len(ids), np.int64),), ids, False, 0) is None


@pytest.mark.parametrize("then", ["nothing", "a reset", "an episode's end", "a slow step", "time"])
def test_quick_answer_is_published_before_a_slow_snapshot(then: str, ends: Ends) -> None:
    """The second answer is tested; the first one wakes the parent in any case, because none was published before."""
    hub, slot = ends.hub(), ends.slot(autoreset=int(Autoreset.NEXT_STEP))
    parent, woken = Sleeper(ends), []
    slow = 10 * _WAKE_NS
    for _ in range(ends.plan.words["queue_size"]):  # the queue wraps, so the command after its end is a quick step
        host(slot, int, int, int)
        send(hub, 0)
        slot.serve()
        hub.recv(1, 1, 0)
    if then in ("a slow step", "an episode's end"):
        host(slot, int, int, lambda: then == "a slow step" and spend(slow), is_over=then == "an episode's end")
        send(hub, 2)
        assert slot.serve()[0] == events.IDLE
        hub.recv(1, 1, 0)

    def second() -> None:
        parent.sleep()
        if then == "time":
            spend(slow)

    host(slot, int, second, lambda: woken.append(parent.is_awake()), is_over=then == "an episode's end")
    send(hub, 0, 1)
    if then == "a reset":
        hub.command(Op.RESET, np.array([2]), np.zeros(1, np.int64), np.zeros(1, np.uint8), False)
    elif then != "nothing":
        send(hub, 2)
    kind, env_id, op, *_ = slot.serve()
    if then in ("a reset", "an episode's end"):
        assert (kind, env_id, op) == (events.COMMAND, 2, Op.RESET if then == "a reset" else Op.STEP)
    else:
        assert kind == events.IDLE
    assert woken in ([], [True]) and (woken or parent.is_awake())


def test_slot_publishes_its_operation_and_start_time(ends: Ends) -> None:
    hub, slot = ends.hub(), ends.slot()
    seen: list[Any] = []

    def look() -> None:
        seen.append((time.monotonic_ns(), hub.state(0), hub.pending(0)))
        spend(1000)

    host(slot, look, look, look)
    send(hub, 0, 1, 2)
    assert slot.serve()[0] == events.IDLE
    idle_op, *_, num_steps = hub.state(0)
    assert (idle_op, num_steps) == (Op.NONE, 3) and hub.pending(0)[0] == Op.NONE
    for number, (_, (op, env_id, step_id, *_), pending) in enumerate(seen):
        assert (op, env_id, step_id) == pending == (Op.STEP, number, number + 1)
    for (before, *_), (now, (_, _, _, started_ns, _, _), _) in pairwise(seen):
        assert before + 1000 <= started_ns <= now


def test_operation_begun_after_a_pause_starts_after_it(ends: Ends) -> None:
    """Otherwise the operation would be late before it began."""
    hub, slot = ends.hub(), ends.slot()
    began: list[int] = []
    host(slot, lambda: began.append(hub.state(0)[3]))
    for _ in range(2):
        asked = time.monotonic_ns()
        send(hub, 0)
        assert slot.serve()[0] == events.IDLE
        assert began.pop() >= asked
        hub.recv(1, 1, 0)


def test_row_of_a_cancelled_command_is_not_an_answer_of_another_env(ends: Ends) -> None:
    """A recovery looks for the newest observation of an env in all rows of the ring."""
    hub, slot = ends.hub(), ends.slot()
    host(slot, int, int)
    sent = set()
    for number in range(2 * ends.plan.words["num_blocks"]):
        env_ids = np.array([number % 2, 1 - number % 2])
        assert hub.send((np.zeros(2, np.int64),), env_ids, True, 0) is None
        sent |= {(env_id, hub.owed(env_id)[1]) for env_id in (0, 1)}
        hub.cancel(0)
        assert slot.serve()[0] == events.IDLE
        hub.recv(1, 1, 0)
    found = set()
    for block in range(ends.plan.words["num_blocks"]):
        columns = BlockRows(ends.plan, ends.memory, block).columns
        found |= set(zip(columns["env_id"].tolist(), columns["step_id"].tolist()))
    assert {(env_id, step_id) for env_id, step_id in found if step_id} <= sent
