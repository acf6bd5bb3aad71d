"""`worker_init`: every worker calls it once, before it builds envs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.core.shards.local_pools import LocalPool
from tests.faults.front_ends import FRONT_ENDS, MANAGERS
from tests.faults.traces import end
from vecenv import VectorEnv
from vecenv.envs.toys import CountEnv
from vecenv.errors import ConfigError

pytestmark = [
    pytest.mark.extended,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

#: A setting of a module, which worker_init changes.
SETTING: list[int] = []


class Keeps(CountEnv):
    """Keeps the setting that its constructor has found."""

    def __init__(self) -> None:
        super().__init__()
        self._found = list(SETTING)

    def found(self) -> list[int]:
        return self._found


def prepare() -> None:
    SETTING.append(os.getpid())


def found_by(envs: Any) -> list[list[int]]:
    return list(envs.call("found"))


def test_worker_init_runs_once_in_each_worker_and_successor(start_method: str) -> None:
    options: dict[str, Any] = {"engine": {"worker_init": prepare}, "context": start_method}
    with contextlib.closing(VectorEnv([Keeps] * 4, num_workers=2, **options)) as envs:
        envs.reset(seed=1)
        for _ in range(2):
            first, second = envs.worker_pids
            assert found_by(envs) == [[first], [first], [second], [second]]
            end(first)
            envs.step(np.zeros(4, np.int64))
            assert envs.worker_pids[0] != first
    assert SETTING == []


@pytest.mark.parametrize("options", [{"threads_per_worker": 2}, {"num_spare_envs": 2}, {"num_workers": "auto"}])
def test_worker_init_runs_once_in_workers_of_every_kind(options: dict[str, Any]) -> None:
    with contextlib.closing(VectorEnv([Keeps] * 2, engine={"worker_init": prepare}, **options)) as envs:
        envs.reset(seed=1)
        for pids in found_by(envs):
            assert len(pids) == 1 and pids[0] in envs.worker_pids


@pytest.mark.usefixtures("recycles_at_once")
def test_worker_init_runs_in_recycled_workers() -> None:
    failures = {"recycle_after": {"episodes": 1}}
    with contextlib.closing(
        VectorEnv([Keeps], num_workers=1, failures=failures, engine={"worker_init": prepare})
    ) as envs:
        (first,) = envs.worker_pids
        envs.reset(seed=1)
        for _ in range(30):
            envs.step(np.zeros(1, np.int64))
        assert found_by(envs) == [[*envs.worker_pids]] != [[first]]


def test_worker_init_runs_in_workers_of_the_fallback(implementation: str) -> None:
    with contextlib.closing(VectorEnv([Keeps], engine={"worker_init": prepare})) as envs:
        assert found_by(envs) == [[*envs.worker_pids]]


@pytest.mark.parametrize("front_end", [name for name in FRONT_ENDS if name != "shards"])
def test_worker_init_is_an_option_of_every_front_end(front_end: str, tmp_path: Path) -> None:
    def write() -> None:
        (tmp_path / str(os.getpid())).touch()

    is_key = front_end in (*MANAGERS, "gym_vector", "ALF")
    options: dict[str, Any] = {"worker_init": write} if is_key else {"engine": {"worker_init": write}}
    with FRONT_ENDS[front_end]([CountEnv] * 2, **options) as played:
        played.play(1)
        assert {file.name for file in tmp_path.iterdir()} == {str(pid) for pid in played.worker_pids}


def test_worker_init_runs_in_workers_of_shards(tmp_path: Path) -> None:
    def write() -> None:
        (tmp_path / str(os.getpid())).touch()

    with contextlib.closing(LocalPool([CountEnv] * 2, worker_init=write)) as pool:
        pool.start()
        assert len(list(tmp_path.iterdir())) == 2


def test_worker_init_does_not_run_in_the_process_of_the_program() -> None:
    with contextlib.closing(VectorEnv([Keeps] * 2, backend="serial", engine={"worker_init": prepare})) as envs:
        assert found_by(envs) == [[], []]


def test_worker_init_that_draws_changes_no_numbers_of_envs() -> None:
    def draw() -> None:
        random.seed(7)

    class Draws(CountEnv):
        def draw(self) -> float:
            return random.random()

    found = []
    for worker_init in (None, draw):
        with contextlib.closing(VectorEnv([Draws] * 2, num_workers=1, engine={"worker_init": worker_init})) as envs:
            envs.reset(seed=1)
            found.append(envs.call("draw"))
    assert found[0] == found[1] and len(set(found[0])) == 2


def fail() -> None:
    raise ZeroDivisionError("no simulator")


def leave() -> None:
    raise SystemExit(3)


def test_exception_of_worker_init_ends_the_start_with_its_traceback(start_method: str) -> None:
    with pytest.raises(ZeroDivisionError, match="no simulator") as caught:
        VectorEnv([CountEnv] * 2, engine={"worker_init": fail}, context=start_method)
    assert "raised by worker_init" in caught.value.__notes__[0]
    assert "in fail" in str(caught.value.__cause__)


def test_exit_in_worker_init_is_reported() -> None:
    with pytest.raises(Exception, match="3") as caught:
        VectorEnv([CountEnv] * 2, engine={"worker_init": leave})
    assert "SystemExit" in repr(caught.value) + str(caught.value)


def test_exception_of_worker_init_in_a_shard_ends_the_start() -> None:
    pool = LocalPool([CountEnv] * 2, worker_init=fail)
    with pytest.raises(ZeroDivisionError, match="no simulator"):
        pool.start()


@pytest.mark.parametrize("wrong", [3, "prepare"])
def test_worker_init_that_is_no_function_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="worker_init: expected a callable"):
        VectorEnv([CountEnv], engine={"worker_init": wrong})


def test_worker_init_that_cannot_be_pickled_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file, pytest.raises(ConfigError, match="worker_init cannot be sent"):
        VectorEnv([CountEnv], engine={"worker_init": lambda: file.write("text")})


def test_worker_init_shares_an_event_with_the_program() -> None:
    event = multiprocessing.get_context("forkserver").Event()
    with contextlib.closing(VectorEnv([CountEnv], engine={"worker_init": event.set})) as envs:
        assert event.is_set()
        event.clear()
        envs.reset(seed=1)
        end(envs.worker_pids[0])
        envs.step(np.zeros(1, np.int64))
        assert event.is_set()
