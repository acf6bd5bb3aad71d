"""The books of failures: who is to blame, how often, and when it is enough."""

from __future__ import annotations

import logging
import signal

import numpy as np
import pytest

from vecenv.core.layout.commands import Start
from vecenv.core.layout.messages import Outcome
from vecenv.core.layout.rows import CommandFlag, Op
from vecenv.core.options import FailurePolicy, Limits
from vecenv.core.parent.hub import SlotState
from vecenv.core.recovery import policy as recovery_module
from vecenv.core.recovery.journal import Journal
from vecenv.core.recovery.policy import Recovery
from vecenv.core.recovery.reproducer import Account
from vecenv.errors import WorkerDiedError, WorkerTimeoutError

SEGFAULT = -signal.SIGSEGV


class Books:
    """A Recovery of two envs, with a clock that stands still unless told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **policy: object) -> None:
        self.now = 0
        monkeypatch.setattr(recovery_module, "now_ns", lambda: self.now)
        self.written: list[tuple[int, int, str]] = []
        self.trouble: Exception | None = None
        self.journal = Journal(2, 1 << 20)
        self.recovery = Recovery(
            FailurePolicy(**{"on_failure": "recover", **policy}),  # type: ignore[arg-type]
            self.journal,
            Limits(),
            self._tell,
        )

    def _tell(self, env_id: int, op: int, step_id: int) -> Account:
        def save(why: str) -> str:
            if self.trouble is not None:
                raise self.trouble
            self.written.append((env_id, step_id, why))
            return f"file{len(self.written)}"

        return Account(40 + env_id, (0, step_id), save)

    def fail(self, step_id: int, exitcode: int | None = SEGFAULT, op: Op = Op.STEP, env_id: int = 1) -> dict[int, str]:
        state = SlotState(int(op), env_id, step_id, 0, 0, 0)
        self.recovery.judge(WorkerDiedError("worker 0 died", exitcode=exitcode), exitcode, [state])
        return self.given_up(step_id)

    def given_up(self, step_id: int) -> dict[int, str]:
        told = {env_id: self.recovery.given_up(env_id, [step_id]) for env_id in (0, 1)}
        return {env_id: why for env_id, why in told.items() if why}


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    return Books(monkeypatch)


def test_the_second_failure_in_a_call_gives_the_episode_up(books: Books) -> None:
    assert books.fail(7) == {} and books.written == []
    assert books.fail(7) == {1: "worker 0 died"}
    assert books.written == [(1, 7, "worker 0 died; env 1: seed 41, last actions [0, 7]")]


def test_failures_in_different_calls_do_not_add_up(books: Books) -> None:
    assert [books.fail(step_id) for step_id in (7, 9, 7, 11)] == [{}, {}, {}, {}]
    assert books.fail(11) == {1: "worker 0 died"}


def test_failures_of_different_envs_do_not_add_up(books: Books) -> None:
    assert books.fail(7, env_id=0) == {} and books.fail(7, env_id=1) == {}
    assert books.fail(7, env_id=0) == {0: "worker 0 died"}


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_from_outside_is_not_the_envs_fault_so_soon(books: Books, sign: signal.Signals) -> None:
    assert [books.fail(7, -sign) for _ in range(7)] == [{}] * 7
    assert books.fail(7, -sign) == {1: "worker 0 died"}


def test_a_hang_counts_like_a_death(books: Books) -> None:
    assert books.fail(7, None) == {} and books.fail(7, None) == {1: "worker 0 died"}


def test_several_slots_are_judged_one_by_one(books: Books) -> None:
    states = [SlotState(int(Op.STEP), 0, 5, 0, 0, 0), SlotState(int(Op.NONE), 1, 4, 0, 0, 0)]
    error = WorkerDiedError("worker 0 died")
    books.recovery.judge(error, SEGFAULT, states)
    assert books.given_up(5) == {}
    books.recovery.judge(error, SEGFAULT, states)
    assert books.given_up(5) == {0: "worker 0 died"} and books.given_up(4) == {}


def test_who_is_at_work_beside_an_env_that_hangs_is_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an env in another thread, whose episode takes longer to repeat than the limit of a step."""
    books = Books(monkeypatch, max_restarts=2)
    states = [SlotState(int(Op.STEP), 0, 5, 0, 0, 0), SlotState(int(Op.STEP), 1, 6, 0, 0, 0)]
    for _ in range(2):
        books.recovery.judge(WorkerTimeoutError("worker 0 hangs", env_ids=(1,)), None, states)
    assert books.given_up(5) == {} and list(books.given_up(6)) == [1]
    assert books.fail(9, env_id=0) == {} and books.fail(11, env_id=0) == {}, "it has failures of its own only"


