"""Steps of all envs that `Hub.send` records itself, in the open page of the journal."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.faults.traces import kill, recovering_pool
from tests.inside import entries_of, hub_of, journal_of, pages_of
from vecenv.core.layout.flags import Form, Op
from vecenv.core.layout.native import load
from vecenv.core.pool.process import ProcessPool
from vecenv.core.recovery.journal import Journal
from vecenv.envs import toys
from vecenv.errors import StateError

pytestmark = pytest.mark.skipif(load() is None, reason="the extension was not built")


class Sums(toys.CountEnv):
    """Returns the sum of its actions as the reward."""

    total = 0

    def reset(self, **kwargs: Any) -> Any:
        self.total = 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.total += int(action)
        obs, _, *rest = super().step(action)
        return obs, float(self.total), *rest


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    with recovering_pool([Sums] * 4) as made:
        made.start()
        made.reset(seeds=range(4))
        made.recv()
        yield made


@pytest.fixture
def noted() -> Iterator[mock.Mock]:
    """The calls of `Journal.note_steps`, which take place as well."""
    with mock.patch.object(Journal, "note_steps", autospec=True, side_effect=Journal.note_steps) as patched:
        yield patched


def actions_of(pool: ProcessPool, env_id: int) -> list[int]:
    """Return the actions of an env that the journal has."""
    entries = entries_of(journal_of(pool), env_id)
    return [int(np.frombuffer(entry.payload[0], np.int64)[0]) for entry in entries if isinstance(entry.payload, tuple)]


def step(pool: ProcessPool, action: int) -> Any:
    return pool.step(np.arange(4) + 10 * action)


def test_recorded_steps_are_in_the_history_without_further_calls(pool: ProcessPool, noted: mock.Mock) -> None:
    for action in range(6):
        step(pool, action)
    assert noted.call_count == 1, "the first step confirms the restore point and begins the page"
    assert [actions_of(pool, env_id) for env_id in (0, 3)] == [[0, 10, 20, 30, 40, 50], [3, 13, 23, 33, 43, 53]]
    assert journal_of(pool).next_step_id == hub_of(pool).owed(0)[1] + 7 * 4 + 1


def test_recorded_steps_are_replayed(pool: ProcessPool) -> None:
    for action in range(6):
        rewards = step(pool, action).rewards.copy()
    kill(pool, 0)
    batch = step(pool, 6)
    assert batch.rewards.tolist() == (rewards + np.arange(4) + 60).tolist()
    assert [info.get("recovered") for info in batch.infos()] == ["replayed"] * 2 + [None] * 2


def test_step_after_a_seeded_reset_is_not_recorded_by_the_hub(pool: ProcessPool, noted: mock.Mock) -> None:
    """The journal has to learn that the reset was carried out: commands before it are not needed any more."""
    for action in range(3):
        step(pool, action)
    pool.reset([1], seeds=[7])
    pool.recv()
    for action in range(3, 6):
        step(pool, action)
    assert noted.call_count == 2
    assert actions_of(pool, 1)[-3:] == [31, 41, 51]
    kill(pool, 0)
    assert step(pool, 6).rewards.tolist() == [210.0, 31 + 41 + 51 + 61.0, 210 + 7 * 2.0, 210 + 7 * 3.0]


def test_full_page_is_followed_by_a_new_one(noted: mock.Mock) -> None:
    with recovering_pool([functools.partial(Sums, None)] * 4, max_log_bytes=1 << 14) as pool:
        pool.start()
        pool.reset(seeds=range(4))
        pool.recv()
        for action in range(100):
            step(pool, action)
        num_pages = len(pages_of(journal_of(pool)))
        assert num_pages > 1 and noted.call_count == num_pages
        assert actions_of(pool, 0) == [10 * action for action in range(100)]
        kill(pool, 1)
        assert step(pool, 100).rewards[3] == sum(range(101)) * 10 + 101 * 3


@pytest.mark.parametrize("num_recorded", [0, 2])
def test_refused_step_is_not_recorded(pool: ProcessPool, num_recorded: int) -> None:
    for action in range(num_recorded):
        step(pool, action)
    pool.send(np.full(4, 5))
    with pytest.raises(StateError, match="still owes"):
        pool.send(np.full(4, 6))
    pool.recv()
    step(pool, 7)
    assert actions_of(pool, 0) == [10 * action for action in range(num_recorded)] + [5, 70]


def test_steps_of_other_forms_and_of_some_envs_stay_in_order(pool: ProcessPool) -> None:
    step(pool, 1)
    pool.send(np.full(4, 2), form=Form.INT)
    pool.recv()
    step(pool, 3)
    pool.send(np.full(2, 4), [2, 0])
    pool.recv()
    step(pool, 5)
    step(pool, 6)
    assert actions_of(pool, 0) == [10, 2, 30, 4, 50, 60] and actions_of(pool, 1) == [11, 2, 31, 51, 61]
    entries = [entry for entry in entries_of(journal_of(pool), 0) if entry.op == Op.STEP]
    assert [entry.flags for entry in entries] == [Form.NATIVE, Form.INT] + [Form.NATIVE] * 4
    assert [entry.step_id for entry in entries] == sorted(entry.step_id for entry in entries)


def test_page_that_does_not_fit_the_actions_is_refused(pool: ProcessPool) -> None:
    hub, words = hub_of(pool), np.zeros(3 + 2, np.int64)
    for columns in [(), (np.zeros(7, np.int64),), (np.zeros(8, np.int64), np.zeros(8, np.int64))]:
        with pytest.raises(ValueError, match="columns"):
            hub.record_in(columns, words)
    with pytest.raises(ValueError, match="words"):
        hub.record_in((np.zeros(0, np.int64),), words[:3])
    words.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        hub.record_in((np.zeros(8, np.int64),), words)
    step(pool, 1)
    assert actions_of(pool, 0) == [10]
