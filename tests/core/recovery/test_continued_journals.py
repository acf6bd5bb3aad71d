"""A journal that continues another one returns the same histories."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from tests.core.recovery.journals import MANY, call, lasting, note, reset, steps, two_envs
from tests.inside import entries_of
from vecenv.core.layout.commands import Commands, RestorePoint
from vecenv.core.layout.flags import CommandFlag, Op
from vecenv.core.recovery.journal import Journal


def continued(journal: Journal, max_nbytes: int = MANY) -> Journal:
    """Return a journal that continues this one."""
    num_envs = len(journal.was_reset)
    other = Journal(num_envs, max_nbytes)
    histories = {env_id: journal.history(env_id, ()) for env_id in range(num_envs)}
    other.restore(histories, journal.next_step_id)
    return other


def act(journal: Journal, rng: np.random.Generator) -> None:
    """Record something; equal generators record the same."""
    first, env_id = journal.next_step_id, int(rng.integers(3))
    kind, number = int(rng.integers(8)), int(rng.integers(2))
    if kind < 2:
        steps(journal, [first, first, first])
    elif kind == 2:
        journal.note_steps((np.array([first]),), np.array([env_id]), number)
    elif kind == 3:
        reset(journal, first, [env_id], [[None, 5][number]])
    elif kind == 4:
        call(journal, first, env_id, ["a", None][number])
    elif kind == 5:
        note(journal, first, Commands.of(Op.RESET, np.array([env_id]), flags=CommandFlag.SNAPSHOT))
        journal.note_restore_point(env_id, RestorePoint(first, b"barrier", bool(number)), True)
    elif entries := entries_of(journal, env_id):
        if kind == 6:
            point = RestorePoint(entries[-1].step_id, b"state", bool(number), bool(rng.integers(2)))
            journal.note_restore_point(env_id, point, True)
        else:
            journal.note_cancelled(env_id, entries[-1].step_id)


def everything_of(journal: Journal) -> list[Any]:
    journal._confirm(None)
    histories = [journal.history(env_id, ()) for env_id in range(3)]
    return [histories, [journal.has_cancelled(env_id) for env_id in range(3)], journal.next_step_id]


def test_histories_are_continued() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        journal = Journal(3, MANY)
        for _ in range(int(rng.integers(1, 30))):
            act(journal, rng)
        other = continued(journal)
        assert everything_of(other) == everything_of(journal), seed
        same = copy.deepcopy(rng)
        for _ in range(20):
            act(journal, rng)
            act(other, same)
            assert everything_of(other) == everything_of(journal), seed


def test_snapshot_before_the_first_command_of_a_new_env_is_continued() -> None:
    """The construction of that env has the same step_id, but repeats the reset with another generator."""
    journal = two_envs()
    journal.forget(0, keeps_calls=False)
    reset(journal, 9, [0], [None])
    journal.note_restore_point(0, RestorePoint(9, b"state"), False)
    other = continued(journal)
    steps(other, [13], [0])
    assert [attempt.restore_point for attempt in other.history(0, ()).attempts] == [RestorePoint(9, b"state")]


def test_names_of_calls_are_continued() -> None:
    journal = Journal(1, MANY)
    call(journal, 1, 0, "a")
    call(journal, 2, 0, "b")
    call(journal, 3, 0, None)
    reset(journal, 4, [0], [5])
    steps(journal, [1])
    other = continued(journal)
    assert lasting(other) == [1, 2, 3]
    call(other, 6, 0, "a")
    reset(other, 7, [0], [5])
    steps(other, [1])
    assert lasting(other) == [1, 2, 3, 6]


def test_size_of_a_continued_journal() -> None:
    journal = Journal(3, MANY)
    for number in range(400):
        steps(journal, [number, number, number])
    other = continued(journal)
    assert 400 * 3 * 24 <= other.nbytes < 400 * 3 * 24 + 2_000
    assert other.history(1, ()) == journal.history(1, ())
    small = continued(journal, 10_000)
    assert small.nbytes <= 10_000 and not small.history(1, ()).attempts