def test_what_was_given_up_stays_so_until_it_fails_as_often_again(books: Books) -> None:
    books.fail(7)
    assert [books.fail(7), books.fail(7)] == [{1: "worker 0 died"}] * 2
    with pytest.raises(WorkerDiedError, match="second time in this call, its old episode given up"):
        books.fail(7)


@pytest.mark.parametrize("op", [Op.RESET, Op.CALL])
def test_what_is_only_repeated_is_given_up_whatever_it_is(books: Books, op: Op) -> None:
    books.fail(7)
    books.recovery.begin("worker 0 died", 0, books.recovery.plan([0, 1], [(int(Op.STEP), 1, 7, 0)], lambda *_: None))
    assert books.fail(7, op=op) == {1: "worker 0 died"}


@pytest.mark.parametrize("op", [Op.RESET, Op.CALL])
def test_only_an_episode_can_be_truncated(books: Books, op: Op) -> None:
    books.fail(7, op=op)
    with pytest.raises(WorkerDiedError, match="second time in this call.*vecenv replay file1"):
        books.fail(7, op=op)


def test_on_repeat_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(monkeypatch, on_repeat="raise")
    assert books.fail(7) == {}
    with pytest.raises(WorkerDiedError, match="second time in this call.*vecenv replay file1"):
        books.fail(7)


def test_what_is_raised_knows_what_the_env_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(monkeypatch, on_repeat="raise")
    books.fail(7)
    error = WorkerDiedError("worker 0 died\nstack", exitcode=SEGFAULT, env_ids=(1,))
    with pytest.raises(WorkerDiedError) as caught:
        books.recovery.judge(error, SEGFAULT, [SlotState(int(Op.STEP), 1, 7, 0, 0, 0)])
    assert caught.value is error
    assert (error.seed, error.actions, error.reproducer, error.signal) == (41, (0, 7), "file1", signal.SIGSEGV)
    first, stack = str(error).split("\n")
    told = "seed 41, last actions [0, 7]; it is the second time in this call. `vecenv replay file1` repeats it"
    assert (first, stack) == (f"worker 0 died; {told}", "stack")


