"""A worker died and its successor cannot be started: the call raises with the reason, and later ones do not wait."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tests.faults.traces import kill, play, recovering_pool
from vecenv import VectorEnv
from vecenv.core.layout.messages import RemoteTraceback
from vecenv.core.pool.process import ProcessPool
from vecenv.core.processes.worker import Worker
from vecenv.ding import AsyncSubprocessEnvManager, SyncSubprocessEnvManager
from vecenv.envs import toys
from vecenv.errors import ClosedError, SpaceError, WorkerDiedError

GENEROUS_TIMEOUT = 30.0  # seconds, for waits that end at once unless they never end


class Licensed(toys.CountEnv):
    """Cannot be built while `file` exists: raises, has other spaces, or interrupts the program and hangs."""

    def __init__(self, file: Path, how: str = "raise", boss: int = 0) -> None:
        super().__init__(10)
        if not file.exists():
            return
        if how == "raise":
            raise RuntimeError("license server is down")
        if how == "spaces":
            self.action_space = spaces.Discrete(7)
        if how == "interrupt":
            os.kill(boss, signal.SIGINT)
            threading.Event().wait()


class CrashesTwice(Licensed):
    """Ends its process in the second step of its first two processes; after the second crash it cannot be built."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.file = file

    def step(self, action: Any) -> Any:
        first = self.file.with_suffix(".first")
        if self.num_steps == 1 and not self.file.exists():
            (self.file if first.exists() else first).touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)


def licensed(file: Path, how: str = "raise") -> Callable[[], Any]:
    return functools.partial(Licensed, file, how, os.getpid())


@contextmanager
def pool_without_worker(file: Path, how: str) -> Iterator[ProcessPool]:
    """A pool of 4 envs that have been asked for their third step, with worker 0 dead and unfit to be built again."""
    with recovering_pool([licensed(file, how)] * 4) as pool:
        play(pool, 2)
        file.touch()
        kill(pool, 0)
        pool.send(np.zeros(4, np.int64))
        yield pool


def assert_gone_until_restarted(pool: ProcessPool, says: str, worker_id: int = 0) -> None:
    """Expect waits for the worker to raise the reason, other workers to work, and `restart` to succeed."""
    others = [env_id for env_id in range(pool.num_envs) if env_id not in pool.envs_of(worker_id)]
    for _ in range(2):
        pool.cancel()
        pool.reset()
        with pytest.raises(WorkerDiedError, match=rf"worker {worker_id} .* could not be started again: {says}"):
            pool.recv(timeout=GENEROUS_TIMEOUT)
    pool.cancel()
    pool.reset(others)
    pool.recv(timeout=GENEROUS_TIMEOUT).raise_errors()
    pool.restart(worker_id)
    pool.reset(seeds=range(pool.num_envs))
    assert pool.recv(timeout=GENEROUS_TIMEOUT).env_ids.tolist() == list(range(pool.num_envs))
    pool.send(np.zeros(pool.num_envs, np.int64))
    assert pool.recv(timeout=GENEROUS_TIMEOUT).lengths.tolist() == [1] * pool.num_envs


@pytest.mark.extended
@pytest.mark.parametrize("waits", ["recv", "recv with a timeout", "call"])
def test_constructor_that_raises_in_a_successor_is_reported_and_nothing_hangs(
    waits: str, implementation: str, tmp_path: Path
) -> None:
    file = tmp_path / "down"
    with recovering_pool([licensed(file)] * 4) as pool:
        play(pool, 2)
        file.touch()
        kill(pool, 0)
        with pytest.raises(RuntimeError, match="license server is down") as caught:
            if waits == "call":
                pool.call(str, timeout=GENEROUS_TIMEOUT)
            else:
                pool.send(np.zeros(4, np.int64))
                pool.recv(timeout=None if waits == "recv" else GENEROUS_TIMEOUT)
        assert str(caught.value) == "license server is down"
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert caught.value.__notes__ == ["raised by the constructor of env 0 in worker 0"]
        file.unlink()
        assert_gone_until_restarted(pool, "RuntimeError: license server is down")


@pytest.mark.extended
def test_restart_may_fail_and_be_tried_again(implementation: str, tmp_path: Path) -> None:
    file = tmp_path / "down"
    with recovering_pool([licensed(file)] * 4, on_failure="raise") as pool:
        play(pool, 2)
        file.touch()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="license server is down"):
                pool.restart(0)
        file.unlink()
        assert_gone_until_restarted(pool, "RuntimeError: license server is down")


@pytest.mark.extended
def test_successor_with_other_spaces_is_ended(implementation: str, tmp_path: Path) -> None:
    file = tmp_path / "other"
    with pool_without_worker(file, "spaces") as pool:
        with pytest.raises(SpaceError):
            pool.recv(timeout=GENEROUS_TIMEOUT)
        file.unlink()
        assert_gone_until_restarted(pool, "DifferentSpacesError: env 0")


