"""`vecenv tune`: wrong options, JSON, the terminal, and Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cli.test_bench import ROOT, WITHOUT_PACKAGE, Run, assert_one_line, run  # noqa: F401
from tests.faults.traces import wait_until


@pytest.mark.parametrize(
    "options, parts",
    [
        ([], ["ENV"]),
        (["CartPole-v1", "--envs", "0"], ["--envs", "'0'"]),
        (["CartPole-v1", "--policy-ms", "-1"], ["--policy-ms", "'-1'"]),
        (["CartPole-v1", "--seconds", "0"], ["--seconds", "'0'"]),
        (["CartPole-v1", "--option", "num_workers=3"], ["num_workers", "cannot be given"]),
        (["CartPole-v1", "--option", "infos=some"], ["infos", "'some'"]),
        (["NoSuchEnv-v0"], ["NoSuchEnv"]),
        (["no_such_module:make"], ["no_such_module"]),
        (["vecenv.envs.toys:RaiseAtInit"], ["RaiseAtInit", "toy env"]),
        (["vecenv.envs.toys:RaiseAtStep"], ["RaiseAtStep", "ZeroDivisionError"]),
        (["CartPole-v1", "--json", "/proc/x.json"], ["--json", "/proc/x.json"]),
    ],
    ids=lambda value: " ".join(value) or None,
)
def test_wrong_option_is_one_line_and_exit_code_2(run, options: list[str], parts: list[str]):  # noqa: F811
    assert_one_line(run("tune", *options), 2, *parts)


COMMAND = ["tune", "vecenv.envs.toys:NullEnv", "--envs", "2", "--seconds", "1"]


@pytest.mark.extended
def test_json_on_standard_output_and_in_a_file(run, tmp_path: Path):  # noqa: F811
    done = run(*COMMAND, "--json", "-")
    assert done.code == 0
    content = json.loads(done.out)
    assert content["settings"]["env"] == "vecenv.envs.toys:NullEnv" and content["settings"]["envs"] == 2
    assert content["machine"]["usable_cores"] >= 1
    assert content["best"] == content["results"][0]
    assert content["plain_loop_wins"] == (content["best"]["backend"] != "process")
    assert all(f"    {line}\n" in done.err for line in content["call"].splitlines())
    path = tmp_path / "tune.json"
    path.write_text("results of an hour")
    assert_one_line(run(*COMMAND, "--json", str(path)), 2, "--overwrite")
    assert run(*COMMAND, "--lockstep", "--json", str(path), "--overwrite").code == 0
    assert json.loads(path.read_text())["settings"]["lockstep"] is True
    assert list(tmp_path.iterdir()) == [path]


def _run_under_terminal(command: list[str]) -> tuple[int, str]:
    """Run a program whose output is a pseudo terminal of 60 columns; return its exit code and output."""
    parent, child = pty.openpty()
    environ = {**os.environ, "COLUMNS": "60", "TERM": "xterm"}
    with subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environ, cwd=ROOT) as process:
        os.close(child)
        output = b""
        while True:
            try:
                part = os.read(parent, 10_000)
            except OSError:  # the program has ended
                break
            if not part:
                break
            output += part
    os.close(parent)
    return process.returncode, output.decode()


@pytest.mark.extended
def test_terminal_shows_progress_and_a_table_that_fits():
    code, output = _run_under_terminal([sys.executable, "-m", "vecenv", *COMMAND])
    assert code == 0, output
    assert "opening" in output and "\x1b[" in output, "the bar of rich"
    assert "env steps per second" in " ".join(output.split()) and "envs = " in output
    table = output[output.rindex("setting") :].splitlines()
    assert all(len(line) <= 60 for line in table if not line.startswith("    "))


@pytest.mark.extended
def test_progress_without_rich_is_plain_text():
    code, output = _run_under_terminal([sys.executable, "-c", WITHOUT_PACKAGE.format(package="rich", argv=COMMAND)])
    assert code == 0, output
    assert "/1 opening" in output and "\x1b[" not in output
    assert "envs = " in output


@pytest.mark.extended
def test_interrupted_command_is_one_line_and_leaves_no_process():
    command = [sys.executable, "-m", "vecenv", *COMMAND[:-1], "600"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    children = psutil.Process(process.pid)
    wait_until(lambda: len(children.children(recursive=True)) > 3, seconds=60.0)
    started = children.children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert_one_line(Run(process.returncode, out, err), 130, "interrupted")
    assert psutil.wait_procs(started, timeout=10)[1] == []