@pytest.mark.parametrize("trouble", [OSError(28, "No space left on device"), TypeError("cannot pickle it")])
def test_a_file_that_cannot_be_written_does_not_end_the_run(
    trouble: Exception, books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    books.trouble = trouble
    books.fail(7)
    with caplog.at_level(logging.WARNING, "vecenv"):
        assert books.fail(7) == {1: "worker 0 died"}
    (message,) = caplog.messages
    assert f"no reproducer file could be written: {type(trouble).__name__}: {trouble}" in message
    assert "seed 41" in message and "vecenv replay" not in message


def test_a_file_that_cannot_be_written_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(monkeypatch, on_repeat="raise")
    books.trouble = OSError(28, "No space left on device")
    books.fail(7)
    with pytest.raises(WorkerDiedError, match="second time in this call; no reproducer file .*No space left") as caught:
        books.fail(7)
    assert (caught.value.seed, caught.value.reproducer) == (41, None)


def test_an_error_over_the_budget_knows_what_the_env_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(monkeypatch, max_restarts=0)
    with pytest.raises(WorkerDiedError, match=r"last actions \[0, 3\]; 1 failures") as caught:
        books.fail(3)
    assert (caught.value.seed, caught.value.actions, caught.value.reproducer) == (41, (0, 3), None)
    assert books.written == []


def test_each_env_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(monkeypatch, max_restarts=3)
    for step_id in (1, 2, 3):
        books.fail(step_id)
        books.fail(step_id, env_id=0)
    with pytest.raises(WorkerDiedError, match="4 failures within 60 s with env 1 at work.*max_restarts=3"):
        books.fail(4)


def test_the_budget_is_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(monkeypatch, max_restarts=2, restart_window=10.0)
    for number in range(20):
        books.now = number * 6_000_000_000
        books.fail(number)
    books.now += 1
    with pytest.raises(WorkerDiedError, match="within 10 s"):
        books.fail(99)


def test_failures_that_are_nobodys_have_a_larger_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(monkeypatch, max_restarts=2)
    for _ in range(20):
        books.recovery.judge(WorkerDiedError("idle"), -signal.SIGKILL, [])
    with pytest.raises(WorkerDiedError, match="21 failures .* no env to blame"):
        books.recovery.judge(WorkerDiedError("idle"), -signal.SIGKILL, [])


def test_failures_of_many_envs_are_not_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(monkeypatch, max_restarts=1)
    for env_id in range(20):
        assert books.fail(5, env_id=env_id) == {}


def test_a_successor_that_dies_by_itself_is_tried_once_more(books: Books) -> None:
    books.recovery.judge_start(WorkerDiedError("born dead", exitcode=SEGFAULT), 1)
    with pytest.raises(WorkerDiedError, match="born dead"):
        books.recovery.judge_start(WorkerDiedError("born dead", exitcode=SEGFAULT), 2)


def test_a_successor_that_is_killed_is_tried_more_often(books: Books) -> None:
    error = WorkerDiedError("shot", exitcode=-signal.SIGKILL)
    for failures in range(1, 8):
        books.recovery.judge_start(error, failures)
    with pytest.raises(WorkerDiedError, match="shot"):
        books.recovery.judge_start(error, 8)


def test_timeouts_keep_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(monkeypatch, max_restarts=0)
    with pytest.raises(WorkerTimeoutError, match="max_restarts=0"):
        books.recovery.judge(WorkerTimeoutError("late"), None, [SlotState(int(Op.STEP), 0, 5, 0, 0, 0)])


# ---- plans ------------------------------------------------------------------------------------------


def test_a_plan_has_the_history_before_what_is_left(books: Books) -> None:
    seed = CommandFlag.SEED
    books.journal.note_commands(Op.RESET, 1, [0, 1], [3, 4], [seed] * 2, [None] * 2, [None] * 2, [True] * 2)
    books.journal.note_steps((np.array([5, 6]),), None, 0)
    seen = np.ones(2)
    asked: list[tuple[int, int]] = []

    def newest(env_id: int, before: int) -> list[np.ndarray]:
        asked.append((env_id, before))
        return [seen]

    for _ in range(2):
        books.fail(3, env_id=0)
    plans = books.recovery.plan([0, 1], [(int(Op.STEP), 0, 3, 0), (int(Op.STEP), 1, 4, 0)], newest)
    assert plans[0].attempts == [] and plans[0].give_up == "worker 0 died" and plans[0].shown is not None
    ((start, entries, _),) = plans[1].attempts
    assert start == Start(2) and [entry.step_id for entry in entries] == [2], "the step that is left is not repeated"
    assert asked == [(0, 3), (1, 4)] and plans[1].seconds == 60.0
    assert books.recovery.plan([0], [], newest)[0].give_up == "", "it has been answered"


def test_what_was_seen_last_is_from_before_all_that_is_left(books: Books) -> None:
    asked: list[tuple[int, int]] = []
    left = [(int(Op.RESET), 1, 6, 0), (int(Op.STEP), 1, 4, 0)]
    books.recovery.plan([1], left, lambda env_id, before: asked.append((env_id, before)))
    assert asked == [(1, 4)]


def test_a_plan_allows_ten_steps_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(monkeypatch)
    books.recovery.limits = Limits(step=20.0)
    assert books.recovery.plan([0], [], lambda env_id, before: None)[0].seconds == 200.0
    books = Books(monkeypatch, recovery_timeout=3.0)
    assert books.recovery.plan([0], [], lambda env_id, before: None)[0].seconds == 3.0


# ---- what came of it -------------------------------------------------------------------------------


def test_the_last_env_of_a_worker_ends_the_story_with_one_line(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    replays = books.recovery.plan([0, 1], [], lambda env_id, before: None)
    books.recovery.begin("worker 0 died", 0, replays)
    with caplog.at_level(logging.WARNING, "vecenv"):
        books.recovery.note_outcome(0, Outcome("replayed", 12, 0.5))
        assert caplog.messages == []
        books.now = 250_000_000
        books.recovery.note_outcome(1, Outcome("truncated", reason="it draws lots"))
    assert caplog.messages == [
        "env 1: its episode could not be brought back, it ends truncated: it draws lots",
        "worker 0 died; replaced, 12 commands repeated, of 2 episodes 1 ended truncated (0.25 s)",
    ]
    counts = books.recovery.statistics()
    assert (counts["restarts"], counts["replayed"], counts["truncated"], counts["steps_replayed"]) == (1, 1, 1, 12)
    assert counts["replay_seconds"] == 0.5 and counts["log_nbytes"] == 0


def test_that_states_may_lack_something_is_explained_once(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vecenv"):
        books.recovery.note_outcome(0, Outcome("unproven"))
        books.recovery.note_outcome(1, Outcome("unproven"))
    (text,) = caplog.messages
    assert text.startswith("env 0 was brought back from a state that may lack something")


def test_two_failures_traced_to_an_env_make_it_an_outcast(books: Books) -> None:
    for step_id in (3, 9):
        assert books.recovery.outcast([0, 1]) is None
        books.fail(step_id)
    assert books.recovery.outcast([0, 1]) == 1
    assert books.recovery.outcast([0]) is None and books.recovery.outcast([1]) is None, "it is alone already"


def test_eight_signals_from_outside_make_it_one_too(books: Books) -> None:
    for step_id in range(8):
        assert books.recovery.outcast([0, 1]) is None
        books.fail(step_id, -signal.SIGKILL)
    assert books.recovery.outcast([0, 1]) == 1


def test_of_several_envs_at_work_a_death_is_nobodys_but_a_hang_has_a_name(books: Books) -> None:
    states = [SlotState(int(Op.STEP), env_id, 5 + env_id, 0, 0, 0) for env_id in (0, 1)]
    for _ in range(2):
        books.recovery.judge(WorkerDiedError("worker 0 died", env_ids=(0,)), SEGFAULT, states)
    assert books.recovery.outcast([0, 1]) is None
    for _ in range(2):
        books.recovery.judge(WorkerDiedError("worker 0 died", env_ids=(0,)), SEGFAULT, states)
    states = [SlotState(int(Op.STEP), env_id, 7 + env_id, 0, 0, 0) for env_id in (0, 1)]
    for _ in range(2):
        books.recovery.judge(WorkerTimeoutError("worker 0 hangs", env_ids=(1,)), None, states)
    assert books.recovery.outcast([0, 1]) == 1


def test_of_several_envs_at_work_each_is_to_fail_alone_before_it_is_given_up(books: Books) -> None:
    states = [SlotState(int(Op.STEP), env_id, 5 + env_id, 0, 0, 0) for env_id in (0, 1)]
    for _ in range(2):
        assert books.recovery.outcast([0, 1]) is None
        books.recovery.judge(WorkerDiedError("worker 0 died"), SEGFAULT, states, lambda env_id: True)
    assert books.given_up(5) == {} == books.given_up(6) and books.written == []
    assert books.recovery.outcast([0, 1]) == 0 and books.recovery.outcast([1]) is None
    books.recovery.judge(WorkerDiedError("worker 1 died"), SEGFAULT, states[1:], lambda env_id: False)
    assert books.given_up(5) == {} and books.given_up(6) == {1: "worker 1 died"}
    assert books.recovery.outcast([0, 2]) is None, "nobody is under suspicion any more"
