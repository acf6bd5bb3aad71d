"""The journal: what a history holds, what is dropped, and what goes first when it is too large."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from vecenv.core.journal import Journal, Start
from vecenv.core.rows import CommandFlag, Op

MANY = 1 << 20


def steps(journal: Journal, values: list[int], env_ids: list[int] | None = None) -> None:
    ids = None if env_ids is None else np.array(env_ids, np.int64)
    journal.note_steps((np.array(values, np.int64),), ids, 0)


def reset(journal: Journal, first: int, env_ids: list[int], seeds: list[int | None], op: Op = Op.RESET) -> None:
    flags = [0 if seed is None else CommandFlag.SEED for seed in seeds]
    seeded = [seed is not None for seed in seeds]
    count = len(env_ids)
    journal.note_commands(
        op, first, env_ids, [seed or 0 for seed in seeds], flags, [None] * count, [None] * count, seeded
    )


def call(journal: Journal, first: int, env_id: int, name: str | None) -> None:
    journal.note_commands(Op.CALL, first, [env_id], [0], [0], [f"letter {first}".encode()], [name], [False])


def told(journal: Journal, env_id: int, queued: Any = ()) -> list[tuple[int, list[Any]]]:
    """Return (start, [what is repeated]) of each attempt: actions as numbers, commands by name."""
    found = []
    for start, entries, _ in journal.history(env_id, queued).attempts:
        parts: list[Any] = []
        for entry in entries:
            if entry.op == Op.STEP:
                assert isinstance(entry.payload, tuple)
                parts.append(int(np.frombuffer(entry.payload[0], np.int64)[0]))
            else:
                parts.append(f"{Op(entry.op).name.lower()} {entry.step_id}")
        found.append((start.step_id, parts))
    return found


def kept(journal: Journal, attempt: int = 0) -> list[int]:
    """Return the calls that are made again before the start of an attempt, for env 0."""
    return [entry.step_id for entry in journal.history(0, ()).attempts[attempt].kept]


def two_envs() -> Journal:
    """Two envs reset with seeds (commands 1, 2), then three rounds of steps (3 .. 8)."""
    journal = Journal(2, MANY)
    reset(journal, 1, [0, 1], [5, 6])
    for number in range(3):
        steps(journal, [10 + number, 20 + number])
    return journal


def test_a_history_begins_with_the_seeded_reset_and_has_each_envs_own_actions() -> None:
    journal = two_envs()
    assert told(journal, 0) == [(1, ["reset 1", 10, 11, 12])]
    assert told(journal, 1) == [(2, ["reset 2", 20, 21, 22])]


def test_what_is_queued_is_not_repeated() -> None:
    assert told(two_envs(), 1, [8]) == [(2, ["reset 2", 20, 21])]
    assert told(two_envs(), 1, [6, 8]) == [(2, ["reset 2", 20])]


def test_actions_are_copied() -> None:
    journal = Journal(1, MANY)
    actions = np.array([3])
    journal.note_steps((actions,), None, 0)
    actions[:] = 4
    assert told(journal, 0) == [(0, [3])]


def test_requests_of_some_envs_in_any_order() -> None:
    journal = Journal(3, MANY)
    reset(journal, 1, [0, 1, 2], [1, 2, 3])
    steps(journal, [20, 10], [2, 1])
    steps(journal, [21], [2])
    steps(journal, [5, 11, 22], [0, 1, 2])
    assert told(journal, 0) == [(1, ["reset 1", 5])]
    assert told(journal, 1) == [(2, ["reset 2", 10, 11])]
    assert told(journal, 2) == [(3, ["reset 3", 20, 21, 22])]


def test_a_seeded_reset_is_a_start_once_it_has_been_answered() -> None:
    journal = two_envs()
    reset(journal, 9, [0], [7])
    assert told(journal, 0, [9]) == [(1, ["reset 1", 10, 11, 12])], "it is still to be done"
    assert told(journal, 0) == [(9, ["reset 9"]), (1, ["reset 1", 10, 11, 12, "reset 9"])]
    steps(journal, [30], [0])
    assert told(journal, 0) == [(9, ["reset 9", 30])]


def test_a_reset_without_a_seed_is_part_of_the_history() -> None:
    journal = two_envs()
    reset(journal, 9, [0], [None])
    steps(journal, [30], [0])
    assert told(journal, 0) == [(1, ["reset 1", 10, 11, 12, "reset 9", 30])]


def test_a_state_is_a_start() -> None:
    journal = two_envs()
    journal.note_state(0, Start(7, b"state"), is_answered=False)
    assert told(journal, 0)[0] == (7, [12])
    assert told(journal, 0, [7]) == [(1, ["reset 1", 10, 11])], "its command was not answered: the look is made again"
    steps(journal, [13, 23])
    assert told(journal, 0) == [(1, ["reset 1", 10, 11, 12, 13])], "and that look has been forgotten"
    journal.note_state(0, Start(9, b"state"), is_answered=True)
    assert told(journal, 0) == [(9, [13])]
    steps(journal, [14, 24])
    assert told(journal, 0) == [(9, [13, 14])]


def test_a_state_that_is_older_than_a_start_is_nothing_new() -> None:
    journal = two_envs()
    reset(journal, 9, [0], [7])
    steps(journal, [30], [0])
    journal.note_state(0, Start(5, b"late"), is_answered=True)
    assert told(journal, 0) == [(9, ["reset 9", 30])]


def test_a_state_that_is_read_after_the_next_seeded_reset_was_sent_is_a_start_for_that() -> None:
    """Else the digest, which began anew at the state, would not agree with what is repeated from before it."""
    journal = two_envs()
    reset(journal, 9, [0], [7])
    journal.note_state(0, Start(7, b"late"), is_answered=True)
    assert told(journal, 0, [9]) == [(7, [12])]
    steps(journal, [30], [0])
    assert told(journal, 0) == [(9, ["reset 9", 30])], "once that is answered, it is the start"


def test_a_state_whose_command_is_done_again_is_no_start_of_the_digest() -> None:
    journal = two_envs()
    journal.note_state(0, Start(7, b"a", False), is_answered=False)
    assert told(journal, 0, [7]) == [(1, ["reset 1", 10, 11])], "a crash before the answer: without another look"
    steps(journal, [13, 23])
    marked = [entry.step_id for entry in journal.history(0, ()).attempts[0].entries if entry.flags & CommandFlag.START]
    assert marked == [1]


def test_the_last_letter_of_an_env_is_there_whatever_else_is_given_up() -> None:
    journal = Journal(1, 1)
    reset(journal, 1, [0], [1])
    journal.note_commands(Op.RESET, 2, [0], [0], [CommandFlag.LETTER], [b"options"], [None], [False])
    assert journal.history(0, [2]).attempts == []
    assert journal.letter(0, 2) == b"options" and journal.letter(0, 1) is None


def test_a_start_that_may_not_be_all_keeps_the_one_before_it() -> None:
    journal = two_envs()
    journal.note_state(0, Start(7, b"a", False), is_answered=True)
    assert told(journal, 0) == [(1, ["reset 1", 10, 11, 12]), (7, [12])]
    steps(journal, [13, 23])
    journal.note_state(0, Start(9, b"b", False), is_answered=True)
    assert told(journal, 0) == [(1, ["reset 1", 10, 11, 12, 13]), (9, [13])], "the certain one, then the newest"
    marked = [entry.step_id for entry in journal.history(0, ()).attempts[0].entries if entry.flags & CommandFlag.START]
    assert marked == [1, 7, 9], "the digest began anew at each of them"
    steps(journal, [14, 24])
    journal.note_state(0, Start(11, b"c", True), is_answered=True)
    assert told(journal, 0) == [(11, [14])], "a certain one ends that"


@pytest.mark.parametrize("is_answered", [False, True])
def test_nothing_before_a_reset_that_overtook_a_step_is_repeated(is_answered: bool) -> None:
    """Whether that step was made is not known, so the state seen then is all there is, complete or not."""
    journal = two_envs()
    journal.note_commands(Op.RESET, 9, [0], [0], [CommandFlag.STATE], [None], [None], [False])
    journal.note_state(0, Start(9, b"a", False), is_answered=is_answered)
    assert told(journal, 0) == [(9, ["reset 9"])]
    steps(journal, [13, 23])
    assert told(journal, 0) == [(9, ["reset 9", 13])]


def test_only_the_last_call_of_a_name_is_kept_and_for_good() -> None:
    journal = two_envs()
    call(journal, 9, 0, "set_attr x")
    call(journal, 10, 0, "set_attr y")
    call(journal, 11, 0, "set_attr x")
    call(journal, 12, 0, None)
    call(journal, 13, 0, "")
    assert told(journal, 0) == [(1, ["reset 1", 10, 11, 12, "call 9", "call 10", "call 11", "call 12"])]
    assert kept(journal) == []
    reset(journal, 14, [0], [7])
    steps(journal, [30], [0])
    assert told(journal, 0) == [(14, ["reset 14", 30])]
    assert kept(journal) == [10, 11]


def test_a_later_call_does_not_replace_one_from_before_the_start() -> None:
    """Between the start and the later call the env was what the earlier one had made of it."""
    journal = two_envs()
    call(journal, 9, 0, "set_attr x")
    reset(journal, 10, [0], [7])
    steps(journal, [30], [0])
    call(journal, 12, 0, "set_attr x")
    assert kept(journal) == [9]
    assert told(journal, 0) == [(10, ["reset 10", 30, "call 12"])]
    assert [entry.step_id for entry in journal.history(0, ()).lasting] == [12]
    assert [entry.step_id for entry in journal.history(0, [12]).lasting] == [9]


def test_each_start_has_the_calls_from_before_it() -> None:
    journal = two_envs()
    call(journal, 9, 0, "set_attr x")
    journal.note_state(0, Start(10, b"a", False), is_answered=True)
    steps(journal, [13], [0])
    assert kept(journal, 0) == [] and kept(journal, 1) == [9]
    assert "call 9" in told(journal, 0)[0][1]


def test_what_lasts_is_known_without_any_start() -> None:
    journal = Journal(1, 1)
    reset(journal, 1, [0], [1])
    call(journal, 2, 0, "set_attr x")
    steps(journal, [1])
    history = journal.history(0, ())
    assert history.attempts == [] and [entry.step_id for entry in history.lasting] == [2]


def test_a_call_that_raised_does_not_last() -> None:
    journal = two_envs()
    call(journal, 9, 0, "set_attr x")
    journal.forget_call(0, 9)
    reset(journal, 10, [0], [7])
    steps(journal, [30], [0])
    assert kept(journal) == []


def test_letters_are_found() -> None:
    journal = two_envs()
    call(journal, 9, 0, None)
    assert journal.letter(0, 9) == b"letter 9"
    assert journal.letter(0, 1) is None and journal.letter(1, 9) is None


def test_an_env_that_is_forgotten_begins_anew() -> None:
    journal = two_envs()
    call(journal, 9, 0, "set_attr x")
    journal.forget(0)
    reset(journal, 10, [0], [8])
    steps(journal, [30], [0])
    assert told(journal, 0) == [(10, ["reset 10", 30])]
    assert kept(journal) == []
    assert told(journal, 1) == [(2, ["reset 2", 20, 21, 22])]


# ---- size ---------------------------------------------------------------------------------------------


def test_what_every_env_has_left_behind_is_dropped() -> None:
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
    assert len(told(journal, 0)[0][1]) == 51


def test_pages_that_are_written_again_hold_nothing_of_before() -> None:
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
        dropped.update(map(id, journal._spares))
    assert dropped.intersection(map(id, journal._pages)), "no page was written again"
    assert told(journal, 1)[0][1][1:] == [-number for number in range(12_000, 20_000)]


def test_pages_are_not_written_again_with_actions_of_another_kind() -> None:
    journal = Journal(1, MANY)
    for dtype in (np.float32, np.int64):
        for _ in range(30):
            reset(journal, journal._next_step_id, [0], [1])
            for _ in range(1_000):
                journal.note_steps((np.full(1, 1.5, dtype),), None, 0)
    entry = journal.history(0, ()).attempts[0].entries[-1]
    assert entry.payload == (np.int64(1).tobytes(),)


def test_one_env_with_a_long_episode_does_not_keep_what_others_left_behind() -> None:
    journal = Journal(2, 60_000)
    reset(journal, 1, [0, 1], [1, 2])
    next_id = 3
    for number in range(120):
        steps(journal, [number, number])
        next_id += 2
        if number % 10 == 9:
            reset(journal, next_id, [1], [number])
            next_id += 1
    assert len(told(journal, 0)[0][1]) == 121, "env 0 has lost nothing"
    assert len(told(journal, 1)[-1][1]) <= 12
    assert journal.nbytes <= 60_000


def test_the_longest_history_goes_first_and_comes_back_with_its_next_start() -> None:
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
    assert told(journal, 0)[-1] == (next_id, [f"reset {next_id}", 9])


def test_histories_as_long_as_each_other_go_together() -> None:
    journal = Journal(64, MANY)
    reset(journal, 1, list(range(64)), [1] * 64)
    reset(journal, 65, list(range(32, 64)), [1] * 32)  # the newer starts, by a few commands
    while journal.history(0, ()).attempts:
        for _ in range(500):
            steps(journal, [1] * 64)
    assert not any(journal.history(env_id, ()).attempts for env_id in range(64))
    assert journal.nbytes <= MANY
    reset(journal, journal._next_step_id, [5], [1])
    steps(journal, [1] * 64)
    assert journal.history(5, ()).attempts, "a new start is a new history"


@pytest.mark.parametrize("num_ending", [0, 1, 32, 63])
def test_looking_for_room_is_rare_however_long_episodes_are(num_ending: int, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, looks = Journal(64, MANY), 0
    compact = journal._compact

    def count() -> None:
        nonlocal looks
        looks += 1
        compact()

    monkeypatch.setattr(journal, "_compact", count)
    reset(journal, 1, list(range(64)), [1] * 64)
    num_full = MANY // (64 * np.dtype(np.int64).itemsize)  # steps of all that fill the journal
    for number in range(20 * num_full):
        steps(journal, [1] * 64)
        if num_ending and number % 50 == 0:
            reset(journal, journal._next_step_id, list(range(num_ending)), [number] * num_ending)
    assert 0 < looks <= 100, "five times per filling, at most"
    assert journal.nbytes <= MANY


def test_a_long_history_does_not_take_short_ones_with_it() -> None:
    journal = Journal(64, MANY // 4)
    reset(journal, 1, list(range(64)), [1] * 64)
    number = 0
    while journal.history(0, ()).attempts:
        for _ in range(500):
            number += 1
            steps(journal, [number] * 64)
            if 1 <= number % 150 < 64:
                reset(journal, journal._next_step_id, [number % 150], [number])
        assert number < 20_000, "it is never full"
    assert all(journal.history(env_id, ()).attempts for env_id in range(1, 64))


def test_no_room_at_all() -> None:
    journal = Journal(2, 1)
    reset(journal, 1, [0, 1], [1, 2])
    for _ in range(20):
        steps(journal, [1, 2])
    assert journal.history(0, ()).attempts == [] == journal.history(1, ()).attempts
    assert journal.nbytes <= 1


def test_the_size_is_that_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Added up and taken off step by step; `_compact` counts anew and must find the same."""
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
            call(journal, next_id, env_id, ["a", "b", None, ""][rng.integers(4)])
            next_id += 1
        else:
            is_complete = bool(rng.integers(2))
            journal.note_state(env_id, Start(next_id - 1, b"x" * int(rng.integers(500)), is_complete), True)
    claimed = journal.nbytes
    journal._prune()
    pruned = journal.nbytes
    journal._compact()
    assert claimed >= pruned >= journal.nbytes > 0
    before = journal.nbytes
    journal._compact()
    assert journal.nbytes == before


