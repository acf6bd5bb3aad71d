"""The evaluator: exact episode counts, seeds that repeat, and resets in any state of the envs."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from tests.managers.fakes import actors
from vecenv import (
    AsyncSubprocessEnvManager,
    BaseEnvManager,
    DingEnvWrapper,
    EvalEpisodeReturnWrapper,
    SyncSubprocessEnvManager,
)
from vecenv.envs.toys import CountEnv
from vecenv.examples.evaluator import Evaluated, evaluate, main

MANAGERS = [BaseEnvManager, SyncSubprocessEnvManager, AsyncSubprocessEnvManager]


def zeros(obs):
    return dict.fromkeys(obs, 0)


def scored(length):
    return EvalEpisodeReturnWrapper(CountEnv(length))


@pytest.mark.parametrize("manager_cls", MANAGERS)
def test_evaluator_plays_exactly_n_episodes_per_env(manager_cls):
    lengths = [1, 3, 7]
    with manager_cls([functools.partial(scored, length) for length in lengths]) as manager:
        evaluated = evaluate(manager, zeros, 4)
        counts = dict(manager.env_episode_count)
    assert evaluated.returns == {0: [1.0] * 4, 1: [3.0] * 4, 2: [7.0] * 4} and counts == {0: 4, 1: 4, 2: 4}
    assert evaluated.mean == pytest.approx(11 / 3) and evaluated.spread == pytest.approx(np.std(lengths))


@pytest.mark.parametrize("manager_cls", MANAGERS)
@pytest.mark.parametrize("static", [True, False])
def test_evaluator_repeats_its_result_from_any_state(manager_cls, static):
    env_fn = functools.partial(DingEnvWrapper, None, {"env_id": "CartPole-v1"}, caller="evaluator")

    def upright(obs):  # with it the length of an episode depends on its start
        return {env_id: int(one[2] > 0) for env_id, one in obs.items()}

    with manager_cls([env_fn] * 3) as manager:
        first = evaluate(manager, upright, 3, seed=5, static=static)
        for _ in range(4):
            manager.step(dict.fromkeys(manager.ready_obs, 1))
        assert evaluate(manager, upright, 3, seed=5, static=static) == first
    for returns in first.returns.values():
        assert (len(set(returns)) == 1) is static or not static
    assert len(set(first.all_returns)) > 1


def test_evaluator_resets_an_env_that_is_stepping(tmp_path):
    """Its late reply is dropped and does not shift later ones."""
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    with AsyncSubprocessEnvManager(actors(2, length=3), {"num_workers": 2, "wait_num": 1}) as manager:
        manager.launch()
        manager.step({0: 0, 1: gate})
        assert manager.active_env == [1]
        opener = subprocess.Popen([sys.executable, "-c", f"open({gate!r}, 'w').close()"])
        evaluated = evaluate(manager, zeros, 2)
        opener.wait()
    assert evaluated.returns == {0: [3.0] * 2, 1: [3.0] * 2}


def test_evaluator_static_seeds_begin_every_episode_alike():
    with BaseEnvManager(
        [lambda: EvalEpisodeReturnWrapper(gymnasium.make("Acrobot-v1", max_episode_steps=5))]
    ) as manager:
        starts = []

        def policy(obs):
            starts.append(obs[0])
            return {0: 0}

        evaluate(manager, policy, 3, seed=1)
    firsts = [starts[index].tolist() for index in (0, 5, 10)]
    assert firsts[0] == firsts[1] == firsts[2] != starts[1].tolist()


def test_evaluator_prints_mean_and_spread_and_repeats_with_a_seed(capsys):
    outputs = []
    for manager in ("base", "subprocess", "base"):
        main(["--envs", "2", "--episodes", "3", "--seed", "7", "--manager", manager])
        outputs.append(capsys.readouterr().out.splitlines())
    assert outputs[0] == outputs[1] == outputs[2]
    lines = outputs[0]
    assert lines[0].startswith("env 0, seed 7: ") and lines[1].startswith("env 1, seed 8: ")
    assert len(lines[0].split(": ")[1].split()) == 3
    assert lines[2] == "CartPole-v1: 6 episodes, 3 in each of 2 envs"
    assert lines[3].startswith("return: mean ") and "standard deviation" in lines[3]


def test_evaluator_runs_as_a_module():
    command = [sys.executable, "-m", "vecenv.examples.evaluator", "--envs", "2", "--episodes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "2 episodes" in done.stdout, done.stderr


@pytest.mark.parametrize("options", [["--envs", "0"], ["--episodes", "0"], ["--seed", "-1"], ["--manager", "x"]])
def test_evaluator_refuses_bad_options(options):
    with pytest.raises(SystemExit) as caught:
        main(options)
    assert caught.value.code == 2


def test_evaluator_computes_statistics():
    evaluated = Evaluated({1: [4.0], 0: [1.0, 1.0]})
    assert evaluated.all_returns == [1.0, 1.0, 4.0] and evaluated.mean == 2.0 and evaluated.spread == np.sqrt(2)
