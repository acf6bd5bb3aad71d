"""An env that fails repeatedly is isolated in its own worker, where its failures cost no other env anything."""

from __future__ import annotations

import functools
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import kill, play, recovering_pool, undisturbed, wait_until
from tests.inside import engine_of, hub_of
from vecenv import VectorEnv
from vecenv.core.layout.flags import Autoreset, Op
from vecenv.core.options import Limits
from vecenv.core.pool import process as process_module
from vecenv.envs import toys

LENGTH = 10


class Fails(toys.CountEnv):
    """Sends itself a signal in each of these steps, once each, in any process; signal 0: hangs."""

    def __init__(self, folder: Path, at: tuple[int, ...], sign: int = signal.SIGSEGV, length: int = LENGTH) -> None:
        super().__init__(length)
        self.folder, self.at, self.sign = folder, at, sign
        self.made = 0

    def step(self, action: Any) -> Any:
        self.made += 1
        path = self.folder / f"struck {self.made}"
        if self.made in self.at and not path.exists():
            path.touch()
            if not self.sign:
                threading.Event().wait()
            os.kill(os.getpid(), self.sign)
        return super().step(action)

    def process(self) -> int:
        return os.getpid()


def healthy_envs(count: int) -> list[Any]:
    return [functools.partial(toys.CountEnv, LENGTH)] * count


def with_failing(count: int, env_id: int, folder: Path, at: tuple[int, ...], **kwargs: Any) -> list[Any]:
    env_fns = healthy_envs(count)
    folder.mkdir(exist_ok=True)
    env_fns[env_id] = functools.partial(Fails, folder, at, **kwargs)
    return env_fns


@pytest.mark.extended
@pytest.mark.parametrize("autoreset", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP], ids=lambda mode: mode.name)
def test_env_is_isolated_from_its_second_failure_on(
    autoreset: Autoreset, implementation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Within its first episode, where the step count survives a replay."""
    pids: list[tuple[int, ...]] = []
    env_fns = with_failing(4, 2, tmp_path, (3, 5, 7, 8))
    with (
        recovering_pool(env_fns, num_workers=1, autoreset=autoreset) as pool,
        caplog.at_level("WARNING", logger="vecenv"),
    ):
        got = play(pool, 24, before=lambda pool, number: pids.append(pool.worker_pids))
        counts = pool.statistics()
        assert pool.envs_of(0) == [0, 1, 3] and pool.envs_of(1) == [2]
        assert (
            engine_of(pool).describe_worker(1) == "worker 1 (env 2)"
            and engine_of(pool).describe_worker(0) == "worker 0 (envs 0-1, 3)"
        )
    assert got.rows == undisturbed(healthy_envs(4), 24, autoreset=autoreset).rows
    assert (counts["restarts"], counts["workers_added"], counts["truncated"]) == (4, 1, 0)
    assert [len(found) for found in pids] == [1] * 5 + [2] * 19
    assert len({found[0] for found in pids}) == 3, "the others are replaced twice"
    assert len({found[1] for found in pids if len(found) == 2}) == 3, "and it twice more"
    texts = [record.getMessage() for record in caplog.records]
    assert [text.partition(" died")[0] for text in texts] == [
        *["vecenv: worker 0 (envs 0-3)"] * 2,
        "vecenv: worker 1 (env 2)",
        "vecenv: env 2 failed 4 times within a minute; further lines about it are counted instead of logged",
        texts[4],
    ]
    assert "(env 2: 4); log lines left out: 1" in texts[4]
    assert "env 2 has worker 1 to itself now; replaced" in texts[1] and "to itself" not in texts[0]
    assert not [number for env_id in (0, 1, 3) for number, _ in got.marks[env_id] if number > 6]


@pytest.mark.extended
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_isolation_works_with_every_start_method(context: str, tmp_path: Path) -> None:
    with recovering_pool(with_failing(3, 0, tmp_path, (2, 3, 4)), num_workers=1, context=context) as pool:
        got = play(pool, 14)
        assert pool.envs_of(1) == [0]
        kill(pool, 1)
        kill(pool, 0)
        assert pool.call(lambda env: 7) == [7, 7, 7]
    assert got.rows == undisturbed(healthy_envs(3), 14).rows


@pytest.mark.extended
def test_env_that_hangs_is_isolated_too(implementation: str, tmp_path: Path) -> None:
    limits = Limits(step=1.0, close=0.5)
    env_fns = with_failing(3, 1, tmp_path, (3, 5, 7), sign=signal.SIGSTOP)
    with recovering_pool(env_fns, num_workers=1, limits=limits) as pool:
        got = play(pool, 14)
        assert pool.envs_of(0) == [0, 2] and pool.envs_of(1) == [1]
        assert pool.statistics()["workers_added"] == 1
    assert got.rows == undisturbed(healthy_envs(3), 14).rows


@pytest.mark.extended
@pytest.mark.parametrize("count", [2, 4], ids=["alone in its slot", "with another in its slot"])
def test_blame_goes_to_the_thread_that_hangs(count: int, implementation: str, tmp_path: Path) -> None:
    env_fns = with_failing(count, 1, tmp_path, (3, 5, 7), sign=0)
    limits = Limits(step=1.0, close=0.5)
    with recovering_pool(env_fns, num_workers=1, threads_per_worker=2, limits=limits) as pool:
        got = play(pool, 14)
        assert pool.envs_of(1) == [1] and len(pool.worker_pids) == 2
        assert pool.envs_of(0) == [env_id for env_id in range(count) if env_id != 1]
    assert got.rows == undisturbed(healthy_envs(count), 14).rows


@pytest.mark.extended
def test_unordered_pool_loses_nothing_by_isolation(implementation: str, tmp_path: Path) -> None:
    env_fns = with_failing(5, 1, tmp_path / "one", (2, 4, 6))
    env_fns[3] = with_failing(5, 3, tmp_path / "three", (3, 4, 7))[3]
    with recovering_pool(env_fns, num_workers=1) as pool:
        got = play(pool, 24, in_order=False)
        assert pool.statistics()["workers_added"] == 2
        assert sorted(pool.envs_of(worker_id) for worker_id in range(3)) == [[0, 2, 4], [1], [3]]
    assert got.rows == undisturbed(healthy_envs(5), 24).rows


class Waits(toys.CountEnv):
    """Dies in its third and fourth step, each time once the test allows it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LENGTH)
        self.folder = folder

    def step(self, action: Any) -> Any:
        number = self.elapsed_steps + 1
        struck = self.folder / f"struck {number}"
        if number in (3, 4) and not struck.exists():
            wait_until((self.folder / f"go {number}").exists)
            struck.touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)


