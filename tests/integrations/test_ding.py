"""vecenv's managers in DI-engine's registry: its pipelines give the results of its own managers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ding", exc_type=ImportError)


@pytest.mark.extended
def test_pipelines_give_the_weights_of_dings_own_managers(tmp_path: Path) -> None:
    """In a process of its own, since DI-engine leaves loggers and threads behind."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "tests.integrations.ding_program"]
    environ = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    weights = found["pipeline"]
    assert set(weights) == {"subprocess", "vecenv_subprocess", "vecenv_base"} and len(set(weights.values())) == 1
    assert set(found["middleware"]) == {"vecenv_subprocess_v2", "vecenv_base_v2"}
    assert found["steps"] == {"vecenv_async_subprocess": [0, 1], "vecenv_gym_vector": [0, 1]}
    assert found["names"] == sorted(f"vecenv_{name}" for name in found["names_of_ding"])
