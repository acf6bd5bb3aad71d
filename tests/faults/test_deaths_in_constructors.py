"""A process that dies while it builds envs is started again, three times per env at most, at the first start, too."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.core.shards.local_pools import LocalPool
from tests.faults import front_ends
from tests.faults.four_step_env import FourStepEnv
from tests.faults.front_ends import FRONT_ENDS
from tests.faults.traces import end, play, recovering_pool, undisturbed, wait_until
from vecenv import FailurePolicy, VectorEnv
from vecenv.core.pool.process import ProcessEngine
from vecenv.core.recovery import policy
from vecenv.core.shards.shard_starts import ShardStarts
from vecenv.envs.toys import ToyEnv
from vecenv.errors import WorkerDiedError, WorkerTimeoutError


class DiesWhenBuilt(FourStepEnv):
    """Its constructor ends the process `times` times, after a line of output.

    Args:
        file: how often it will end the process; None: never.
        how: does that.
    """

    def __init__(self, file: Path | None = None, how: Callable[[], object] | None = None) -> None:
        super().__init__()
        if file is not None and (left := _left(file)):
            file.write_text(str(left - 1))
            print("the simulator connects", flush=True)
            print("connections left:", left - 1, end="", flush=True)
            (how or _crash)()


def _left(file: Path) -> int:
    return int(file.read_text())


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit() -> None:
    os._exit(3)


def _kill_shard() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()  # this process ends with its shard


def _hang() -> None:
    signal.pause()


def env_fns(file: Path, times: int, how: Callable[[], object] = _crash, *, num_envs: int = 2) -> list[Any]:
    """Return constructors, the last of which ends its process `times` times."""
    file.write_text(str(times))
    return [DiesWhenBuilt] * (num_envs - 1) + [functools.partial(DiesWhenBuilt, file, how)]


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the first line of each log record about a death."""
    found = [record.getMessage().partition("\n")[0] for record in caplog.records]
    return [line for line in found if "another one is started" in line]


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_death_in_a_constructor_is_tried_again(name: str, tmp_path: Path) -> None:
    ours = front_ends.play(name, env_fns(tmp_path / "deaths", 2), context="fork")
    assert _left(tmp_path / "deaths") == 0
    assert ours == front_ends.play(name, [DiesWhenBuilt] * 2, context="fork")


@pytest.mark.parametrize(("how", "says"), [(_crash, "SIGSEGV"), (_killed, "SIGKILL"), (_exit, "exit code 3")])
def test_death_in_a_constructor_is_one_log_line(
    how: Any, says: str, start_method: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with VectorEnv(env_fns(tmp_path / "deaths", 3, how, num_envs=4), num_workers=2, context=start_method) as envs:
        envs.reset(seed=0)
        assert envs.step([0] * 4)[0].ravel().tolist() == [1] * 4
    lines = lines_of(caplog)
    assert len(lines) == 3 and all("worker 1 (envs 2-3) died during construct of env 3" in line for line in lines)
    assert all(says in line for line in lines)


@pytest.mark.parametrize("options", [{}, {"threads_per_worker": 2}, {"num_workers": "auto"}])
def test_constructor_that_dies_each_time_is_named_with_its_last_output(options: Any, tmp_path: Path) -> None:
    file = tmp_path / "deaths"
    fns = env_fns(file, 99)
    with pytest.raises(WorkerDiedError, match="died during construct of env") as caught:
        VectorEnv(fns[::-1], **{"num_workers": 2, **options})
    assert "env 0" in str(caught.value) and "it is the 4th process in a row that failed there" in str(caught.value)
    assert str(caught.value).endswith(f"the simulator connects\nconnections left: {_left(file)}")
    assert caught.value.op == "construct" and 0 in caught.value.env_ids
    assert _left(file) == 95


def test_death_in_a_constructor_is_raised_without_recovery(tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError, match="construct of env 1.*SIGSEGV"):
        VectorEnv(env_fns(tmp_path / "deaths", 99), num_workers=2, failures=FailurePolicy(on_failure="raise"))
    assert _left(tmp_path / "deaths") == 98


def test_deaths_of_several_envs_are_counted_by_env(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(3)]
    with VectorEnv([env_fns(file, 3)[-1] for file in files], num_workers=1) as envs:
        assert envs.reset(seed=0)[0].tolist() == [[0]] * 3
    assert [_left(file) for file in files] == [0] * 3


def test_death_after_the_construct_timeout_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**12, 61 * 10**9))
    monkeypatch.setattr(policy, "now_ns", lambda: next(clock))
    with pytest.raises(WorkerDiedError, match="it is the second process in a row that failed there"):
        VectorEnv(env_fns(tmp_path / "deaths", 99), num_workers=2, timeouts={"construct": 60})


