"""Several deaths within one wait, and deaths during a repair: `handle` only records, and `repair` replaces all."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import end, kill, play, recovering_pool, undisturbed, wait_until
from tests.inside import engine_of, hub_of, worker_group_of
from vecenv.core.host.replay import RestoreJob
from vecenv.core.parent.hub import Event
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.worker_starts import WorkerStarts
from vecenv.core.processes.worker import Worker
from vecenv.envs import toys
from vecenv.errors import WorkerDiedError

ENVS = [toys.CountEnv] * 4


class EndsAnother(toys.CountEnv):
    """When it is built, ends the process whose id is in `file`, once."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        if file.exists():
            pid = int(file.read_text())
            file.unlink()
            end(pid)


class DiesInStep(toys.CountEnv):
    """Ends its first process in its third step."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def step(self, action: Any) -> Any:
        if self.num_steps == 2 and not self.file.exists():
            self.file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def handle_deaths(pool: ProcessPool) -> None:
    """Kill all workers, and pass the events of their pidfds to the engine, as a wait does."""
    for worker in list(worker_group_of(pool).workers):
        kill(pool, worker.worker_id)
        engine_of(pool).handle(Event("descriptor", worker.pidfd.number))


def test_handle_records_two_deaths_and_the_next_wait_replaces_both(implementation: str) -> None:
    with recovering_pool(ENVS) as pool:
        play(pool, 3)
        pids = pool.worker_pids
        pool.send(np.zeros(4, np.int64))
        handle_deaths(pool)
        assert pool.has_dead_workers() and pool.worker_pids == pids, "nothing is replaced yet"
        assert pool.statistics()["restarts"] == 0
        assert pool.recv().lengths.tolist() == [4] * 4
        assert not pool.has_dead_workers() and set(pool.worker_pids).isdisjoint(pids)
        assert pool.statistics()["restarts"] == 2


@pytest.mark.extended
def test_repair_names_all_dead_workers_that_owe_answers(implementation: str) -> None:
    with recovering_pool(ENVS, on_failure="raise") as pool:
        play(pool, 3)
        pool.send(np.zeros(4, np.int64))
        handle_deaths(pool)
        with pytest.raises(WorkerDiedError, match=r"worker 0 \(envs 0-1\) died") as raised:
            engine_of(pool).repair()
        (note,) = raised.value.__notes__
        assert "worker 1 (envs 2-3) died" in note


@pytest.mark.extended
def test_workers_that_die_in_one_step_are_all_replaced(implementation: str, tmp_path: Path) -> None:
    env_fns = [lambda file=tmp_path / str(env_id): DiesInStep(file) for env_id in range(4)]
    expected = undisturbed(ENVS, 12)
    with recovering_pool(env_fns) as pool:
        got = play(pool, 12)
        counts = pool.statistics()
    assert got.rows == expected.rows
    assert counts["restarts"] == 4 and counts["truncated"] == 0


@pytest.mark.extended
def test_worker_that_dies_during_the_repair_of_another_one_loses_nothing(implementation: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"

    def name_victim(pool: ProcessPool, number: int) -> None:
        if number == 5:
            file.write_text(str(pool.worker_pids[1]))
            kill(pool, 0)

    expected = undisturbed(ENVS, 12)
    with recovering_pool([lambda: EndsAnother(file)] * 4) as pool:
        got = play(pool, 12, before=name_victim)
        assert not file.exists() and pool.statistics()["restarts"] == 2
    assert got.rows == expected.rows


@pytest.mark.extended
def test_successor_that_is_killed_during_its_start_loses_nothing(implementation: str, tmp_path: Path) -> None:
    """The successor ends itself while it is built."""
    file = tmp_path / "pid"

    class EndsItself(EndsAnother):
        def __init__(self) -> None:
            if file.exists():
                file.write_text(str(os.getpid()))
            super().__init__(file)

    def kill_in_round_5(pool: ProcessPool, number: int) -> None:
        if number == 5:
            kill(pool, 0)

    with recovering_pool([EndsItself] * 4) as pool:
        pool.start()
        file.touch()
        got = play(pool, 12, before=kill_in_round_5, start=False)
        assert not file.exists() and pool.statistics()["restarts"] == 1
    assert got.rows == undisturbed(ENVS, 12).rows


def test_successor_whose_start_is_interrupted_keeps_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has answered already, with messages that were once dropped: the rows were then called overwritten."""
    monkeypatch.setenv("VECENV_IMPLEMENTATION", "native")
    start = WorkerStarts.start_successor

    def interrupted(self: WorkerStarts, old: Worker, jobs: Mapping[int, RestoreJob]) -> Worker:
        worker = start(self, old, jobs)
        wait_until(lambda: all(hub_of(pool).has_answered_all(slot) for slot in worker.slots))
        monkeypatch.undo()
        raise KeyboardInterrupt

    with recovering_pool(ENVS) as pool:
        play(pool, 3)
        kill(pool, 0)
        pool.send(np.zeros(4, np.int64))
        monkeypatch.setattr(WorkerStarts, "start_successor", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.recv()
        batch = pool.recv()
        batch.raise_errors()
        assert batch.lengths.tolist() == [4] * 4
        assert [info.get("recovered") for info in batch.infos()] == ["replayed"] * 2 + [None] * 2
