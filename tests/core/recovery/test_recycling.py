"""Workers that have reached their age limit are replaced between two requests, without any effect on answers."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.faults.traces import play, recovering_pool, undisturbed
from vecenv.core.layout.arena import ArenaPlan
from vecenv.core.layout.flags import Autoreset
from vecenv.core.layout.spec import Spec
from vecenv.core.recovery import recycling
from vecenv.core.recovery.recycling import Recycler
from vecenv.core.system.segment import private_segment
from vecenv.envs import toys

SECOND = 1_000_000_000
LENGTH = 4


class Scene:
    """A Recycler of two workers with two envs each, with a clock that advances one second at each poll."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pid: int | None = None, **limits: float) -> None:
        self.now = 0
        monkeypatch.setattr(recycling, "now_ns", lambda: self.now)
        spec = Spec(spaces.Discrete(2), "obs")
        plan = ArenaPlan(4, 2, spec, spec, (), 3, False, 2)
        memory = private_segment(plan.nbytes)
        self.records = plan.records(memory)
        self.restore_seconds = 0.0
        self.recycler = Recycler(limits, plan, memory, lambda env_ids: self.restore_seconds)
        pid = os.getpid() if pid is None else pid
        self.workers: list[Any] = [
            SimpleNamespace(
                worker_id=number, env_ids=[2 * number, 2 * number + 1], pid=pid, is_dead=False, name=f"worker {number}"
            )
            for number in range(2)
        ]

    def due(self, *, after_ns: int = SECOND, busy: bool = False) -> list[tuple[int, str]]:
        self.now += after_ns
        return [(worker.worker_id, why) for worker, why in self.recycler.due(self.workers, [busy, busy])]


def test_recycling_is_due_if_the_newest_record_of_one_env_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, episodes=3)
    scene.records["episode"][3] = 2, 1
    assert scene.due() == []
    scene.records["episode"][3] = 2, 3
    assert scene.due() == [(1, "after 3 episodes of an env")]


def test_successor_starts_with_the_state_of_its_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, episodes=3)
    scene.records["episode"][:2] = [[3, 4], [7, 6]]
    assert scene.due() == [(0, "after 7 episodes of an env")]
    scene.recycler.note_worker_started(scene.workers[0])
    assert scene.due() == []
    scene.records["episode"][:2] = [[5, 6], [9, 9]]
    assert scene.due() == []
    scene.records["episode"][0] = 7, 6
    assert scene.due() == [(0, "after 3 episodes of an env")]