def test_starts_in_mail_are_gathered_before_anything_is_dropped() -> None:
    journal = Journal(1, 3_000)
    reset(journal, 1, [0], [1])
    newest = [0]

    def gather() -> None:
        journal.note_state(0, Start(newest[0], b"s"), is_answered=True)

    journal.gather_starts = gather
    for number in range(200):
        newest[0] = number + 2
        steps(journal, [number])
        assert journal.history(0, ()).attempts
    assert journal.nbytes <= 3_000


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_reset_that_is_too_large_to_keep_is_no_start(num_steps: int) -> None:
    """Else an env that was never reset would be stepped."""
    journal = Journal(2, 10_000)
    options = [b"x" * 50_000] * 2
    journal.note_commands(Op.RESET, 1, [0, 1], [5, 6], [CommandFlag.SEED] * 2, options, [None] * 2, [True] * 2)
    for number in range(num_steps):
        steps(journal, [10 + number, 20 + number])
    assert told(journal, 0) == [] == told(journal, 1)
    assert journal.nbytes <= 10_000
    next_id = journal._next_step_id
    reset(journal, next_id, [0], [7])
    steps(journal, [30], [0])
    assert told(journal, 0) == [(next_id, [f"reset {next_id}", 30])], "the next one is"


def test_a_reset_that_still_fits_is_kept_when_what_came_before_it_goes() -> None:
    journal = Journal(1, 3_000)
    reset(journal, 1, [0], [5])
    while journal.nbytes < 2_500:
        steps(journal, [1])
    first = journal._next_step_id
    options = [b"x" * 1_000]
    journal.note_commands(Op.RESET, first, [0], [5], [CommandFlag.SEED], options, [None], [True])
    assert told(journal, 0) == [(first, [f"reset {first}"])] and journal.nbytes <= 3_000
    steps(journal, [2])
    assert told(journal, 0) == [(first, [f"reset {first}", 2])]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_repeated_has_no_gaps_whatever_was_given_up(seed: int) -> None:
    """From a start on everything is there, its own command first."""
    rng = np.random.default_rng(seed)
    journal = Journal(3, 4_000)
    noted: list[list[int]] = [[], [], []]
    last_op = [Op.RESET] * 3
    num_attempts = num_given_up = 0

    def note(env_ids: list[int], op: Op) -> int:
        first = journal._next_step_id
        for number, env_id in enumerate(env_ids):
            noted[env_id].append(first + number)
            last_op[env_id] = op
        return first

    def check(env_id: int, queued: list[int]) -> int:
        attempts = copy.deepcopy(journal).history(env_id, queued).attempts
        for start, entries, _ in attempts:
            expected = [number for number in noted[env_id] if number >= start.step_id and number not in queued]
            assert [entry.step_id for entry in entries] == expected
            if start.step_id > 0:  # else it begins when it is built
                assert start.state is not None or expected[:1] == [start.step_id], "it would not be reset"
        return len(attempts)

    for number in range(400):
        env_ids = rng.choice(3, rng.integers(1, 4), replace=False).tolist()
        kind = rng.integers(10)
        if number < 1 or kind < 2:
            env_ids = [0, 1, 2] if number < 1 else env_ids
            count = len(env_ids)
            letters = [b"x" * int(rng.integers(3_000)) if rng.random() < 0.3 else None for _ in env_ids]
            seeded = [number < 1 or rng.random() < 0.5] * count
            flags = [CommandFlag.SEED if is_seeded else 0 for is_seeded in seeded]
            first = note(env_ids, Op.RESET)
            journal.note_commands(Op.RESET, first, env_ids, [1] * count, flags, letters, [None] * count, seeded)
        elif kind < 3:
            call(journal, note(env_ids[:1], Op.CALL), env_ids[0], None)
        elif kind < 5 and last_op[env_ids[0]] != Op.CALL:
            start = Start(noted[env_ids[0]][-1], b"x" * int(rng.integers(800)), bool(rng.random() < 0.5))
            journal.note_state(env_ids[0], start, is_answered=bool(rng.integers(2)))
        else:
            note(env_ids, Op.STEP)
            steps(journal, [number] * len(env_ids), env_ids)
        for env_id in range(3):
            found = check(env_id, [])
            num_attempts, num_given_up = num_attempts + found, num_given_up + (not found)
            check(env_id, noted[env_id][-1:])
    assert num_attempts > 100 and num_given_up > 100, "it was about nothing"
