"""The collector takes its share of episodes from every env, and a seed repeats the run."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

from vecenv import create_env_manager
from vecenv.envs.toys import ToyEnv
from vecenv.examples.collector import collect, collect_by_id, main
from vecenv.vector import VectorEnv


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("num_episodes", [1, 3, 7])
def test_collector_takes_equal_shares_from_every_env(backend: str, num_episodes: int):
    lengths = [2, 5, 11]
    envs = VectorEnv([functools.partial(ToyEnv, length) for length in lengths], backend=backend)
    try:
        collected = collect(envs, lambda obs: envs.action_space.sample(), num_episodes, seed=0)
    finally:
        envs.close()
    shares = [num_episodes // 3 + (env_id < num_episodes % 3) for env_id in range(3)]
    expected = [float(length) for length, share in zip(lengths, shares) for _ in range(share)]
    assert sorted(collected.returns) == sorted(expected)  # the reward is 1 per step
    assert collected.steps >= sum(expected)


@pytest.mark.parametrize("kind", ["base", "subprocess", "async_subprocess"])
@pytest.mark.parametrize("num_episodes", [1, 7])
def test_collector_runs_through_a_manager(kind: str, num_episodes: int):
    lengths = [2, 5, 11]
    with create_env_manager({"type": kind}, [functools.partial(ToyEnv, length) for length in lengths]) as manager:
        collected = collect_by_id(manager, lambda obs: dict.fromkeys(obs, 0), num_episodes, seed=0)
    shares = [num_episodes // 3 + (env_id < num_episodes % 3) for env_id in range(3)]
    expected = [float(length) for length, share in zip(lengths, shares) for _ in range(share)]
    assert sorted(collected.returns) == sorted(expected)
    assert collected.steps >= sum(expected)


@pytest.mark.parametrize("manager", [[], ["--manager", "subprocess"], ["--manager", "async_subprocess"]])
def test_collector_seed_repeats_the_run(manager: list[str], capsys: pytest.CaptureFixture[str]):
    outputs = []
    for _ in range(2):
        main(["--envs", "3", "--episodes", "5", "--seed", "7", *manager])
        outputs.append(capsys.readouterr().out.splitlines())
    assert outputs[0][:2] == outputs[1][:2]
    assert outputs[0][0].startswith("CartPole-v1: 5 episodes")
    assert outputs[0][1].startswith("return: mean ")
    assert outputs[0][2].startswith("speed: ")


def test_collector_runs_as_a_module():
    command = [sys.executable, "-m", "vecenv.examples.collector", "--envs", "2", "--episodes", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "4 episodes" in done.stdout and "env steps" in done.stdout


@pytest.mark.parametrize("option", [["--envs", "0"], ["--episodes", "0"], ["--seed", "-1"]])
def test_collector_refuses_too_small_numbers(option: list[str]):
    with pytest.raises(SystemExit) as caught:
        main(option)
    assert caught.value.code == 2


def test_collector_runs_an_atari_game_without_an_import():
    pytest.importorskip("ale_py")
    command = [sys.executable, "-m", "vecenv.examples.collector", "--env", "ALE/Breakout-v5"]
    done = subprocess.run([*command, "--envs", "1", "--episodes", "1"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ALE/Breakout-v5: 1 episodes")
