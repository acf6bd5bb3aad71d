"""A worker's process fails before it runs vecenv: one error with the exception of that process, and no other output."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from tests.isolated.programs import program, run

#: Starts a pool, and prints its exception and the cause of that.
TRY = """
from vecenv.errors import VecenvError
try:
    start(context={context!r}).close()
except VecenvError as error:
    print(type(error).__name__, error, sep=": ")
    print(getattr(error.__cause__, "text", ""))
"""


def start_after(lines: str, context: str, folder: Path) -> str:
    """Run these lines, then a pool; return the printed exception of its start and the traceback of its process.

    The workers fail at the same time, and the error names the first one: each is "worker N" in the result.
    """
    done = run(program("") + lines + TRY.format(context=context), folder)
    assert (done.returncode, done.stderr) == (0, "")
    return re.sub(r"worker \d+", "worker N", done.stdout)


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_worker_that_cannot_import_numpy_is_one_error_with_its_traceback(context: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "numpy.py").write_text("raise ImportError('this NumPy is broken')\n")
    out = start_after(f"sys.path.insert(0, {str(broken)!r})\n", context, tmp_path)
    assert out.startswith(
        "ConfigError: worker N cannot be started: ImportError: this NumPy is broken. That happened in"
    )
    assert out.count("Traceback") == 1 and str(broken / "numpy.py") in out


@pytest.mark.parametrize(
    "end, text", [("_exit(7)", "exit code 7"), ("kill(os.getpid(), 11)", "killed by SIGSEGV (exit code -11)")]
)
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_interpreter_that_ends_at_once_is_one_error_with_its_exit_code(
    context: str, end: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import os, sys\nif '-c' in sys.orig_argv: os.{end}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    ignored = "import warnings; warnings.filterwarnings('ignore', 'resource_tracker')\n"  # its process ends, too
    out = start_after(ignored, context, tmp_path)
    assert "ConfigError: worker N cannot be started: its " in out and f"has ended: {text}. That happened in" in out


@pytest.mark.parametrize("path", [None, "", "/nonexistent/python", "/"])
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_program_without_the_path_of_python_is_one_error(context: str, path: str | None, tmp_path: Path) -> None:
    """A program that embeds Python has no `sys.executable`."""
    out = start_after(f"from multiprocessing import spawn; spawn._python_exe = {path!r}\n", context, tmp_path)
    assert out.startswith(f"ConfigError: {repr(path) if path else 'the path of Python'} ")
    assert "multiprocessing.set_executable(path)" in out


def test_worker_without_a_thread_is_one_error_that_names_the_limits(tmp_path: Path) -> None:
    refused = f"""
from vecenv.core.processes import worker_main
def refuse(*args):
    raise BlockingIOError({errno.EAGAIN}, "no thread is left")
worker_main.LogSender = refuse
"""
    out = start_after(refused, "fork", tmp_path)
    assert "ShortageError: worker " in out and "no thread is left; this process may use" in out
    assert "in refuse" in out


def test_exception_of_a_worker_before_it_serves_is_one_error(tmp_path: Path) -> None:
    refused = """
from vecenv.core.processes import worker_main
def refuse(*args):
    raise PermissionError(13, "the arena cannot be mapped")
worker_main._map_segment = refuse
"""
    out = start_after(refused, "fork", tmp_path)
    assert out.startswith("ConfigError: worker N cannot be started: [Errno 13] the arena cannot be mapped")
    assert "in refuse" in out


def test_memory_limit_is_named_by_the_error_of_a_start(tmp_path: Path) -> None:
    source = program(
        """
        import psutil, resource
        from gymnasium import spaces
        from vecenv.errors import ShortageError
        class Large(toys.NullEnv):
            def __init__(self):
                super().__init__(None)
                self.observation_space = spaces.MultiBinary(1 << 26)
        used = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), resource.RLIM_INFINITY))
        try:
            start(Large)
        except ShortageError as error:
            print(error)
        """
    )
    done = run(source, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the pool cannot be started: [Errno 12]" in done.stdout and "MiB of memory (ulimit -v)" in done.stdout
