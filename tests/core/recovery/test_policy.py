"""Failure counts: which env is to blame, how many failures there were, and when a limit is reached."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.core.recovery.journals import note, seeded_resets
from vecenv.core.host.replay import RestoreJob
from vecenv.core.layout.commands import Command, Commands, RestorePoint
from vecenv.core.layout.flags import Op
from vecenv.core.layout.messages import Outcome
from vecenv.core.options import Limits, PoolFailurePolicy
from vecenv.core.parent.hub import SlotState
from vecenv.core.recovery import policy as recovery_module
from vecenv.core.recovery.journal import Journal
from vecenv.core.recovery.policy import Recovery
from vecenv.core.recovery.reproducer import FailureContext
from vecenv.errors import WorkerDiedError, WorkerTimeoutError

SEGFAULT = -signal.SIGSEGV
NO_COMMANDS = Commands.listed(())


def new_jobs(*env_ids: int) -> dict[int, RestoreJob]:
    """Return jobs of envs that have delivered no row, for `plan` to complete."""
    return {env_id: RestoreJob() for env_id in env_ids}


class Scene:
    """A Recovery of two envs, with a clock that stands still unless the test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **policy: object) -> None:
        self.now = 0
        monkeypatch.setattr(recovery_module, "now_ns", lambda: self.now)
        self.written: list[tuple[int, int, str]] = []
        self.trouble: Exception | None = None
        self.journal = Journal(2, 1 << 20)
        self.recovery = Recovery(
            PoolFailurePolicy(**{"on_failure": "recover", **policy}),  # type: ignore[arg-type]
            self.journal,
            Limits(),
            self._context_of,
        )

    def _context_of(self, env_id: int, op: int, step_id: int) -> FailureContext:
        def save(why: str) -> str:
            if self.trouble is not None:
                raise self.trouble
            self.written.append((env_id, step_id, why))
            return f"file{len(self.written)}"

        return FailureContext(40 + env_id, (0, step_id), save)

    def fail(self, step_id: int, exitcode: int | None = SEGFAULT, op: Op = Op.STEP, env_id: int = 1) -> dict[int, str]:
        state = SlotState(int(op), env_id, step_id, 0, 0, 0)
        self.recovery.judge(WorkerDiedError("worker 0 died", exitcode=exitcode), exitcode, [state])
        return self.abandoned(step_id)

    def abandoned(self, step_id: int) -> dict[int, str]:
        reasons = {env_id: self.recovery.abandon_reason(env_id, [step_id]) for env_id in (0, 1)}
        return {env_id: why for env_id, why in reasons.items() if why}


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_second_failure_in_a_call_abandons_the_episode(scene: Scene) -> None:
    assert scene.fail(7) == {} and scene.written == []
    assert scene.fail(7) == {1: "worker 0 died"}
    assert scene.written == [(1, 7, "worker 0 died; env 1: seed 41, last actions [0, 7]")]


def test_failures_in_different_calls_do_not_add_up(scene: Scene) -> None:
    assert [scene.fail(step_id) for step_id in (7, 9, 7, 11)] == [{}, {}, {}, {}]
    assert scene.fail(11) == {1: "worker 0 died"}


def test_failures_of_different_envs_do_not_add_up(scene: Scene) -> None:
    assert scene.fail(7, env_id=0) == {} and scene.fail(7, env_id=1) == {}
    assert scene.fail(7, env_id=0) == {0: "worker 0 died"}


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal_from_outside_takes_more_failures_to_blame_the_env(scene: Scene, sign: signal.Signals) -> None:
    assert [scene.fail(7, -sign) for _ in range(7)] == [{}] * 7
    assert scene.fail(7, -sign) == {1: "worker 0 died"}


@pytest.mark.parametrize("position", range(5))
def test_failure_of_the_env_counts_as_four_signals_from_outside(position: int, scene: Scene) -> None:
    """Wherever it comes among them."""
    codes = [-signal.SIGKILL] * 4
    codes.insert(position, SEGFAULT)
    assert [scene.fail(7, code) for code in codes] == [{}] * 4 + [{1: "worker 0 died"}]


