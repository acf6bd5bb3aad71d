"""Processes that an env starts end with its worker, in whatever session they are and however the worker ends.

Each helper process reads from a named pipe, so that it ends with the test if it is not killed before.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenv
from tests.faults.traces import wait_until
from vecenv.core.system.process_stat import state_of
from vecenv.core.system.process_tree import VARIABLE

#: Notes its process id in the file $1, then waits for the end of the pipe $2.
_SCRIPT = ["sh", "-c", 'echo $$ >> "$1"; exec cat "$2"', "sh"]


def _note_and_wait(pids: str, end: str) -> None:
    with open(pids, "a") as file:
        file.write(f"{os.getpid()}\n")
    with open(end, "rb") as pipe:
        pipe.read()


def _fork_twice(pids: str, end: str) -> None:
    """Start a daemon that executes no other program."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    with contextlib.suppress(BaseException):
        _note_and_wait(pids, end)
    os._exit(0)


def _set_session_and_wait(pids: str, end: str) -> None:
    os.setsid()
    _note_and_wait(pids, end)


LAUNCHERS: dict[str, Callable[[str, str], Any]] = {
    "session": lambda *files: subprocess.Popen([*_SCRIPT, *files], start_new_session=True),
    "setsid": lambda *files: subprocess.Popen([*_SCRIPT, *files], preexec_fn=os.setsid),
    "group": lambda *files: subprocess.Popen([*_SCRIPT, *files], preexec_fn=os.setpgrp),
    "daemon": lambda *files: subprocess.run(["sh", "-c", 'setsid "$@" &', "sh", *_SCRIPT, *files], check=True),
    "forked twice": _fork_twice,
    "multiprocessing": lambda *files: (
        multiprocessing.get_context("fork").Process(target=_set_session_and_wait, args=files).start()
    ),
}


class Launches(gymnasium.Env[Any, Any]):
    """Starts a helper process in its constructor.

    Args:
        launcher: key of `LAUNCHERS`.
        folder: contains the file of process ids and the pipe.
        death: how the worker ends; 'sibling': the constructor raises.
    """

    observation_space, action_space = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, launcher: str, folder: str, death: str) -> None:
        self.death, self.once = death, os.path.join(folder, "once")
        pids = os.path.join(folder, "pids")
        before = os.path.getsize(pids)
        LAUNCHERS[launcher](pids, os.path.join(folder, "end"))
        wait_until(lambda: os.path.getsize(pids) > before)
        if death == "sibling":
            raise RuntimeError("cannot be built")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.death in ("crash", "limit") and not os.path.exists(self.once):
            Path(self.once).touch()
            if self.death == "crash":
                ctypes.string_at(0)
            signal.pause()
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        if self.death == "close hangs":
            signal.pause()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "pids").touch()
    os.mkfifo(tmp_path / "end")
    end = os.open(tmp_path / "end", os.O_RDWR)
    yield tmp_path
    os.close(end)
    wait_until(lambda: not running(tmp_path))


def running(folder: Path) -> list[int]:
    """Return the helpers that run."""
    pids = map(int, (folder / "pids").read_text().split())
    return [pid for pid in pids if state_of(pid) not in ("", "Z")]


def die(launcher: str, folder: Path, death: str, context: str = "forkserver") -> None:
    """Make an env with a helper, and have its worker end; the helpers of living workers are checked here."""
    env_fn = lambda: Launches(launcher, str(folder), death)  # noqa: E731
    if death == "sibling":
        with pytest.raises(RuntimeError, match="cannot be built"):
            vecenv.VectorEnv([env_fn], num_workers=1, context=context)
        return
    envs = vecenv.VectorEnv([env_fn], num_workers=1, context=context, timeouts={"step": 1.0, "close": 1.0})
    try:
        envs.reset(seed=0)
        assert len(running(folder)) == 1
        if death == "kill":
            os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.step(np.zeros(1, np.int64))
        assert len(running(folder)) == 1, "that of the worker that lives"
    finally:
        with contextlib.suppress(vecenv.WorkerTimeoutError):
            envs.close()


DEATHS = ["kill", "crash", "limit", "sibling", "close", "close hangs"]


@pytest.mark.parametrize("launcher", ["session", "forked twice"])
def test_processes_of_an_env_end_with_their_worker(launcher: str, folder: Path) -> None:
    die(launcher, folder, "kill")
    assert not running(folder)


@pytest.mark.extended
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("death", DEATHS)
def test_processes_of_an_env_end_however_their_worker_ends(launcher: str, death: str, folder: Path) -> None:
    die(launcher, folder, death)
    assert not running(folder)


@pytest.mark.extended
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_processes_of_an_env_end_under_every_start_method(launcher: str, context: str, folder: Path) -> None:
    die(launcher, folder, "kill", context)
    assert not running(folder)


PROGRAM = """
import sys
from pathlib import Path
import vecenv
from tests.faults.test_processes_of_envs import Launches
if __name__ == "__main__":
    envs = vecenv.VectorEnv([lambda: Launches(sys.argv[1], sys.argv[2], "")], num_workers=1)
    envs.reset(seed=0)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.extended
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("implementation", ["native", "python"], indirect=True)
def test_processes_of_an_env_end_with_a_killed_program(launcher: str, implementation: str, folder: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, launcher, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None and program.stdout.readline() == "ready\n"
        assert len(running(folder)) == 1
        program.kill()
    wait_until(lambda: not running(folder))


def test_processes_of_the_program_and_of_other_workers_are_left_alone(folder: Path) -> None:
    mine = subprocess.Popen([*_SCRIPT, str(folder / "pids"), str(folder / "end")], start_new_session=True)
    wait_until(lambda: len(running(folder)) == 1)
    envs = vecenv.VectorEnv([lambda: Launches("session", str(folder), "")] * 2, num_workers=2)
    try:
        assert len(running(folder)) == 3
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        envs.reset(seed=0)
        assert len(running(folder)) == 3, "that of the successor, of the other worker, and of the program"
    finally:
        envs.close()
    assert running(folder) == [mine.pid] and VARIABLE not in os.environ
    mine.kill()
    mine.wait()
