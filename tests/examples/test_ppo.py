"""The PPO example learns CartPole, evaluates, and draws a plot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", exc_type=ImportError)

from tests.programs import run_python
from vecenv import Transitions
from vecenv.examples.ppo import SETTINGS, advantages_of, train


def test_advantages_use_the_values_of_successors():
    """Two envs, three steps: env 0 terminates at step 1, env 1 is truncated at step 0."""
    ones = np.ones((3, 2))
    values = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    terminated = np.array([[False, False], [True, False], [False, False]])
    truncated = np.array([[False, True], [False, False], [False, False]])
    bootstrap = np.array([[0, 10], [0, 0], [20, 30]], np.float32)
    empty, lost = np.empty(0), np.zeros((3, 2), np.bool_)
    batch = Transitions(
        *(None, None, ones, terminated, truncated, lost, ones, ones, ones),
        *({"value": values}, bootstrap, empty, empty, lambda: None),
    )
    settings = dataclasses.replace(SETTINGS["vector"], gamma=0.5, gae_lambda=0.5)
    last = [1 + 10 - 5, 1 + 15 - 6]
    middle = [1 - 3, 1 + 3 - 4 + 0.25 * last[1]]
    first = [1 + 1.5 - 1 + 0.25 * middle[0], 1 + 5 - 2]
    assert advantages_of(batch, settings).tolist() == [first, middle, last]


@pytest.mark.extended
def test_ppo_prints_returns_and_draws_a_plot(tmp_path: Path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "returns.png"
    options = ["--steps", "1024", "--envs", "2", "--eval-episodes", "3", "--plot", str(plot)]
    # A process of its own, as matplotlib keeps the files of its fonts open.
    done = run_python("-m", "vecenv.examples.ppo", *options, timeout=240)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("CartPole-v1: mean return ") and " after 1024 steps, " in first
    assert second.startswith("evaluation: mean return ")
    assert second.endswith(" of 3 episodes with the most likely actions")
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Let torch compute with one thread: more of them wait for each other on busy cores."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.extended
def test_ppo_learns(one_torch_thread: None):
    settings = dataclasses.replace(SETTINGS["vector"], target=100.0)
    trained = train("CartPole-v1", settings, seed=0)
    assert np.mean([episode_return for _, episode_return in trained.history[-100:]]) >= 100.0
    assert trained.steps < 50_000
