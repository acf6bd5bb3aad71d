"""A source file is edited during a run: the run keeps its code, or one warning names the module."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.core.shards.local_pools import LocalPool
from tests.faults.front_ends import FRONT_ENDS
from vecenv import VectorEnv
from vecenv.envs.toys import CountEnv

ENV = """
import numpy as np
from gymnasium import spaces
from vecenv.envs.toys import CountEnv
{rng}

class Env(CountEnv):
    def step(self, action):
        obs, _, *others = super().step(action)
        return obs, {reward}, *others
"""
#: With this line, the module is left to the workers.
RNG = "RNG = np.random.default_rng()"

Write = Callable[[str, float], Any]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Return a function that writes the module again and returns the class that the program has loaded first."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / f"module_{tmp_path.name}.py"

    def write(rng: str, reward: float) -> Any:
        path.write_text(ENV.format(rng=rng, reward=reward))
        importlib.invalidate_caches()
        return importlib.import_module(path.stem).Env

    yield write
    sys.modules.pop(path.stem, None)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def step_of(envs: Any) -> tuple[list[float], Any]:
    """Step both envs; return the rewards, and the mark of the first row."""
    _, rewards, _, _, infos = envs.step(np.zeros(2, np.int64))
    return rewards.tolist(), infos.get("recovered", [None])[0]


@pytest.mark.parametrize("context", ["forkserver", "fork"])
def test_successor_runs_the_code_that_the_run_began_with(context: str, write: Write) -> None:
    """Another pool with the new code, and a new import server, change nothing."""
    env_fn = write("", 1.0)
    with VectorEnv([env_fn] * 2, num_workers=2, context=context) as envs:
        envs.reset(seed=1)
        assert step_of(envs)[0] == [1.0, 1.0]
        write("", 23.0)
        with VectorEnv([env_fn] * 2, num_workers=2, context=context) as others:
            others.reset(seed=1)
            assert step_of(others)[0] == ([23.0, 23.0] if context == "forkserver" else [1.0, 1.0])
        kill(envs.worker_pids[0])
        assert step_of(envs) == ([1.0, 1.0], "replayed")
        assert step_of(envs)[0] == [1.0, 1.0]


@pytest.mark.parametrize("context, rng", [("forkserver", RNG), ("spawn", "")])
def test_one_warning_names_the_module_and_rows_are_marked(context: str, rng: str, write: Write, tmp_path: Path) -> None:
    env_fn = write(rng, 1.0)
    with VectorEnv([env_fn] * 2, num_workers=2, context=context) as envs:
        envs.reset(seed=1)
        write(rng, 23.0)
        kill(envs.worker_pids[0])
        path = tmp_path / f"{env_fn.__module__}.py"
        with pytest.warns(UserWarning, match=rf"have changed: {env_fn.__module__} \({path}\)\. Its") as warned:
            assert step_of(envs) == ([23.0, 1.0], "unproven")
        assert len(warned) == 1
        kill(envs.worker_pids[0])
        assert step_of(envs) == ([23.0, 1.0], "unproven")  # without a second warning


def test_episode_with_other_answers_ends_truncated(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    env_fn = write(RNG, 1.0)
    with VectorEnv([env_fn] * 2, num_workers=2) as envs:
        envs.reset(seed=1)
        step_of(envs)
        write(RNG, 23.0)
        kill(envs.worker_pids[0])
        with pytest.warns(UserWarning, match="have changed"):
            assert step_of(envs)[1] == "truncated"
        assert "its code has changed on disk" in caplog.text


class ImportsLate(CountEnv):
    """Imports a module in `reset`.

    Args:
        name: of the module, which has a function `reward(num_steps)`.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def reset(self, **kwargs: Any) -> Any:
        self.module = importlib.import_module(self.name)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, self.module.reward(self.elapsed_steps), *others


@pytest.mark.parametrize("context", ["forkserver", "fork", "spawn"])
@pytest.mark.parametrize("is_edited", [True, False])
def test_module_that_is_imported_late_marks_rows_if_its_file_has_changed(
    context: str, is_edited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The answers that are repeated are the same with the new code; later ones are not."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / f"late_{tmp_path.name}.py"
    path.write_text("def reward(num_steps): return 1.0\n")
    with VectorEnv([functools.partial(ImportsLate, path.stem)] * 2, num_workers=2, context=context) as envs:
        envs.reset(seed=1)
        assert step_of(envs)[0] == [1.0, 1.0]
        if is_edited:
            path.write_text("def reward(num_steps): return 1.0 if num_steps < 2 else 23.0\n")
        kill(envs.worker_pids[0])
        assert step_of(envs) == (([23.0, 1.0], "unproven") if is_edited else ([1.0, 1.0], "replayed"))
    assert (f"{path.stem} ({path})" in caplog.text) == is_edited


def test_touched_file_gives_no_warning(write: Write, tmp_path: Path) -> None:
    env_fn = write(RNG, 1.0)
    with VectorEnv([env_fn] * 2, num_workers=2) as envs:
        envs.reset(seed=1)
        os.utime(tmp_path / f"{env_fn.__module__}.py", ns=(0, 0))
        kill(envs.worker_pids[0])
        assert step_of(envs) == ([1.0, 1.0], "replayed")


def test_recycled_worker_gives_the_same_warning(write: Write) -> None:
    env_fn = write(RNG, 1.0)
    with VectorEnv([env_fn] * 2, num_workers=2, failures={"recycle_after": {"rss_mb": 1}}) as envs:
        envs.reset(seed=1)
        write(RNG, 23.0)
        with pytest.warns(UserWarning, match="have changed"):
            assert "unproven" in iter(lambda: step_of(envs)[1], "never")


def test_restarted_worker_gives_the_same_warning(write: Write) -> None:
    env_fn = write(RNG, 1.0)
    with VectorEnv([env_fn] * 2, num_workers=2, failures="raise") as envs:
        envs.reset(seed=1)
        write(RNG, 23.0)
        with pytest.warns(UserWarning, match="have changed"):
            envs.pool.restart(0)


@pytest.mark.parametrize("name", [name for name in FRONT_ENDS if name != "shards"])
def test_every_front_end_warns_once(name: str, write: Write) -> None:
    env_fn = write(RNG, 1.0)
    with FRONT_ENDS[name]([env_fn] * 2) as front_end:

        def edit(number: int) -> None:
            if number == 0:
                write(RNG, 23.0)
                front_end.kill(0)

        with pytest.warns(UserWarning, match="have changed") as warned:
            front_end.play(3, edit)
        assert len(warned) == 1


@pytest.mark.parametrize("victim", ["worker", "shard"])
def test_shards_warn_and_mark_rows(victim: str, write: Write) -> None:
    env_fn = write("", 1.0)
    pool = LocalPool([env_fn] * 4, context="spawn")
    pool.start()
    try:
        pool.reset(seeds=range(4))
        pool.recv().raise_errors()
        write("", 23.0)
        (pool.kill_worker if victim == "worker" else pool.kill_shard)(0)
        with pytest.warns(UserWarning, match="have changed") as warned:
            batch = pool.step(np.zeros(4, np.int64))
        assert len(warned) == 1
        assert [info.get("recovered") for info in batch.infos()][:2] == ["unproven"] * 2
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pool.close()
