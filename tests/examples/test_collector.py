"""The example collects the number of episodes that was asked for, and a seed repeats the run."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from tests.programs import run_python
from vecenv.examples.collector import RandomPolicy, main


@pytest.mark.extended
def test_collector_seed_repeats_the_run(capsys: pytest.CaptureFixture[str]):
    outputs = []
    for _ in range(2):
        main(["--envs", "3", "--episodes", "5", "--seed", "7"])
        outputs.append(capsys.readouterr().out.splitlines())
    assert outputs[0][:2] == outputs[1][:2]
    assert outputs[0][0] == "CartPole-v1: 5 episodes of a random policy in 3 envs"
    assert outputs[0][1].startswith("return: mean ")
    assert outputs[0][2].startswith("speed: ")


def test_random_policy_draws_nested_actions():
    space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,)))
    actions = RandomPolicy(space, 0)(None, np.arange(5))
    assert actions["a"].shape == (5,) and actions["b"].shape == (5, 2)


@pytest.mark.extended
def test_collector_runs_an_atari_game_without_an_import():
    pytest.importorskip("ale_py")
    options = ["--env", "ALE/Breakout-v5", "--envs", "1", "--episodes", "1"]
    done = run_python("-m", "vecenv.examples.collector", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ALE/Breakout-v5: 1 episodes")
