"""Restorer: which commands are repeated, in which order, and which answers must agree.

The tests run in this process, with a slot that records its calls.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vecenv.core.host.executor import Executor
from vecenv.core.host.global_rngs import GlobalRngs
from vecenv.core.host.replay import RestoreJob, Restorer
from vecenv.core.layout import messages
from vecenv.core.layout.commands import Entry, LastingCall, RestorePlan, RestorePoint
from vecenv.core.layout.flags import Autoreset, CommandFlag, Op, RowFlag
from vecenv.core.layout.messages import Payload
from vecenv.gymnasium_api.replaying import is_replaying

BEFORE = 100  # the command for which the env is restored
FIRST = RestorePoint(1)


class Slot:
    """Records its calls. A digest is the sum of all observations with their step_ids and flags."""

    def __init__(self, *records: tuple[int, int]) -> None:
        self.known = (*records, (0, 0), (0, 0))[:2]
        self.digest = 0
        self.rows: list[tuple[Any, ...]] = []
        self.touched: list[int] = []

    def records(self, env_id: int) -> Any:
        return self.digest, *self.known

    def add_to_digest(self, env_id: int, step_id: int, obs: Any, *rest: Any) -> bool:
        _, _, _, flags, final_obs, starts_digest = rest  # without rewards and ends
        seen = 0 if obs is None else int(obs[0])
        self.digest = (0 if starts_digest else self.digest) + 1000 * step_id + 100 * flags + seen
        self.rows.append((step_id, seen, flags, None if final_obs is None else int(final_obs[0])))
        return True

    def action(self, form: int, leaves: tuple[bytes, ...]) -> int:
        return leaves[0][0]

    def touch(self, op: int) -> None:
        self.touched.append(op)


class Log:
    """Observes the number of its steps, always in the same array; twice that number if it is `wrong`.

    `asked` lists the commands that it received.
    """

    def __init__(self, asked: list[str], length: int = 100, wrong: bool = False) -> None:
        self.asked, self.length = asked, length
        self.obs, self.stride = np.array([0]), 2 if wrong else 1
        self.num_resets = 0

    def note(self, what: str) -> None:
        assert is_replaying()
        self.asked.append(what)

    def reset(self, seed: int | None = None) -> Any:
        self.note("reset" if seed is None else f"reset {seed}")
        self.num_resets += 1
        self.obs[0] = 0
        return self.obs, {}

    def step(self, action: int) -> Any:
        self.note(f"step {action}")
        self.obs[0] += self.stride
        if action == 9:
            raise ValueError("nine")
        return self.obs, 1.0, bool(self.obs[0] == self.length), False, {}

    def close(self) -> None:
        self.note("close")
        sys.exit(3)


class Snapshotter:
    def spans_episodes(self, env: Any) -> bool:
        return False

    def capture(self, env: Any, *, within_episode: bool = False) -> None:
        raise AssertionError("nothing is captured here")

    def restore(self, env: Log, state: bytes) -> None:
        env.note(f"state {pickle.loads(state)}")


def named(text: str) -> Callable[[Log], None]:
    def function(env: Log) -> None:
        env.note(text)
        if text == "exit":
            sys.exit(3)
        if text == "raise":
            raise LookupError(text)

    return function


def call(step_id: int, text: str) -> Entry:
    return Entry(step_id, Op.CALL, CommandFlag.PAYLOAD, 0, messages.dump(Payload(function=named(text))))


def lasting(step_id: int, text: str) -> LastingCall:
    return LastingCall(step_id, messages.dump(Payload(function=named(text))))


def step(step_id: int, action: int = 0, flags: int = 0) -> Entry:
    return Entry(step_id, Op.STEP, flags, 0, (bytes([action]),))


def seeded(step_id: int, seed: int) -> Entry:
    return Entry(step_id, Op.RESET, CommandFlag.SEED, seed, None)


def saved_state(
    value: object, *, step_id: int = 1, is_complete: bool = True, is_mid_episode: bool = False
) -> RestorePoint:
    return RestorePoint(step_id, GlobalRngs().pack_state(0, pickle.dumps(value)), is_complete, is_mid_episode)


class Scene:
    """One env that is restored; `asked` lists the commands that it or an earlier one received."""

    def __init__(
        self, *records: tuple[int, int], autoreset: Autoreset = Autoreset.NEXT_STEP, length: int = 100
    ) -> None:
        self.slot, self.asked, self.length = Slot(*records), list[str](), length
        rngs = GlobalRngs()
        self.executor = Executor({}, autoreset, rngs)
        self.restorer = Restorer(
            self.executor,
            self.slot,
            lambda obs: obs,
            lambda reward: reward,
            Snapshotter(),
            rngs,
            lambda _: self.build(),
        )

    def build(self, wrong: bool = False) -> Log:
        return Log(self.asked, self.length, wrong)

    def run(self, *attempts: RestorePlan, wrong: bool = False, **how: Any) -> tuple[bool, Any]:
        job = RestoreJob(list(attempts), **how)
        self.executor.envs[0] = self.build(wrong)
        outcome = self.restorer.run(0, job, BEFORE)
        return self.executor.needs_reset, outcome


def test_lasting_calls_come_first_then_the_state_then_the_commands() -> None:
    scene = Scene()
    attempt = RestorePlan(saved_state(7), [step(1), call(2, "b"), step(3, 4)], [lasting(0, "a")])
    _, outcome = scene.run(attempt)
    assert (outcome.kind, outcome.num_steps) == ("replayed", 3)
    assert scene.asked == ["a", "state 7", "reset", "b", "step 4"], "of the first command only the reset"
    assert scene.slot.touched == [Op.CALL, Op.RESET, Op.CALL, Op.STEP]


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_call_that_raised_does_not_end_the_recovery(how: str) -> None:
    """A call that left by `sys.exit` must not end the recovery, and so the episode."""
    scene = Scene()
    _, outcome = scene.run(RestorePlan(FIRST, [seeded(1, 5), call(2, how), step(3)], []))
    assert outcome.kind == "replayed" and scene.asked == ["reset 5", how, "step 0"]


def test_second_attempt_builds_another_env_and_closes_the_first() -> None:
    entries = [seeded(1, 5), step(2)]
    other = Scene()
    other.run(RestorePlan(FIRST, entries, []))
    scene = Scene((2, other.slot.digest))
    _, outcome = scene.run(*[RestorePlan(FIRST, entries, [])] * 2, wrong=True)
    assert outcome.kind == "replayed" and scene.asked == ["reset 5", "step 0", "close", "reset 5", "step 0"]


def test_env_built_again_gets_the_lasting_calls() -> None:
    scene = Scene((1, 77))
    _, outcome = scene.run(RestorePlan(saved_state(7, is_mid_episode=True), [], []), lasting_calls=[lasting(0, "a")])
    assert outcome.kind == "truncated" and "was not kept" in outcome.reason
    assert scene.asked == ["state 7", "a"] and not scene.restorer.starts_digest
    scene = Scene()
    _, outcome = scene.run(lasting_calls=[lasting(0, "a")], abandon_reason="enough")
    assert (outcome.kind, outcome.reason, scene.asked) == ("truncated", "enough", ["a"])
    assert Scene().run()[1].reason.startswith("nothing from which the episode could be repeated")


@pytest.mark.parametrize(
    ("record", "is_found"), [((3, 1), True), ((4, 1), False), ((0, 0), True)], ids=["before", "at its start", "none"]
)
def test_newest_answer_must_be_repeated_unless_older_than_the_restore_point(
    record: tuple[int, int], is_found: bool
) -> None:
    _, outcome = Scene(record).run(RestorePlan(saved_state(7, step_id=4), [step(5)], []))
    assert (outcome.kind == "replayed") == is_found
    assert is_found or "its history up to command 4 was not kept" in outcome.reason


def test_new_env_without_answers_counts_as_restored() -> None:
    _, outcome = Scene().run(RestorePlan(RestorePoint(0), [], []))
    assert outcome.kind == "fresh"
    assert Scene().run(RestorePlan(RestorePoint(0), [call(1, "a")], []))[1].kind == "replayed"
    assert Scene().run(RestorePlan(saved_state(7), [], []))[1].kind == "replayed"
    assert Scene().run(RestorePlan(saved_state(7, is_complete=False), [], []))[1].kind == "unproven"


@pytest.mark.parametrize("was_answered", [True, False])
def test_cancelled_command_is_repeated_if_it_was_answered(was_answered: bool) -> None:
    entries = [seeded(1, 5), step(2), step(3, 1, CommandFlag.CANCELLED)]
    other = Scene((3, 0))
    other.run(RestorePlan(FIRST, entries, []))  # fails, although all was repeated
    record = (3, other.slot.digest) if was_answered else (2, 2001 + 1000 + 100 * RowFlag.RESET)
    scene = Scene(record)
    assert scene.run(RestorePlan(FIRST, entries, []))[1].kind == "replayed"
    assert ("step 1" in scene.asked) == was_answered


@pytest.mark.parametrize(
    ("restore_point", "entries", "starts_digest"),
    [
        (saved_state(7, is_mid_episode=True), [call(2, "a")], True),
        (saved_state(7, is_mid_episode=True), [call(2, "a"), step(3)], False),
        (saved_state(7), [call(2, "a")], True),
    ],
    ids=["only calls", "a step", "between two episodes"],
)
def test_checksum_begins_after_a_state(restore_point: RestorePoint, entries: list[Entry], starts_digest: bool) -> None:
    scene = Scene()
    scene.run(RestorePlan(restore_point, entries, []))
    assert scene.restorer.starts_digest == starts_digest


def test_checksum_begins_at_a_seed_among_the_arguments() -> None:
    scene = Scene()
    payload = messages.dump(Payload(kwargs={"seed": 2**70}))
    scene.run(RestorePlan(FIRST, [step(1), Entry(2, Op.RESET, CommandFlag.PAYLOAD, 0, payload)], []))
    assert scene.asked[-1] == f"reset {2**70}" and scene.slot.digest == 2000 + 100 * RowFlag.RESET


def test_step_after_an_end_resets() -> None:
    scene = Scene(length=2)
    needs_reset, _ = scene.run(RestorePlan(FIRST, [seeded(1, 5), *map(step, range(2, 7))], []))
    assert scene.asked == ["reset 5", "step 0", "step 0", "reset", "step 0", "step 0"] and needs_reset
    assert [row[2] for row in scene.slot.rows] == [RowFlag.RESET, 0, 0, RowFlag.AUTORESET, 0, 0]
    needs_reset, _ = scene.run(RestorePlan(FIRST, [step(2, 9)], []))
    assert not needs_reset, "no exception ends an episode, nor does an attempt begin where another one has ended"
    assert scene.asked[-1] == "step 9"


def test_last_observation_is_the_one_before_the_same_step_reset() -> None:
    scene = Scene(autoreset=Autoreset.SAME_STEP, length=2)
    needs_reset, _ = scene.run(RestorePlan(FIRST, [seeded(1, 5), step(2), step(3)], []))
    assert scene.slot.rows[-1] == (3, 0, RowFlag.FINAL, 2) and not needs_reset


def test_state_that_cannot_be_restored_gives_the_reason() -> None:
    bad = RestorePoint(1, GlobalRngs().pack_state(0, b"no pickle"))
    _, outcome = Scene().run(RestorePlan(bad, [], []))
    assert outcome.kind == "truncated" and outcome.reason.startswith("its state could not be restored: UnpicklingError")


def test_replay_without_time_left_repeats_nothing() -> None:
    scene = Scene()
    _, outcome = scene.run(RestorePlan(FIRST, [seeded(1, 5)], []), seconds=0.0)
    assert outcome.kind == "truncated" and "longer than recovery_timeout" in outcome.reason and scene.asked == []


def test_attempt_before_the_last_has_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0]
    minute = 60_000_000_000
    monkeypatch.setattr("vecenv.core.host.replay.now_ns", lambda: clock.__setitem__(0, clock[0] + minute) or clock[0])
    scene = Scene()
    _, outcome = scene.run(*[RestorePlan(FIRST, [seeded(1, 5)], [])] * 2, seconds=100.0)
    assert outcome.kind == "replayed" and scene.asked == ["close", "reset 5"]
