"""Processes that envs fork: a child that returns from the env ends there; other children are left alone."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenv import VectorEnv
from vecenv.core.options import RECOVERING, PoolOptions
from vecenv.core.pool.process import ProcessPool
from vecenv.envs import toys

GENEROUS_TIMEOUT = 60.0

#: An end of a child within the env -> its exit code.
Ending = tuple[Callable[[], Any], int]


def return_from_env() -> None:
    pass


def exit_with_text() -> None:
    sys.exit("no more work")


def raise_error() -> None:
    raise ZeroDivisionError("of the child")


ENDINGS: list[Ending] = [
    (return_from_env, 0),
    (sys.exit, 0),
    (functools.partial(sys.exit, 3), 3),
    (functools.partial(sys.exit, -1), 255),
    (exit_with_text, 1),
    (raise_error, 1),
]


def fork_once(moment: str, folder: Path, end: Callable[[], Any]) -> None:
    """Fork at the first call. The child ends the call with `end`, the worker waits for it and notes its exit code."""
    noted = folder / moment
    if noted.exists():
        return
    noted.touch()
    pid = os.fork()
    if pid == 0:
        sys.stderr = (folder / "stderr").open("w")
        end()
    else:
        noted.write_text(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


class Forks(toys.CountEnv):
    """Forks once in each of these operations."""

    def __init__(self, moments: tuple[str, ...], folder: Path, end: Callable[[], Any], draws: bool = False) -> None:
        super().__init__(4)
        self._moments, self._folder, self._end, self._draws = moments, folder, end, draws
        self._fork_at("construct")

    def _fork_at(self, moment: str) -> None:
        if moment in self._moments:
            fork_once(moment, self._folder, self._end)

    def reset(self, **kwargs: Any) -> Any:
        self._fork_at("reset" if self.episode == 0 else "autoreset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._draws:
            random.random()
        if self.elapsed_steps == 2:
            self._fork_at("step")
        return super().step(action)

    def poke(self) -> int:
        self._fork_at("call")
        return self.episode

    def close(self) -> None:
        self._fork_at("close")
        super().close()


MOMENTS = ("construct", "reset", "step", "autoreset", "call", "close")


def run(env_fn: Callable[[], Any], **options: Any) -> list[Any]:
    """Return the steps of two envs, of which `env_fn` builds the second."""
    timeouts = dict.fromkeys(("construct", "reset", "step", "call", "close"), GENEROUS_TIMEOUT)
    env_fns = [functools.partial(Forks, (), Path(), return_from_env), env_fn]
    steps: list[Any] = []
    with VectorEnv(env_fns, timeouts=timeouts, failures="raise", num_workers=1, **options) as envs:
        envs.reset(seed=7)
        for _ in range(12):
            obs, rewards, terminated, truncated, _ = envs.step(np.zeros(2, np.int64))
            steps.append((obs.tolist(), rewards.tolist(), terminated.tolist(), truncated.tolist()))
        steps.append(envs.call("poke"))
    return steps


@pytest.mark.parametrize(("end", "exitcode"), ENDINGS)
def test_child_that_returns_from_an_env_ends_there(
    implementation: str, end: Callable[[], Any], exitcode: int, tmp_path: Path
) -> None:
    steps = run(functools.partial(Forks, MOMENTS, tmp_path, end))
    assert {moment: (tmp_path / moment).read_text() for moment in MOMENTS} == dict.fromkeys(MOMENTS, str(exitcode))
    assert steps == run(functools.partial(Forks, (), tmp_path, end))
    text = (tmp_path / "stderr").read_text()
    assert ("ZeroDivisionError: of the child" in text) == (end is raise_error)
    assert ("no more work" in text) == (end is exit_with_text)


@pytest.mark.parametrize("options", [{"threads_per_worker": 2}, {"autoreset_mode": "SameStep"}, {"infos": "none"}])
@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.filterwarnings("ignore:envs draw from the global random generators")
def test_child_of_an_env_thread_or_in_another_mode_ends_in_the_env(
    implementation: str, options: dict[str, Any], draws: bool, tmp_path: Path
) -> None:
    run(functools.partial(Forks, MOMENTS, tmp_path, functools.partial(sys.exit, 4), draws), **options)
    assert {moment: (tmp_path / moment).read_text() for moment in MOMENTS} == dict.fromkeys(MOMENTS, "4")


class ForksInCapture:
    """A snapshotter whose hook forks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def spans_episodes(self, env: Any) -> bool:
        return True

    def is_built_alike(self, env: Any) -> bool:
        return False

    def capture(self, env: Any, *, within_episode: bool = False) -> None:
        fork_once("capture", self._folder, functools.partial(sys.exit, 4))

    def restore(self, env: Any, state: bytes) -> None:
        raise AssertionError("nothing is restored here")


@pytest.mark.extended
def test_child_that_a_snapshot_forks_ends_there(implementation: str, tmp_path: Path) -> None:
    options = PoolOptions(num_workers=1, failures=RECOVERING)
    with ProcessPool([toys.CountEnv], options, snapshotter=ForksInCapture(tmp_path)) as pool:
        pool.start()
        pool.reset(seeds=[None])
        pool.recv()
    assert (tmp_path / "capture").read_text() == "4"


def square(value: int) -> int:
    return value * value


class UsesProcesses(toys.CountEnv):
    """Runs other processes in each step, and a pool of envs in one of them."""

    def step(self, action: Any) -> Any:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=self.run_serial_pool)
        process.start()
        with context.Pool(2) as workers:
            assert workers.map(square, range(4)) == [0, 1, 4, 9]
        process.join()
        assert process.exitcode == 5
        subprocess.run([sys.executable, "-c", ""], check=True, preexec_fn=os.getpid)
        return super().step(action)

    def run_serial_pool(self) -> None:
        with VectorEnv([toys.CountEnv] * 2, backend="serial") as envs:
            envs.reset(seed=1)
            obs = envs.step(np.zeros(2, np.int64))[0]
        sys.exit(5 if obs[:, 0].tolist() == [1.0, 1.0] else 6)


def test_children_that_stay_in_an_env_are_left_alone(implementation: str) -> None:
    with VectorEnv([UsesProcesses] * 2, num_workers=1, failures="raise", timeouts={"step": GENEROUS_TIMEOUT}) as envs:
        envs.reset(seed=0)
        for number in (1, 2):
            obs = envs.step(np.zeros(2, np.int64))[0]
            assert obs[:, 0].tolist() == [number, number]
