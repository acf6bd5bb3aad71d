"""Finalizers and exit functions of envs run when their worker ends, under every start method; the program's do not."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenv

KINDS = ("tempfile", "finalize", "atexit", "del")


def remove(path: str) -> None:
    os.rmdir(path)


class Folders(gymnasium.Env[Any, Any]):
    """Makes a folder for each kind of clean-up; `close` leaves them."""

    observation_space, action_space = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, parent: Path) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=parent, prefix="tempfile")
        weakref.finalize(self, remove, tempfile.mkdtemp(dir=parent, prefix="finalize"))
        atexit.register(remove, tempfile.mkdtemp(dir=parent, prefix="atexit"))
        self.path = tempfile.mkdtemp(dir=parent, prefix="del")
        self.itself = self  # a cycle

    def __del__(self) -> None:
        remove(self.path)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), float(np.random.random()), True, False, {}


def left(parent: Path) -> list[str]:
    return sorted(os.listdir(parent))


WAYS: dict[str, dict[str, Any]] = {
    "forkserver": {"num_workers": 2},
    "fork": {"num_workers": 2, "context": "fork"},
    "spawn": {"num_workers": 2, "context": "spawn"},
    "threads": {"num_workers": 1, "threads_per_worker": 2},
    "spare envs": {"num_workers": 2, "num_spare_envs": 3, "autoreset_mode": "SameStep"},
}


@pytest.mark.parametrize(
    "way", ["forkserver", *(pytest.param(way, marks=pytest.mark.extended) for way in WAYS if way != "forkserver")]
)
def test_folders_of_envs_are_removed_when_their_workers_end(way: str, tmp_path: Path) -> None:
    envs = vecenv.VectorEnv([functools.partial(Folders, tmp_path)] * 3, **WAYS[way])
    try:
        envs.reset(seed=0)
        for _ in range(6):
            envs.step(np.zeros(3, np.int64))
        assert {name[:3] for name in left(tmp_path)} == {kind[:3] for kind in KINDS}
    finally:
        envs.close()
    assert left(tmp_path) == []


class Owner:
    """An object of the program with clean-ups of its own."""

    def __init__(self, parent: Path) -> None:
        self.path = tempfile.mkdtemp(dir=parent)
        self.itself = self

    def __del__(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


@pytest.mark.extended
def test_exit_functions_of_the_program_do_not_run_in_forked_workers(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "program", tmp_path / "envs"
    mine.mkdir(), theirs.mkdir()
    folder, owner = tempfile.TemporaryDirectory(dir=mine), Owner(mine)
    removed = functools.partial(remove, tempfile.mkdtemp(dir=mine))
    atexit.register(removed)
    try:
        envs = vecenv.VectorEnv([functools.partial(Folders, theirs)] * 2, num_workers=1, context="fork")
        envs.reset(seed=0)
        envs.close()
        assert len(left(mine)) == 3 and left(theirs) == []
    finally:
        atexit.unregister(removed)
        removed()
        folder.cleanup()
        shutil.rmtree(owner.path)


def hang() -> None:
    threading.Event().wait()


class HangsAtExit(Folders):
    def __init__(self, parent: Path) -> None:
        super().__init__(parent)
        atexit.register(hang)


@pytest.mark.extended
@pytest.mark.parametrize("context", ["forkserver", "fork", "spawn"])
def test_exit_function_that_hangs_ends_with_the_close_limit(
    context: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    envs = vecenv.VectorEnv([functools.partial(HangsAtExit, tmp_path)], context=context, timeouts={"close": 1.0})
    envs.reset(seed=0)
    envs.close()
    assert "did not end when its envs had closed within 1 s" in caplog.text
    shutil.rmtree(tmp_path)
