"""The system has no room for the successor of a worker: one error, and the next call tries again, without a loss."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.core.shards.local_pools import LocalPool
from tests.faults.traces import end, play, recovering_pool, undisturbed
from vecenv import FailurePolicy, VectorEnv, collect
from vecenv.core.processes import worker as worker_module
from vecenv.core.recovery.recycling import Recycler
from vecenv.core.shards import local_carrier
from vecenv.envs.toys import CountEnv, ToyEnv
from vecenv.errors import ShortageError

#: Resources -> makers of the exceptions that a start raises without them.
SHORTAGES: dict[str, Callable[[], Exception]] = {
    "descriptors": functools.partial(OSError, errno.EMFILE, "Too many open files"),
    "processes": functools.partial(BlockingIOError, errno.EAGAIN, "Resource temporarily unavailable"),
    "memory": functools.partial(OSError, errno.ENOMEM, "Cannot allocate memory"),
    "memory of Python": MemoryError,
    "room": functools.partial(OSError, errno.ENOSPC, "No space left on device"),
    "fork server": EOFError,
}


@contextlib.contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Let this process open no file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Refuses:
    """Raises an exception instead of starting the next processes.

    Args:
        monkeypatch: puts it there.
        make_error: makes the exception.
        module: the module whose `start_process` it replaces.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, make_error: Callable[[], Exception], module: Any = worker_module
    ) -> None:
        self.num_left = 0
        self.make_error = make_error
        self.start: Callable[..., Any] = module.start_process
        monkeypatch.setattr(module, "start_process", self)

    def __call__(self, *args: Any) -> Any:
        if self.num_left:
            self.num_left -= 1
            raise self.make_error()
        return self.start(*args)


def test_start_without_descriptors_is_tried_again_by_the_next_call(start_method: str, implementation: str) -> None:
    with recovering_pool([ToyEnv] * 4, context=start_method) as pool:
        ours = play(pool, 3)
        end(pool.worker_pids[0])
        pool.send(np.zeros(4, np.int64))
        with no_descriptors_left():
            for _ in range(2):
                with pytest.raises(ShortageError, match="worker 0 cannot be started: .*ulimit -n"):
                    pool.recv()
        batch = pool.recv()
        batch.raise_errors()
        assert pool.statistics()["restarts"] == 1
        assert batch.lengths.tolist() == [4] * 4, "the episodes go on"
    assert ours.rows == undisturbed([ToyEnv] * 4, 3).rows


