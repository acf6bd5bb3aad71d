"""The examples over Ray learn CartPole on the simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integrations.ray.cluster import run_program

pytest.importorskip("ray", exc_type=ImportError)
pytest.importorskip("torch", exc_type=ImportError)

pytestmark = [pytest.mark.ray, pytest.mark.extended]

#: Env steps within which the mean return of the last 100 episodes is 400; other seeds need up to two thirds of it.
MOST_STEPS = {"ray_ppo": 150_000, "ray_impala": 300_000}


def train(cluster: Any, name: str, *options: str) -> float:
    """Run an example; return the mean return of the last 100 episodes."""
    program = f"from vecenv.examples.{name} import main; main({[*options, '--steps', str(MOST_STEPS[name])]})"
    output = run_program(cluster, program)
    return float(output.partition("mean return ")[2].split()[0])


@pytest.mark.parametrize("name", list(MOST_STEPS))
def test_example_learns_and_draws_a_plot(cluster: Any, name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "returns.png"
    assert train(cluster, name, "--target", "100", "--plot", str(plot)) >= 100
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MOST_STEPS))
def test_example_reaches_a_mean_return_of_400(cluster: Any, name: str) -> None:
    assert train(cluster, name) >= 400