def test_worker_that_dies_after_its_constructors_is_started_again(
    start_method: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_arena = ProcessEngine._open_arena

    def kill_first(engine: ProcessEngine, *args: Any) -> Any:
        end(engine.worker_pids[0])
        return open_arena(engine, *args)

    monkeypatch.setattr(ProcessEngine, "_open_arena", kill_first)
    with recovering_pool([ToyEnv] * 4, context=start_method) as pool:
        ours = play(pool, 5, before=lambda pool, number: number == 3 and end(pool.worker_pids[0]))
    assert ours.rows == undisturbed([ToyEnv] * 4, 5).rows


@pytest.mark.parametrize("times", [3, 4])
def test_successor_that_dies_in_a_constructor_is_tried_again(times: int, start_method: str, tmp_path: Path) -> None:
    file = tmp_path / "deaths"
    with VectorEnv(env_fns(file, 0), num_workers=2, context=start_method) as envs:
        envs.reset(seed=0)
        file.write_text(str(times))
        end(envs.worker_pids[1])
        if times == 4:
            with pytest.raises(WorkerDiedError, match="construct of env 1"):
                envs.step([0, 0])
            obs = envs.recv()[0]  # the next call tries again
        else:
            obs = envs.step([0, 0])[0]
        assert obs.tolist() == [[1], [1]] and _left(file) == 0


def test_constructor_that_hangs_at_the_first_start_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(WorkerTimeoutError, match="construct of env 1"):
        VectorEnv(env_fns(tmp_path / "deaths", 99, _hang), num_workers=2, timeouts={"construct": 5.0})
    assert _left(tmp_path / "deaths") == 98


# ---- shards --------------------------------------------------------------------------------------


def test_shard_that_dies_at_its_first_start_is_started_again(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with LocalPool(env_fns(tmp_path / "deaths", 3, _kill_shard)) as pool:
        ours = play(pool, 5)
        assert pool.statistics()["restarts"] == 0
    assert ours.rows == undisturbed([DiesWhenBuilt] * 2, 5).rows
    lines = lines_of(caplog)
    assert len(lines) == 3 and all("shard 1 (env 1) died while it built its envs" in line for line in lines)


def _build_later(file: Path) -> DiesWhenBuilt:
    wait_until(file.exists)
    return DiesWhenBuilt()


def test_shard_that_dies_after_its_report_is_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read, file = ShardStarts._read_report, tmp_path / "killed"

    def read_and_kill(starts: ShardStarts, shard: int, frame: Any) -> Any:
        if shard == 0 and not file.exists():
            pool.kill_shard(0)
            file.touch()
        return read(starts, shard, frame)

    monkeypatch.setattr(ShardStarts, "_read_report", read_and_kill)
    with LocalPool([DiesWhenBuilt, functools.partial(_build_later, file)]) as pool:
        ours = play(pool, 5)
        assert pool.statistics()["shards_replaced"] == 0
    assert ours.rows == undisturbed([DiesWhenBuilt] * 2, 5).rows


def test_shard_that_dies_at_each_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError, match=r"shard 1 \(env 1\) died .* it is the 4th process") as caught:
        LocalPool(env_fns(tmp_path / "deaths", 99, _kill_shard)).start()
    assert (caught.value.worker_id, caught.value.env_ids, _left(tmp_path / "deaths")) == (1, (1,), 95)


def test_worker_of_a_shard_that_dies_at_each_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError, match="construct of env 1.*\n(.*\n)*connections left: 95") as caught:
        LocalPool(env_fns(tmp_path / "deaths", 99)).start()
    assert (caught.value.env_ids, _left(tmp_path / "deaths")) == ((1,), 95)


def test_restarted_shard_that_dies_in_a_constructor_is_tried_again(tmp_path: Path) -> None:
    with LocalPool(env_fns(tmp_path / "deaths", 0, _kill_shard)) as pool:
        play(pool, 2)
        (tmp_path / "deaths").write_text("1")
        pool.restart(1)
        pool.reset(seeds=[0, 1])
        assert sorted(pool.recv().env_ids.tolist()) == [0, 1] and _left(tmp_path / "deaths") == 0
