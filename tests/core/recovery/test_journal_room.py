"""The full journal: which entries are dropped, in which order, and where the history of an env begins again."""

from __future__ import annotations

import copy
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.core.recovery.journals import MANY, call, note, plain_resets, repeated, reset, seeded_resets, steps, two_envs
from tests.inside import compact, pages_of, prune, spare_pages_of
from vecenv.core.layout.commands import Commands, Effect, RestorePoint
from vecenv.core.layout.flags import CommandFlag, Op
from vecenv.core.recovery.journal import Journal


def test_entries_before_every_restore_point_are_dropped() -> None:
    journal = Journal(2, MANY)
    sizes = []
    next_id = 1
    for _ in range(60):
        reset(journal, next_id, [0, 1], [1, 2])
        for _ in range(50):
            steps(journal, [1, 2])
        next_id += 102
        sizes.append(journal.nbytes)
    assert max(sizes) == max(sizes[:40]), "it grows no more"
    assert len(repeated(journal, 0)[0][1]) == 51


def test_reused_pages_hold_no_old_data() -> None:
    journal = Journal(2, MANY)
    dropped: set[int] = set()
    reset(journal, 1, [0, 1], [1, 2])
    next_id = 3
    for number in range(20_000):
        if number % 12_000 == 0:  # after three pages
            reset(journal, next_id, [0, 1], [1, 2])
            next_id += 2
        steps(journal, [number, -number])
        next_id += 2
        dropped.update(map(id, spare_pages_of(journal)))
    assert dropped.intersection(map(id, pages_of(journal))), "no page was written again"
    assert repeated(journal, 1)[0][1][1:] == [-number for number in range(12_000, 20_000)]


@pytest.mark.parametrize("other", [np.full(1, 1.5, np.float32), np.full((1, 3), 1)], ids=["dtype", "shape"])
def test_pages_are_not_reused_for_actions_of_another_kind(other: Any) -> None:
    journal = Journal(1, MANY)
    for action in (other, np.full(1, 1)):
        for _ in range(30):
            reset(journal, journal.next_step_id, [0], [1])
            for _ in range(1_000):
                journal.note_steps((action,), None, 0)
    entry = journal.history(0, ()).attempts[0].entries[-1]
    assert entry.payload == (np.int64(1).tobytes(),)


@pytest.mark.extended
def test_pages_are_reused_for_actions_of_another_form() -> None:
    journal = Journal(1, MANY)
    dropped: set[int] = set()
    for form in [1] * 30 + [2]:
        reset(journal, journal.next_step_id, [0], [1])
        for _ in range(1_000):
            journal.note_steps((np.full(1, 1),), None, form)
            dropped.update(map(id, spare_pages_of(journal)))
    assert dropped.intersection(map(id, pages_of(journal))), "no page was written again"
    assert {entry.flags for entry in journal.history(0, ()).attempts[0].entries[1:]} == {2}


def test_dropped_pages_are_kept_for_reuse_in_half_of_the_room() -> None:
    journal = Journal(2, 4 << 20)
    reset(journal, 1, [0, 1], [1, 2])
    action = np.zeros((2, 64))
    spares = set()
    for number in range(10_000):
        if number % 3_000 == 2_999:  # after 3 MB
            reset(journal, journal.next_step_id, [0, 1], [1, 2])
        journal.note_steps((action,), None, 0)
        spare = sum(page.nbytes for page in spare_pages_of(journal))
        spares.add(len(spare_pages_of(journal)))
        assert spare <= 2 << 20
    assert max(spares) > 20 and 0 in spares


def test_page_has_room_for_some_requests_of_any_size() -> None:
    journal = Journal(2_048, 64 << 20)
    reset(journal, 1, [0], [1])
    for _ in range(33):
        journal.note_steps((np.zeros(2_048, np.int64),), None, 0)
    assert len(pages_of(journal)) == 2
    for _ in range(10):
        journal.note_steps((np.zeros(1_024, np.int64),), np.arange(1_024), 0)
    assert len(pages_of(journal)) == 3


