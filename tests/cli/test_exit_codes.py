"""Exits of commands: with a closed output pipe, with unwritable output, with a missing package."""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vecenv.cli.exit_codes import run_command
from vecenv.errors import StateError

BENCH = ["vecenv", "bench", "--envs", "1", "--skip", "gymnasium", "--skip", "ceiling", "--seconds", "0.1"]
REPORT = ["vecenv", "bench", "vecenv.envs.toys:NullEnv", "--only", "sync", "--envs", "2", "--seconds", "0.1"]
EVALUATE = ["vecenv", "evaluate", "CartPole-v1", "--policy", f"{__name__}:push_left", "--episodes", "2", "--envs", "1"]
COMMANDS = [["vecenv", "check", "CartPole-v1"], BENCH, REPORT, ["benchmarks.speed", "--list"]]
ROOT = Path(__file__).parents[2]

WITHOUT_MUJOCO = """
import runpy, sys
sys.modules["mujoco"] = None
sys.argv = ["soak", "--seconds", "0.1"]
runpy.run_module("benchmarks.soak", run_name="__main__")
"""


def push_left(obs, env_id):
    return np.zeros(len(obs), np.int64)


def run(argv, stdout=subprocess.PIPE, env=None):
    return subprocess.run(
        [sys.executable, *argv], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, cwd=ROOT, env=env
    )


@pytest.mark.extended
@pytest.mark.parametrize("command", COMMANDS)
def test_closed_output_pipe_ends_a_command_quietly(command):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(["-m", *command], writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.extended
@pytest.mark.parametrize("command", COMMANDS)
def test_unwritable_output_is_one_line_and_exit_code_1(command):
    with open("/dev/full", "w") as full:
        done = run(["-m", *command], full)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "standard output cannot be written: No space left on device" in done.stderr


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_missing_stream_is_the_null_device_during_a_command(name, monkeypatch):
    monkeypatch.setattr(sys, name, None)
    streams = []

    def command():
        streams.append(getattr(sys, name))
        print("text", file=streams[0], flush=True)
        return int(streams[0].isatty())

    assert run_command("here", command) == 0 and streams[0].closed and getattr(sys, name) is None


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_text_that_a_stream_cannot_encode_is_readable(name, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, name, stream)
    assert run_command("here", lambda: print("██ ─ é \udce9", file=stream)) == 0
    stream.flush()
    assert stream.buffer.getvalue() == b"## - \\xe9 \xe9\n" and stream.errors == "backslashreplace"


@pytest.mark.extended
def test_tables_in_ascii_are_printed():
    """The program that `tune` had found was lost in a UnicodeEncodeError."""
    command = ["tune", "vecenv.envs.toys:NullEnv", "--envs", "2", "--seconds", "1"]
    done = run(["-m", "vecenv", *command], env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.isascii()
    assert "----" in done.stdout and "envs = vecenv.VectorEnv(" in done.stdout


@pytest.mark.extended
@pytest.mark.parametrize(
    "command, code, text",
    [
        (REPORT, 0, ""),
        (["vecenv", "tune", "vecenv.envs.toys:NullEnv", "--envs", "2", "--seconds", "1"], 0, ""),
        (EVALUATE, 0, ""),
        (["vecenv", "top"], 2, "vecenv top: standard output is no terminal; use --once or --json\n"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_output_closed_from_the_start_is_no_error(command, code, text):
    """These commands ended with AttributeError: 'NoneType' object has no attribute 'isatty'."""
    if command[1] == "top":
        pytest.importorskip("rich")
    close_and_run = ["-c", 'exec "$0" "$@" >&-', sys.executable, "-m", *command]
    done = subprocess.run(["sh", *close_and_run], stderr=subprocess.PIPE, text=True, timeout=120, cwd=ROOT)
    assert (done.returncode, done.stderr) == (code, text)


@pytest.mark.parametrize("error", [OSError(5, "of a device"), BrokenPipeError(32, "of a simulator"), KeyError("bug")])
def test_other_errors_are_raised(error, capsys):
    def command():
        raise error

    with pytest.raises(type(error)) as caught:
        run_command("here", command)
    assert caught.value is error and capsys.readouterr().err == ""


def test_exit_codes_of_commands(capsys):
    def fail():
        raise StateError("two\nlines")

    assert [run_command("here", command) for command in (lambda: None, lambda: 3, fail)] == [0, 3, 1]
    assert capsys.readouterr().err == "here: two lines\n"


MISTAKES = {
    "against no-such-revision": "is not a revision that Git knows",
    "board --rounds 0": "argument --rounds: expected an integer of at least 1, got '0'",
    "managers --env NoSuchEnv-v0": "Environment `NoSuchEnv` doesn't exist",
    "managers --json no_such_folder/x.json": "directory 'no_such_folder' does not exist",
    "memory --from-step 10 --to-step 5": "--from-step must not be above --to-step",
    "memory --env NoSuchEnv-v0": "Environment `NoSuchEnv` doesn't exist",
    "peers --seconds nan": "argument --seconds: expected a positive number of seconds, got 'nan'",
    "ray_soak --env CartPole-v1:1 --env CartPole-v1:2 --env CartPole-v1:3": "--env: at most 2 kinds",
    "scaleout --row no-such-row": "no row contains 'no-such-row'; try --list",
    "soak --env CartPole-v1:x": "argument --env: expected an integer of at least 1, got 'x'",
    "speed --row idle --json .": "is a directory, expected a file",
}


@pytest.mark.extended
@pytest.mark.parametrize("command", MISTAKES)
def test_benchmark_reports_missing_requirements_before_measuring(command, capsys, monkeypatch):
    """Some raised ZeroDivisionError or KeyError; others failed after minutes, when they wrote the file."""
    pytest.importorskip("rich")
    name, *options = command.split()
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [name, *options])
    try:
        code = run_command(name, importlib.import_module(f"benchmarks.{name}").main)
    except SystemExit as error:  # raised by the parser of options
        code = error.code
    captured = capsys.readouterr()
    assert code == 2 and MISTAKES[command] in captured.err and captured.out == ""


@pytest.mark.extended
def test_soak_without_its_env_package_is_one_line_and_exit_code_2():
    done = run(["-c", WITHOUT_MUJOCO])
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == ""
    assert "gymnasium[mujoco]" in done.stderr
