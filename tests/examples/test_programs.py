"""Each example runs as a module, and refuses numbers that are too small before it starts a process."""

from __future__ import annotations

import pytest

from tests.programs import run_python

# Example -> options of a short run, part of its output; options that are refused.
RUNS = {
    "alf_rollout": (["--steps", "5"], "FFFFFF"),
    "collector": (["--envs", "2", "--episodes", "4"], "4 episodes"),
    "evaluator": (["--envs", "2", "--episodes", "1"], "1 episode"),
    "self_play": (["--game", "gomoku", "--games", "8", "--envs", "4"], "8 games"),
}
REFUSED = {
    "alf_rollout": [["--envs", "0"], ["--steps", "0"], ["--limit", "0"], ["--seed", "-1"]],
    "collector": [["--envs", "0"], ["--episodes", "0"], ["--seed", "-1"]],
    "evaluator": [["--envs", "0"], ["--episodes", "0"], ["--seed", "-1"]],
    "ppo": [["--envs", "0"], ["--steps", "0"], ["--seed", "-1"]],
    "sb3_ppo": [["--envs", "0"], ["--steps", "0"], ["--seed", "-1"], ["--threads", "-1"]],
    "self_play": [["--envs", "0"], ["--games", "0"], ["--workers", "0"], ["--seed", "-1"]],
}


@pytest.mark.extended
@pytest.mark.parametrize("name", RUNS)
def test_example_runs_as_a_module(name: str) -> None:
    options, output = RUNS[name]
    done = run_python("-m", f"vecenv.examples.{name}", *options)
    assert (done.returncode, done.stderr) == (0, "") and output in done.stdout


@pytest.mark.parametrize("name, option", [(name, option) for name in REFUSED for option in REFUSED[name]], ids=str)
def test_example_refuses_too_small_numbers(name: str, option: list[str]) -> None:
    """A seed below 0 printed a NumPy traceback after all workers had started."""
    example = pytest.importorskip(f"vecenv.examples.{name}", exc_type=ImportError)
    with pytest.raises(SystemExit) as caught:
        example.main(option)
    assert caught.value.code == 2
