"""`vecenv profile`: a table, verdicts and JSON; wrong arguments and signals as of the other commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.faults.traces import wait_until
from tests.one_core import run_on_one_core
from vecenv.cli import main

FOUR = ["profile", "vecenv.envs.toys:NullEnv", "--envs", "4"]


def run(*argv: str) -> int:
    try:
        return main(argv)
    except SystemExit as exit:
        return int(exit.code or 0)


@pytest.mark.extended
def test_profile_prints_table_and_verdicts():
    lines = run_on_one_core(f"from vecenv.cli import main\nassert main({[*FOUR, '--seconds', '1']}) == 0")
    assert lines[0].startswith("vecenv.envs.toys:NullEnv: 4 envs in ")
    assert any(line.startswith("all steps") for line in lines) and any(line.startswith("caller ") for line in lines)
    assert lines[-1].startswith("cheap envs: ") and "backend='serial'" in lines[-1]


@pytest.mark.extended
def test_profile_writes_json_to_stdout(capsys: pytest.CaptureFixture[str]):
    assert run(*FOUR, "--seconds", "4", "--policy-ms", "30", "--json", "-") == 0
    out, err = capsys.readouterr()
    content = json.loads(out)
    assert content["settings"] == {
        "env": "vecenv.envs.toys:NullEnv",
        "envs": 4,
        "seconds": 4.0,
        "policy_ms": 30.0,
        "env_kwargs": {},
    }
    verdict = content["verdicts"][0]  # on a busy machine another may follow
    assert verdict["name"] == "slow policy" and verdict["text"] in err and verdict["number"] > 0.5
    assert content["statistics"]["steps"] > 0 and content["machine"]["usable_cores"] >= 1


@pytest.mark.extended
def test_profile_replaces_a_file_only_with_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "profile.json"
    path.write_text("results of an hour")
    assert run(*FOUR, "--json", str(path)) == 2
    assert "--overwrite" in capsys.readouterr().err and path.read_text() == "results of an hour"
    assert run(*FOUR, "--seconds", "0.1", "--json", str(path), "--overwrite") == 0
    assert "too little was measured" in json.loads(path.read_text())["note"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "argv, code, text",
    [
        (["NoSuchEnv-v0"], 2, "NoSuchEnv"),
        (["vecenv.envs.toys:NoSuch"], 2, "has no function or class 'NoSuch'"),
        ([], 2, "required: ENV"),
        (["CartPole-v1", "--policy-ms", "-1"], 2, "expected milliseconds of at least 0"),
        (["CartPole-v1", "--seconds", "1e9"], 2, "which is a day"),
        (["CartPole-v1", "--policy", "1"], 2, "did you mean --policy-ms?"),
        (["vecenv.envs.toys:RaiseAtStep", "--envs", "2"], 1, "raised"),
    ],
)
def test_wrong_arguments_and_envs_are_one_line(argv, code: int, text: str, capsys: pytest.CaptureFixture[str]):
    assert run("profile", *argv) == code
    err = capsys.readouterr().err
    assert err.startswith("vecenv profile: ") and err.count("\n") == 1 and text in err


@pytest.mark.extended
@pytest.mark.parametrize("number, code, text", [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "SIGTERM")])
def test_signal_ends_the_run_in_one_line(tmp_path: Path, number: int, code: int, text: str):
    path = tmp_path / "x.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "vecenv", *FOUR, "--seconds", "600", "--json", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()  # the envs are built
    wait_until(lambda: psutil.Process(process.pid).num_ctx_switches().voluntary > 200, seconds=60.0)  # and step
    started = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code and err.count("\n") == 1 and text in err
    assert psutil.wait_procs(started, timeout=10)[1] == [] and list(tmp_path.iterdir()) == []
