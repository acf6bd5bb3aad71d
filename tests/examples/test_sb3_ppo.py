"""The PPO example runs with tiny sizes, learns the same over every vector env, and stops at its target."""

from __future__ import annotations

import pytest

pytest.importorskip("stable_baselines3")

from vecenv.examples.sb3_ppo import main, train

pytestmark = pytest.mark.sb3


def run(capsys, *options):
    """Run the example and return its lines of these kinds, split into words."""
    main(options)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("PPO on CartPole-v1, 4 envs, until a mean return of ")
    return [line.split() for line in lines]


@pytest.mark.extended
def test_sb3_ppo_learns_the_same_over_all_vector_envs(capsys: pytest.CaptureFixture[str]):
    lines = run(capsys, "--envs", "4", "--steps", "256", "--seed", "3")
    assert [words[0] for words in lines] == ["vecenv", "dummy", "subproc"]
    assert all(words[-1] == "s" and float(words[-2]) >= 0 for words in lines)  # 0.0 on a fast machine
    learnt = [" ".join(words[1:-2]) for words in lines]  # without the name and the seconds
    assert learnt[0] == learnt[1] == learnt[2]
    assert learnt[0].endswith("after 256 steps,")


@pytest.mark.extended
def test_sb3_ppo_stops_at_the_target(capsys: pytest.CaptureFixture[str]):
    (words,) = run(capsys, "--kind", "vecenv", "--envs", "4", "--steps", "20000", "--target", "5")
    text = " ".join(words)
    assert "of the last 100 episodes" in text
    assert int(text.split("after ")[1].split()[0]) < 20000


@pytest.mark.slow
def test_sb3_ppo_learns():
    trained = train("vecenv", num_envs=64, max_steps=300_000, target=400.0, seed=0)
    assert trained.mean_return >= 400 and trained.episodes == 100
