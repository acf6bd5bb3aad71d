"""LocalCarrier: shards as processes that are killed, stopped and left alone for real."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest

from tests.faults.traces import end, wait_until
from tests.inside import hub_of
from vecenv.core.options import PoolFailurePolicy, PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.pool.serial import SerialPool
from vecenv.core.shards.local_carrier import LocalCarrier
from vecenv.core.shards.sharded_engine import ShardedEngine
from vecenv.envs import toys
from vecenv.envs.adapt import adapt_and_build
from vecenv.envs.state.state import SNAPSHOTTER
from vecenv.errors import ConfigError, DifferentSpacesError, EnvError, WorkerDiedError

NUM_ENVS = 4
Opened = tuple[Pool, LocalCarrier]
OpenShards = Callable[..., Opened]


@pytest.fixture
def open_shards() -> Iterator[OpenShards]:
    """Open pools of two shards that are child processes."""
    pools: list[Pool] = []

    def make(
        env_fns: list[Any] | None = None, *, context: str = "forkserver", shard_timeout: float = 30.0, **options: Any
    ) -> Opened:
        carrier = LocalCarrier(context)
        failures = options.pop("failures", PoolFailurePolicy(on_failure="recover"))
        engine = ShardedEngine(
            env_fns or [functools.partial(toys.ToyEnv, 4)] * NUM_ENVS,
            PoolOptions(num_workers=1, context="fork", failures=failures, **options),
            carrier=carrier,
            num_shards=2,
            adapt=adapt_and_build,
            snapshotter=SNAPSHOTTER,
            shard_timeout=shard_timeout,
        )
        pools.append(Pool(engine))
        pools[-1].start()
        return pools[-1], carrier

    yield make
    for pool in pools:
        pool.close()


def expected_obs(num_rounds: int) -> list[Any]:
    with SerialPool([functools.partial(toys.ToyEnv, 4)] * NUM_ENVS, PoolOptions(), adapt=adapt_and_build) as pool:
        pool.start()
        pool.reset(seeds=range(NUM_ENVS))
        return [pool.recv().obs.copy(), *(pool.step(np.ones(NUM_ENVS, np.int64)).obs.copy() for _ in range(num_rounds))]


def play(pool: Pool, num_rounds: int, disturb: Callable[[int], object]) -> list[Any]:
    """Step; `disturb` is called with the number of the round while its steps are under way."""
    pool.reset(seeds=range(NUM_ENVS))
    found = [pool.recv().obs.copy()]
    for number in range(num_rounds):
        pool.send(np.ones(NUM_ENVS, np.int64))
        disturb(number)
        found.append(pool.recv().obs.copy())
    return found


@pytest.mark.extended
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_killed_shards_change_no_observation(context: str, open_shards: OpenShards) -> None:
    pool, carrier = open_shards(context=context)
    workers: list[psutil.Process] = []

    def disturb(number: int) -> None:
        if number in (3, 4, 6):  # the first kill within the first episode, the last one of both shards
            for shard in (0, 1) if number == 6 else (number % 2,):
                workers.extend(psutil.Process(carrier.pid_of(shard)).children())
                end(carrier.pid_of(shard))

    np.testing.assert_array_equal(play(pool, 12, disturb), expected_obs(12))
    assert pool.statistics()["restarts"] == 4
    assert psutil.wait_procs(workers, timeout=10)[1] == [], "workers end with their shard"


@pytest.mark.extended
def test_killed_worker_of_a_shard_is_replaced_there(open_shards: OpenShards) -> None:
    pool, carrier = open_shards()
    pids = [carrier.pid_of(shard) for shard in (0, 1)]

    def disturb(number: int) -> None:
        if number == 3:
            (worker,) = psutil.Process(pids[0]).children()
            worker.kill()

    np.testing.assert_array_equal(play(pool, 8, disturb), expected_obs(8))
    assert pool.statistics()["restarts"] == 1
    assert [carrier.pid_of(shard) for shard in (0, 1)] == pids


@pytest.mark.extended
def test_stopped_shard_is_killed_and_replaced(open_shards: OpenShards) -> None:
    pool, carrier = open_shards(shard_timeout=2.5)
    stopped = carrier.pid_of(1)

    def disturb(number: int) -> None:
        if number == 2:
            os.kill(stopped, signal.SIGSTOP)

    np.testing.assert_array_equal(play(pool, 6, disturb), expected_obs(6))
    assert carrier.pid_of(1) != stopped and not psutil.pid_exists(stopped)


@pytest.mark.extended
def test_kill_of_a_successor_that_is_being_built_is_survived(open_shards: OpenShards) -> None:
    pool, carrier = open_shards()
    first = carrier.pid_of(0)

    def disturb(number: int) -> None:
        if number == 2:
            end(first)
            while carrier.pid_of(0) == first:
                hub_of(pool).wait_briefly(0)
            end(carrier.pid_of(0))

    np.testing.assert_array_equal(play(pool, 6, disturb), expected_obs(6))
    assert pool.statistics()["restarts"] == 2


def test_constructor_that_raises_is_raised_with_its_shard(open_shards: OpenShards) -> None:
    with pytest.raises(ValueError, match="no env today") as caught:
        open_shards([toys.ToyEnv, toys.ToyEnv, _raises, _raises])
    assert any("shard 1 (envs 2-3), process" in note for note in caught.value.__notes__)


class RaisesInClose(toys.ToyEnv):
    """Raises when it is closed, with a text that cannot be had."""

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def close(self) -> None:
        raise self.Unspeakable


@pytest.mark.extended
def test_exception_of_close_names_the_env_by_its_number_in_the_pool(open_shards: OpenShards) -> None:
    pool, _ = open_shards([toys.ToyEnv, toys.ToyEnv, toys.ToyEnv, RaisesInClose])
    with pytest.raises(EnvError, match="close of env 3 raised .*Unspeakable") as caught:
        pool.close()
    assert caught.value.env_ids == (3,)


@pytest.mark.extended
def test_envs_of_another_shard_must_have_the_same_spaces(open_shards: OpenShards) -> None:
    with pytest.raises(DifferentSpacesError, match="env 2"):
        open_shards([toys.ToyEnv, toys.ToyEnv, *[functools.partial(toys.ToyEnv, num_actions=3)] * 2])


@pytest.mark.extended
def test_env_fn_that_does_not_pickle_is_named(open_shards: OpenShards) -> None:
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"env_fns\[3\] cannot be sent"):
        open_shards([toys.ToyEnv] * 3 + [lambda: toys.ToyEnv(lock)])


@pytest.mark.extended
def test_shard_that_dies_while_it_builds_its_envs_is_an_error(open_shards: OpenShards) -> None:
    with pytest.raises(WorkerDiedError, match=r"shard 1 \(envs 2-3\).*died while"):
        open_shards([toys.ToyEnv, toys.ToyEnv, _kills_shard, _kills_shard])


def _raises() -> Any:
    raise ValueError("no env today")


def _kills_shard() -> Any:
    os.kill(os.getppid(), signal.SIGKILL)
    return toys.ToyEnv()


DRIVER = """
import functools, sys
from vecenv.core.options import PoolOptions
from vecenv.core.pool.pool import Pool
from vecenv.core.shards.local_carrier import LocalCarrier
from vecenv.core.shards.sharded_engine import ShardedEngine
from vecenv.envs import toys

carrier = LocalCarrier()
pool = Pool(ShardedEngine([toys.ToyEnv] * 2, PoolOptions(num_workers=1, context="fork"), carrier=carrier, num_shards=2))
pool.start()
print(carrier.pid_of(0), carrier.pid_of(1), flush=True)
sys.stdin.read()
"""


@pytest.mark.extended
def test_shards_end_with_a_driver_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdin=-1, stdout=-1, text=True) as driver:
        assert driver.stdout is not None
        shards = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
        family = [*shards, *(child for shard in shards for child in shard.children())]
        assert len(family) == 4
        driver.kill()
    wait_until(lambda: not any(map(_is_alive, family)))


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != "zombie"
    except psutil.NoSuchProcess:
        return False
