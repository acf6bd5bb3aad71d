"""Pools on a system without the calls that only Linux has, which stands for macOS and Windows.

`stubs/sitecustomize.py` takes the calls away from a program and from its workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from vecenv.core.layout.native import load

from ..programs import run_python

_FOLDER = Path(__file__).parent
_ALL = "eventfd memfd pidfd epoll fork /proc prctl"
_ALL_BUT_FORK = _ALL.replace("fork ", "")
_SYSTEMS = [
    pytest.param(_ALL, "spawn", id="none-spawn"),
    pytest.param(_ALL_BUT_FORK, "forkserver", id="fork-forkserver"),
    pytest.param(_ALL_BUT_FORK, "fork", id="fork-fork"),
]


def environment(without: str, implementation: str = "") -> dict[str, str]:
    """Return the environment variables of a program without these calls."""
    path = os.pathsep.join([str(_FOLDER / "stubs"), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path, "VECENV_TEST_WITHOUT": without}
    variables.pop("VECENV_IMPLEMENTATION", None)
    return {**variables, **({"VECENV_IMPLEMENTATION": implementation} if implementation else {})}


@pytest.mark.parametrize(("without", "context"), _SYSTEMS)
def test_pools_without_calls_of_linux_have_the_rows_of_serial_envs(without: str, context: str, tmp_path: Path) -> None:
    arguments = ("-W", "error", str(_FOLDER / "program.py"), context, "python", str(tmp_path))
    done = run_python(*arguments, env=environment(without), timeout=300)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


@pytest.mark.extended
@pytest.mark.parametrize("without", ["eventfd", "pidfd", "epoll", "memfd fork /proc prctl"])
def test_extension_is_used_unless_a_call_that_it_needs_is_missing(without: str, tmp_path: Path) -> None:
    needed = without in ("eventfd", "pidfd", "epoll")
    implementation = "python" if needed or load() is None else "native"
    source = f"import program; program.check_steps({{}}, {implementation!r})"
    path = {"PYTHONPATH": f"{_FOLDER}{os.pathsep}{environment(without)['PYTHONPATH']}"}
    done = run_python("-W", "error", "-c", source, env={**environment(without), **path})
    assert done.returncode == 0, done.stderr


def test_start_method_that_needs_fork_is_an_error_without_it() -> None:
    source = """
from vecenv import ConfigError, VectorEnv
from vecenv.core.options import PoolOptions
from vecenv.envs.toys import NullEnv
for context in ("fork", "forkserver"):
    try:
        VectorEnv([NullEnv], context=context)
    except ConfigError as error:
        print(error)
print(PoolOptions().context)
"""
    done = run_python("-c", source, env=environment("fork"))
    assert done.stdout.splitlines() == [
        "context='fork' needs os.fork, which this system lacks; use 'spawn'",
        "context='forkserver' needs os.fork, which this system lacks; use 'spawn'",
        "spawn",
    ], done.stderr


@pytest.mark.parametrize(("without", "context"), _SYSTEMS)
def test_workers_end_with_a_killed_program_without_pidfds(without: str, context: str) -> None:
    source = f"""
import sys
from vecenv import VectorEnv
from vecenv.envs.toys import NullEnv
with VectorEnv([NullEnv] * 2, num_workers=2, context={context!r}) as envs:
    print(*envs.worker_pids, flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", source]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment(without), **pipes) as program:
        assert program.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in program.stdout.readline().split()]
        program.send_signal(signal.SIGKILL)
    assert len(workers) == 2
    assert psutil.wait_procs(workers, timeout=30.0)[1] == []
