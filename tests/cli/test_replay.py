"""`vecenv replay`: the command from an error message repeats the episode, in any working directory."""

from __future__ import annotations

import glob
import os
import pickle
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.traces import recovering_pool
from tests.inside import engine_of
from tests.programs import run_python
from vecenv.cli import main
from vecenv.core.layout.flags import Op
from vecenv.core.recovery import reproducer
from vecenv.envs import toys

MODULE = """
import os
import pathlib
import signal
from vecenv.envs import toys

class Mine(toys.CountEnv):
    def step(self, action):
        if pathlib.Path("crash_at.txt").read_text() == str(self.elapsed_steps):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)

def make():
    return Mine()
"""

TRAIN = """
import sys
import numpy as np
import myenvs
from vecenv import VectorEnv

env = VectorEnv([myenvs.make] * 2, failures={"reproducer_dir": sys.argv[1], "on_repeat": "raise"})
env.reset(seed=5)
try:
    for action in (0, 1, 1, 0, 0):
        env.step(np.full(2, action))
except Exception as error:
    print(error)
finally:
    env.close()
"""


def run(*words: Any, cwd: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return run_python(*map(str, words), cwd=cwd, input=stdin)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with an env that crashes at its third step, after one run; the reproducer is beside it."""
    folder = tmp_path_factory.mktemp("work") / "project"
    folder.mkdir()
    (folder / "myenvs.py").write_text(MODULE)
    (folder / "train.py").write_text(TRAIN)
    (folder / "crash_at.txt").write_text("2")
    done = run("train.py", "..", cwd=folder)
    found = re.search(r"seed \d, last actions \[0, 1, 1\].*`vecenv replay (\S+)` repeats it", done.stdout)
    assert found is not None, done.stdout + done.stderr
    os.rename(found[1], folder.parent / "file")
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path


def replay(project: Path, *words: Any, cwd: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return run("-m", "vecenv", "replay", project.parent / "file", *words, cwd=cwd, stdin=stdin)


@pytest.mark.extended
def test_replay_imports_modules_beside_the_script(project: Path, elsewhere: Path) -> None:
    """It raised ModuleNotFoundError: the file contained neither sys.path nor the working directory."""
    done = replay(project, cwd=elsewhere)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert "Segmentation fault" in done.stderr and "in step" in done.stderr, "it says where"
    head, count, *lines = done.stdout.splitlines()
    assert re.match(
        r"env (\d): worker \d .* died during step of env \1 \(command \d+\): .*; seed \d, last actions \[0, 1, 1\]",
        head,
    )
    assert "commands, the last is" in count
    assert re.fullmatch(r"\d+: reset, seed [56]", lines[0])
    assert [line.partition(": ")[2] for line in lines[1:]] == [
        "step, action 0, reward 1.0",
        "step, action 1, reward 1.0",
    ]


TASKS = """
import os
import signal
import sys
import warnings
from vecenv import VectorEnv
from vecenv.envs import toys

class Tasks(toys.CountEnv):
    def set_task(self, task):
        self.task = task
    def step(self, action):
        if self.elapsed_steps == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        obs, _, *ends = super().step(action)
        return obs, float(self.task), *ends

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    env = VectorEnv([Tasks], num_workers=1, failures={"reproducer_dir": sys.argv[1], "on_repeat": "raise"})
    env.call("set_task", 7)
    env.reset(seed=5)
    env.call("set_task", 8)
    try:
        for task in (9, 10, 11):
            env.step([0])
            env.call("set_task", task)
    except Exception as error:
        print(error)
    finally:
        env.close()
"""


@pytest.mark.extended
def test_replay_repeats_calls_that_change_the_env(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    trained = run("tasks.py", ".", cwd=tmp_path)
    found = re.search(r"`vecenv replay (\S+)` repeats it", trained.stdout)
    assert found is not None, trained.stdout + trained.stderr
    done = run("-m", "vecenv", "replay", found[1], cwd=tmp_path)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert [line.rpartition(" ")[2] for line in done.stdout.splitlines() if "step, action" in line] == ["8.0", "9.0"]


@pytest.mark.extended
def test_failing_import_is_one_line(project: Path, elsewhere: Path) -> None:
    (project / "myenvs.py").rename(project / "moved.py")
    try:
        done = replay(project, cwd=elsewhere)
    finally:
        (project / "moved.py").rename(project / "myenvs.py")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("vecenv replay: env ")
    assert line.endswith("cannot be built here: No module named 'myenvs'") and str(project) in line


@pytest.mark.extended
@pytest.mark.parametrize("keys", ["q\n", ""], ids=["q", "end of input"])
def test_leaving_the_debugger_is_quiet(keys: str, project: Path, elsewhere: Path) -> None:
    """It printed a traceback of bdb.BdbQuit."""
    done = replay(project, "--pdb", cwd=elsewhere, stdin=keys)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.extended
def test_debugger_stops_in_the_step_that_crashed(project: Path, elsewhere: Path) -> None:
    done = replay(project, "--pdb", cwd=elsewhere, stdin="p 'elapsed', self.elapsed_steps\nq\n")
    places = re.findall(r"^> (\S+)\(\d+\)(\w+)\(\)", done.stdout, re.MULTILINE)
    assert places[0] == (str(project / "myenvs.py"), "step")
    assert "('elapsed', 2)" in done.stdout


@pytest.mark.extended
def test_debugger_starts_at_an_earlier_step(project: Path, elsewhere: Path) -> None:
    stop = reproducer.load(project.parent / "file").entries[1].step_id
    keys = "p 'elapsed', self.elapsed_steps\nb myenvs.py:10\nc\np 'elapsed', self.elapsed_steps\nq\n"
    done = replay(project, "--pdb", "--until", stop, cwd=elsewhere, stdin=keys)
    assert "('elapsed', 0)" in done.stdout and "('elapsed', 2)" in done.stdout, done.stdout
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.extended
@pytest.mark.parametrize("keys", ["q\n", "", "n\nq\n"], ids=["q", "end of input", "n q"])
def test_leaving_the_debugger_in_an_earlier_step_ends_the_replay(keys: str, project: Path, elsewhere: Path) -> None:
    """It continued with the next command, as if the env had raised bdb.BdbQuit, and then did not fail."""
    stop = reproducer.load(project.parent / "file").entries[1].step_id
    done = replay(project, "--pdb", "--until", stop, cwd=elsewhere, stdin=keys)
    assert (done.returncode, done.stderr) == (1, "")
    assert "raised" not in done.stdout and not re.findall(r"^(?:\(Pdb\) )*\d+: step", done.stdout, re.MULTILINE)


@pytest.mark.extended
def test_until_stops_before_the_crash(project: Path, elsewhere: Path) -> None:
    stop = reproducer.load(project.parent / "file").step_id
    done = replay(project, "--until", stop, cwd=elsewhere)
    assert (done.returncode, done.stderr) == (0, "") and len(done.stdout.splitlines()) == 5
    assert len(replay(project, "--until", stop, "--quiet", cwd=elsewhere).stdout.splitlines()) == 2


# ---- in this process -----------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file of an episode without a failure."""
    with recovering_pool([toys.CountEnv], reproducer_dir=str(tmp_path)) as pool:
        pool.start()
        pool.reset(seeds=[3])
        pool.recv()
        pool.send(np.array([1]))
        pool.recv()
        return engine_of(pool).reproduce(0, Op.STEP, 2).save("because")


def test_episode_that_does_not_fail_again_is_reported(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", file]) == 0
    *_, reset, step, end = capsys.readouterr().out.splitlines()
    assert (reset, step) == ("1: reset, seed 3", "2: step, action 1, reward 1.0")
    assert end == "the episode was repeated to its end; nothing failed this time"


def test_wrong_files_are_refused(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episode = reproducer.load(file)
    (tmp_path / "older").write_bytes(pickle.dumps((1, episode)))
    (tmp_path / "other").write_text("hello")
    for name, says in (("older", "another version of vecenv"), ("other", "not an episode"), ("none", "No such file")):
        assert main(["replay", str(tmp_path / name)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("vecenv replay: ") and says in line
    assert glob.glob(str(tmp_path / "*.vecenv-episode")) == [file]
