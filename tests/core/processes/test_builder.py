"""Constructors: how many run at the same time, their limits, their random values, and the log lines about them."""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.inside import show_starts_after
from vecenv.core.options import Limits, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.process import ProcessPool
from vecenv.core.pool.serial import SerialPool
from vecenv.envs import toys
from vecenv.errors import WorkerDiedError, WorkerTimeoutError

BUILDS = ("parallel", "serial")


class SlowToBuild(toys.ToyEnv):
    """Takes some seconds to build."""

    def __init__(self, seconds: float = 0.5) -> None:
        time.sleep(seconds)
        super().__init__()


class BuiltTogether(toys.ToyEnv):
    """Waits in its constructor for three others of its process."""

    meeting = threading.Barrier(4, timeout=30.0)

    def __init__(self) -> None:
        self.meeting.wait()
        super().__init__()


class BuiltAlone(toys.ToyEnv):
    """Raises if the constructor of another one runs in its process."""

    num_running = 0

    def __init__(self) -> None:
        cls = type(self)
        cls.num_running += 1
        time.sleep(0.02)
        if cls.num_running != 1:
            raise RuntimeError("two constructors run at the same time")
        cls.num_running -= 1
        super().__init__()


class DrawsAtInit(toys.ToyEnv):
    """Draws from a global generator in its constructor, or seeds it; records the instances that were closed."""

    all_closed: list[str] = []

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.drawn = 0.0
        if how == "numpy":
            self.drawn = float(np.random.random())
        elif how == "random":
            self.drawn = random.random()
        elif how == "seed":
            random.seed(3)
            self.drawn = random.random()

    def close(self) -> None:
        self.all_closed.append(self.how)

    def report(self) -> tuple[float, list[str]]:
        """Return the number that it drew, and the instances closed so far in its process."""
        return self.drawn, list(self.all_closed)


def start(env_fns: list[Any], **options: Any) -> ProcessPool:
    pool = ProcessPool(env_fns, PoolOptions(**{"num_workers": 1, **options}))
    pool.start()
    return pool


@pytest.mark.extended
def test_construct_limit_holds_for_each_env() -> None:
    """64 envs that take 3 s each once exceeded the limit of 60 s in two workers."""
    with start([SlowToBuild] * 9, limits=Limits(construct=3.0)):  # 4.5 s
        pass


@pytest.mark.parametrize("threads", [1, pytest.param(4, marks=pytest.mark.extended)])
def test_constructor_that_hangs_among_many_is_named(threads: int) -> None:
    env_fns: list[Any] = [toys.ToyEnv] * 2000
    env_fns[1900] = toys.HangAtInit
    with pytest.raises(WorkerTimeoutError, match=r"did not finish construct of env 1900, which it began") as caught:
        start(env_fns, threads_per_worker=threads, limits=Limits(construct=3.0))
    assert (caught.value.worker_id, caught.value.env_ids, caught.value.op) == (0, (1900,), "construct")


@pytest.mark.extended
def test_constructor_that_crashes_beside_others_is_named_with_them() -> None:
    env_fns: list[Any] = [functools.partial(SlowToBuild, 30.0)] * 3 + [toys.SegfaultAtInit]
    with pytest.raises(WorkerDiedError, match=r"died during construct of envs? [^:]*3: killed by SIGSEGV"):
        start(env_fns, threads_per_worker=4)


@pytest.mark.extended
@pytest.mark.parametrize("error_at", [0, 3])
def test_error_of_a_constructor_does_not_wait_for_other_workers(error_at: int) -> None:
    env_fns: list[Any] = [functools.partial(SlowToBuild, 1000.0)] * 4
    env_fns[error_at] = toys.RaiseAtInit
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="toy env cannot be built"):
        start(env_fns, num_workers=4)
    assert time.monotonic() - began < 50.0


@pytest.mark.extended
def test_threads_build_their_envs_at_the_same_time() -> None:
    with start([BuiltTogether] * 8, threads_per_worker=4) as pool:
        pool.reset()
        pool.recv().raise_errors()