def test_request_larger_than_a_small_page_is_recorded_whole() -> None:
    journal = Journal(2_048, 400_000)
    action = np.zeros((1_500, 8))
    assert action.nbytes > 400_000 // 16, "no page may be so large"
    for _ in range(2):
        journal.note_steps((action,), np.arange(1_500), 0)
    ((_, entries, *_),) = journal.history(1_499, ()).attempts
    assert [entry.step_id for entry in entries] == [1_500, 3_000]
    assert len(pages_of(journal)) == 2 and journal.nbytes <= 400_000


def test_making_room_needs_little_more_memory() -> None:
    room, action = 16 << 20, np.zeros((8, 1_024))
    journal = Journal(8, room)
    reset(journal, 1, list(range(8)), list(range(8)))
    tracemalloc.start()
    try:
        for number in range(150):  # 9.4 MB, of which env 0 needs only the second half
            journal.note_steps((action,), None, 0)
            if number == 75:
                reset(journal, journal.next_step_id, [0], [1])
        tracemalloc.reset_peak()
        compact(journal)
        left, peak = journal.nbytes, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert left > 8 << 20 and peak < 12 << 20


@pytest.mark.extended
@pytest.mark.parametrize("is_whole", [True, False], ids=["to all", "to some"])
def test_page_that_is_not_full_does_not_block_later_pages(is_whole: bool) -> None:
    journal = Journal(2, 2 << 20)
    reset(journal, 1, [0, 1], [1, 2])
    steps(journal, [1, 2], None if is_whole else [0, 1])
    for _ in range(20):
        reset(journal, journal.next_step_id, [0, 1], [1, 2])
        for number in range(2_000):
            steps(journal, [number, number], [0, 1] if is_whole else None)
            assert not journal.is_half_full()
    assert repeated(journal, 1)[0][1][1:] == list(range(2_000))
    steps(journal, [9, 9], None if is_whole else [0, 1])
    assert repeated(journal, 1)[0][1][-1] == 9, "it was written to the page that is dropped"


def test_env_with_a_long_episode_does_not_keep_entries_of_others() -> None:
    journal = Journal(2, 60_000)
    reset(journal, 1, [0, 1], [1, 2])
    next_id = 3
    for number in range(120):
        steps(journal, [number, number])
        next_id += 2
        if number % 10 == 9:
            reset(journal, next_id, [1], [number])
            next_id += 1
    assert len(repeated(journal, 0)[0][1]) == 121, "env 0 has lost nothing"
    assert len(repeated(journal, 1)[-1][1]) <= 12
    assert journal.nbytes <= 60_000


@pytest.mark.extended
def test_longest_history_is_dropped_first_and_resumes_at_its_next_restore_point() -> None:
    journal = Journal(2, 20_000)
    reset(journal, 1, [0, 1], [1, 2])
    next_id, rounds = 3, 0
    while journal.history(0, ()).attempts:
        steps(journal, [1, 2])
        next_id, rounds = next_id + 2, rounds + 1
        if rounds % 10 == 0:
            reset(journal, next_id, [1], [next_id])
            next_id += 1
        assert next_id < 5_000, "it is never full"
    assert journal.history(1, ()).attempts
    assert journal.nbytes <= 20_000
    reset(journal, next_id, [0], [4])
    steps(journal, [9], [0])
    assert repeated(journal, 0)[-1] == (next_id, [f"reset {next_id}", 9])


def test_histories_of_equal_length_are_dropped_together() -> None:
    journal = Journal(64, MANY)
    reset(journal, 1, list(range(64)), [1] * 64)
    reset(journal, 65, list(range(32, 64)), [1] * 32)  # the newer restore points, by a few commands
    while journal.history(0, ()).attempts:
        for _ in range(500):
            steps(journal, [1] * 64)
    assert not any(journal.history(env_id, ()).attempts for env_id in range(64))
    assert journal.nbytes <= MANY
    reset(journal, journal.next_step_id, [5], [1])
    steps(journal, [1] * 64)
    assert journal.history(5, ()).attempts, "a new start is a new history"


