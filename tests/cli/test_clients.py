"""`python -m benchmarks.clients`: ratios to the vector envs of a framework, and frameworks that are missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import clients
from benchmarks.peer_modes import PEERS
from tests.programs import run_python

ROOT = Path(__file__).parents[2]


@pytest.mark.extended
def test_clients_print_ratios_by_turns(tmp_path: Path) -> None:
    file = tmp_path / "clients.json"
    command = [sys.executable, "-m", "benchmarks.clients", "--framework", "gymnasium", "--row", "busy", "--markdown"]
    command += ["--seconds", "0.2", "--rounds", "2", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    results = json.loads(file.read_text())["results"]
    assert [(row["framework"], row["theirs"]) for row in results[:2]] == [
        ("Gymnasium", "gymnasium async"),
        ("Gymnasium", "gymnasium sync"),
    ]
    assert all(len(row["ratios"]) == 2 and min(row["ratios"]) > 0 for row in results)
    lines = done.stdout.splitlines()
    first = clients.CLIENTS[0]
    line = next(line for line in lines if line.startswith(f"| {' | '.join(first.cells)} | "))
    processes, loop = (clients._two_digits(sum(row["ratios"]) / 2) for row in results[:2])
    assert f"| {processes} (" in line and f" / {loop} (" in line
    assert "gymnasium 1." in lines[-1] and "Python 3." in lines[-1]


def test_missing_framework_is_named_with_its_command() -> None:
    """An interpreter without any framework, but for Gymnasium."""
    program = (
        "import importlib.util, sys; from benchmarks import clients; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: find(name) if name == 'vecenv' else None\n"
        "sys.argv = ['clients', '--row', 'cartpole']; clients.main()"
    )
    done = run_python("-c", program, cwd=ROOT, check=True)
    for module in ("stable_baselines3", "ray", "tianshou", "torchrl", "envpool", "pufferlib", "ding"):
        assert done.stdout.count(f"{module} is not installed, its rows are left out: pip install ") == 1


def test_every_framework_has_its_peers_and_a_line_in_its_table() -> None:
    names = {peer.name for peer in PEERS}
    page = (ROOT / "docs" / "first-program.md").read_text(encoding="utf-8")
    for client in clients.CLIENTS:
        assert {client.ours, *client.theirs} <= {*names, ""}
        assert f"\n| {' | '.join(client.cells)} | " in page