@pytest.mark.parametrize("name", SHORTAGES)
def test_each_shortage_is_one_error_that_names_it(
    name: str, start_method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = Refuses(monkeypatch, SHORTAGES[name])
    with VectorEnv([CountEnv] * 4, num_workers=2, context=start_method) as envs:
        envs.reset(seed=0)
        envs.step([0] * 4)
        end(envs.worker_pids[1])
        refuses.num_left = 2
        text = str(SHORTAGES[name]()) or type(SHORTAGES[name]()).__name__
        with pytest.raises(ShortageError) as caught:
            envs.step([0] * 4)
        assert f"worker 1 cannot be started: {text}" in str(caught.value)
        with pytest.raises(ShortageError):
            envs.recv()
        assert envs.recv()[0][:, 0].tolist() == [2] * 4
        assert envs.statistics()["truncated"] == 0


@pytest.mark.parametrize("name", ["memory of Python", "descriptors"])
def test_shortage_in_the_constructor_of_a_successor_is_tried_again(name: str, tmp_path: Path) -> None:
    with VectorEnv([Refused(tmp_path / "short", name)] * 2, num_workers=2) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        (tmp_path / "short").touch()
        end(envs.worker_pids[0])
        with pytest.raises((MemoryError, OSError)):
            envs.step([0, 0])
        (tmp_path / "short").unlink()
        assert envs.recv()[0][:, 0].tolist() == [2, 2]


class Refused:
    """A constructor that raises an exception while a file exists."""

    def __init__(self, file: Path, name: str) -> None:
        self.file, self.name = file, name

    def __call__(self) -> CountEnv:
        if self.file.exists():
            raise SHORTAGES[self.name]()
        return CountEnv(100)


def test_collection_goes_on_after_a_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = Refuses(monkeypatch, SHORTAGES["processes"])

    def policy(obs: Any, env_id: Any) -> Any:
        return np.zeros(len(env_id), np.int64)

    with VectorEnv([CountEnv] * 2, num_workers=2) as envs:
        collect(envs, policy, steps=4, seed=0)
        end(envs.worker_pids[0])
        refuses.num_left = 1
        with pytest.raises(ShortageError):
            collect(envs, policy, steps=4)
        assert len(collect(envs, policy, steps=4)) == 4


def test_recycled_worker_that_cannot_be_started_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = Refuses(monkeypatch, SHORTAGES["processes"])
    failures = FailurePolicy(recycle_after={"episodes": 1})
    with VectorEnv([CountEnv] * 2, num_workers=1, failures=failures) as envs:
        envs.reset(seed=0)
        monkeypatch.setattr(Recycler, "due", lambda self, workers, busy: [(workers[0], "for a test")])
        refuses.num_left = 1
        assert envs.step([0, 0])[0][:, 0].tolist() == [1, 1], "the wait for the rows tries again"
        refuses.num_left = 2
        with pytest.raises(ShortageError):
            envs.step([0, 0])
        assert envs.recv()[0][:, 0].tolist() == [2, 2]


def test_first_start_without_descriptors_says_so(start_method: str) -> None:
    with no_descriptors_left(), pytest.raises(ShortageError, match="worker 0 cannot be started: .*Too many open files"):
        VectorEnv([CountEnv] * 2, num_workers=2, context=start_method)
    VectorEnv([CountEnv] * 2, num_workers=2, context=start_method).close()


# ---- shards --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHORTAGES)
def test_shortage_at_the_first_start_of_a_shard_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = Refuses(monkeypatch, SHORTAGES[name], local_carrier)
    refuses.num_left = 1
    with pytest.raises(ShortageError, match="shard 0 cannot be started: "):
        LocalPool([ToyEnv] * 2).start()
    with LocalPool([ToyEnv] * 2) as pool:
        assert play(pool, 2).rows == undisturbed([ToyEnv] * 2, 2).rows


def test_shortage_while_a_shard_is_replaced_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = Refuses(monkeypatch, SHORTAGES["processes"], local_carrier)
    with LocalPool([CountEnv] * 4) as pool:
        play(pool, 3)
        pool.kill_shard(1)
        pool.send(np.zeros(4, np.int64))
        refuses.num_left = 2
        for _ in range(2):
            with pytest.raises(ShortageError, match="shard 1 cannot be started"):
                pool.recv(4)
        assert pool.recv(4).lengths.tolist() == [4] * 4


def test_shortage_inside_the_successor_of_a_shard_is_tried_again(tmp_path: Path) -> None:
    fns = [CountEnv, CountEnv, CountEnv, Refused(tmp_path / "short", "memory of Python")]
    with LocalPool(fns) as pool:
        play(pool, 3)
        (tmp_path / "short").touch()
        pool.kill_shard(1)
        pool.send(np.zeros(4, np.int64))
        with pytest.raises(MemoryError):
            pool.recv(4)
        (tmp_path / "short").unlink()
        batch = pool.recv(4)
        batch.raise_errors()
        assert batch.lengths.tolist() == [4] * 4


def test_shortage_while_a_worker_of_a_shard_is_replaced_is_tried_again(tmp_path: Path) -> None:
    fns = [CountEnv, CountEnv, CountEnv, Refused(tmp_path / "short", "room")]
    with LocalPool(fns) as pool:
        play(pool, 3)
        (tmp_path / "short").touch()
        pool.kill_worker(1)
        pool.send(np.zeros(4, np.int64))
        with pytest.raises(OSError, match="No space left on device"):
            pool.recv(4)
        (tmp_path / "short").unlink()
        assert pool.recv(4).lengths.tolist() == [4] * 4
