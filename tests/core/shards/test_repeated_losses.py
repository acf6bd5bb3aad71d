"""Envs that end their shard again and again, and shards that are lost too often: no shard is replaced for ever."""

from __future__ import annotations

import functools
import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.core.shards.local_pools import LocalPool
from tests.faults.traces import play, undisturbed
from tests.inside import engine_of, hub_of
from vecenv.core.layout.flags import Op
from vecenv.core.options import Limits
from vecenv.core.recovery import policy, reproducer
from vecenv.envs.toys import ToyEnv
from vecenv.errors import WorkerDiedError, WorkerTimeoutError

pytestmark = pytest.mark.extended


class EndsShard(ToyEnv):
    """Sends a signal to the process of its shard in the third step of each episode.

    Args:
        is_armed: whether it does that.
        sign: the signal.
    """

    def __init__(self, is_armed: bool, sign: int = signal.SIGSEGV) -> None:
        super().__init__(5)
        self.is_armed, self.sign = is_armed, sign

    def step(self, action: Any) -> Any:
        if self.is_armed and self.elapsed_steps == 2:
            os.kill(os.getppid(), self.sign)
            signal.pause()  # this process ends with its shard
        return super().step(action)


def env_fns(*armed: int, count: int = 6, **options: Any) -> list[Any]:
    return [functools.partial(EndsShard, env_id in armed, **options) for env_id in range(count)]


def test_step_that_ends_its_shard_again_and_again_ends_the_episode_truncated(tmp_path: Path) -> None:
    with LocalPool(env_fns(4), reproducer_dir=str(tmp_path)) as pool:
        ours = play(pool, 5)
        counts = pool.statistics()
    expected = undisturbed(env_fns(), 5)
    for env_id in (0, 1, 2, 3, 5):
        assert ours.rows[env_id] == expected.rows[env_id], "other envs are not concerned"
    assert ours.rows[4][:3] == expected.rows[4][:3]
    assert ours.rows[4][3].ended == (False, True) and (3, "truncated") in ours.marks[4]
    assert counts.truncated == 1 and counts.shards_replaced == 3
    (file,) = tmp_path.iterdir()
    episode = reproducer.load(file)
    assert (episode.env_id, episode.entries[-1].op) == (4, Op.STEP)
    assert [event.op for event in episode.run(until=episode.step_id)] == ["reset", "step", "step"]


def test_step_that_ends_its_shard_is_raised_with_its_env_and_a_file(tmp_path: Path) -> None:
    with LocalPool(env_fns(1), on_repeat="raise", reproducer_dir=str(tmp_path)) as pool:
        with pytest.raises(WorkerDiedError, match=r"shard 0 \(envs 0-2\) was lost: .*SIGSEGV.*step of env 1 ") as found:
            play(pool, 8, in_order=False)
        error = found.value
        text = r"seed 1, last actions \[.*; it is the (second|third) time in this call\. `vecenv replay "
        assert re.search(text, str(error))
        assert (error.worker_id, error.env_ids, error.op, error.seed) == (0, (1,), "step", 1)
        assert error.reproducer is not None and Path(error.reproducer).parent == tmp_path
        pool.cancel([0, 1, 2])
        pool.reset([3, 4, 5])
        assert sorted(pool.recv().env_ids.tolist()) == [3, 4, 5], "the other shard goes on"


def test_kill_from_outside_is_forgiven_more_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_MOST_WEIGHT", 4)  # 8 would only take longer
    with LocalPool(env_fns(3, count=4, sign=signal.SIGKILL), reproducer_dir=str(tmp_path)) as pool:
        ours = play(pool, 3)
        assert pool.statistics().shards_replaced == 5
    assert ours.rows[3][3].ended == (False, True)


def test_call_that_ends_its_shard_every_time_is_raised(tmp_path: Path) -> None:
    with LocalPool(env_fns(), reproducer_dir=str(tmp_path)) as pool:
        pool.start()
        pool.reset(seeds=range(6))
        pool.recv()
        with pytest.raises(WorkerDiedError, match="call of env 4 .*`vecenv replay ") as found:
            pool.call_each([_end_shard if env_id == 4 else _get_steps for env_id in range(6)])
        assert found.value.op == "call"


def _end_shard(env: Any) -> None:
    os.kill(os.getppid(), signal.SIGSEGV)
    signal.pause()


def _get_steps(env: Any) -> int:
    return int(env.unwrapped.elapsed_steps)


def test_shard_that_is_killed_more_often_than_max_restarts_is_raised() -> None:
    with LocalPool(env_fns(), max_restarts=2) as pool:

        def before(pool: Any, number: int) -> None:
            pool.kill_shard(1)

        with pytest.raises(WorkerDiedError, match=r"3 failures within 60 s with env 3 .*max_restarts=2 allows"):
            play(pool, 8, before=before)


class DiesWhenRebuilt(ToyEnv):
    """Its constructor ends the shard if a file exists."""

    def __init__(self, file: Path) -> None:
        super().__init__(5)
        if file.exists():
            os.kill(os.getppid(), signal.SIGSEGV)
            signal.pause()


def test_shard_whose_successors_die_while_they_are_built_is_raised(tmp_path: Path) -> None:
    file = tmp_path / "armed"

    def before(pool: Any, number: int) -> None:
        if number == 2:
            file.touch()
            pool.kill_shard(0)

    with LocalPool([functools.partial(DiesWhenRebuilt, file)] * 4) as pool:
        with pytest.raises(WorkerDiedError, match=r"shard 0 .*SIGSEGV.* it is the 4th process in a row"):
            play(pool, 4, before=before)
        assert engine_of(pool).shards()[0].restarts == 4
        file.unlink()
        assert pool.recv(4).lengths.tolist() == [2] * 4, "the next call tries again"


class StopsShard(ToyEnv):
    """Its constructor stops the process of its shard, if a file exists."""

    def __init__(self, file: Path) -> None:
        super().__init__(5)
        if file.exists():
            os.kill(os.getppid(), signal.SIGSTOP)


def test_shard_that_is_stopped_while_it_starts_is_an_error_within_the_limits(tmp_path: Path) -> None:
    file = tmp_path / "armed"
    file.touch()
    pool = LocalPool(
        [ToyEnv] * 2 + [functools.partial(StopsShard, file)] * 2, limits=Limits(construct=3.0), shard_timeout=1.0
    )
    with pytest.raises(WorkerTimeoutError, match=r"shard 1 \(envs 2-3\) did not build its envs within 7 s") as found:
        pool.start()
    assert (found.value.worker_id, found.value.env_ids, found.value.timeout) == (1, (2, 3), 7.0)
    assert not psutil.pid_exists(pool.carrier.pid_of(1))


def test_successor_that_is_stopped_while_it_is_built_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "armed"

    def inject(pool: Any, number: int) -> None:
        if number == 2:
            file.touch()
            pool.set_limits(Limits(construct=0.5))
            pool.kill_shard(1)
            first = pool.carrier.pid_of(1)
            while pool.shards()[1].restarts < 1 or psutil.Process(pool.carrier.pid_of(1)).status() != "stopped":
                hub_of(pool).wait_briefly(0)
            assert pool.carrier.pid_of(1) != first
            file.unlink()
            pool.set_limits(Limits())

    with LocalPool([functools.partial(StopsShard, file)] * 4, shard_timeout=1.0) as pool:
        ours = play(pool, 4, inject)
        assert pool.shards()[1].restarts == 2
    assert ours.rows == undisturbed([functools.partial(StopsShard, file)] * 4, 4).rows
