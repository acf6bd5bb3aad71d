"""`python -m benchmarks.peers`: the table, peers that are missing or fail, and the processes of its modes."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import peers
from benchmarks.peer_modes import PEERS, Peer, Task
from benchmarks.peer_process import PeerProcess
from vecenv.envs.toys import BusyEnv, NullEnv
from vecenv.errors import ConfigError
from vecenv.measurement.target import registered_env

ROOT = Path(__file__).parents[2]
CARTPOLES = Task("CartPole-v1, 4 envs", registered_env("CartPole-v1"), 4, "CartPole-v1")
#: All modes build both kinds in one way, so a run of all modes with the second one is slow.
TASKS = [CARTPOLES, pytest.param(Task("busy", BusyEnv, 4), marks=pytest.mark.slow)]
BY_NAME = {peer.name: peer for peer in PEERS}


class ExitsInStep(NullEnv):
    def step(self, action: Any) -> Any:
        os._exit(7)


class RaisesInInit(NullEnv):
    def __init__(self, **kwargs: Any) -> None:
        raise RuntimeError("no simulator here")


def _options(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"peer": None, "python": {}, **changes})


@pytest.mark.extended
def test_peers_prints_a_table_of_ratios_by_turns(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    command = [sys.executable, "-m", "benchmarks.peers", "--env", "CartPole-v1", "--envs", "4", "--json", str(file)]
    command += ["--peer", "gymnasium sync", "--peer", "vecenv VectorEnv", "--seconds", "0.2", "--rounds", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True)
    lines = done.stdout.splitlines()
    assert "| x plain loop | CartPole-v1, 4 envs |" in lines
    rows = json.loads(file.read_text())["rows"]["CartPole-v1, 4 envs"]
    names = [row["name"] for row in rows]
    assert names[:2] == ["plain loop", "ceiling"] and {"gymnasium sync", "vecenv VectorEnv"} <= set(names)
    assert all(row["steps_per_second"] > 0 and len(row["rounds"]) == 2 for row in rows)
    for row in rows[1:]:
        assert f"| {row['name']} | {row['ratio_to_plain']:.2f} |" in lines
    assert "gymnasium 1." in lines[-1] and "vecenv" in lines[-1] and "Python 3." in lines[-1]


def test_missing_peers_are_listed_with_their_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    missing = {"tianshou", "torchrl", "pufferlib", "ding"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else find_spec(name))
    found = [peer.module for peer, _ in peers.find_installed(PEERS, _options())]
    assert not missing & set(found) and {"gymnasium", "vecenv"} <= set(found)
    lines = capsys.readouterr().out
    for module in missing:
        assert lines.count(f"{module} is not installed, its rows are left out: pip install ") == 1


def test_other_interpreter_is_used_without_the_module_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = list(peers.find_installed(PEERS, _options(python={"ding": "/other/python"})))
    assert {(peer.module, python) for peer, python in found} == {("ding", "/other/python")}


def test_names_of_peers_differ() -> None:
    assert len(BY_NAME) == len(PEERS)
    assert not BY_NAME["envpool, envs in C++"].is_for(CARTPOLES._replace(envpool_id=""))


@pytest.mark.extended
def test_peer_is_stopped_between_windows() -> None:
    mode = PeerProcess(BY_NAME["gymnasium sync"], CARTPOLES)
    try:
        process = psutil.Process(mode._process.pid)
        assert mode.version.startswith("gymnasium ") and process.status() == psutil.STATUS_STOPPED
        window = mode.run(0.1)
        assert 0 < window.steps <= 4 * window.batches and window.cpu_seconds > 0
        assert process.status() == psutil.STATUS_STOPPED
    finally:
        mode.close()
    assert not process.is_running()


@pytest.mark.extended
def test_stopped_peer_ends_when_the_benchmark_is_killed() -> None:
    program = (
        "import sys; from benchmarks.peer_process import PeerProcess; from benchmarks.peer_modes import PEERS, Task\n"
        "from vecenv.envs.toys import NullEnv\n"
        "mode = PeerProcess(next(peer for peer in PEERS if peer.name == 'gymnasium async'), Task('null', NullEnv, 2))\n"
        "print(mode._process.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        leader = psutil.Process(int(parent.stdout.readline()))
        processes = [leader, *leader.children(recursive=True)]
        parent.kill()
    assert len(processes) >= 3
    assert psutil.wait_procs(processes, timeout=60)[1] == []


@pytest.mark.extended
def test_peer_that_cannot_build_its_envs_is_an_error_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="gymnasium sync: RuntimeError: no simulator here"):
        PeerProcess(BY_NAME["gymnasium sync"], Task("broken", RaisesInInit, 2))


@pytest.mark.extended
def test_peer_whose_process_dies_is_an_error_with_the_exit_code() -> None:
    mode = PeerProcess(BY_NAME["gymnasium sync"], Task("dies", ExitsInStep, 2))
    try:
        with pytest.raises(ConfigError, match="gymnasium sync: the process died: exit code 7"):
            mode.run(0.1)
    finally:
        mode.close()


@pytest.mark.extended
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.title)
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_peer_steps_all_envs(peer: Peer, task: Task) -> None:
    if not peer.is_for(task):
        pytest.skip("EnvPool has no such env")
    if importlib.util.find_spec(peer.module) is None:
        pytest.skip(f"could not import '{peer.module}'")
    try:
        mode = PeerProcess(peer, task)
    except ConfigError as error:
        if "Can't import ray.tune" in str(error):  # Ray is installed without the packages that RLlib needs
            pytest.skip("could not import 'ray.tune'")
        raise
    try:
        window = mode.run(0.2)
        assert window.steps > 0 and window.batches > 0
    finally:
        mode.close()
