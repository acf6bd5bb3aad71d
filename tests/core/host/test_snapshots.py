"""When snapshots of an env are taken: as rarely as possible."""

from __future__ import annotations

import pickle
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

from vecenv.core.host.global_rngs import GlobalRngs
from vecenv.core.host.snapshots import Snapshots
from vecenv.core.layout.arena import RECORD
from vecenv.core.layout.flags import Autoreset
from vecenv.core.layout.messages import Reply, load_reply
from vecenv.core.options import RECOVERING, PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.envs import toys


class Slot:
    """Counts its calls; `is_snapshot_due` returns `due`."""

    def __init__(self) -> None:
        self.due = False
        self.digests_started: list[int] = []
        self.after: list[tuple[int, int]] = []
        self.before_step: list[int] = []

    def start_digest(self, env_id: int) -> None:
        self.digests_started.append(env_id)

    def schedule_snapshot(self, env_id: int, busy_ns: int, step_busy_ns: int) -> None:
        self.after.append((env_id, busy_ns))
        self.before_step.append(step_busy_ns)

    def is_snapshot_due(self, env_id: int) -> bool:
        return self.due

    def present_record(self, env_id: int) -> bytes:
        return bytes(RECORD.itemsize)


class Saved(NamedTuple):
    state: bytes
    is_complete: bool
    holds_calls: bool = False


class Snapshotter:
    def __init__(self, spans: bool = False, *, complete: bool = True, error: Exception | None = None) -> None:
        self.spans, self.complete, self.error = spans, complete, error
        self.num_captures = 0

    def spans_episodes(self, env: Any) -> bool:
        return self.spans

    def capture(self, env: Any, *, within_episode: bool = False) -> Saved | None:
        self.num_captures += 1
        if self.error is not None:
            raise self.error
        return None if env is None else Saved(pickle.dumps(env), self.complete)

    def restore(self, env: Any, state: bytes) -> None:
        raise AssertionError("nothing is restored here")


class Scene:
    """A Snapshots object and its collaborators."""

    def __init__(self, snapshotter: Snapshotter | None) -> None:
        self.sent: list[Reply] = []
        self.slot, self.snapshotter = Slot(), snapshotter
        self.slot.send_message = lambda data: self.sent.append(load_reply(data))
        self.warned: list[tuple[str, str]] = []
        self.rngs = GlobalRngs()
        self.snapshots = Snapshots(self.slot, snapshotter, self.rngs, lambda key, text: self.warned.append((key, text)))

    def reset(self, step_id: int, env: Any = 5, **how: bool) -> None:
        self.snapshots.before_reset(0, step_id, env, **{"seeded": False, **how})


def test_first_reset_is_a_restore_point_without_a_snapshot() -> None:
    scene = Scene(Snapshotter())
    scene.reset(1, seeded=True)
    assert scene.sent == [] and scene.slot.digests_started == [0] and scene.snapshotter.num_captures == 0
    assert scene.slot.after[0][1] > 0, "later autoresets are to be looked at"


def test_autoreset_takes_a_snapshot_when_due() -> None:
    scene = Scene(Snapshotter())
    scene.reset(1, seeded=True)
    scene.reset(2)
    assert scene.sent == []
    scene.slot.due = True
    scene.reset(3)
    (reply,) = scene.sent
    assert (reply.step_id, reply.env_id) == (3, 0) and reply.snapshot is not None and reply.snapshot[1]
    assert scene.slot.digests_started == [0, 0], "the digest begins with this episode"


def test_seeded_reset_suffices_for_envs_that_do_not_span_episodes() -> None:
    scene = Scene(Snapshotter(spans=False))
    for step_id in (1, 2, 3):
        scene.reset(step_id, seeded=True)
    assert scene.sent == [] and scene.slot.digests_started == [0, 0, 0]