@pytest.mark.extended
def test_queued_commands_move_with_an_isolated_env(implementation: str, tmp_path: Path) -> None:
    """Superseded steps, resets, and calls of all envs are queued behind the step that kills."""
    env_fns = healthy_envs(4)
    env_fns[1] = functools.partial(Waits, tmp_path)
    with recovering_pool(env_fns, num_workers=1) as pool:
        play(pool, 2)
        pool.send(np.zeros(4, np.int64))
        (tmp_path / "go 3").touch()
        pool.recv().raise_errors()
        pool.send(np.zeros(4, np.int64))
        wait_until(lambda: hub_of(pool).state(0)[:2] == (Op.STEP, 1))  # 2 and 3 wait
        pool.reset([1, 2], seeds=[50, 51], ordered=False)
        pool.submit_calls([lambda env: (env.unwrapped.elapsed_steps, os.getpid())] * 4)
        (tmp_path / "go 4").touch()
        called = pool.collect_calls()
        lengths: dict[int, int] = {}
        while pool.outstanding():
            batch = pool.recv()
            batch.raise_errors()
            lengths.update(zip(batch.env_ids.tolist(), batch.lengths.tolist()))
        assert [lengths[env_id] for env_id in range(4)] == [4, 0, 0, 4] == [length for length, _ in called]
        pids = [pid for _, pid in called]
        assert pids[0] == pids[2] == pids[3] == pool.worker_pids[0] and pids[1] == pool.worker_pids[1]
        for number in range(1, 7):
            pool.send(np.zeros(4, np.int64))
            assert pool.recv().lengths.tolist() == [4 + number, number, number, 4 + number]


