"""The examples over Ray learn CartPole on the simulated cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.ray.cluster import run_program

pytest.importorskip("ray", exc_type=ImportError)
pytest.importorskip("torch", exc_type=ImportError)

pytestmark = [pytest.mark.ray, pytest.mark.extended]

#: Env steps within which the mean return of the last 100 episodes is 400; other seeds need up to two thirds of it.
MOST_STEPS = {"ray_ppo": 150_000, "ray_impala": 300_000}


def train(cluster: Any, name: str, *options: str, max_steps: int | None = None) -> list[float]:
    """Run an example; return the mean returns that it prints: first that of the last 100 episodes."""
    steps = str(MOST_STEPS[name] if max_steps is None else max_steps)
    output = run_program(cluster, f"from vecenv.examples.{name} import main; main({[*options, '--steps', steps]})")
    return [float(number) for number in re.findall(r"mean return ([0-9.]+)", output)]


@pytest.mark.parametrize("name", list(MOST_STEPS))
def test_example_learns_and_draws_a_plot(cluster: Any, name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "returns.png"
    assert train(cluster, name, "--target", "100", "--plot", str(plot))[0] >= 100
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_evaluations_run_beside_a_training(cluster: Any) -> None:
    _, *evaluations = train(cluster, "ray_evaluation", "--shards", "1", max_steps=4096)
    assert evaluations and min(evaluations) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MOST_STEPS))
def test_example_reaches_a_mean_return_of_400(cluster: Any, name: str) -> None:
    assert train(cluster, name)[0] >= 400
