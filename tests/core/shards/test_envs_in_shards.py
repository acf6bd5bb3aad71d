"""Shards that step their envs in their own process: streams stay the same when an env ends the process, or hangs."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.core.shards.local_pools import LocalPool
from tests.faults.traces import play, undisturbed
from tests.inside import shard_status_of
from vecenv.core.advice.sizing import SERIAL
from vecenv.core.options import Limits
from vecenv.envs.toys import FixedSleepEnv, NoisyGlobal, ToyEnv

pytestmark = pytest.mark.extended


class EndsProcess(ToyEnv):
    """Ends its process in the third step of an episode, for as long as there are files in a folder; removes one then.

    Args:
        folder: of the files; None: the env does not do that.
        how: 'exit', 'kill' or 'hang'; the latter waits for a signal.
    """

    def __init__(self, folder: Path | None = None, how: str = "exit") -> None:
        super().__init__(5)
        self.folder, self.how = folder, how

    def step(self, action: Any) -> Any:
        files = sorted(self.folder.iterdir()) if self.folder is not None and self.elapsed_steps == 2 else []
        if files:
            files[0].unlink()
            if self.how == "exit":
                os._exit(3)
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        return super().step(action)


def arm(folder: Path, count: int) -> Path:
    armed = folder / "armed"
    armed.mkdir()
    for number in range(count):
        (armed / str(number)).touch()
    return armed


def ending_env_fns(armed: Path, how: str) -> list[Any]:
    return [EndsProcess] * 4 + [functools.partial(EndsProcess, armed, how), EndsProcess]


def num_children(pool: LocalPool) -> list[int]:
    return [len(psutil.Process(pool.carrier.pid_of(shard)).children()) for shard in range(2)]


@pytest.mark.parametrize("in_order", [True, False])
def test_stream_of_envs_in_shards_is_that_of_a_serial_pool(in_order: bool) -> None:
    env_fns = [ToyEnv, functools.partial(ToyEnv, 3), NoisyGlobal, NoisyGlobal, ToyEnv]
    with LocalPool(env_fns, setting=SERIAL) as pool:
        ours = play(pool, 12, in_order=in_order)
        assert num_children(pool) == [0, 0]
    assert ours.rows == undisturbed(env_fns, 12, in_order=in_order).rows


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_env_that_ends_its_shard_once_is_restored_and_marked(how: str, tmp_path: Path) -> None:
    env_fns = ending_env_fns(arm(tmp_path, 1), how)
    with LocalPool(env_fns, setting=SERIAL) as pool:
        ours = play(pool, 8)
        counts, children = pool.statistics(), num_children(pool)
    assert ours.rows == undisturbed([EndsProcess] * 6, 8).rows
    assert [[mark for _, mark in marks] for marks in ours.marks] == [[]] * 3 + [["replayed"]] * 3
    assert counts.shards_replaced == 1 and counts.replayed == 3 and counts.truncated == 0
    assert children == [0, 0] and counts.num_workers == 0


def test_env_that_ends_its_shard_again_gets_a_worker(tmp_path: Path) -> None:
    env_fns = ending_env_fns(arm(tmp_path, 2), "kill")
    with LocalPool(env_fns, setting=SERIAL) as pool:
        ours = play(pool, 8)
        counts, children = pool.statistics(), num_children(pool)
    assert ours.rows == undisturbed([EndsProcess] * 6, 8).rows
    assert counts.shards_replaced == 2 and counts.num_workers == 1 and children == [0, 1]
    assert "shard 1: 1 worker for 3 envs; its process was lost repeatedly, perhaps by an env" in counts.choice


def test_env_that_ends_its_shard_every_time_is_truncated_by_the_shard(tmp_path: Path) -> None:
    env_fns = ending_env_fns(arm(tmp_path, 100), "exit")
    with LocalPool(env_fns, setting=SERIAL, reproducer_dir=str(tmp_path)) as pool:
        ours = play(pool, 5)
        counts = pool.statistics()
    expected = undisturbed([EndsProcess] * 6, 5)
    for env_id in (0, 1, 2, 3, 5):
        assert ours.rows[env_id] == expected.rows[env_id], "other envs are not concerned"
    assert ours.rows[4][3].ended == (False, True) and (3, "truncated") in ours.marks[4]
    assert counts.truncated == 1 and counts.shards_replaced == 2


def test_env_that_hangs_in_a_shard_is_restored_after_the_timeout(tmp_path: Path) -> None:
    with LocalPool(ending_env_fns(arm(tmp_path, 1), "hang"), setting=SERIAL, shard_timeout=1.0) as pool:
        ours = play(pool, 6)
        assert pool.statistics().shards_replaced == 1
    assert ours.rows == undisturbed([EndsProcess] * 6, 6).rows


class SlowEnv(ToyEnv):
    """Its reset is too slow for a process that has to answer its driver."""

    def reset(self, **options: Any) -> Any:
        time.sleep(0.4)
        return super().reset(**options)


def test_shards_choose_their_own_process_for_cheap_envs_only() -> None:
    for env_fn, options, num_workers, text in (
        (ToyEnv, {}, 0, "the shard steps its 3 envs in its own process; constructor "),
        (SlowEnv, {}, 2, "auto: 1 worker of 3 threads"),
        (functools.partial(FixedSleepEnv, 20.0), {}, None, "threads"),
        (ToyEnv, {"limits": Limits(step=60.0)}, 2, "auto: 1 worker"),
        (ToyEnv, {"worker_init": os.getpid}, 2, "auto: 1 worker"),
    ):
        with LocalPool([env_fn] * 6, num_cpus=1, **options) as pool:
            pool.start()
            counts = pool.statistics()
        assert text in counts.choice and num_workers in (None, counts.num_workers), counts.choice


def test_long_episodes_of_a_lost_shard_are_restored_by_workers() -> None:
    def before(pool: LocalPool, number: int) -> None:
        if number == 6:
            shard_status_of(pool, 1).step_seconds = 5.0
            pool.kill_shard(1)

    with LocalPool([ToyEnv] * 4, setting=SERIAL) as pool:
        ours = play(pool, 8, before=before)
        counts, children = pool.statistics(), num_children(pool)
    assert ours.rows == undisturbed([ToyEnv] * 4, 8).rows
    assert children == [0, 1] and "many commands are repeated" in counts.choice
