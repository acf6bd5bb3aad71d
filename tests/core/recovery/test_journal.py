"""The journal: the contents of a history and its restore points."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.recovery.journals import MANY, call, lasting, note, repeated, reset, steps, two_envs
from vecenv.core.layout.commands import CallEffect, Commands, Effect, RestorePoint
from vecenv.core.layout.flags import CommandFlag, Op
from vecenv.core.recovery.journal import Journal


def test_history_begins_with_the_seeded_reset_and_has_each_envs_own_actions() -> None:
    journal = two_envs()
    assert repeated(journal, 0) == [(1, ["reset 1", 10, 11, 12])]
    assert repeated(journal, 1) == [(2, ["reset 2", 20, 21, 22])]


def test_queued_commands_are_not_in_the_history() -> None:
    assert repeated(two_envs(), 1, [8]) == [(2, ["reset 2", 20, 21])]
    assert repeated(two_envs(), 1, [6, 8]) == [(2, ["reset 2", 20])]


def test_actions_are_copied() -> None:
    journal = Journal(1, MANY)
    actions = np.array([3])
    journal.note_steps((actions,), None, 0)
    actions[:] = 4
    assert repeated(journal, 0) == [(0, [3])]


def test_requests_of_some_envs_in_any_order() -> None:
    journal = Journal(3, MANY)
    reset(journal, 1, [0, 1, 2], [1, 2, 3])
    steps(journal, [20, 10], [2, 1])
    steps(journal, [21], [2])
    steps(journal, [5, 11, 22], [0, 1, 2])
    assert repeated(journal, 0) == [(1, ["reset 1", 5])]
    assert repeated(journal, 1) == [(2, ["reset 2", 10, 11])]
    assert repeated(journal, 2) == [(3, ["reset 3", 20, 21, 22])]


def test_commands_of_some_envs_may_have_lower_numbers_than_earlier_ones_of_others() -> None:
    journal = Journal(2, MANY)
    reset(journal, 1, [0, 1], [1, 2])
    reset(journal, 12, [0], [3])
    steps(journal, [10], [0])
    journal.continue_from(3)
    steps(journal, [20], [1])
    assert repeated(journal, 0) == [(12, ["reset 12", 10])]
    assert repeated(journal, 1) == [(2, ["reset 2", 20])]


def test_steps_since_the_restore_point_are_counted() -> None:
    journal = Journal(2, MANY)
    reset(journal, 1, [0, 1], [1, 2])
    for number in range(3):
        steps(journal, [number, number])
    steps(journal, [9], [1])
    assert journal.num_steps().tolist() == [4, 5], "the resets, too"
    reset(journal, journal.next_step_id, [0], [5])
    steps(journal, [9], [0])  # now the reset is a restore point
    assert journal.num_steps()[0] == 1, "pages that begin before it do not count"


def test_requests_have_their_own_forms() -> None:
    journal = Journal(2, MANY)
    for form in (0, 2, 1):
        journal.note_steps((np.array([form, form]),), None, form)
        journal.note_steps((np.array([form]),), np.array([1]), form)
    assert [entry.flags for entry in journal.history(1, ()).attempts[0].entries] == [0, 0, 2, 2, 1, 1]


def test_seeded_reset_is_a_restore_point_once_answered() -> None:
    journal = two_envs()
    reset(journal, 9, [0], [7])
    assert repeated(journal, 0, [9]) == [(1, ["reset 1", 10, 11, 12])], "it is still to be done"
    assert repeated(journal, 0) == [(9, ["reset 9"]), (1, ["reset 1", 10, 11, 12, "reset 9"])]
    steps(journal, [30], [0])
    assert repeated(journal, 0) == [(9, ["reset 9", 30])]


def test_reset_without_a_seed_is_part_of_the_history() -> None:
    journal = two_envs()
    reset(journal, 9, [0], [None])
    steps(journal, [30], [0])
    assert repeated(journal, 0) == [(1, ["reset 1", 10, 11, 12, "reset 9", 30])]


def cancelled(journal: Journal, env_id: int) -> list[int]:
    (attempt,) = journal.history(env_id, ()).attempts
    return [entry.step_id for entry in attempt.entries if entry.flags & CommandFlag.CANCELLED]


def test_cancelled_commands_are_marked_until_a_new_restore_point() -> None:
    journal = two_envs()
    journal.note_cancelled(0, 7)
    assert cancelled(journal, 0) == [7] and cancelled(journal, 1) == []
    assert journal.has_cancelled(0) and not journal.has_cancelled(1)
    steps(journal, [30], [0])
    assert cancelled(journal, 0) == [7] and repeated(journal, 0) == [(1, ["reset 1", 10, 11, 12, 30])]
    reset(journal, 10, [0], [5])
    steps(journal, [40], [0])
    assert repeated(journal, 0) == [(10, ["reset 10", 40])]
    assert cancelled(journal, 0) == [] and not journal.has_cancelled(0)


def test_history_does_not_begin_with_a_cancelled_command() -> None:
    journal = two_envs()
    reset(journal, 9, [0], [7])
    journal.note_cancelled(0, 9)
    steps(journal, [30], [0])
    assert repeated(journal, 0) == [(1, ["reset 1", 10, 11, 12, "reset 9", 30])] and cancelled(journal, 0) == [9]
    journal.note_cancelled(0, 10)
    journal.note_restore_point(0, RestorePoint(10, b"state"), True)  # it had been sent already
    assert repeated(journal, 0) == [(1, ["reset 1", 10, 11, 12, "reset 9", 30])] and cancelled(journal, 0) == [9, 10]


def test_state_is_a_restore_point() -> None:
    journal = two_envs()
    journal.note_restore_point(0, RestorePoint(7, b"state"), is_answered=False)
    assert repeated(journal, 0)[0] == (7, [12])
    assert repeated(journal, 0, [7]) == [(1, ["reset 1", 10, 11])], (
        "its command was not answered: the look is made again"
    )
    steps(journal, [13, 23])
    assert repeated(journal, 0) == [(1, ["reset 1", 10, 11, 12, 13])], "and that look has been forgotten"
    journal.note_restore_point(0, RestorePoint(9, b"state"), is_answered=True)
    assert repeated(journal, 0) == [(9, [13])]
    steps(journal, [14, 24])
    assert repeated(journal, 0) == [(9, [13, 14])]


def test_state_within_an_episode_begins_the_digest_with_the_next_step() -> None:
    journal = two_envs()
    call(journal, 9, 0, None, Effect.NONE)
    journal.note_restore_point(0, RestorePoint(9, b"state", is_mid_episode=True), is_answered=True)
    assert repeated(journal, 0) == [(9, [])]
    call(journal, 10, 0, None)
    steps(journal, [13, 23])  # commands 11, 12
    steps(journal, [14, 24])
    (attempt,) = journal.history(0, ()).attempts
    begins = [entry.step_id for entry in attempt.entries if entry.flags & CommandFlag.NEW_DIGEST]
    assert attempt.restore_point.is_mid_episode and begins == [11]
    assert repeated(journal, 0) == [(9, ["call 10", 13, 14])]
    assert repeated(journal, 1) == [(2, ["reset 2", 20, 21, 22, 23, 24])]


def test_state_older_than_the_restore_point_is_ignored() -> None:
    journal = two_envs()
    reset(journal, 9, [0], [7])
    steps(journal, [30], [0])
    journal.note_restore_point(0, RestorePoint(5, b"late"), is_answered=True)
    assert repeated(journal, 0) == [(9, ["reset 9", 30])]


def test_state_read_after_a_seeded_reset_was_sent_belongs_to_that_reset() -> None:
    """Otherwise the digest, which began again at the state, would not match the commands repeated from before it."""
    journal = two_envs()
    reset(journal, 9, [0], [7])
    journal.note_restore_point(0, RestorePoint(7, b"late"), is_answered=True)
    assert repeated(journal, 0, [9]) == [(7, [12])]
    steps(journal, [30], [0])
    assert repeated(journal, 0) == [(9, ["reset 9", 30])], "once that is answered, it is the start"


def test_state_whose_command_runs_again_does_not_begin_the_digest() -> None:
    journal = two_envs()
    journal.note_restore_point(0, RestorePoint(7, b"a", False), is_answered=False)
    assert repeated(journal, 0, [7]) == [(1, ["reset 1", 10, 11])], "a crash before the answer: without another look"
    steps(journal, [13, 23])
    entries = journal.history(0, ()).attempts[0].entries
    marked = [entry.step_id for entry in entries if entry.flags & CommandFlag.NEW_DIGEST]
    assert marked == [1]


def test_call_with_an_answer_is_not_sent_again() -> None:
    journal = two_envs()
    journal.note_restore_point(0, RestorePoint(7, b"state"), is_answered=False)
    call(journal, 9, 0, None)
    assert repeated(journal, 0, [7, 9]) == [(1, ["reset 1", 10, 11])]


def test_last_payload_of_an_env_is_always_kept() -> None:
    journal = Journal(1, 1)
    reset(journal, 1, [0], [1])
    note(journal, 2, Commands.of(Op.RESET, np.array([0]), payloads=[b"options"]))
    assert journal.history(0, [2]).attempts == []
    assert journal.payload(0, 2) == b"options" and journal.payload(0, 1) is None


def test_restore_point_that_may_be_incomplete_keeps_its_predecessor() -> None:
    journal = two_envs()
    journal.note_restore_point(0, RestorePoint(7, b"a", False), is_answered=True)
    assert repeated(journal, 0) == [(1, ["reset 1", 10, 11, 12]), (7, [12])]
    steps(journal, [13, 23])
    journal.note_restore_point(0, RestorePoint(9, b"b", False), is_answered=True)
    assert repeated(journal, 0) == [(1, ["reset 1", 10, 11, 12, 13]), (9, [13])], "the certain one, then the newest"
    entries = journal.history(0, ()).attempts[0].entries
    marked = [entry.step_id for entry in entries if entry.flags & CommandFlag.NEW_DIGEST]
    assert marked == [1, 7, 9], "the digest began anew at each of them"
    steps(journal, [14, 24])
    journal.note_restore_point(0, RestorePoint(11, b"c", True), is_answered=True)
    assert repeated(journal, 0) == [(11, [14])], "a certain one ends that"


@pytest.mark.parametrize("is_answered", [False, True])
def test_commands_before_a_reset_that_superseded_a_step_are_not_repeated(is_answered: bool) -> None:
    """It is not known whether that step ran, so the state seen then is used, whether or not it is complete."""
    journal = two_envs()
    note(journal, 9, Commands.of(Op.RESET, np.array([0]), flags=CommandFlag.SNAPSHOT))
    journal.note_restore_point(0, RestorePoint(9, b"a", False), is_answered=is_answered)
    assert repeated(journal, 0) == [(9, ["reset 9"])]
    steps(journal, [13, 23])
    assert repeated(journal, 0) == [(9, ["reset 9", 13])]


def test_calls_and_the_last_value_of_each_attribute_are_kept_permanently() -> None:
    journal = two_envs()
    call(journal, 9, 0, "set_attr x")
    call(journal, 10, 0, "set_attr y")
    call(journal, 11, 0, "set_attr x")
    call(journal, 12, 0, None)
    call(journal, 13, 0, None, Effect.NONE)
    assert repeated(journal, 0) == [(1, ["reset 1", 10, 11, 12, "call 9", "call 10", "call 11", "call 12"])]
    assert lasting(journal) == []
    reset(journal, 14, [0], [7])
    steps(journal, [30], [0])
    assert repeated(journal, 0) == [(14, ["reset 14", 30])]
    assert lasting(journal) == [10, 11, 12]


def test_later_call_does_not_replace_one_from_before_the_restore_point() -> None:
    """Between the restore point and the later call, the env was in the state that the earlier call had made."""
    journal = two_envs()
    call(journal, 9, 0, "set_attr x")
    reset(journal, 10, [0], [7])
    steps(journal, [30], [0])
    call(journal, 12, 0, "set_attr x")
    assert lasting(journal) == [9]
    assert repeated(journal, 0) == [(10, ["reset 10", 30, "call 12"])]
    assert [entry.step_id for entry in journal.history(0, ()).lasting_calls] == [9, 12]
    assert [entry.step_id for entry in journal.history(0, [12]).lasting_calls] == [9]


def test_restore_points_have_the_calls_from_before_them() -> None:
    journal = two_envs()
    call(journal, 9, 0, "set_attr x")
    journal.note_restore_point(0, RestorePoint(10, b"a", False), is_answered=True)
    steps(journal, [13], [0])
    assert lasting(journal, 0) == [] and lasting(journal, 1) == [9]
    assert "call 9" in repeated(journal, 0)[0][1]


def test_lasting_calls_are_known_without_a_restore_point() -> None:
    journal = Journal(1, 1)
    reset(journal, 1, [0], [1])
    call(journal, 2, 0, "set_attr x")
    steps(journal, [1])
    history = journal.history(0, ())
    assert history.attempts == [] and [entry.step_id for entry in history.lasting_calls] == [2]


def test_call_that_changed_nothing_is_not_kept() -> None:
    journal = two_envs()
    call(journal, 9, 0, "set_attr x")
    journal.calls.note_effect(0, 9, CallEffect("read", {}))
    reset(journal, 10, [0], [7])
    steps(journal, [30], [0])
    assert lasting(journal) == []


def test_payloads_are_found() -> None:
    journal = two_envs()
    call(journal, 9, 0, None)
    assert journal.payload(0, 9) == b"payload 9"
    assert journal.payload(0, 1) is None and journal.payload(1, 9) is None


def test_forgotten_env_has_a_new_history() -> None:
    journal = two_envs()
    call(journal, 9, 0, "set_attr x")
    journal.forget(0, keeps_calls=False)
    reset(journal, 10, [0], [8])
    steps(journal, [30], [0])
    assert repeated(journal, 0) == [(10, ["reset 10", 30])]
    assert lasting(journal) == []
    assert repeated(journal, 1) == [(2, ["reset 2", 20, 21, 22])]


def test_forgotten_env_keeps_its_calls_if_the_new_one_gets_them() -> None:
    journal = two_envs()
    call(journal, 9, 0, "set_attr x")
    journal.forget(0, keeps_calls=True)
    assert repeated(journal, 0) == [(10, [])]
    assert lasting(journal) == [9]


def test_forgotten_env_does_not_use_an_older_restore_point() -> None:
    journal = two_envs()
    journal.note_restore_point(0, RestorePoint(7, b"a", False), is_answered=True)
    journal.forget(0, keeps_calls=False)
    reset(journal, 9, [0], [None])
    steps(journal, [30], [0])
    assert repeated(journal, 0) == [(9, ["reset 9", 30])]


def test_state_before_an_unfinished_seeded_reset_is_not_a_restore_point_yet() -> None:
    journal = two_envs()
    reset(journal, 9, [0], [7])
    journal.note_restore_point(0, RestorePoint(9, b"state"), False)
    assert repeated(journal, 0, [9]) == [(1, ["reset 1", 10, 11, 12])]


def test_restore_point_stays_when_older_entries_are_dropped() -> None:
    journal = two_envs()
    journal.note_restore_point(0, RestorePoint(9, b"state"), False)
    journal.note_cancelled(0, 7)
    assert repeated(journal, 0)[0] == (9, [])