@pytest.mark.extended
@pytest.mark.parametrize("num_ending", [0, 1, 32, 63])
def test_looking_for_room_is_rare_however_long_episodes_are(num_ending: int, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, compactions = Journal(64, MANY), 0
    compact = journal._compact

    def count() -> None:
        nonlocal compactions
        compactions += 1
        compact()

    monkeypatch.setattr(journal, "_compact", count)
    reset(journal, 1, list(range(64)), [1] * 64)
    num_full = MANY // (64 * np.dtype(np.int64).itemsize)  # steps of all envs fill the journal
    for number in range(20 * num_full):
        steps(journal, [1] * 64)
        if num_ending and number % 50 == 0:
            reset(journal, journal.next_step_id, list(range(num_ending)), [number] * num_ending)
    assert 0 < compactions <= 100, "five times per filling, at most"
    assert journal.nbytes <= MANY


@pytest.mark.extended
def test_history_before_an_incomplete_restore_point_is_dropped_first() -> None:
    journal = Journal(1, 20_000)
    reset(journal, 1, [0], [5])
    while not journal.is_half_full():
        steps(journal, [7])
    later = RestorePoint(journal.next_step_id - 1, b"state", is_complete=False)
    journal.note_restore_point(0, later, is_answered=True)
    assert [point.step_id for point, *_ in journal.history(0, ()).attempts] == [1, later.step_id]
    while len(attempts := journal.history(0, ()).attempts) == 2:
        steps(journal, [7])
    ((point, entries, *_),) = attempts
    assert point == later
    assert [entry.step_id for entry in entries] == list(range(later.step_id, journal.next_step_id))


def test_long_history_does_not_drop_short_ones() -> None:
    journal = Journal(64, MANY // 4)
    reset(journal, 1, list(range(64)), [1] * 64)
    number = 0
    while journal.history(0, ()).attempts:
        for _ in range(500):
            number += 1
            steps(journal, [number] * 64)
            if 1 <= number % 150 < 64:
                reset(journal, journal.next_step_id, [number % 150], [number])
        assert number < 20_000, "it is never full"
    assert all(journal.history(env_id, ()).attempts for env_id in range(1, 64))


def test_journal_without_any_room() -> None:
    journal = Journal(2, 1)
    reset(journal, 1, [0, 1], [1, 2])
    for _ in range(20):
        steps(journal, [1, 2])
    assert journal.history(0, ()).attempts == [] == journal.history(1, ()).attempts
    assert journal.nbytes <= 1


def test_size_matches_the_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is updated step by step; `_compact` counts it from the start and must find the same number."""
    rng = np.random.default_rng(0)
    journal = Journal(3, MANY)
    next_id = 1
    for number in range(400):
        kind = rng.integers(10)
        env_id = int(rng.integers(3))
        if kind < 5:
            steps(journal, [1, 2, 3])
            next_id += 3
        elif kind < 7:
            steps(journal, [1], [env_id])
            next_id += 1
        elif kind == 7:
            reset(journal, next_id, [env_id], [number if rng.integers(2) else None])
            next_id += 1
        elif kind == 8:
            key = ["a", "b", None, ""][rng.integers(4)]
            call(journal, next_id, env_id, key or None, Effect.NONE if key == "" else None)
            next_id += 1
        else:
            is_complete = bool(rng.integers(2))
            journal.note_restore_point(
                env_id, RestorePoint(next_id - 1, b"x" * int(rng.integers(500)), is_complete), True
            )
    claimed = journal.nbytes
    prune(journal)
    pruned = journal.nbytes
    compact(journal)
    assert claimed >= pruned >= journal.nbytes > 0
    before = journal.nbytes
    compact(journal)
    assert journal.nbytes == before


def test_incomplete_states_take_room_only_for_the_newest() -> None:
    journal = two_envs()
    before = journal.nbytes
    for step_id in (3, 5, 7):
        journal.note_restore_point(0, RestorePoint(step_id, b"x" * 1000, False), is_answered=True)
        assert journal.nbytes == before + 1000


def test_commands_before_incomplete_restore_points_are_dropped_if_none_is_complete() -> None:
    journal = two_envs()
    note(journal, 9, Commands.of(Op.RESET, np.array([0]), flags=CommandFlag.SNAPSHOT))
    journal.note_restore_point(0, RestorePoint(9, b"a", False), is_answered=True)
    reset(journal, 10, [0], [None])
    journal.note_restore_point(0, RestorePoint(10, b"b", False), is_answered=True)
    assert repeated(journal, 0) == [(10, ["reset 10"])] and journal.num_steps()[0] == 1


def test_state_of_a_pending_restore_point_is_counted_once() -> None:
    journal = two_envs()
    before = journal.nbytes
    for size in (1000, 500):  # the second one comes from the worker that repeated the command
        journal.note_restore_point(0, RestorePoint(7, b"x" * size), is_answered=False)
        assert journal.nbytes == before + size
    journal.forget(0, keeps_calls=True)
    compact(journal)
    compacted = journal.nbytes
    journal.note_restore_point(1, RestorePoint(8, b"x" * 1000), is_answered=False)
    journal.forget(1, keeps_calls=True)
    assert journal.nbytes <= compacted


def test_restore_points_in_messages_are_read_before_anything_is_dropped() -> None:
    journal = Journal(1, 3_000)
    reset(journal, 1, [0], [1])
    newest = [0]

    def gather() -> None:
        journal.note_restore_point(0, RestorePoint(newest[0], b"s"), is_answered=True)

    journal.gather_restore_points = gather
    for number in range(200):
        newest[0] = number + 2
        steps(journal, [number])
        assert journal.history(0, ()).attempts
    assert journal.nbytes <= 3_000


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_reset_too_large_to_keep_is_not_a_restore_point(num_steps: int) -> None:
    """Otherwise an env that was never reset would be stepped."""
    journal = Journal(2, 10_000)
    note(journal, 1, seeded_resets([0, 1], [5, 6], [b"x" * 50_000] * 2))
    for number in range(num_steps):
        steps(journal, [10 + number, 20 + number])
    assert repeated(journal, 0) == [] == repeated(journal, 1)
    assert journal.nbytes <= 10_000
    next_id = journal.next_step_id
    reset(journal, next_id, [0], [7])
    steps(journal, [30], [0])
    assert repeated(journal, 0) == [(next_id, [f"reset {next_id}", 30])], "the next one is"


def test_reset_that_still_fits_is_kept_when_older_entries_go() -> None:
    journal = Journal(1, 3_000)
    reset(journal, 1, [0], [5])
    while journal.nbytes < 2_500:
        steps(journal, [1])
    first = journal.next_step_id
    note(journal, first, seeded_resets([0], [5], [b"x" * 1_000]))
    assert repeated(journal, 0) == [(first, [f"reset {first}"])] and journal.nbytes <= 3_000
    steps(journal, [2])
    assert repeated(journal, 0) == [(first, [f"reset {first}", 2])]


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(6))
def test_history_has_no_gaps_after_drops(seed: int) -> None:
    """From a restore point on the history is complete, its own command first."""
    rng = np.random.default_rng(seed)
    journal = Journal(3, 4_000)
    noted: list[list[int]] = [[], [], []]
    last_op = [Op.RESET] * 3
    num_attempts = num_dropped = 0

    def sent(env_ids: list[int], op: Op) -> int:
        first = journal.next_step_id
        for number, env_id in enumerate(env_ids):
            noted[env_id].append(first + number)
            last_op[env_id] = op
        return first

    def check(env_id: int, queued: list[int]) -> int:
        attempts = copy.deepcopy(journal).history(env_id, queued).attempts
        for point, entries, *_ in attempts:
            expected = [number for number in noted[env_id] if number >= point.step_id and number not in queued]
            assert [entry.step_id for entry in entries] == expected
            if point.step_id > 0:  # otherwise it begins when the env is built
                assert point.state is not None or expected[:1] == [point.step_id], "it would not be reset"
        return len(attempts)

    for number in range(400):
        env_ids = rng.choice(3, rng.integers(1, 4), replace=False).tolist()
        kind = rng.integers(10)
        if number < 1 or kind < 2:
            env_ids = [0, 1, 2] if number < 1 else env_ids
            count = len(env_ids)
            payloads = [b"x" * int(rng.integers(3_000)) if rng.random() < 0.3 else None for _ in env_ids]
            is_seeded = number < 1 or rng.random() < 0.5
            first = sent(env_ids, Op.RESET)
            resets = seeded_resets if is_seeded else plain_resets
            note(journal, first, resets(env_ids, [1] * count, payloads))
        elif kind < 3:
            call(journal, sent(env_ids[:1], Op.CALL), env_ids[0], None)
        elif kind < 5 and last_op[env_ids[0]] != Op.CALL:
            point = RestorePoint(noted[env_ids[0]][-1], b"x" * int(rng.integers(800)), bool(rng.random() < 0.5))
            journal.note_restore_point(env_ids[0], point, is_answered=bool(rng.integers(2)))
        else:
            sent(env_ids, Op.STEP)
            steps(journal, [number] * len(env_ids), env_ids)
        for env_id in range(3):
            found = check(env_id, [])
            num_attempts, num_dropped = num_attempts + found, num_dropped + (not found)
            check(env_id, noted[env_id][-1:])
    assert num_attempts > 100 and num_dropped > 100, "it was about nothing"


@pytest.mark.extended
def test_calls_of_an_env_without_a_restore_point_take_no_room_from_others() -> None:
    journal = Journal(2, 20_000)
    reset(journal, 1, [0, 1], [5, 6])
    while repeated(journal, 0):
        steps(journal, [1], [0])
    first = journal.next_step_id
    reset(journal, first, [1], [7])
    steps(journal, [8], [1])
    for _ in range(2_000):
        call(journal, journal.next_step_id, 0, "gain")
        steps(journal, [1], [0])
        assert journal.nbytes <= 20_000
    assert repeated(journal, 1) == [(first, [f"reset {first}", 8])] and repeated(journal, 0) == []
    (last,) = journal.history(0, ()).lasting_calls
    assert last.step_id == journal.next_step_id - 2, "what lasts is known"
    assert len(journal.calls.all_of(0, ())) < 100


def test_pending_restore_point_is_kept_when_older_entries_go() -> None:
    journal = Journal(1, 3_000)
    reset(journal, 1, [0], [5])
    while repeated(journal, 0):
        steps(journal, [1])
    call(journal, journal.next_step_id, 0, None)
    first = journal.next_step_id
    reset(journal, first, [0], [6])
    prune(journal)
    assert journal.num_steps().tolist() == [1], "only the reset is repeated"
    steps(journal, [2])
    assert repeated(journal, 0) == [(first, [f"reset {first}", 2])]


@pytest.mark.parametrize("is_answered", [True, False])
def test_env_without_a_restore_point_resumes_at_its_next_state(is_answered: bool) -> None:
    journal = Journal(2, 3_000)
    reset(journal, 1, [0, 1], [5, 6])
    while repeated(journal, 0):
        steps(journal, [1, 2])
    asked = journal.next_step_id
    steps(journal, [3, 4])  # an autoreset of env 0, before which a snapshot is taken
    journal.note_restore_point(0, RestorePoint(asked, b"s"), is_answered=is_answered)
    for number in range(5):
        prune(journal)
        steps(journal, [10 + number, 20 + number])
    assert repeated(journal, 0) == [(asked, [3, 10, 11, 12, 13, 14])] and repeated(journal, 1) == []


def test_state_from_before_a_full_drop_is_not_a_restore_point() -> None:
    journal = Journal(1, 3_000)
    reset(journal, 1, [0], [5])
    asked = 0
    while repeated(journal, 0):
        asked = journal.next_step_id
        steps(journal, [1])
    journal.note_restore_point(0, RestorePoint(asked, b"s"), is_answered=True)
    steps(journal, [2])
    assert repeated(journal, 0) == [], "the command that followed it is gone"