def test_hang_counts_like_a_death(scene: Scene) -> None:
    assert scene.fail(7, None) == {} and scene.fail(7, None) == {1: "worker 0 died"}


def test_slots_are_judged_one_by_one(scene: Scene) -> None:
    states = [SlotState(int(Op.STEP), 0, 5, 0, 0, 0), SlotState(int(Op.NONE), 1, 4, 0, 0, 0)]
    error = WorkerDiedError("worker 0 died")
    scene.recovery.judge(error, SEGFAULT, states)
    assert scene.abandoned(5) == {}
    scene.recovery.judge(error, SEGFAULT, states)
    assert scene.abandoned(5) == {0: "worker 0 died"} and scene.abandoned(4) == {}


def test_env_busy_beside_a_hanging_env_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, the replay of an env in another thread may take longer than the limit of a step."""
    scene = Scene(monkeypatch, max_restarts=2)
    states = [SlotState(int(Op.STEP), 0, 5, 0, 0, 0), SlotState(int(Op.STEP), 1, 6, 0, 0, 0)]
    for _ in range(2):
        scene.recovery.judge(WorkerTimeoutError("worker 0 hangs", env_ids=(1,)), None, states)
    assert scene.abandoned(5) == {} and list(scene.abandoned(6)) == [1]
    assert scene.fail(9, env_id=0) == {} and scene.fail(11, env_id=0) == {}, "it has failures of its own only"


def test_abandoned_episode_needs_as_many_failures_again(scene: Scene) -> None:
    scene.fail(7)
    assert [scene.fail(7), scene.fail(7)] == [{1: "worker 0 died"}] * 2
    with pytest.raises(WorkerDiedError, match="second time in this call, its old episode abandoned"):
        scene.fail(7)


@pytest.mark.parametrize("op", [Op.RESET, Op.CALL])
def test_repeated_command_that_fails_is_abandoned_whatever_its_kind(scene: Scene, op: Op) -> None:
    scene.fail(7)
    scene.recovery.begin_restoring(
        "worker 0 died",
        0,
        scene.recovery.plan(new_jobs(0, 1), Commands.listed([Command(7, 1, Op.STEP)])),
    )
    assert scene.fail(7, op=op) == {1: "worker 0 died"}


@pytest.mark.parametrize("op", [Op.RESET, Op.CALL])
def test_truncation_is_only_for_episodes(scene: Scene, op: Op) -> None:
    scene.fail(7, op=op)
    with pytest.raises(WorkerDiedError, match="second time in this call.*vecenv replay file1"):
        scene.fail(7, op=op)


def test_on_repeat_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, on_repeat="raise")
    assert scene.fail(7) == {}
    with pytest.raises(WorkerDiedError, match="second time in this call.*vecenv replay file1"):
        scene.fail(7)


def test_error_has_seed_and_actions_of_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, on_repeat="raise")
    scene.fail(7)
    error = WorkerDiedError("worker 0 died\nstack", exitcode=SEGFAULT, env_ids=(1,))
    with pytest.raises(WorkerDiedError) as caught:
        scene.recovery.judge(error, SEGFAULT, [SlotState(int(Op.STEP), 1, 7, 0, 0, 0)])
    assert caught.value is error
    assert (error.seed, error.actions, error.reproducer, error.signal) == (41, (0, 7), "file1", signal.SIGSEGV)
    first, stack = str(error).split("\n")
    message = "seed 41, last actions [0, 7]; it is the second time in this call. `vecenv replay file1` repeats it"
    assert (first, stack) == (f"worker 0 died; {message}", "stack")


@pytest.mark.parametrize("trouble", [OSError(28, "No space left on device"), TypeError("cannot pickle it")])
def test_reproducer_that_cannot_be_written_does_not_end_the_run(
    trouble: Exception, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.trouble = trouble
    scene.fail(7)
    with caplog.at_level(logging.WARNING, "vecenv"):
        assert scene.fail(7) == {1: "worker 0 died"}
    (message,) = caplog.messages
    assert f"no reproducer file could be written: {type(trouble).__name__}: {trouble}" in message
    assert "seed 41" in message and "vecenv replay" not in message


def test_reproducer_that_cannot_be_written_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, on_repeat="raise")
    scene.trouble = OSError(28, "No space left on device")
    scene.fail(7)
    with pytest.raises(WorkerDiedError, match="second time in this call; no reproducer file .*No space left") as caught:
        scene.fail(7)
    assert (caught.value.seed, caught.value.reproducer) == (41, None)


def test_error_over_the_budget_has_seed_and_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, max_restarts=0)
    with pytest.raises(WorkerDiedError, match=r"last actions \[0, 3\]; 1 failures") as caught:
        scene.fail(3)
    assert (caught.value.seed, caught.value.actions, caught.value.reproducer) == (41, (0, 3), None)
    assert scene.written == []


def test_budget_is_per_env(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, max_restarts=3)
    for step_id in (1, 2, 3):
        scene.fail(step_id)
        scene.fail(step_id, env_id=0)
    with pytest.raises(WorkerDiedError, match="4 failures within 60 s with env 1 at work.*max_restarts=3"):
        scene.fail(4)


def test_budget_is_per_time_window(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, max_restarts=2, restart_window=10.0)
    for number in range(20):
        scene.now = number * 6_000_000_000
        scene.fail(number)
    scene.now += 1
    with pytest.raises(WorkerDiedError, match="within 10 s"):
        scene.fail(99)


def test_failures_without_a_suspect_have_a_larger_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, max_restarts=2)
    for _ in range(20):
        scene.recovery.judge(WorkerDiedError("idle"), -signal.SIGKILL, [])
    with pytest.raises(WorkerDiedError, match="21 failures .* no env to blame"):
        scene.recovery.judge(WorkerDiedError("idle"), -signal.SIGKILL, [])


def test_failures_of_many_envs_have_suspects(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, max_restarts=1)
    for env_id in range(20):
        assert scene.fail(5, env_id=env_id) == {}


@pytest.mark.parametrize("exitcode", [SEGFAULT, -signal.SIGKILL, 3, None])
def test_successor_that_dies_is_started_three_times_more(scene: Scene, exitcode: int | None) -> None:
    for _ in range(3):
        scene.recovery.judge_start(WorkerDiedError("born dead", exitcode=exitcode, env_ids=[1]))
    with pytest.raises(WorkerDiedError, match="born dead; it is the 4th process in a row that failed there"):
        scene.recovery.judge_start(WorkerDiedError("born dead", exitcode=exitcode, env_ids=[0, 1]))
    scene.recovery.judge_start(WorkerDiedError("born dead", exitcode=exitcode, env_ids=[1]))


def test_failed_starts_are_forgotten_when_the_env_is_built(scene: Scene) -> None:
    for _ in range(5):
        scene.recovery.judge_start(WorkerDiedError("born dead", env_ids=[0, 1]))
        scene.recovery.note_built([0, 1])


@pytest.mark.parametrize("error", [WorkerDiedError("gone", env_ids=[0]), WorkerTimeoutError("late", env_ids=[0])])
def test_failed_start_after_the_limit_is_raised(scene: Scene, error: WorkerDiedError | WorkerTimeoutError) -> None:
    scene.recovery.judge_start(error, 60.0)
    scene.now += 61 * 10**9
    with pytest.raises(type(error), match="it is the second process"):
        scene.recovery.judge_start(error, 60.0)


def test_timeouts_keep_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, max_restarts=0)
    with pytest.raises(WorkerTimeoutError, match="max_restarts=0"):
        scene.recovery.judge(WorkerTimeoutError("late"), None, [SlotState(int(Op.STEP), 0, 5, 0, 0, 0)])


# ---- plans ------------------------------------------------------------------------------------------


def test_plan_has_the_history_before_the_pending_commands(scene: Scene) -> None:
    note(scene.journal, 1, seeded_resets([0, 1], [3, 4]))
    scene.journal.note_steps((np.array([5, 6]),), None, 0)
    for _ in range(2):
        scene.fail(3, env_id=0)
    plans = scene.recovery.plan(
        new_jobs(0, 1),
        Commands.listed([Command(3, 0, Op.STEP), Command(4, 1, Op.STEP)]),
    )
    assert plans[0].attempts == [] and plans[0].abandon_reason == "worker 0 died"
    ((point, entries, *_),) = plans[1].attempts
    assert point == RestorePoint(2) and [entry.step_id for entry in entries] == [2], (
        "the step that is left is not repeated"
    )
    assert plans[1].seconds == 60.0
    assert scene.recovery.plan(new_jobs(0), NO_COMMANDS)[0].abandon_reason == "", "it has been answered"


def test_plan_allows_ten_times_the_step_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.recovery.limits = Limits(step=20.0)
    assert scene.recovery.plan(new_jobs(0), NO_COMMANDS)[0].seconds == 200.0
    scene = Scene(monkeypatch, recovery_timeout=3.0)
    assert scene.recovery.plan(new_jobs(0), NO_COMMANDS)[0].seconds == 3.0


# ---- reports of recoveries -------------------------------------------------------------------------


def test_last_restored_env_of_a_worker_logs_one_line(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    restore_jobs = scene.recovery.plan(new_jobs(0, 1), NO_COMMANDS)
    scene.recovery.begin_restoring("worker 0 died", 0, restore_jobs)
    with caplog.at_level(logging.WARNING, "vecenv"):
        scene.recovery.note_outcome(0, Outcome("replayed", 12, 0.5))
        assert caplog.messages == []
        scene.now = 250_000_000
        scene.recovery.note_outcome(1, Outcome("truncated", reason="it draws lots"))
    assert caplog.messages == [
        "vecenv: env 1: its episode could not be brought back, it ends truncated: it draws lots",
        "vecenv: worker 0 died; replaced, 12 commands repeated, of 2 episodes 1 ended truncated (0.25 s)",
    ]
    counts = scene.recovery.statistics()
    assert (counts["restarts"], counts["replayed"], counts["truncated"], counts["steps_replayed"]) == (1, 1, 1, 12)
    assert counts["replay_seconds"] == 0.5 and counts["log_nbytes"] == 0


def test_incomplete_states_are_explained_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vecenv"):
        scene.recovery.note_outcome(0, Outcome("unproven"))
        scene.recovery.note_outcome(1, Outcome("unproven"))
    (text,) = caplog.messages
    assert text.startswith("vecenv: env 0 was brought back from a state that may lack something")


MINUTE = 60_000_000_000


def fail_and_restore(scene: Scene, step_id: int) -> None:
    scene.fail(step_id)
    scene.recovery.begin_restoring("worker 0 died", scene.now, scene.recovery.plan(new_jobs(1), NO_COMMANDS))
    scene.recovery.note_outcome(1, Outcome("replayed", 12, 0.5))


def test_lines_about_an_env_that_often_fails_are_counted(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    for step_id in range(1, 21):
        fail_and_restore(scene, step_id)
    replaced = "vecenv: worker 0 died; replaced, 12 commands repeated, nothing was lost (0 s)"
    often = "vecenv: env 1 failed 4 times within a minute; further lines about it are counted instead of logged"
    assert caplog.messages == [replaced] * 3 + [often]
    scene.now = 2 * MINUTE
    fail_and_restore(scene, 21)
    assert caplog.messages[4:] == ["vecenv: env 1: log lines left out: 17", replaced]
    scene.recovery.log_summary()
    assert caplog.messages[6:] == [
        "vecenv: until the pool was closed, workers were replaced 21 times (env 1: 21); log lines left out: 17"
    ]


def test_rare_failures_of_an_env_are_all_logged(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    for step_id in range(1, 11):
        scene.now += MINUTE // 3 + 1
        fail_and_restore(scene, step_id)
    assert len(caplog.messages) == 10
    with caplog.at_level(logging.INFO, "vecenv"):
        scene.recovery.log_summary()
    assert caplog.records[-1].levelname == "INFO"
    assert "workers were replaced 10 times (env 1: 10)" in caplog.messages[-1]


def test_pool_without_failures_logs_no_summary(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vecenv"):
        scene.recovery.log_summary()
    assert caplog.messages == []


def test_newest_ten_reproducer_files_are_kept(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the pool did not write are kept, too."""
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "file0"
    other.touch()
    for number in range(1, 16):
        (tmp_path / f"file{number}").touch()
        scene.now += MINUTE
        scene.fail(number)
        if number == 14:
            (tmp_path / "file5").unlink()
        scene.fail(number)
    assert {path.name for path in tmp_path.iterdir()} == {"file0", *(f"file{number}" for number in range(6, 16))}