def test_envs_that_span_episodes_take_a_snapshot_before_seeded_resets() -> None:
    scene = Scene(Snapshotter(spans=True))
    scene.reset(1, seeded=True)
    assert scene.sent == [], "there is nothing before the first"
    scene.reset(2, seeded=True)
    assert [reply.step_id for reply in scene.sent] == [2]


def test_env_that_draws_from_global_generators_spans_episodes() -> None:
    scene = Scene(Snapshotter(spans=False))
    with scene.rngs:
        scene.rngs.of(0)
        scene.reset(1, seeded=True)
        scene.rngs.note_draw(0)
        scene.reset(2, seeded=True)
    assert [reply.step_id for reply in scene.sent] == [2]


def test_reset_that_supersedes_a_step_forces_a_snapshot() -> None:
    scene = Scene(Snapshotter())
    scene.reset(1, seeded=True)
    scene.reset(2, forced=True)
    assert [reply.step_id for reply in scene.sent] == [2]


def test_snapshot_within_an_episode_when_due_or_forced() -> None:
    scene = Scene(Snapshotter())
    scene.snapshots.between_steps(0, 1, 5, forced=True)
    assert scene.sent == [], "it has not been reset"
    scene.reset(1, seeded=True)
    scene.snapshots.between_steps(0, 2, 5, forced=False)
    assert scene.sent == []
    scene.snapshots.between_steps(0, 3, 5, forced=True)
    scene.slot.due = True
    scene.snapshots.between_steps(0, 4, 5, forced=False)
    assert [(reply.step_id, reply.snapshot and reply.snapshot[2]) for reply in scene.sent] == [(3, True), (4, True)]
    scene.snapshots.between_steps(0, 5, None, forced=True)
    scene.snapshots.between_steps(0, 6, 5, forced=True)
    assert len(scene.sent) == 2, "after one look that showed nothing there is no other"


def test_snapshot_before_a_step_is_due_later_than_one_before_a_reset() -> None:
    scene = Scene(Snapshotter())
    scene.reset(1, seeded=True)
    assert 0 < scene.slot.after[-1][1] < scene.slot.before_step[-1]
    scene.snapshots.between_steps(0, 2, 5, forced=True)
    assert scene.slot.before_step[-1] > 0
    scene.snapshots.between_steps(0, 3, None, forced=True)
    assert scene.slot.before_step[-1] == 0 and scene.slot.after[-1][1] > 0, "those between two episodes go on"
    scene.slot.due = True
    scene.reset(4)
    assert scene.slot.before_step[-1] == 0 and [reply.step_id for reply in scene.sent] == [2, 4]
    scene.snapshots.resume(0, 5, is_newly_built=False)
    assert scene.slot.before_step[-1] > 0


def test_restored_env_is_not_new() -> None:
    scene = Scene(Snapshotter())
    scene.snapshots.resume(0, 5, is_newly_built=False)
    scene.reset(7, forced=True)
    assert [reply.step_id for reply in scene.sent] == [7]


def test_snapshot_of_a_new_env_is_complete() -> None:
    scene = Scene(Snapshotter(complete=False))
    scene.snapshots.resume(0, 5, is_newly_built=True)
    scene.reset(7, forced=True)
    scene.reset(8, forced=True)
    assert [reply.snapshot and reply.snapshot[1] for reply in scene.sent] == [True, False]


def test_snapshots_that_may_be_incomplete_are_marked() -> None:
    scene = Scene(Snapshotter(complete=False))
    scene.reset(1, seeded=True)
    scene.reset(2, forced=True)
    assert scene.sent[0].snapshot is not None and scene.sent[0].snapshot[1] is False


def test_restored_env_may_hold_more_than_its_state() -> None:
    scene = Scene(Snapshotter(complete=False))
    scene.snapshots.resume(0, 5, is_newly_built=False)
    scene.reset(7, forced=True)
    assert [reply.snapshot and reply.snapshot[1] for reply in scene.sent] == [False]


