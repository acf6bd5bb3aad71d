"""`python -m benchmarks.never_slower`: the grid, cells that cannot be measured, and busy loops that end."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import never_slower
from benchmarks.clients import CLIENTS
from benchmarks.never_slower import Kind
from vecenv.errors import ConfigError
from vecenv.measurement.target import registered_env

ROOT = Path(__file__).parents[2]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["never_slower", *arguments])
    never_slower.main()


@pytest.mark.extended
def test_never_slower_prints_ratios_and_the_number_of_slower_cells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(never_slower, "FIRST_SECONDS", 0.2)
    file = tmp_path / "grid.json"
    cells = ["--face", "gymnasium", "--row", "cartpole", "--row", "sleep-1ms", "--envs", "1", "--envs", "2"]
    run(monkeypatch, *cells, "--seconds", "0.2", "--rounds", "2", "--busy", "1", "--json", str(file))
    results = json.loads(file.read_text())["results"]
    titles = [f"cartpole x {count}" for count in (1, 2)]
    titles += [f"sleep-1ms x {count}{part}" for count in (1, 2) for part in (", first 5 s", "")]
    assert [row["task"] for row in results] == titles
    assert all(row["theirs"] in ("gymnasium sync", "gymnasium async") and min(row["ratios"]) > 0 for row in results)
    assert [len(row["ratios"]) for row in results] == [2, 2, 1, 2, 1, 2]
    lines = capsys.readouterr().out.splitlines()
    assert "| Gymnasium | 1 | 2 |" in lines and max(map(len, lines[:-2])) <= 100
    names = [line.split(" | ")[0] for line in lines if line.startswith("| ")]
    assert names == ["| Gymnasium", "| cartpole", "| sleep-1ms, first 5 s", "| sleep-1ms"]
    assert lines[-2].startswith("busy loops of other programs: 1; ") and "gymnasium 1." in lines[-2]
    slower = sum(never_slower.Comparison(**row).quartiles[1] < 0.97 for row in results)
    assert lines[-1] == f"cells below 0.97: {slower} of 6; not measured: 0"


def test_cells_of_a_missing_framework_are_listed_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    run(monkeypatch, "--face", "tianshou")
    lines = capsys.readouterr().out.splitlines()
    assert "tianshou is not installed, its rows are left out: pip install tianshou" in lines
    assert "| cartpole | - |  |" in lines and "| busy-50us |  | - |" in lines and "| sleep-1ms |  | - |" in lines
    assert lines[-1] == "cells below 0.97: 0 of 0; not measured: 4"


def test_kind_of_env_that_cannot_be_built_is_listed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(never_slower.KINDS, "cheetah", Kind(registered_env("NoSuchEnv-v0")))
    run(monkeypatch, "--face", "gymnasium", "--row", "cheetah", "--envs", "8")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cheetah is not measured: ") and "NoSuchEnv" in lines[0]
    assert "| cheetah | - |" in lines and lines[-1] == "cells below 0.97: 0 of 0; not measured: 1"


def test_choice_without_a_cell_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no cell of the grid"):
        run(monkeypatch, "--face", "tianshou", "--envs", "1")


def test_grid_has_the_classes_of_each_framework() -> None:
    clients = {client.framework: client for client in CLIENTS}
    for framework, places in never_slower.GRID.items():
        client = clients[framework]
        assert client.ours and client.processes and client.loop
        assert len(places) in (3, 42)


def test_busy_loops_end_with_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), never_slower.busy_loops(2) as pids:
        processes = [psutil.Process(pid) for pid in pids]
        raise KeyboardInterrupt
    assert len(processes) == 2 and not any(process.is_running() for process in processes)


def test_busy_loops_end_when_the_benchmark_is_killed() -> None:
    program = (
        "import sys; from benchmarks.never_slower import busy_loops\n"
        "with busy_loops(2) as pids:\n    print(*pids, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(processes) == 2
    assert psutil.wait_procs(processes, timeout=60)[1] == []