@pytest.mark.extended
def test_payloads_move_with_an_isolated_env(implementation: str, tmp_path: Path) -> None:
    """Options of resets are sent as payloads, which the dead worker had already taken."""
    env_fns = healthy_envs(3)
    env_fns[1] = functools.partial(Waits, tmp_path)
    with recovering_pool(env_fns, num_workers=1) as pool:
        play(pool, 2)
        for number in (3, 4):
            pool.send(np.zeros(3, np.int64))
            (tmp_path / f"go {number}").touch()
            pool.call(lambda env, text="x" * 100_000: len(text))  # larger than the ring of a slot
            pool.recv().raise_errors()
        assert pool.envs_of(1) == [1]


@pytest.mark.extended
def test_env_without_a_spare_slot_is_not_isolated(
    implementation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_MOST_ISOLATED", 1)
    env_fns = with_failing(4, 0, tmp_path / "zero", (2, 3))
    env_fns[2] = with_failing(4, 2, tmp_path / "two", (4, 5, 6))[2]
    with recovering_pool(env_fns, num_workers=1) as pool:
        got = play(pool, 20)
        assert pool.envs_of(0) == [1, 2, 3] and pool.envs_of(1) == [0]
        assert pool.statistics()["restarts"] == 5 and pool.statistics()["workers_added"] == 1
    assert got.rows == undisturbed(healthy_envs(4), 20).rows


@pytest.mark.extended
def test_signals_from_outside_do_not_isolate_an_env(implementation: str, tmp_path: Path) -> None:
    env_fns = with_failing(3, 1, tmp_path, (1, 2, 3, 4, 5, 6, 7, 8), sign=signal.SIGKILL)
    with recovering_pool(env_fns, num_workers=1) as pool:
        added = []
        got = play(pool, 9, before=lambda pool, number: added.append(len(pool.worker_pids) - 1))
        added.append(len(pool.worker_pids) - 1)
    assert added == [0] * 8 + [1, 1]
    assert got.rows == undisturbed(healthy_envs(3), 9).rows


@pytest.mark.extended
def test_worker_of_an_isolated_env_can_be_restarted_by_hand(implementation: str, tmp_path: Path) -> None:
    with recovering_pool(with_failing(3, 1, tmp_path, (2, 3)), num_workers=1) as pool:
        play(pool, 5)
        before = pool.worker_pids
        pool.restart(1)
        assert pool.worker_pids[0] == before[0] and pool.worker_pids[1] != before[1]
        pool.reset([1], seeds=[4])
        assert pool.recv().seeds.tolist() == [4]
        pool.send(np.zeros(3, np.int64))
        assert pool.recv().lengths.tolist() == [6, 1, 6]


@pytest.mark.extended
def test_vector_env_infos_are_right_for_an_isolated_env(implementation: str, tmp_path: Path) -> None:
    env_fns = with_failing(4, 3, tmp_path / "three", (2, 4))
    env_fns[2] = with_failing(4, 2, tmp_path / "two", ())[2]
    env_fns[:2] = env_fns[2:3] * 2
    env = VectorEnv(env_fns, num_workers=2)
    try:
        assert len(env.worker_pids) == 2
        env.reset(seed=0)
        for _ in range(8):
            env.step(np.zeros(4, np.int64))
        assert len(env.worker_pids) == 3 and env.statistics()["workers_added"] == 1
        assert env.call("process")[2:] == (env.worker_pids[1], env.worker_pids[2])
    finally:
        env.close()


def test_repeated_failure_is_abandoned_and_names_its_worker(
    implementation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A deterministic segfault: truncated in the second failure, and moved; the third one names its own worker."""
    faulty = functools.partial(toys.FAULTS["segfault"], 3, length=LENGTH)
    with recovering_pool(
        [*healthy_envs(1), faulty, *healthy_envs(1)], num_workers=1, reproducer_dir=str(tmp_path)
    ) as pool:
        with caplog.at_level("WARNING", logger="vecenv"):
            got = play(pool, 9)
        assert pool.statistics()["workers_added"] == 1
    assert [mark for _, mark in got.marks[1]][:2] == ["truncated", "restarted"]
    for env_id in (0, 2):
        assert got.rows[env_id] == undisturbed(healthy_envs(3), 9).rows[env_id]
    named = [record.getMessage() for record in caplog.records if " died during step" in record.getMessage()]
    assert any(text.startswith("vecenv: worker 1 (env 1) died during step") for text in named), named