@pytest.mark.parametrize("error", [None, ValueError("no state")])
def test_env_that_cannot_be_captured_is_left_alone(error: Exception | None) -> None:
    scene = Scene(Snapshotter(error=error))
    env = None if error is None else 5
    scene.reset(1, env, seeded=True)
    for step_id in (2, 3):
        scene.reset(step_id, env, forced=True)
    assert scene.sent == [] and scene.snapshotter.num_captures == 1
    assert scene.slot.after[-1] == (0, 0), "its autoresets need not come here"
    assert len(scene.warned) == (error is not None)
    if error:
        assert "env 0" in scene.warned[0][1] and "ValueError: no state" in scene.warned[0][1]


def test_seeded_resets_are_the_only_restore_points_without_a_snapshotter() -> None:
    scene = Scene(None)
    scene.reset(1, seeded=True)
    scene.reset(2, forced=True)
    assert scene.sent == [] and scene.slot.digests_started == [0] and scene.slot.after[0] == (0, 0)
    assert scene.warned == [], "that was to be so"


def test_snapshot_delayed_by_the_system_hardly_delays_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(Snapshotter())
    scene.reset(1, seeded=True)
    scene.slot.due = True
    clock = [0, 0]  # the time now, and its advance during a snapshot
    monkeypatch.setattr("vecenv.core.host.snapshots.now_ns", lambda: clock.__setitem__(0, sum(clock)) or clock[0])
    intervals = []
    for step_id, took in enumerate((100_000, 40_000, 50_000, 9_000_000, 9_000_000, 50_000), 2):
        clock[1] = took
        scene.reset(step_id)
        intervals.append(scene.slot.after[-1][1])
    quickest = intervals[1]
    assert quickest == 500 * 40_000
    assert intervals[2:] == [500 * 50_000, 500 * 62_500, 500 * 78_125, 500 * 50_000]
    clock[1] = 1
    scene.reset(9)
    assert scene.slot.after[-1] == scene.slot.after[0], "the least, however quick a look is"


def test_first_snapshot_does_not_delay_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(Snapshotter())
    scene.reset(1, seeded=True)
    clock = [0]

    def later() -> int:
        clock[0] += 50_000_000
        return clock[0]

    monkeypatch.setattr("vecenv.core.host.snapshots.now_ns", later)
    for step_id in (2, 3):
        scene.reset(step_id, forced=True)
    least = scene.slot.after[0]
    assert scene.slot.after == [least, least, (0, 500 * 50_000_000)]


class RaisingSnapshotter(Snapshotter):
    def is_built_alike(self, env: Any) -> bool:
        return True


@pytest.mark.extended
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("autoreset", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP])
def test_warning_about_a_state_that_cannot_be_kept_comes_with_plain_rows(
    implementation: str, autoreset: Autoreset, seed: int | None
) -> None:
    """With a seed, the first snapshot is due before an autoreset, which a slot in C makes itself."""
    snapshotter = RaisingSnapshotter(spans=seed is None, error=ValueError("no state"))
    options = PoolOptions(num_workers=1, failures=RECOVERING, autoreset=autoreset)
    with ProcessPool([toys.ToyEnv] * 2, options, snapshotter=snapshotter) as pool:
        pool.start()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pool.reset(seeds=[seed, seed])
            pool.recv()
            for number in range(1, 2001):
                batch = pool.step(np.zeros(2, np.int64))
                if autoreset == Autoreset.SAME_STEP:
                    assert batch.terminated.tolist() == [number % 10 == 0] * 2
                    assert batch.obs[:, 0].tolist() == [number % 10] * 2
                    if number % 10 == 0:
                        assert [final[0] for final in batch.final_obs] == [10.0, 10.0]
    texts = [str(one.message) for one in caught if "cannot be kept" in str(one.message)]
    assert len(texts) == 2 and "env 0" in texts[0] and "env 1" in texts[1]
    assert "ValueError: no state" in texts[0]