@contextmanager
def interrupts(kind: type[BaseException]) -> Iterator[None]:
    """A SIGINT raises this exception, like Ctrl-C or the handler of a time limit."""

    def interrupt(signum: int, frame: object) -> None:
        raise kind

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.extended
@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("then", ["recv", "reset", "call"])
def test_interrupted_successor_start_is_repeated_by_the_next_wait(
    then: str, kind: type[BaseException], implementation: str, tmp_path: Path
) -> None:
    file = tmp_path / "hangs"
    with interrupts(kind), pool_without_worker(file, "interrupt") as pool:
        with pytest.raises(kind) as caught:
            pool.recv(timeout=GENEROUS_TIMEOUT)
        assert caught.type is kind  # a WorkerTimeoutError would be wrong
        file.unlink()
        if then == "call":
            assert pool.call(envs_steps, timeout=GENEROUS_TIMEOUT) == [3] * 4
        if then == "reset":
            pool.cancel()
            pool.reset(kwargs=[{"options": {}}] * 4)  # these payloads are queued after earlier ones
            assert pool.recv(timeout=GENEROUS_TIMEOUT).lengths.tolist() == [0] * 4
            pool.send(np.zeros(4, np.int64))
        batch = pool.recv(timeout=GENEROUS_TIMEOUT)
        batch.raise_errors()
        assert batch.lengths.tolist() == ([1] if then == "reset" else [3]) * 4
        assert pool.statistics()["restarts"] == 1


@pytest.mark.extended
def test_second_interrupt_while_a_successor_is_ended_leaves_no_descriptor(
    implementation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hangs"
    end = Worker.kill

    def interrupted(unfit: Worker, *args: Any) -> None:
        monkeypatch.setattr(Worker, "kill", end)
        signal.raise_signal(signal.SIGINT)
        end(unfit, *args)

    def stack_files() -> list[str]:
        links = (os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path))
        return [link for link in links if "vecenv worker 0" in link]

    with interrupts(KeyboardInterrupt), pool_without_worker(file, "interrupt") as pool:
        monkeypatch.setattr(Worker, "kill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.recv(timeout=GENEROUS_TIMEOUT)
        file.unlink()
        pool.recv(timeout=GENEROUS_TIMEOUT).raise_errors()
        assert Worker.kill is end and len(stack_files()) == 1


def envs_steps(env: Any) -> int:
    """Count the steps of an env's episode."""
    return int(env.unwrapped.num_steps)


@pytest.mark.extended
def test_isolated_env_that_cannot_be_built(implementation: str, tmp_path: Path) -> None:
    file = tmp_path / "down"
    with recovering_pool(
        [toys.CountEnv] * 2 + [functools.partial(CrashesTwice, file), toys.CountEnv], num_workers=1
    ) as pool:
        with pytest.raises(RuntimeError, match="license server is down"):
            play(pool, 3)
        assert pool.envs_of(1) == [2]
        file.unlink()
        (tmp_path / "down.first").unlink()
        assert_gone_until_restarted(pool, "RuntimeError: license server is down", worker_id=1)


# ---- front ends -----------------------------------------------------------------------------


@pytest.mark.extended
def test_vector_env_does_not_hang_after_a_failed_restart(implementation: str, tmp_path: Path) -> None:
    file = tmp_path / "down"
    envs = VectorEnv([licensed(file)] * 4, num_workers=2)
    try:
        envs.reset(seed=0)
        file.touch()
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="license server is down"):
            while True:
                envs.step(np.zeros(4, np.int64))
        for _ in range(2):
            with pytest.raises(WorkerDiedError, match="could not be started again"):
                envs.reset_async(seed=1)
                try:
                    envs.reset_wait(timeout=GENEROUS_TIMEOUT)
                finally:
                    envs.pool.cancel()
    finally:
        envs.close()


@pytest.mark.extended
@pytest.mark.parametrize("manager_cls", [SyncSubprocessEnvManager, AsyncSubprocessEnvManager])
def test_manager_is_closed_and_can_be_launched_again(manager_cls: Any, tmp_path: Path) -> None:
    file = tmp_path / "down"
    manager = manager_cls([licensed(file)] * 4, {"num_workers": 2})
    try:
        manager.launch()
        file.touch()
        os.kill(manager.worker_pids[0], signal.SIGKILL)
        with pytest.raises(RuntimeError, match="license server is down"):
            while True:
                manager.step(dict.fromkeys(manager.ready_obs, 0))
        assert manager.closed and {state.name for state in manager.env_states.values()} == {"VOID"}
        with pytest.raises(ClosedError, match="call launch first"):
            manager.reset()
        file.unlink()
        manager.launch()
        assert sorted(manager.step(dict.fromkeys(manager.ready_obs, 0))) != []
    finally:
        manager.close()