@pytest.mark.extended
@pytest.mark.parametrize("options", [{"build": "serial", "threads_per_worker": 4}, {"build": "parallel"}], ids=str)
def test_constructors_of_a_worker_run_one_after_the_other(options: dict[str, Any]) -> None:
    with start([BuiltAlone] * 8, **options):
        pass


def test_first_error_by_env_id_of_threads_is_raised() -> None:
    env_fns = [SlowToBuild, toys.RaiseAtInit, SlowToBuild, toys.RaiseAtInit]
    with pytest.raises(RuntimeError, match="toy env cannot be built") as caught:
        start(env_fns, threads_per_worker=4)
    assert any("constructor of env 1 in worker 0" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("how", ["numpy", "random", "seed"])
def test_draws_of_constructors_depend_on_no_thread(how: str, build: str, threads: int) -> None:
    env_fns = [functools.partial(DrawsAtInit, "not" if env_id % 4 else how) for env_id in range(8)]
    with SerialPool(env_fns, PoolOptions(rng_entropy=3)) as serial:
        serial.start()
        expected = [drawn for drawn, _ in serial.call(DrawsAtInit.report)]
    with start(env_fns, build=build, threads_per_worker=threads, rng_entropy=3) as pool:
        reports = pool.call(DrawsAtInit.report)
    assert [drawn for drawn, _ in reports] == expected
    closed = reports[0][1]
    if build == "serial" or threads == 1:
        assert closed == []
    else:
        assert how in closed and len(closed) <= threads, "those under construction when one drew, or seeded"


class RaisesAtClose(DrawsAtInit):
    """Cannot be closed."""

    def close(self) -> None:
        raise ValueError("not closed")


def test_env_that_cannot_be_closed_and_built_again_is_named() -> None:
    with pytest.raises(ValueError, match="not closed") as caught:
        start([functools.partial(RaisesAtClose, "numpy")] * 2, threads_per_worker=2)
    assert any("which has to be built again" in note for note in caught.value.__notes__)


@pytest.mark.extended
def test_constructor_without_a_limit_is_reported_with_its_stack(report_after: Callable[[float], None]) -> None:
    report_after(0.3)
    env_fns = [toys.ToyEnv, functools.partial(SlowToBuild, 2.0)]
    pool = ProcessPool(env_fns, PoolOptions(num_workers=1, limits=Limits(construct=None)))
    with pool, pytest.warns(RuntimeWarning) as caught:
        pool.start()
    first, *stack = str(caught[0].message).split("\n")
    assert len(caught) == 1 and first.startswith("worker 0 (envs 0-1): construct of env 1 has been running for 0.")
    assert "has no limit. Set timeouts={'construct': ...}" in first
    assert any("in __init__" in line for line in stack)


@pytest.mark.extended
@pytest.mark.parametrize("engine", [SerialPool, ProcessPool])
@pytest.mark.parametrize("threads", [1, 3])
def test_log_shows_how_many_envs_are_built(
    engine: type[Pool], threads: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    show_starts_after(0.5, monkeypatch)
    env_fns = [functools.partial(SlowToBuild, 0.2)] * 9
    options = PoolOptions(num_workers=1, threads_per_worker=threads, build="serial")
    with caplog.at_level(logging.WARNING, "vecenv"), engine(env_fns, options) as pool:
        pool.start()
    lines = [record.getMessage() for record in caplog.records]
    counts = [int(line.split()[1]) for line in lines]
    assert all(line.startswith("vecenv: ") and " of 9 envs are built after " in line for line in lines), lines
    assert 2 <= len(lines) <= 4 and counts == sorted(counts) and 0 <= counts[0] < counts[-1] <= 9, lines


@pytest.mark.extended
def test_short_start_writes_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with start([toys.ToyEnv] * 4):
        pass
    assert not [record for record in caplog.records if "are built" in record.getMessage()]
