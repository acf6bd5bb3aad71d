"""The evaluator: results that repeat for any number of envs, and refused options."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from vecenv.examples.evaluator import main, random_policy


@pytest.mark.extended
def test_evaluator_prints_the_same_for_any_number_of_envs(capsys):
    outputs = []
    for envs in ("1", "3"):
        main(["--envs", envs, "--episodes", "5", "--seed", "7"])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    lines = outputs[0].splitlines()
    assert lines[0] == "CartPole-v1: 5 episodes" and lines[1].startswith("return: mean ")
    assert [line.split()[0] for line in lines[-5:]] == ["7", "8", "9", "10", "11"]


@pytest.mark.parametrize(
    "space", [gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(9)] * 2)]
)
def test_random_policy_draws_from_the_generator_of_each_row(space):
    policy = random_policy(space)

    def draw(*seeds):
        actions = policy(None, None, [np.random.default_rng(seed) for seed in seeds])
        return [np.ravel(row).tolist() for row in (zip(*actions) if isinstance(actions, tuple) else actions)]

    assert draw(1, 2, 1) == [*draw(1), *draw(2), *draw(1)] and draw(1) != draw(2)
