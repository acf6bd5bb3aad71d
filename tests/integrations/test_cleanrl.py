"""A program like CleanRL's `ppo.py` continues after kills, with the weights of a run that was never killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_python

torch: Any = pytest.importorskip("torch")


def run(path: Path, *killed_at: str) -> int:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = run_python("-m", "tests.integrations.cleanrl_program", str(path), *killed_at, cwd=path.parent, env=environ)
    assert done.stderr == ""
    return done.returncode


@pytest.mark.extended
def test_program_like_cleanrl_ends_with_equal_weights_after_kills(tmp_path: Path) -> None:
    for killed_at in ("1", "3"):
        assert run(tmp_path / "killed.pt", killed_at) == -signal.SIGKILL
    assert run(tmp_path / "killed.pt") == run(tmp_path / "whole.pt") == 0
    expected, found = (torch.load(tmp_path / name, weights_only=False) for name in ("whole.pt", "killed.pt"))
    assert found["returns"] == expected["returns"] and len(expected["returns"]) > 10
    for name, weights in expected["agent"].items():
        assert torch.equal(weights, found["agent"][name]), name
