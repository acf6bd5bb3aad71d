"""VecenvVecEnv is a vector env of rl_games that gives the results of rl_games' RayVecEnv."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.programs import run_python
from tests.vector.comparison import assert_same
from vecenv import ConfigError

pytest.importorskip("vecenv.integrations.rl_games", exc_type=ImportError)

from rl_games.common import vecenv as vecenv_of_rl_games
from rl_games.common.env_configurations import configurations
from rl_games.common.gym_compat import make

from tests.integrations.local_ray import ray_in_this_process
from tests.integrations.seeded_cartpole import SeededCartPole

NUM_STEPS = 60


class Failing(SeededCartPole):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("a step failed")


class TwoAgents(SeededCartPole):
    def get_number_of_agents(self) -> int:
        return 2


class TupleActions(gymnasium.Env[Any, Any]):
    """Has two discrete actions, and observes them."""

    observation_space = gymnasium.spaces.Dict(chosen=gymnasium.spaces.Box(0, 9, (2,), np.float64))
    action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(3)])

    def reset(self, **kwargs: Any) -> Any:
        return {"chosen": np.zeros(2)}

    def step(self, action: Any) -> Any:
        return {"chosen": np.array(action, np.float64)}, 1.0, False, {}


#: Without workers, each of which would import torch.
SERIAL = {"backend": "serial"}


def create(kind: str, creator: Any, **config: Any) -> Any:
    """Return a vector env of rl_games, which its configurations select by the type."""
    configurations["test"] = {"env_creator": creator, "vecenv_type": kind}
    return contextlib.closing(vecenv_of_rl_games.create_vec_env("test", 3, **config))


def record(envs: Any, actions: Any, kill_at: int | None = None) -> list[Any]:
    """Return the results of two resets, and of steps after each; a worker is killed before the step `kill_at`."""
    found = []
    for _ in range(2):
        found.append(envs.reset())
        for step, action in enumerate(actions):
            if step == kill_at:
                os.kill(envs.vector_env.worker_pids[0], signal.SIGKILL)
            found += [envs.step(action), envs.get_action_masks()]
            infos = found[-2][-1]
            for info in infos if isinstance(infos, list) else [infos]:
                info.pop("recovered", None)
    return found


@pytest.mark.parametrize("concat_infos", [False, True])
def test_outputs_equal_ray_vec_env_also_after_the_death_of_a_worker(concat_infos: bool) -> None:
    actions = np.random.default_rng(3).integers(2, size=(NUM_STEPS, 3))
    config = {"seed": 5, "max_episode_steps": 7, "concat_infos": concat_infos}
    with ray_in_this_process(), create("RAY", SeededCartPole, **config) as theirs:
        expected = record(theirs, actions)
        info = theirs.get_env_info()
    assert sum(result[2].sum() for result in expected if isinstance(result, tuple)) > 10
    with create("VECENV", SeededCartPole, **config) as ours:
        assert ours.get_env_info() == info
        assert ours.has_action_masks() and ours.get_number_of_agents() == 1
        assert_same(record(ours, actions, NUM_STEPS // 2), expected)


def test_weights_are_set_in_the_envs_that_are_named() -> None:
    with create("VECENV", SeededCartPole, vecenv_config=SERIAL) as envs:
        envs.reset()
        envs.set_weights([2, 0], 4)
        *_, infos = envs.step(np.zeros(3, np.int64))
        assert [info["weights"] for info in infos] == [4, 0, 4]
        assert envs.get_action_masks().tolist() == [[True, False], [True, True], [True, False]]


def test_first_reset_seeds_envs_without_a_seed_method() -> None:
    creator = functools.partial(make, "CartPole-v1", max_episode_steps=7)
    with create("VECENV", creator, seed=5, vecenv_config=SERIAL) as envs:
        obs = envs.reset()
        for seed, row in enumerate(obs, 5):
            assert row.tolist() == creator().reset(seed=seed).tolist()
        for _ in range(7):
            next_obs, _, dones, infos = envs.step(np.arange(3) % 2)
        assert dones.all() and [info["time_outs"] for info in infos] == [True] * 3
        assert (next_obs != obs).all()  # the seeds are for the first reset only


def test_actions_of_a_tuple_space_are_rows_and_dict_observations_are_float32() -> None:
    with create("VECENV", TupleActions, vecenv_config=SERIAL) as envs:
        envs.reset()
        actions = np.array([[0, 2], [1, 1], [1, 0]])
        obs, *_ = envs.step(actions)
        assert obs["chosen"].dtype == np.float32 and obs["chosen"].tolist() == actions.tolist()


def test_options_of_vecenv_are_a_part_of_the_configuration() -> None:
    with create("VECENV", SeededCartPole, vecenv_config=SERIAL) as envs:
        assert envs.vector_env.worker_pids == ()


@pytest.mark.parametrize("name", ["autoreset_mode", "copy", "no_such_option"])
def test_wrong_option_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name), create("VECENV", SeededCartPole, vecenv_config={name: True}):
        pass


def test_env_of_several_agents_is_refused() -> None:
    with pytest.raises(ConfigError, match="'agents': 2"), create("VECENV", TwoAgents, vecenv_config=SERIAL):
        pass


def test_exception_of_an_env_is_raised() -> None:
    with create("VECENV", Failing, vecenv_config=SERIAL) as envs:
        envs.reset()
        with pytest.raises(ZeroDivisionError, match="a step failed"):
            envs.step(np.zeros(3, np.int64))


@pytest.mark.extended
def test_trained_weights_equal_ray_vec_env_also_after_the_death_of_a_worker(tmp_path: Path) -> None:
    """In a process of its own, since rl_games changes global generators and the threads of torch."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = run_python("-m", "tests.integrations.rl_games_program", cwd=tmp_path, env=environ, timeout=600)
    assert done.returncode == 0, done.stderr
    weights = json.loads(done.stdout.splitlines()[-1])
    assert len(weights) == 3 and len(set(weights)) == 1