def test_worker_that_leaks_during_recovery_is_not_recycled_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was once replaced again at each poll, and no other work was done."""
    scene = Scene(monkeypatch, rss_mb=1)
    assert [number for number, _ in scene.due()] == [0, 1]
    scene.recycler.note_worker_started(scene.workers[0])
    scene.restore_seconds = 0.5
    assert [number for number, _ in scene.due()] == [1], "which has not been replaced"
    assert scene.due(after_ns=8 * SECOND)[0][0] == 1 and len(caplog.messages) == 1
    assert "worker 0 uses " in caplog.text and "get_state()" in caplog.text
    assert [number for number, _ in scene.due()] == [0, 1]
    assert len(caplog.messages) == 1


def test_worker_is_polled_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, episodes=1)
    scene.records["episode"] = 1
    assert scene.due(after_ns=SECOND - 1) == []
    assert len(scene.due(after_ns=1)) == 2
    assert scene.due(after_ns=SECOND - 1) == []
    assert len(scene.due(after_ns=1)) == 2


def test_busy_worker_is_waited_for_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, episodes=1)
    scene.records["episode"] = 1
    for _ in range(2):  # the wait for a worker is not counted for its successor
        assert [len(scene.due(busy=True)) for _ in range(6)] == [0, 0, 0, 0, 0, 2]
        for worker in scene.workers:
            scene.recycler.note_worker_started(worker)
        scene.records["episode"] += 1


def test_dead_worker_is_not_recycled(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, episodes=1)
    scene.records["episode"] = 1
    scene.workers[0].is_dead = True
    assert [worker_id for worker_id, _ in scene.due()] == [1]


@pytest.mark.parametrize(("rss_mb", "is_due"), [(1, True), (1 << 20, False)])
def test_memory_limit_recycles_a_worker(rss_mb: int, is_due: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Scene(monkeypatch, rss_mb=rss_mb, episodes=1).due()
    assert [worker_id for worker_id, _ in found] == ([0, 1] if is_due else [])
    assert all(why.startswith("at ") and why.endswith(" MiB") for _, why in found)


def test_worker_that_has_just_died_uses_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert Scene(monkeypatch, pid=process.pid, rss_mb=1).due() == []


# ---- in a pool ----------------------------------------------------------------------------


def count_envs() -> list[Any]:
    return [functools.partial(toys.CountEnv, LENGTH)] * 4


@pytest.mark.extended
@pytest.mark.usefixtures("recycles_at_once")
@pytest.mark.parametrize("autoreset", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP], ids=lambda mode: mode.name)
def test_recycling_a_worker_does_not_change_its_stream(
    autoreset: Autoreset, implementation: str, caplog: pytest.LogCaptureFixture
) -> None:
    pids: list[tuple[int, ...]] = []
    with recovering_pool(count_envs(), autoreset=autoreset, recycle_after={"episodes": 2}) as pool:
        with caplog.at_level("INFO", logger="vecenv"):
            got = play(pool, 6 * LENGTH, before=lambda pool, _: pids.append(pool.worker_pids))
        counts = pool.statistics()
    assert got.rows == undisturbed(count_envs(), 6 * LENGTH, autoreset=autoreset).rows
    assert not any(got.marks)
    assert (counts["recycled"], counts["restarts"], counts["truncated"]) == (4, 0, 0)
    assert [len({found[worker_id] for found in pids}) for worker_id in range(2)] == [3, 3]
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert all("was recycled after 2 episodes of an env; replaced" in record.message for record in caplog.records)


@pytest.mark.extended
@pytest.mark.usefixtures("recycles_at_once")
def test_episode_count_starts_at_zero_after_a_restart(implementation: str) -> None:
    with recovering_pool(count_envs(), recycle_after={"episodes": 2}) as pool:
        play(pool, 6 * LENGTH)
        pool.restart(0)
        before = pool.worker_pids[0]
        pids = []
        pool.reset()
        pool.recv()
        for _ in range(5 * (LENGTH + 1)):
            pids.append(pool.worker_pids[0])
            pool.step(np.zeros(4, np.int64))
        assert pids[:LENGTH] == [before] * LENGTH, "it has not lived for an episode"
        assert len(set(pids)) == 3, "after 2 and 4 of them"


@pytest.mark.extended
@pytest.mark.usefixtures("recycles_at_once")
def test_workers_that_always_owe_answers_are_recycled_too(implementation: str) -> None:
    with recovering_pool(count_envs(), recycle_after={"episodes": 2}) as pool:
        got = play(pool, 60, in_order=False)
        assert pool.statistics()["recycled"] >= 2
    assert got.rows == undisturbed(count_envs(), 60).rows
    assert not any(got.marks)


@pytest.mark.extended
@pytest.mark.usefixtures("recycles_at_once")
def test_object_actions_count_as_requests(implementation: str) -> None:
    with recovering_pool(count_envs(), recycle_after={"episodes": 1}) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        for _ in range(LENGTH + 2):
            pool.send_objects([np.int64(0)] * 4, range(4))
            pool.recv().raise_errors()
        assert pool.statistics()["recycled"] == 2


@pytest.mark.extended
@pytest.mark.usefixtures("recycles_at_once")
def test_resets_count_as_requests(implementation: str) -> None:
    with recovering_pool(count_envs(), recycle_after={"episodes": 1}) as pool:
        pool.start()
        pool.reset()
        pool.recv()
        for _ in range(LENGTH):
            pool.step(np.zeros(4, np.int64))
        assert pool.statistics()["recycled"] == 0
        for _ in range(3):
            pool.reset()
            pool.recv().raise_errors()
        assert pool.statistics()["recycled"] >= 2


class WritesAtClose(toys.CountEnv):
    """Writes the progress of its episode to a file when it is closed."""

    def __init__(self, path: str) -> None:
        super().__init__(None)
        self.path = path

    def close(self) -> None:
        with open(self.path, "a") as file:
            file.write(f"{self.elapsed_steps} ")


@pytest.mark.extended
@pytest.mark.usefixtures("recycles_at_once")
def test_env_without_requests_since_is_closed_in_its_old_worker(implementation: str, tmp_path: Path) -> None:
    """For example, the close of an env ends the video of its episode."""
    path = tmp_path / "progress"
    env_fns = [functools.partial(toys.CountEnv, LENGTH), functools.partial(WritesAtClose, str(path))]
    with recovering_pool(env_fns, num_workers=1, recycle_after={"episodes": 1}) as pool:
        play(pool, 3)
        while pool.statistics()["recycled"] == 0:
            pool.send(np.zeros(1, np.int64), [0])
            pool.recv()
    assert path.read_text() == "3 "