def test_two_failures_of_an_env_isolate_it(scene: Scene) -> None:
    for step_id in (3, 9):
        assert scene.recovery.env_to_isolate([0, 1]) is None
        scene.fail(step_id)
    assert scene.recovery.env_to_isolate([0, 1]) == 1
    assert scene.recovery.env_to_isolate([0]) is None and scene.recovery.env_to_isolate([1]) is None, (
        "it is alone already"
    )


def test_eight_signals_from_outside_isolate_an_env(scene: Scene) -> None:
    for step_id in range(8):
        assert scene.recovery.env_to_isolate([0, 1]) is None
        scene.fail(step_id, -signal.SIGKILL)
    assert scene.recovery.env_to_isolate([0, 1]) == 1


def test_several_busy_envs_share_a_death_but_not_a_hang(scene: Scene) -> None:
    states = [SlotState(int(Op.STEP), env_id, 5 + env_id, 0, 0, 0) for env_id in (0, 1)]
    for _ in range(2):
        scene.recovery.judge(WorkerDiedError("worker 0 died", env_ids=(0,)), SEGFAULT, states)
    assert scene.recovery.env_to_isolate([0, 1]) is None
    for _ in range(2):
        scene.recovery.judge(WorkerDiedError("worker 0 died", env_ids=(0,)), SEGFAULT, states)
    states = [SlotState(int(Op.STEP), env_id, 7 + env_id, 0, 0, 0) for env_id in (0, 1)]
    for _ in range(2):
        scene.recovery.judge(WorkerTimeoutError("worker 0 hangs", env_ids=(1,)), None, states)
    assert scene.recovery.env_to_isolate([0, 1]) == 1


def test_several_busy_envs_must_each_fail_alone_to_be_abandoned(scene: Scene) -> None:
    states = [SlotState(int(Op.STEP), env_id, 5 + env_id, 0, 0, 0) for env_id in (0, 1)]
    for _ in range(2):
        assert scene.recovery.env_to_isolate([0, 1]) is None
        scene.recovery.judge(WorkerDiedError("worker 0 died"), SEGFAULT, states, (0, 1))
    assert scene.abandoned(5) == {} == scene.abandoned(6) and scene.written == []
    assert scene.recovery.env_to_isolate([0, 1]) == 0 and scene.recovery.env_to_isolate([1]) is None
    scene.recovery.judge(WorkerDiedError("worker 1 died"), SEGFAULT, states[1:])
    assert scene.abandoned(5) == {} and scene.abandoned(6) == {1: "worker 1 died"}
    assert scene.recovery.env_to_isolate([0, 2]) is None, "nobody is under suspicion any more"
